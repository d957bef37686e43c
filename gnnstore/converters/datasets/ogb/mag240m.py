"""MAG240M as it is published: its papers and their citations.

The directory `mag240m_kddcup2021` holds `processed/paper/node_feat.npy` (float16 [N, 768]),
`node_label.npy` (float32 [N], NaN where a paper has no label), `node_year.npy`, one
`edge_index.npy` per relation, and the pickles `meta.pt` and `split_dict.pt`. Authors and
institutions, which have no features of their own, are left out.
"""

from __future__ import annotations

from pathlib import Path

from gnnstore.converters.datasets.ogb.splits import open_splits, split_file, warn_of_splits
from gnnstore.converters.inputs.derived import FloatLabels
from gnnstore.converters.inputs.npy import open_npy
from gnnstore.converters.inputs.opening import PathLike, describe_files
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.memory import memory_ledger
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, write_one_type
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import InputError, NotFoundError
from gnnstore.progress import NullProgress, Progress

_ROOT = "mag240m_kddcup2021"
_CITATIONS = Path("processed", "paper___cites___paper", "edge_index.npy")
_PAPERS = Path("processed", "paper")
# Files of nodes -> the attributes they become, and the axes they have.
_ATTRIBUTES = {
    "node_feat.npy": ("x", 2),
    "node_label.npy": ("y", 1),
    "node_year.npy": ("node_year", 1),
}


def find_mag240m(directory: Path) -> Path | None:
    """Return the data set's directory, given that or its parent; None if it is neither."""
    for root in (directory, directory / _ROOT):
        if (root / _CITATIONS).exists() or (root / _PAPERS / "node_feat.npy").exists():
            return root
    return None


def open_attributes(directory: Path) -> dict[str, ArraySource]:
    """Open the attributes of a node type that are there."""
    found: dict[str, ArraySource] = {}
    for file, (name, num_axes) in _ATTRIBUTES.items():
        path = directory / file
        if path.exists():
            array = open_npy(path)
            if len(array.shape) != num_axes:
                raise InputError(
                    f"{path}: has shape {list(array.shape)}, expected "
                    f"{'[N, F]' if num_axes == 2 else '[N]'}",
                    path=path,
                )
            found[name] = FloatLabels(array) if name == "y" else array
    return found


def convert_mag240m(
    root: Path, output: PathLike, options: ConvertOptions, progress: Progress | None
) -> Path:
    """Convert the papers and their citations."""
    citations, directory = root / _CITATIONS, root / _PAPERS
    if not citations.exists():
        raise NotFoundError(f"{root}: {_CITATIONS} is not there", path=citations)
    edges, arrays = EdgeInput.of_array(open_npy(citations)), open_attributes(directory)
    if not arrays:
        raise NotFoundError(
            f"{directory}: none of {', '.join(_ATTRIBUTES)} is there, so that nothing says "
            "how many papers there are",
            path=directory,
        )
    for file, (name, _) in _ATTRIBUTES.items():
        if name not in arrays:
            (progress or NullProgress()).note(
                f"{directory / file} is not there: the store has no {name}"
            )
    papers = NodeInput(next(iter(arrays.values())).shape[0], arrays)
    path = split_file(root)
    if path is not None:
        papers.splits.update(
            open_splits(path, memory_ledger("reading the splits", options.memory_bytes))
        )
    warn_of_splits(root, papers)
    files = (citations, *(directory / file for file in _ATTRIBUTES), path)
    return write_one_type(
        output,
        papers,
        edges,
        kind="ogb",
        source={"inputs": describe_files(file for file in files if file and file.exists())},
        options=options,
        progress=progress,
    )
