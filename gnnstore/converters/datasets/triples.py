"""Knowledge graphs as text: head, relation and tail in a line, in a file for each split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.datasets.external import recorded
from gnnstore.converters.datasets.text import HeaderSearch, number_ids, number_names
from gnnstore.converters.inputs.files import FileArray
from gnnstore.converters.inputs.name_blocks import NameBlock
from gnnstore.converters.inputs.opening import (
    PathLike,
    describe_files,
    existing_file,
    existing_path,
)
from gnnstore.converters.inputs.text_tables import (
    INTEGER,
    OddLine,
    TableFormat,
    TextColumn,
    TextTable,
)
from gnnstore.converters.spill_files import SpillDirectory
from gnnstore.converters.writer.estimates import Workload, text_workload
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions, check_features, converter
from gnnstore.errors import InputError, NotFoundError, UsageError
from gnnstore.progress import Progress
from gnnstore.units import format_count

EDGE_ATTRIBUTE = "edge_type"
_ENDINGS = (".txt", ".tsv", ".txt.gz", ".tsv.gz")
# Names of a split's file in a directory, and of OpenKE's.
_STEMS = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}
_OPENKE_STEMS = {"train": ("train2id",), "valid": ("valid2id",), "test": ("test2id",)}
_ENTRY_BYTES = 256  # bytes of a relation in a dictionary

Triples = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.int64]]


@converter
def from_triples(
    input: PathLike,  # noqa: A002 - the word the command line uses
    output: PathLike,
    *,
    valid: PathLike | None = None,
    test: PathLike | None = None,
    columns: str = "hrt",
    integer_ids: bool = False,
    skip_header: bool | None = None,
    quotes: Literal["keep", "strip"] | None = None,
    openke: bool = False,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert a knowledge graph: lines of head, relation and tail.

    The triples to train on become the edges, from head to tail, with the number of the relation
    as the edge attribute `edge_type` (int64); the others become the edge splits "valid" and
    "test" with the attribute of the same name. Fields are separated by a tab, by spaces or by a
    comma, as in the first line, and no line is a comment; or the file is N-Triples, whose names are
    the terms as they are written, without the stop behind them. Files may be gzipped.

    Entities and relations are numbered in order of appearance, in the training triples first, and
    the store keeps their names (`original_names`, `relation_names`). Names of entities that do
    not fit in half of the memory allowed are numbered on disk.

    Parameters
    ----------
    input : path-like
        The triples to train on; or a directory with `train`, and perhaps `valid` (or `val`) and
        `test`, ending in .txt or .tsv, plain or .gz.
    valid, test : path-like, optional
        The triples of the other splits.
    columns : str
        The order of head, relation and tail in a line, as letters: "hrt", "htr", ...
    integer_ids : bool
        Entities and relations are numbers already. Relations keep theirs; entities are numbered
        in ascending order, and the store keeps their ids (`original_ids`), unless these are
        0, ..., N - 1 already.
    skip_header : bool, optional
        Whether the first line of each file is skipped, since it names the columns, or is a triple.
        By default it is a triple, and a line of names that are in no other line is refused.
    quotes : "keep" or "strip", optional
        Whether quotation marks around names belong to the names. By default they are not, between
        commas; between tabs or blanks, if all names have them, and a mixture is refused.
    openke : bool
        The files are OpenKE's: `train2id.txt` and so on, whose first line is the number of triples,
        and the others head, tail and relation, as integers.
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    NotFoundError
        If an input is not there.
    InputError
        If a line is not a triple (the message has its number), the gzip stream is damaged, or a
        file has no triples.
    """
    if sorted(columns) != sorted("hrt"):
        raise UsageError(
            f"columns={columns!r} is not an order of head, relation and tail; write 'hrt', 'htr' "
            "..."
        )
    if openke and (skip_header is not None or columns not in ("hrt", "htr")):
        raise UsageError("openke=True decides on the lines; leave out columns= and skip_header=")
    if quotes is not None and (integer_ids or openke):
        raise UsageError("quotes= is about names; leave out integer_ids= and openke=, or quotes=")
    if openke:
        columns, integer_ids = "htr", True
    check_features(options, {})
    files = _find(input, valid, test, _OPENKE_STEMS if openke else _STEMS)
    source = {
        "inputs": describe_files(files.values()),
        "splits": list(files),
        "columns": columns,
        "integer_ids": integer_ids,
        **recorded(skip_header=skip_header, quotes=quotes, openke=openke),
    }
    table_format = TableFormat(
        "int64" if integer_ids else "text",
        num_columns=3,
        ends=(0, 1) if integer_ids else tuple(i for i in range(3) if columns[i] != "r"),
        label_column=None if integer_ids else columns.index("r"),
        delimiter=None,
        minimum=0,
        what="id" if integer_ids else "name",
        skip_header=bool(skip_header) or openke,
        quotes=quotes,
        advise=partial(_advise, openke=openke),
    )
    with GraphWriter(
        output,
        kind="triples",
        source=source,
        options=options,
        progress=progress,
        workload=_workload(files, table_format, columns),
    ) as writer:
        memory_bytes = writer.options.memory_bytes
        tables = {
            name: TextTable(path, table_format, memory_bytes=memory_bytes)
            for name, path in files.items()
        }
        writer.reserve_memory(max(table.memory_bytes for table in tables.values()))
        if integer_ids:
            triples, close = _number_ids(writer, tables, columns)
        else:
            is_open = (
                skip_header is None
            )  # whether only other lines show that the first is a triple
            triples, close = _number_names(writer, tables, columns, is_open=is_open)
        _write(writer, triples, tables, has_counts=openke)
        close()
        return writer.commit()


