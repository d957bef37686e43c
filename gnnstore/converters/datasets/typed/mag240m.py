"""MAG240M whole: papers, authors and institutions, as `ogb.lsc` leaves them on disk.

The counts of authors and institutions, which have no features, are in the pickle `meta.pt`, a dict
of numbers; nothing else in it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gnnstore.converters.converter import converter
from gnnstore.converters.datasets.ogb.mag240m import find_mag240m, open_attributes
from gnnstore.converters.datasets.ogb.splits import open_splits, split_file
from gnnstore.converters.inputs.npy import open_npy
from gnnstore.converters.inputs.opening import PathLike, describe_files, existing_directory
from gnnstore.converters.inputs.pickled import open_counts
from gnnstore.converters.memory import memory_ledger
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, write_typed
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import InputError, NotFoundError
from gnnstore.formats.store.schema import EdgeType
from gnnstore.progress import Progress

_NODES = ("paper", "author", "institution")
_EDGES: tuple[EdgeType, ...] = (
    ("paper", "cites", "paper"),
    ("author", "writes", "paper"),
    ("author", "affiliated_with", "institution"),
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
    nodes = {name: _nodes(root, name, counts, meta) for name in _NODES}
    edges = {}
    files = [meta]
    for edge_type in _EDGES:
        path = root / "processed" / "___".join(edge_type) / "edge_index.npy"
        edges[edge_type] = EdgeInput.of_array(open_npy(path))
        files.append(path)
    splits = split_file(root)
    if splits is not None:
        files.append(splits)
        nodes["paper"].splits.update(open_splits(splits, memory))
    for name in _NODES:
        files += sorted((root / "processed" / name).glob("node_*.npy"))
    return write_typed(
        output,
        nodes,
        edges,
        kind="mag240m",
        source={"inputs": describe_files(files)},
        options=options,
        progress=progress,
    )


def _nodes(root: Path, name: str, counts: Mapping[str, int], meta: Path) -> NodeInput:
    if name not in counts:
        raise InputError(
            f"{meta}: has no number of {name}s, only {', '.join(counts) or 'nothing'}", path=meta
        )
    return NodeInput(counts[name], open_attributes(root / "processed" / name))
