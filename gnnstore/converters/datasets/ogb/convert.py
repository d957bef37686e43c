"""Node- and link-property data sets of the Open Graph Benchmark, as they lie on disk.

OGB's own package unpickles files, prompts, and builds the whole graph in memory, so its
layouts are read here directly: gzipped CSV files (most sets), `.npz` archives
(ogbn-papers100M), and `.npy` files (MAG240M). None needs the `ogb` package.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from gnnstore.converters.converter import converter
from gnnstore.converters.datasets.ogb.binary import open_binary
from gnnstore.converters.datasets.ogb.csv import open_text, part_file, read_ids
from gnnstore.converters.datasets.ogb.links import (
    bytes_in_memory,
    open_link_splits,
    set_link_splits,
)
from gnnstore.converters.datasets.ogb.mag240m import convert_mag240m, find_mag240m
from gnnstore.converters.datasets.ogb.splits import SPLITS, open_splits, split_file, warn_of_splits
from gnnstore.converters.datasets.typed.ogb import from_ogb_types, is_heterogeneous
from gnnstore.converters.inputs.opening import (
    PathLike,
    choose_name,
    describe_files,
    existing_directory,
)
from gnnstore.converters.inputs.source import ArraySource, MemoryArray
from gnnstore.converters.memory import memory_ledger
from gnnstore.converters.typed.inputs import write_one_type
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import InputError, NotFoundError, UsageError
from gnnstore.progress import Progress


@dataclass(frozen=True)
class OgbFiles:
    """The paths of a data set's parts."""

    raw: Path
    binary: bool
    split: Path | None


@converter
def from_ogb(
    input: PathLike,  # noqa: A002 - the word the command line uses
    output: PathLike,
    *,
    add_inverse_edge: bool = False,
    split: str | None = None,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert an OGB node- or link-property data set.

    `node-feat` (`node_feat`) becomes `x`, `node-label` becomes `y`, `edge-feat` (`edge_feat`)
    becomes `edge_attr`; other `node_NAME` and `edge_NAME` files (members) keep
    their names. Labels are int64 with OGB's shape [N, columns]; float32, if some are
    fractions, or, in the binary layouts, NaN. Features in CSV become float32. Of MAG240M the
    papers and their citations are taken; its directory, or the one above, is told by its files.
    (`from_mag240m` takes all of it.) Data sets of several types, as ogbn-mag, are told by theirs;
    node types and edge types are in the order of their names.

    Splits of edges (`train.pt`, `valid.pt` and `test.pt`) become edge splits with their fixed
    negatives and with the attributes `edge_weight`, `edge_year` and `edge_reltype`, as the edges of
    the graph have them. Where the edges to train on are those of the graph, and no reverse ones are
    added, they are not stored twice. What `torch.save` wrote is unpickled with a list of allowed
    names, and read whole: four times the file counts in `options.memory_bytes`.

    Parameters
    ----------
    input : path-like
        The data set's directory, which has `raw/` in it, and `split/`.
    add_inverse_edge : bool
        Follow every edge by its reverse, as OGB's loader does for data sets that say so:
        edge e of the input becomes edges 2e and 2e + 1, both with e's attributes.
        Duplicates stay.
    split : str, optional
        Which directory of `split/` to take; may be left out where there is only one.
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    NotFoundError
        If the directory or a file that must be there is not.
    InputError
        If the data are damaged, disagree, or have several graphs; the message
        names the file and, in text, the line.
    """
    options = options or ConvertOptions()
    if add_inverse_edge and options.undirected:
        raise UsageError(
            "add_inverse_edge and undirected both add reverse edges: choose add_inverse_edge "
            "for OGB's numbering, or undirected to remove duplicates as well"
        )
    directory = existing_directory(input, "the OGB data set")
    papers = find_mag240m(directory)
    if papers is not None:
        if add_inverse_edge or split is not None:
            raise UsageError(
                f"{papers} is MAG240M, which has one split and no inverse edges of its own; leave "
                "out add_inverse_edge and split, and use undirected for reverse edges"
            )
        return convert_mag240m(papers, output, options, progress)
    raw = directory / "raw" if (directory / "raw").is_dir() else directory
    if is_heterogeneous(raw):
        if add_inverse_edge:
            raise UsageError(
                f"{raw}: add_inverse_edge is for data sets of one type; use reverse= (--reverse "
                "all), which makes the reverse edges types of their own"
            )
        place = _find_split(raw.absolute().parent / "split", split)
        return from_ogb_types(raw, place, output, options, progress)
    files = _find(directory, split)
    links = None if files.split is None else open_link_splits(files.split, options.memory_bytes)
    split_files = [] if files.split is None else files.split.iterdir()
    source = {
        "inputs": describe_files(
            sorted(path for path in (*files.raw.iterdir(), *split_files) if path.is_file())
        ),
        "add_inverse_edge": add_inverse_edge,
        "split": None if files.split is None else files.split.name,
    }
    node, edge = open_binary(files.raw) if files.binary else open_text(files.raw, options)
    wanted = {"x": "node-feat.csv.gz", "y": "node-label.csv.gz"}
    if files.binary:
        wanted = {"x": "node_feat in data.npz", "y": "node-label.npz"}
    for name, file in wanted.items():
        if name not in node.attributes and progress is not None:
            progress.note(f"{files.raw}: there is no {file}: the store has no {name}")
    if links is not None:
        node.memory_bytes = bytes_in_memory(links)
    elif files.split is not None:
        node.splits.update(_open_splits(files.split, options))

    if links is None:
        warn_of_splits(directory, node)
    as_given = options.self_loops == "keep" and not (options.undirected or add_inverse_edge)
    write_links = partial(
        set_link_splits, splits=links or {}, edges=edge, edges_are_as_given=as_given
    )
    return write_one_type(
        output,
        node,
        edge,
        kind="ogb",
        source=source,
        options=options,
        progress=progress,
        add_inverse_edge=add_inverse_edge,
        finish=write_links,
    )


def _find(directory: Path, split: str | None) -> OgbFiles:
    """Return the parts of a data set, given its directory or its `raw/`."""
    raw = directory / "raw"
    if not raw.is_dir():
        raw = directory
    root = raw.absolute().parent
    binary = (raw / "data.npz").exists()
    if binary and part_file(raw, "edge") is not None:
        raise InputError(
            f"{raw}: both data.npz and {part_file(raw, 'edge')} have the edges; remove one",
            path=raw,
        )
    if not binary and part_file(raw, "edge") is None:
        raise NotFoundError(
            f"{directory}: neither raw/edge.csv.gz nor raw/data.npz is there; give the directory "
            "of a downloaded OGB node- or link-property data set, or of MAG240M",
            path=directory,
        )
    return OgbFiles(raw, binary, _find_split(root / "split", split))


def _find_split(directory: Path, split: str | None) -> Path | None:
    found = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    found = [name for name in found if (directory / name).is_dir()]
    chosen = choose_name(found, split, "split", directory)
    return None if chosen is None else directory / chosen


def _open_splits(
    directory: Path, options: ConvertOptions
) -> dict[str, ArraySource | npt.NDArray[Any]]:
    files = {name: part_file(directory, name) for name in SPLITS}
    if any(files.values()):
        return {
            name: MemoryArray(str(file), read_ids(file))
            for name, file in files.items()
            if file is not None
        }
    path = split_file(directory)
    if path is None:
        raise NotFoundError(
            f"{directory}: none of {', '.join(f'{name}.csv.gz' for name in files)} is there",
            path=directory,
        )
    memory = memory_ledger("reading the splits", options.memory_bytes)
    return {**open_splits(path, memory)}
