"""MAG240M as it is published: its papers and their citations.

The directory `mag240m_kddcup2021` holds `processed/paper/node_feat.npy` (float16 [N, 768]),
`node_label.npy` (float32 [N], NaN where a paper has no label), `node_year.npy`, one
`edge_index.npy` per relation, and the pickles `meta.pt` and `split_dict.pt`. Authors and
institutions, which have no features of their own, are left out.
"""

from __future__ import annotations

from pathlib import Path

from gnnstore.converters.datasets.ogb.splits import set_splits, split_file
from gnnstore.converters.edges.node_ids import check_edge_index, edge_pairs, some_targets
from gnnstore.converters.inputs.derived import FloatLabels
from gnnstore.converters.inputs.npy import open_npy
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.errors import InputError, NotFoundError

_ROOT = "mag240m_kddcup2021"
_CITATIONS = Path("processed", "paper___cites___paper", "edge_index.npy")
_PAPERS = Path("processed", "paper")
# Files of papers -> the node attributes they become; all but the features are one number each.
_ATTRIBUTES = {"node_feat.npy": "x", "node_label.npy": "y", "node_year.npy": "node_year"}


def find_mag240m(directory: Path) -> Path | None:
    """Return the data set's directory, given that or its parent; None if it is neither."""
    for root in (directory, directory / _ROOT):
        if (root / _CITATIONS).exists() or (root / _PAPERS / "node_feat.npy").exists():
            return root
    return None


def input_files(root: Path) -> list[Path]:
    """Return the files that are read."""
    files = [root / _CITATIONS, *(root / _PAPERS / name for name in _ATTRIBUTES)]
    splits = split_file(root)
    return [path for path in (*files, splits) if path is not None and path.exists()]


def convert_mag240m(writer: GraphWriter, root: Path) -> None:
    """Read the papers and their citations into a writer."""
    citations = root / _CITATIONS
    if not citations.exists():
        raise NotFoundError(f"{root}: {_CITATIONS} is not there", path=citations)
    edges = open_npy(citations)
    check_edge_index(edges)
    arrays = {
        name: open_npy(root / _PAPERS / file)
        for file, name in _ATTRIBUTES.items()
        if (root / _PAPERS / file).exists()
    }
    if not arrays:
        raise NotFoundError(
            f"{root / _PAPERS}: none of {', '.join(_ATTRIBUTES)} is there, so that nothing says "
            "how many papers there are",
            path=root / _PAPERS,
        )
    for file, name in _ATTRIBUTES.items():
        if name not in arrays:
            writer.progress.note(f"{root / _PAPERS / file} is not there: the store has no {name}")
    num_nodes = next(iter(arrays.values())).shape[0]
    writer.set_num_nodes(num_nodes)
    splits = split_file(root)
    if splits is not None:
        set_splits(writer, splits)
    for name, array in arrays.items():
        writer.set_node_attribute(name, _checked(name, array))
    writer.read_edges(
        edge_pairs(edges), edges.shape[1], where=edges.label, some_targets=some_targets(edges)
    )


def _checked(name: str, array: ArraySource) -> ArraySource:
    expected = 2 if name == "x" else 1
    if len(array.shape) != expected:
        raise InputError(
            f"{array.label}: has shape {list(array.shape)}, expected "
            f"{'[N, 768]' if name == 'x' else '[N]'}"
        )
    return FloatLabels(array) if name == "y" else array
