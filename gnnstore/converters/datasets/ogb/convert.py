"""Node- and link-property data sets of the Open Graph Benchmark, as they lie on disk.

OGB's own package unpickles files, prompts, and builds the whole graph in memory, so its
layouts are read here directly: gzipped CSV files (most sets), `.npz` archives
(ogbn-papers100M), and `.npy` files (MAG240M). None needs the `ogb` package.

MAG240M's directory `mag240m_kddcup2021` holds `processed/paper/node_feat.npy` (float16 [N, 768]),
`node_label.npy` (float32 [N], NaN where a paper has no label), `node_year.npy`, one
`edge_index.npy` per relation, and the pickles `meta.pt` and `split_dict.pt`. Authors and
institutions have no features; how many there are is in `meta.pt`, a dict of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.datasets.ogb.layouts import open_graph
from gnnstore.converters.datasets.ogb.splits import (
    LinkSplit,
    add_split_file,
    add_splits,
    open_link_splits,
    set_link_splits,
    split_file,
    warn_of_missing,
)
from gnnstore.converters.inputs.files import open_npy
from gnnstore.converters.inputs.opening import (
    PathLike,
    choose_name,
    describe_files,
    existing_directory,
)
from gnnstore.converters.inputs.pickled import open_counts
from gnnstore.converters.inputs.source import ArraySource, FloatLabels
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, write_graph
from gnnstore.converters.writer.options import ConvertOptions, converter
from gnnstore.errors import InputError, NotFoundError, UsageError
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE, EdgeType
from gnnstore.progress import Progress

_ROOT = "mag240m_kddcup2021"
_NODES = ("paper", "author", "institution")
_CITES: EdgeType = ("paper", "cites", "paper")
_EDGES: tuple[EdgeType, ...] = (
    _CITES,
    ("author", "writes", "paper"),
    ("author", "affiliated_with", "institution"),
)
# MAG240M's files of nodes -> the attributes they become, and the axes they have.
_ATTRIBUTES = {
    "node_feat.npy": ("x", 2),
    "node_label.npy": ("y", 1),
    "node_year.npy": ("node_year", 1),
}


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
    fractions, or, in the binary layouts, NaN. Features in CSV become float32. From MAG240M the
    papers and their citations are taken; its directory, or the one above, is found by its files.
    (`from_mag240m` takes all its data.) Data sets of several types, as ogbn-mag, by theirs;
    node types and edge types are in the order of their names.

    Splits of edges (`train.pt`, `valid.pt` and `test.pt`) become edge splits with their fixed
    negatives and with the attributes `edge_weight`, `edge_year` and `edge_reltype`, as the edges of
    the graph have them. Where the edges to train on are the graph's, and no reverse ones are
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
    options = replace(options, add_inverse_edge=add_inverse_edge or options.add_inverse_edge)
    add_inverse_edge = options.add_inverse_edge
    directory = existing_directory(input, "the OGB data set")
    papers = _find_mag240m(directory)
    if papers is not None:
        if split is not None:
            raise UsageError(f"{papers} is MAG240M, which has one split; leave out split")
        return _convert_papers(papers, output, options, progress)
    raw = directory / "raw" if (directory / "raw").is_dir() else directory
    place = _find_split(raw.absolute().parent / "split", split)
    nodes, edges = open_graph(raw, options)
    is_typed = list(nodes) != [NODE_TYPE]
    if is_typed and add_inverse_edge:
        raise UsageError(
            f"{raw}: add_inverse_edge= is for data sets of one type; use reverse=all, which makes "
            "the reverse edges types of their own"
        )
    links: dict[str, LinkSplit] = {}
    if place is not None and not is_typed:
        links, nodes[NODE_TYPE].memory_bytes = open_link_splits(place, options.memory_bytes)
    if place is not None and not links:
        add_splits(nodes, place, options.memory_bytes)
    write_splits = None
    if links:
        is_as_given = options.self_loops == "keep" and not (options.undirected or add_inverse_edge)
        write_splits = partial(
            set_link_splits, splits=links, edges=edges[EDGE_TYPE], is_as_given=is_as_given
        )
    elif not (is_typed or options.split_fractions):
        warn_of_missing(directory, nodes[NODE_TYPE], progress)
    places = [raw] if place is None else [raw, place]
    files = (path for where in places for path in sorted(where.rglob("*")) if path.is_file())
    return write_graph(
        output,
        nodes,
        edges,
        kind="ogb",
        source={
            "inputs": describe_files(files),
            "split": None if place is None else place.name,
        },
        options=options,
        progress=progress,
        write_splits=write_splits,
    )


def _find_split(directory: Path, split: str | None) -> Path | None:
    found = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    found = [name for name in found if (directory / name).is_dir()]
    chosen = choose_name(found, split, "split", directory)
    return None if chosen is None else directory / chosen


# ---- MAG240M


def _find_mag240m(directory: Path) -> Path | None:
    """Return the data set's directory, given that or its parent; None if it is neither."""
    for root in (directory, directory / _ROOT):
        features = root / "processed" / "paper" / "node_feat.npy"
        if _edge_file(root, _CITES).exists() or features.exists():
            return root
    return None


