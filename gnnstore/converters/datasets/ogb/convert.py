"""Node- and link-property data sets of the Open Graph Benchmark, as they lie on disk.

OGB's own package unpickles files, prompts, and builds the whole graph in memory, so its
layouts are read here directly: gzipped CSV files (most sets), `.npz` archives
(ogbn-papers100M), and `.npy` files (MAG240M). None needs the `ogb` package.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from gnnstore.converters.datasets.ogb import binary, text
from gnnstore.converters.datasets.ogb.links import (
    bytes_in_memory,
    open_link_splits,
    set_link_splits,
)
from gnnstore.converters.datasets.ogb.mag240m import convert_papers, find_mag240m
from gnnstore.converters.datasets.ogb.splits import add_splits, warn_of_missing
from gnnstore.converters.datasets.ogb.text import part_file
from gnnstore.converters.inputs.opening import (
    PathLike,
    choose_name,
    describe_files,
    existing_directory,
)
from gnnstore.converters.typed.inputs import write_graph
from gnnstore.converters.writer.options import ConvertOptions, converter
from gnnstore.errors import InputError, NotFoundError, UsageError
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE
from gnnstore.progress import Progress


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
        return convert_papers(papers, output, options, progress)
    raw = directory / "raw" if (directory / "raw").is_dir() else directory
    is_binary = _is_binary(raw, directory)
    place = _find_split(raw.absolute().parent / "split", split)
    nodes, edges = binary.open_binary(raw) if is_binary else text.open_text(raw, options)
    source: dict[str, Any] = {"split": None if place is None else place.name}
    more: dict[str, Any] = {}
    if list(nodes) == [NODE_TYPE]:
        source = {"add_inverse_edge": add_inverse_edge, **source}
        node, edge = nodes[NODE_TYPE], edges[EDGE_TYPE]
        links = None if place is None else open_link_splits(place, options.memory_bytes)
        if links is not None:
            node.memory_bytes = bytes_in_memory(links)
            as_given = options.self_loops == "keep" and not (options.undirected or add_inverse_edge)
            more["finish"] = partial(
                set_link_splits, splits=links, edges=edge, edges_are_as_given=as_given
            )
        elif place is not None:
            add_splits(nodes, place, options)
        if links is None:
            warn_of_missing(directory, node, progress)
    elif add_inverse_edge:
        raise UsageError(
            f"{raw}: add_inverse_edge is for data sets of one type; use reverse= (--reverse all), "
            "which makes the reverse edges types of their own"
        )
    elif place is not None:
        add_splits(nodes, place, options)
    places = [raw] if place is None else [raw, place]
    files = (path for where in places for path in sorted(where.rglob("*")) if path.is_file())
    return write_graph(
        output,
        nodes,
        edges,
        kind="ogb",
        source={"inputs": describe_files(files), **source},
        options=options,
        progress=progress,
        add_inverse_edge=add_inverse_edge,
        **more,
    )


def _is_binary(raw: Path, directory: Path) -> bool:
    """Whether the graph lies in `.npz` files; refuse a directory that has none, or both."""
    names = (binary.ONE_TYPE, binary.COUNTS, binary.EDGES)
    archives = [raw / name for name in names if (raw / name).exists()]
    tables = [
        path for name in ("edge", text.COUNTS, text.TRIPLETS) if (path := part_file(raw, name))
    ]
    if archives and tables:
        raise InputError(
            f"{raw}: both {archives[0].name} and {tables[0]} have the edges; remove one", path=raw
        )
    if not archives and not tables:
        raise NotFoundError(
            f"{directory}: neither raw/edge.csv.gz nor raw/data.npz is there; give the directory "
            "of a downloaded OGB node- or link-property data set, or of MAG240M",
            path=directory,
        )
    return bool(archives)


def _find_split(directory: Path, split: str | None) -> Path | None:
    found = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    found = [name for name in found if (directory / name).is_dir()]
    chosen = choose_name(found, split, "split", directory)
    return None if chosen is None else directory / chosen
