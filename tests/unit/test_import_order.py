"""The rooms of the package import from the rooms above them, never from below."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "gnnstore"

_ROOT = {"_version", "available", "errors", "units", "progress"}
_STORE = {*_ROOT, "_core", "formats"}
_SAMPLING = {*_STORE, "store"}
_PLANNING = {*_SAMPLING, "sampling"}
_IO = {*_PLANNING, "planning"}
_LOADERS = {*_IO, "io"}
_TESTING = {*_LOADERS, "loaders", "converters"}

# Room -> the rooms of ours that it may import. Data flows in this order:
# converters -> formats -> store -> sampling -> planning -> io -> loaders -> the user.
ALLOWED: dict[str, set[str]] = {
    "_version": set(),
    "available": set(),
    "errors": set(),
    "units": {"errors"},
    "progress": {"errors"},
    "_core": set(),
    "formats": {*_ROOT, "_core"},
    "store": _STORE,
    "converters": {*_STORE, "store"},
    "sampling": _SAMPLING,
    "planning": _PLANNING,
    "io": _IO,
    "loaders": _LOADERS,
    "testing": _TESTING,
    "tools": {*_TESTING, "testing", ""},  # "": `import gnnstore`, the public API
}

# Rooms that work without torch: converting and checking a store must not cost its import.
TORCH_FREE = ("available", "errors", "units", "progress", "_core", "formats", "converters")

MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE) != Path("__init__.py")
)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_names(path: Path, nodes: list[ast.stmt] | None = None) -> set[str]:
    """Return every module that a file imports, `from a import b` giving "a.b"."""
    package = ("gnnstore", *path.relative_to(PACKAGE).parts[:-1])
    tree = ast.parse(path.read_text(), str(path))
    found: set[str] = set()
    for node in ast.walk(tree) if nodes is None else nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def imported_rooms(path: Path) -> set[str]:
    """Return the rooms that a file imports from; "" for the package itself."""
    rooms = set()
    for name in imported_names(path):
        first, _, rest = name.partition(".")
        room = rest.split(".")[0]
        if first == "gnnstore":
            rooms.add(room if room in ALLOWED else "")
    return rooms


def test_every_room_has_a_rule() -> None:
    assert {room_of(path) for path in MODULES} <= ALLOWED.keys()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_from_above(path: Path) -> None:
    room = room_of(path)
    below = imported_rooms(path) - {room} - ALLOWED[room]
    assert not below, f"{path} imports from {sorted(below)}; {room} may not"


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if room_of(path) in TORCH_FREE],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_torch_is_imported_on_demand_only(path: Path) -> None:
    top_level = ast.parse(path.read_text()).body
    names = {name.split(".")[0] for name in imported_names(path, top_level)}
    assert not names & {"torch", "torch_geometric"}


# Who opens a path that others name goes through `formats.regular_files`. These read what the kernel
# shows, or what they have just written themselves; and so do the tools.
OPENERS = {
    *("regular_files", "available", "filesystems", "engines", "run_directory"),
    *("inference", "finished_edges", "scattered_rows", "inputs"),
}
RAW_CALLS = re.compile(
    r"(?<![\w.])os\.open\((?!.*O_(EXCL|TMPFILE|DIRECTORY))|os\.truncate|\.read_(text|bytes)\(\)"
    r"|\.open\((\w+=)?\"[rwa]|\.write_(text|bytes)\(|fromfile\(|np\.(load|memmap)\(|zipfile\.ZipFile\("
)


def test_files_are_opened_in_one_place() -> None:
    found = [
        f"{path}: {line.strip()}"
        for path in MODULES
        if room_of(path) not in ("testing", "tools") and path.stem not in OPENERS
        for line in path.read_text().splitlines()
        if RAW_CALLS.search(line)
    ]
    assert not found


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, gnnstore; "
        "heavy = {'torch', 'torch_geometric', 'zarr', 'numpy', 'pyarrow', 'click', 'rich'}; "
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    import gnnstore  # noqa: PLC0415

    for name in gnnstore.__all__:
        assert getattr(gnnstore, name) is not None
    assert set(gnnstore.__all__) <= set(dir(gnnstore))


def test_an_unknown_name_is_an_attribute_error() -> None:
    import gnnstore  # noqa: PLC0415

    with pytest.raises(AttributeError, match="module 'gnnstore' has no attribute 'nothing'"):
        gnnstore.nothing  # noqa: B018
