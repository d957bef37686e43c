"""The homogeneous graphs of the Illinois Graph Benchmark, as their downloader leaves them.

`paper/node_feat.npy` (float32 [N, 1024]), `paper/node_label_19.npy` and `node_label_2K.npy`
([N]) and `paper__cites__paper/edge_index.npy` (int64 [E, 2], an edge a row), below
SIZE/processed/ or without that. In the two largest sizes features and labels are raw float32
without a header, in spite of their names. There are no files of splits: IGB's own loader
takes the first 60 % of the nodes for training, 20 % for validation and the rest for testing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal, get_args

from gnnstore.converters.converter import converter
from gnnstore.converters.inputs.derived import FloatLabels
from gnnstore.converters.inputs.files import RawLayout, open_raw
from gnnstore.converters.inputs.npy import open_npy
from gnnstore.converters.inputs.opening import (
    PathLike,
    describe_files,
    existing_directory,
    open_input,
)
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, write_one_type
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.converters.writer.splits import split_ranges
from gnnstore.errors import InputError, NotFoundError, check_choice
from gnnstore.progress import Progress

_LOG = logging.getLogger(__name__)

Classes = Literal["19", "2K"]

_NPY_MAGIC = b"\x93NUMPY"
_FEATURES = Path("paper", "node_feat.npy")
_EDGES = Path("paper__cites__paper", "edge_index.npy")
FEATURE_DIM = 1024  # in every size of the benchmark
# Papers of the full graph, and the number of first papers that have a label.
_FULL_NODES = 269_346_174
_FULL_LABELLED = {"19": 227_130_858, "2K": 157_675_969}


@converter
def from_igb(
    input: PathLike,  # noqa: A002 - the word the command line uses
    output: PathLike,
    *,
    classes: Classes = "19",
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert a homogeneous graph of the Illinois Graph Benchmark (IGB).

    Features become `x`, labels `y` (int64 [N]). Splits are IGB's: by position, 60, 20 and
    20 % of the labelled papers. IGB's loader also gives every node exactly one self-loop:
    `options.self_loops` "add" is the same but for nodes that have several.

    Parameters
    ----------
    input : path-like
        The directory with `paper/` and `paper__cites__paper/` in it, or one with `processed/`.
    classes : "19" or "2K"
        Which labels to take.
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    NotFoundError
        If the directory or a file that must be there is not.
    InputError
        If an array is damaged or disagrees with another.
    """
    check_choice("classes", classes, get_args(Classes))
    root = _find(existing_directory(input, "the IGB data set"))
    labels = root / "paper" / f"node_label_{classes}.npy"
    check_labels(labels, classes)
    files = [path for path in (root / _EDGES, root / _FEATURES, labels) if path.exists()]
    edges = open_edges(root / _EDGES)
    node = _open_papers(root, labels, classes)
    return write_one_type(
        output,
        node,
        edges,
        kind="igb",
        source={"inputs": describe_files(files), "classes": classes},
        options=options,
        progress=progress,
    )


def check_labels(labels: Path, classes: str) -> None:
    """Raise if there are labels of the other number of classes only; warn if there are none."""
    if labels.exists():
        return
    other = "2K" if classes == "19" else "19"
    if labels.with_name(f"node_label_{other}.npy").exists():
        raise NotFoundError(
            f"{labels} is not there, but those of {other} classes are: take them with "
            f"classes={other}, or download the others",
            path=labels,
        )
    _LOG.warning("%s is not there: the store has neither labels nor splits", labels)


def _find(directory: Path) -> Path:
    for root in (directory, directory / "processed"):
        if (root / _EDGES).exists():
            return root
    raise NotFoundError(
        f"{directory}: {_EDGES} is not there; give the directory of one size",
        path=directory / _EDGES,
    )


def split_papers(papers: NodeInput, classes: str) -> None:
    """Set the splits of the papers that have a label: the first ones."""
    labelled = _FULL_LABELLED[classes] if papers.count == _FULL_NODES else papers.count
    papers.splits = dict(split_ranges(labelled, (0.6, 0.2)))


def open_edges(path: Path) -> EdgeInput:
    """Open edges, of which each may be a row."""
    edges = open_npy(path)
    return EdgeInput.of_array(edges, by_row=edges.shape[1:] == (2,))


def _open_papers(root: Path, labels: Path, classes: str) -> NodeInput:
    arrays: dict[str, ArraySource] = {}
    if (root / _FEATURES).exists():
        arrays["x"] = open_array(root / _FEATURES, (FEATURE_DIM,))
    if labels.exists():
        arrays["y"] = open_array(labels, ())
    if arrays and "x" not in arrays:
        _LOG.warning("%s is not there: the store has no features", root / _FEATURES)
    if not arrays:
        raise NotFoundError(
            f"{root}: neither {_FEATURES} nor {labels.name} is there, so that nothing says how "
            "many papers there are",
            path=root / _FEATURES,
        )
    papers = NodeInput(next(iter(arrays.values())).shape[0], arrays)
    if "y" in arrays:
        arrays["y"] = FloatLabels(arrays["y"])
        split_papers(papers, classes)
    return papers


def open_array(path: Path, row_shape: tuple[int, ...]) -> ArraySource:
    """Open a file called `.npy`, which may be raw float32."""
    with open_input(path) as file:
        has_header = file.read(len(_NPY_MAGIC)) == _NPY_MAGIC
    layout = RawLayout("float32", (-1, *row_shape))
    source = open_npy(path) if has_header else open_raw(path, layout)
    if len(source.shape) != 1 + len(row_shape):
        raise InputError(
            f"{source.label}: has shape {list(source.shape)}, expected "
            f"{'[N, F]' if row_shape else '[N]'}"
        )
    return source
