"""MAG240M as it is published: its papers and citations, or papers, authors and institutions.

The directory `mag240m_kddcup2021` holds `processed/paper/node_feat.npy` (float16 [N, 768]),
`node_label.npy` (float32 [N], NaN where a paper has no label), `node_year.npy`, one
`edge_index.npy` per relation, and the pickles `meta.pt` and `split_dict.pt`. Authors and
institutions have no features; how many there are is in `meta.pt`, a dict of numbers.
"""

from __future__ import annotations

from pathlib import Path

from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.datasets.ogb.splits import open_splits, split_file, warn_of_missing
from gnnstore.converters.inputs.files import open_npy
from gnnstore.converters.inputs.opening import PathLike, describe_files, existing_directory
from gnnstore.converters.inputs.pickled import open_counts
from gnnstore.converters.inputs.source import ArraySource, FloatLabels
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, write_graph, write_one_type
from gnnstore.converters.writer.options import ConvertOptions, converter
from gnnstore.errors import InputError, NotFoundError
from gnnstore.formats.store.schema import EdgeType
from gnnstore.progress import Progress

_ROOT = "mag240m_kddcup2021"
_NODES = ("paper", "author", "institution")
_EDGES: tuple[EdgeType, ...] = (
    ("paper", "cites", "paper"),
    ("author", "writes", "paper"),
    ("author", "affiliated_with", "institution"),
)
# Files of nodes -> the attributes they become, and the axes they have.
_ATTRIBUTES = {
    "node_feat.npy": ("x", 2),
    "node_label.npy": ("y", 1),
    "node_year.npy": ("node_year", 1),
}


def find_mag240m(directory: Path) -> Path | None:
    """Return the data set's directory, given that or its parent; None if it is neither."""
    for root in (directory, directory / _ROOT):
        features = root / "processed" / "paper" / "node_feat.npy"
        if _edge_file(root, _EDGES[0]).exists() or features.exists():
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


def convert_papers(
    root: Path, output: PathLike, options: ConvertOptions, progress: Progress | None
) -> Path:
    """Convert the papers and their citations."""
    citations, directory = _edge_file(root, _EDGES[0]), root / "processed" / "paper"
    if not citations.exists():
        raise NotFoundError(f"{root}: {citations.relative_to(root)} is not there", path=citations)
    edges, arrays = EdgeInput.of_array(open_npy(citations)), _open_attributes(directory)
    if not arrays:
        raise NotFoundError(
            f"{directory}: none of {', '.join(_ATTRIBUTES)} is there, so that nothing says "
            "how many papers there are",
            path=directory,
        )
    papers = NodeInput(next(iter(arrays.values())).shape[0], arrays)
    splits = split_file(root)
    if splits is not None:
        memory = memory_ledger("reading the splits", options.memory_bytes)
        papers.splits.update(open_splits(splits, memory))
    warn_of_missing(root, papers, progress)
    files = (citations, *(directory / file for file in _ATTRIBUTES), splits)
    return write_one_type(
        output,
        papers,
        edges,
        kind="ogb",
        source={"inputs": describe_files(file for file in files if file and file.exists())},
        options=options,
        progress=progress,
    )


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
    root = find_mag240m(directory)
    if root is None:
        raise NotFoundError(
            f"{directory}: processed/paper/node_feat.npy is not there; give the directory "
            "mag240m_kddcup2021",
            path=directory,
        )
    memory = memory_ledger("reading meta.pt and the splits", options.memory_bytes)
    meta = root / "meta.pt"
    counts = open_counts(meta, "the numbers of nodes", memory)
    nodes = {}
    for name in _NODES:
        if name not in counts:
            raise InputError(
                f"{meta}: has no number of {name}s, only {', '.join(counts) or 'nothing'}",
                path=meta,
            )
        nodes[name] = NodeInput(counts[name], _open_attributes(root / "processed" / name))
    files = [meta, *(_edge_file(root, edge_type) for edge_type in _EDGES)]
    splits = split_file(root)
    if splits is not None:
        files.append(splits)
        nodes["paper"].splits.update(open_splits(splits, memory))
    for name in _NODES:
        files += sorted((root / "processed" / name).glob("node_*.npy"))
    return write_graph(
        output,
        nodes,
        {own: EdgeInput.of_array(open_npy(_edge_file(root, own))) for own in _EDGES},
        kind="mag240m",
        source={"inputs": describe_files(files)},
        options=options,
        progress=progress,
    )
