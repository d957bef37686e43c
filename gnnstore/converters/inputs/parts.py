"""The files of which a table or an array consists, in the order of their numbers.

Writers of data frames leave a directory of parts, whose numbers need not have leading zeros, next
to marks of their own: `_SUCCESS`, `_temporary/`, checksums as `.part-0.crc`. Columns may be in the
names of directories, as in `year=2019/part-0.parquet`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from gnnstore.errors import InputError, NotFoundError, storage_errors

_LOG = logging.getLogger(__name__)

_HIDDEN = ("_", ".")
_MISSING = "__HIVE_DEFAULT_PARTITION__"
_MOST_NAMED = 5
_FORMS = {"_delta_log": "Delta Lake", ".hoodie": "Hudi", "metadata": "Iceberg"}
_ICEBERG = (".json", ".avro", "version-hint.text")  # endings of names in its metadata/


def natural_order(name: str) -> tuple[list[str | int], str]:
    """Return a key that orders part-2 before part-10: every second piece of a name is a number."""
    pieces = re.split(r"([0-9]+)", name)
    return [int(piece) if i % 2 else piece for i, piece in enumerate(pieces)], name


def is_hidden(path: Path) -> bool:
    """Whether a name is one that readers of directories pass over."""
    return path.name.startswith(_HIDDEN)


class Skipped:
    """Collects what is left out of a directory, and names it once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.paths: list[Path] = []

    def __str__(self) -> str:
        names = [str(path.relative_to(self.directory)) for path in self.paths[:_MOST_NAMED]]
        more = len(self.paths) - len(names)
        return ", ".join(names) + (f" and {more} more" if more else "")

    def warn(self) -> None:
        """Name what was left out, if something was."""
        if self.paths:
            _LOG.warning(
                "%s: left out are names that begin with _ or ., and files of other kinds: %s",
                self.directory,
                self,
            )


def entries(directory: Path, skipped: Skipped) -> list[Path]:
    """Return what is in a directory, in natural order, without hidden names.

    A table whose log decides which of its files count is refused.
    """
    with storage_errors("list the directory", directory):
        found = sorted(directory.iterdir(), key=lambda path: natural_order(path.name))
    for path in found:
        form = _FORMS.get(path.name)
        if form is None or not path.is_dir() or (form == "Iceberg" and not _is_iceberg(path)):
            continue
        raise InputError(
            f"{directory}: is a table of {form}, whose log in {path.name}/ decides which files "
            "count; read it with a library for such tables, and write it as Parquet",
            path=directory,
        )
    skipped.paths += filter(is_hidden, found)
    return [path for path in found if not is_hidden(path)]


def _is_iceberg(metadata: Path) -> bool:
    return any(path.name.endswith(_ICEBERG) for path in metadata.iterdir())


def parts_of(
    directory: Path,
    is_part: Callable[[Path], bool],
    wanted: str,
    *,
    is_deep: bool = True,
    skipped: Skipped | None = None,
) -> list[Path]:
    """Return the files below a directory that are parts, in natural order.

    Names that begin with `_` or `.`, and all other files, are left out, and named once: by the
    caller if it gives `skipped`. A directory without parts is refused; `wanted` are their names.
    """
    left = skipped or Skipped(directory)
    before = len(left.paths)

    def walk(place: Path, above: Sequence[str]) -> Iterator[Path]:
        for path in entries(place, left):
            if is_deep and path.is_dir():
                own = os.path.realpath(path)
                if own not in above:  # a link to a directory that it is in
                    yield from walk(path, (*above, own))
            elif is_part(path):
                yield path
            else:
                left.paths.append(path)

    found = list(walk(directory, (os.path.realpath(directory),)))
    if not found:
        own = left.paths[before:]
        names = ", ".join(path.name for path in own[:_MOST_NAMED])
        raise NotFoundError(
            f"{directory} has no file {wanted}" + (f", only {names}" if own else ""),
            path=directory,
        )
    if skipped is None:
        left.warn()
    return found


def refuse_two_formats(paths: Sequence[Path], endings: Sequence[str]) -> None:
    """Refuse files that differ in their endings alone: they are one table, which would be twice."""
    seen: dict[str, Path] = {}
    for path in paths:
        ending = max((own for own in endings if path.name.endswith(own)), key=len, default="")
        first = seen.setdefault(str(path).removesuffix(ending), path)
        if first != path:
            raise InputError(
                f"{path.parent}: {first.name} and {path.name} are one table in two formats, and "
                "its rows would be there twice; remove one, or name the files",
                path=path.parent,
            )


def directory_columns(path: Path) -> dict[str, str | None]:
    """Return the columns in the names of the directories right above a file, as `year=2019/`.

    A missing value is None.
    """
    found: dict[str, str | None] = {}
    for place in path.parents:
        text, mark, value = place.name.partition("=")
        if not mark or not text:
            break
        try:
            name, value = (unquote(part, errors="strict") for part in (text, value))
        except UnicodeDecodeError:
            raise InputError(
                f"{place}: the percent codes are not UTF-8; rename the directory", path=place
            ) from None
        if name in found:
            raise InputError(
                f"{path}: the column {name!r} is in the names of two directories; rename one",
                path=path,
            )
        found[name] = None if value == _MISSING else value
    return dict(reversed(found.items()))