def _find(
    train: PathLike,
    valid: PathLike | None,
    test: PathLike | None,
    stems_of: Mapping[str, tuple[str, ...]],
) -> dict[str, Path]:
    """Return the file of each split, the training triples first."""
    found = existing_path(train, "the file of triples")
    given = {"train": train, "valid": valid, "test": test}
    if found.is_dir():
        if valid is not None or test is not None:
            raise UsageError(
                f"{found} is a directory, whose files are chosen by their names; to name the files "
                "of splits yourself (valid=, test=), give the file of the training triples, too"
            )
        for name, stems in stems_of.items():
            paths = [found / f"{stem}{ending}" for stem in stems for ending in _ENDINGS]
            given[name] = next(filter(Path.exists, paths), None)
        if given["train"] is None:
            wanted = ", ".join(stems_of["train"][0] + ending for ending in _ENDINGS)
            listed = ", ".join(sorted(path.name for path in found.iterdir())[:10]) or "nothing"
            raise NotFoundError(
                f"{found}: none of {wanted} is there; there is {listed}. Give the file of the "
                "training triples",
                path=found,
            )
    return {
        name: existing_file(path, f"the file of {name} triples")
        for name, path in given.items()
        if path is not None
    }


def _advise(line: OddLine, *, openke: bool) -> str:
    """Return the remedy for a line that is not a triple."""
    has_count = line.is_first and len(line.fields) == 1 and line.fields[0].isdigit()
    if has_count and not openke:
        return ". If files begin with the number of triples, as OpenKE's do, pass openke=True"
    if len(line.fields) != line.num_wanted:
        return (
            "; a line is head, relation and tail, separated by tabs or, if no name has one, by "
            "spaces"
        )
    if openke:
        return "; OpenKE's files have numbers alone: leave out openke=True"
    if line.is_first and any(map(INTEGER.fullmatch, line.next_fields)):
        return ". If the line names the columns, skip it with skip_header=True"
    return ". If entities and relations go by names, leave out integer_ids=True"


def _workload(files: Mapping[str, Path], form: TableFormat, columns: str) -> Workload:
    """Return the work of converting the files: lines of the first become edges."""
    form = replace(form, ends=(columns.index("h"), columns.index("t")))
    relation = TextColumn(columns.index("r"), "int64")
    return text_workload(list(files.values()), replace(form, columns=(relation,)))


def _read(
    writer: GraphWriter, tables: Mapping[str, TextTable], what: str
) -> Iterator[tuple[str, Any]]:
    """Yield the blocks of all files, each with the name of its split."""
    num_edges = 0
    for name, table in tables.items():
        block = None
        size = table.path.stat().st_size
        with writer.progress.phase(f"read {what} of {name}", size, "bytes") as phase:
            for block in table.blocks(phase):
                yield name, block
                num_edges += len(block) if name == "train" else 0
                writer.expect_edges(num_edges)
        if block is None:
            advice = "" if name == "train" else "; leave the file out"
            raise InputError(f"{table.path}: has no triples{advice}", path=table.path)