def _edge_file(root: Path, edge_type: EdgeType) -> Path:
    return root / "processed" / "___".join(edge_type) / "edge_index.npy"


def _open_attributes(directory: Path) -> dict[str, ArraySource]:
    """Open the attributes of a node type that are there."""
    found: dict[str, ArraySource] = {}
    for file, (name, num_axes) in _ATTRIBUTES.items():
        path = directory / file
        if path.exists():
            array = open_npy(path)
            if len(array.shape) != num_axes:
                expected = "[N, F]" if num_axes == 2 else "[N]"
                raise InputError(
                    f"{path}: has shape {list(array.shape)}, expected {expected}", path=path
                )
            found[name] = FloatLabels(array) if name == "y" else array
    return found


def _convert_papers(
    root: Path, output: PathLike, options: ConvertOptions, progress: Progress | None
) -> Path:
    """Convert the papers and their citations."""
    citations, directory = _edge_file(root, _CITES), root / "processed" / "paper"
    if not citations.exists():
        raise NotFoundError(f"{root}: {citations.relative_to(root)} is not there", path=citations)
    arrays = _open_attributes(directory)
    if not arrays:
        raise NotFoundError(
            f"{directory}: none of {', '.join(_ATTRIBUTES)} is there, so that the "
            "number of papers is unknown",
            path=directory,
        )
    papers = NodeInput(next(iter(arrays.values())).shape[0], arrays)
    how = _open_parts(root, {NODE_TYPE: papers}, {EDGE_TYPE: _CITES}, options)
    if not options.split_fractions:
        warn_of_missing(root, papers, progress)
    return write_graph(output, kind="ogb", options=options, progress=progress, **how)


@converter
def from_mag240m(
    input: PathLike,  # noqa: A002 - the word the command line uses
    output: PathLike,
    *,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert MAG240M whole: papers, authors, institutions, and three types of edges.

    Papers have `x`, `y` (float32, NaN without a label; int64 where all have one), `node_year` and
    the splits; other types only what is there, which is nothing in the published data.
    `reverse=("all",)` adds the reverse types that baselines use, `reverse=("writes",
    "affiliated_with")` those without citations.

    Parameters
    ----------
    input : path-like
        The directory `mag240m_kddcup2021`, or the one above.
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    NotFoundError
        If a file that must be there is not.
    InputError
        If an array is damaged or disagrees with another, or meta.pt has something else than counts.
    """
    options = options or ConvertOptions()
    directory = existing_directory(input, "MAG240M")
    root = _find_mag240m(directory)
    if root is None:
        raise NotFoundError(
            f"{directory}: processed/paper/node_feat.npy is not there; give the directory "
            "mag240m_kddcup2021",
            path=directory,
        )
    meta = root / "meta.pt"
    memory = memory_ledger("reading meta.pt", options.memory_bytes)
    counts = open_counts(meta, "the numbers of nodes", memory)
    nodes = {}
    for name in _NODES:
        if name not in counts:
            raise InputError(
                f"{meta}: has no number of {name}s, only {', '.join(counts) or 'nothing'}",
                path=meta,
            )
        nodes[name] = NodeInput(counts[name], _open_attributes(root / "processed" / name))
    how = _open_parts(root, nodes, {own: own for own in _EDGES}, options)
    return write_graph(output, kind="mag240m", options=options, progress=progress, **how)


def _open_parts(
    root: Path,
    nodes: dict[str, NodeInput],
    edges: Mapping[EdgeType, EdgeType],
    options: ConvertOptions,
) -> dict[str, Any]:
    """Open edges by their types in a store, and give papers, the first type, their splits."""
    splits, of_papers = split_file(root), next(iter(nodes))
    if splits is not None:
        memory = memory_ledger("reading the splits", options.memory_bytes)
        add_split_file(nodes, splits, memory, of_papers)
    files = [_edge_file(root, own) for own in edges.values()]
    labels = [source.label for node in nodes.values() for source in node.attributes.values()]
    more = [path for path in (root / "meta.pt", splits) if path is not None and path.exists()]
    return {
        "nodes": nodes,
        "edges": {
            own: EdgeInput.of_array(open_npy(file)) for own, file in zip(edges, files, strict=True)
        },
        "source": {"inputs": describe_files([*files, *labels, *more])},
    }