# Returns heads, tails and relations of the next rows; blocks come in order.
_Reader = Callable[[Any], Triples]


def _number_names(
    writer: GraphWriter, tables: Mapping[str, TextTable], columns: str, *, is_open: bool
) -> tuple[_Reader, Callable[[], None]]:
    """Assign numbers to names in a first pass; return what reads triples, and what ends it."""
    is_reversed = columns.index("t") < columns.index("h")
    relations: dict[bytes, int] = {}
    memory = memory_ledger("numbering the names of relations", writer.options.memory_bytes)

    def read() -> Iterator[NameBlock]:
        search = HeaderSearch()
        for table in tables.values() if is_open else ():
            with closing(table.blocks()) as blocks:
                search.add(table.path, next(blocks, None))
        for split, block in _read(writer, tables, "names"):
            search.see(tables[split].path, block)
            for name in _relations(block).names:
                relations.setdefault(name, len(relations))
            num_bytes = _ENTRY_BYTES * len(relations)
            names = Reservation(f"{len(relations)} names or more", num_bytes)
            memory.add(names).check(None, "check the order of head, relation and tail (columns=)")
            yield block
        if is_open:
            search.check()

    entities = number_names(writer, read)
    writer.set_value_names(EDGE_ATTRIBUTE, list(relations))

    def triples(block: NameBlock) -> Triples:
        heads, tails = entities.numbers(block).T[:: -1 if is_reversed else 1]
        own = _relations(block)
        numbers = np.array([relations[name] for name in own.names], np.int64)
        return heads, tails, numbers[own.codes[:, 0]]

    return triples, entities.close


def _relations(block: NameBlock) -> NameBlock:
    assert block.labels is not None  # noqa: S101 - the table has a label column
    return block.labels


def _number_ids(
    writer: GraphWriter, tables: Mapping[str, TextTable], columns: str
) -> tuple[_Reader, Callable[[], None]]:
    """Assign numbers to ids in a first pass; return what reads triples, and what ends it."""
    head, relation, tail = (columns.index(letter) for letter in "hrt")
    blocks = _read(writer, tables, "ids")
    ids = number_ids(writer, (block[:, [head, tail]].reshape(-1) for _, block in blocks))

    def triples(block: npt.NDArray[np.int64]) -> Triples:
        heads, tails = ids.to_nodes(block[:, [head, tail]]).T
        return heads, tails, block[:, relation]

    return triples, lambda: None


def _write(
    writer: GraphWriter,
    triples: _Reader,
    tables: Mapping[str, TextTable],
    *,
    has_counts: bool,
) -> None:
    """Write the edges and splits; splits wait in files until their lengths are known."""
    spilled = SpillDirectory(writer.spill_directory / "triples", "triples")
    counts = dict.fromkeys(tables, 0)
    for name, block in _read(writer, tables, "triples"):
        parts = triples(block)
        counts[name] += len(block)
        if name == "train":
            heads, tails, relations = parts
            where = str(tables[name].path)
            writer.add_edges(heads, tails, {EDGE_ATTRIBUTE: relations}, where=where)
            continue
        for part, values in zip("htr", parts, strict=True):
            spilled.append(f"{name}.{part}", values.astype(np.int64, copy=False))
    for name, count in counts.items():
        if has_counts and tables[name].header.strip() != b"%d" % count:
            raise InputError(
                f"{tables[name].path}: has {format_count(count, 'triple')}, but its first line is "
                f"{tables[name].header[:40].decode(errors='replace')!r}; copy it again",
                path=tables[name].path,
            )
        if name != "train":
            source, target, relation = (
                FileArray(spilled.path / f"{name}.{part}", (count,), np.dtype(np.int64))
                for part in "htr"
            )
            attributes = {EDGE_ATTRIBUTE: relation}
            where = str(tables[name].path)
            writer.set_edge_split(name, source, target, attributes=attributes, where=where)
    spilled.close()
