"""A small store with every kind of array, and the plain arrays that it was written from."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.formats import (
    EDGE_TYPE,
    NODE_TYPE,
    AttributeSpec,
    EdgeTypeSpec,
    NodeTypeSpec,
    Schema,
    StoreWriter,
)
from gnnstore.formats.base.names import (
    edge_directory,
    graph_array,
    node_array,
    original_id_array,
    split_array,
)
from gnnstore.formats.store.store import StoreReader


@dataclass(frozen=True)
class ExampleStore:
    """A store and its expected content."""

    path: Path
    arrays: dict[str, npt.NDArray[Any]]


def write_example_store(
    path: str | os.PathLike[str],
    *,
    num_nodes: int = 300,
    num_edges: int = 1500,
    feature_shape: tuple[int, ...] = (25,),
    feature_dtype: str = "float32",
    page_bytes: int = 4096,
    shard_bytes: int | None = None,
    overwrite: bool = False,
    seed: int = 0,
) -> ExampleStore:
    """Write a store of a random graph, straight through the format's writer."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 256, (num_nodes, *feature_shape, 8), dtype=np.uint8)
    storage = np.dtype("uint16" if feature_dtype == "bfloat16" else feature_dtype)
    features = bits.view(np.uint64)[..., 0].astype(np.uint32).astype(storage)
    targets = np.sort(rng.integers(0, max(num_nodes, 1), num_edges if num_nodes else 0))
    sources = rng.integers(0, max(num_nodes, 1), len(targets)).astype(np.int32)
    order = np.lexsort((sources, targets))
    indptr = np.searchsorted(targets, np.arange(num_nodes + 1)).astype(np.int64)

    edges = edge_directory(*EDGE_TYPE)
    paged = {
        node_array(NODE_TYPE, "x"): features,
        f"{edges}/indptr": indptr,
        f"{edges}/indices": sources[order],
        f"{edges}/edge_id": order.astype(np.int32),
        f"{edges}/attrs/edge_attr": rng.random((len(order), 3), dtype=np.float32),
    }
    compressed = {
        node_array(NODE_TYPE, "y"): rng.integers(0, 4, num_nodes),
        node_array(NODE_TYPE, "train_mask"): rng.random(num_nodes) < 0.5,
        split_array(NODE_TYPE, "train"): np.arange(num_nodes // 2),
        split_array(NODE_TYPE, "valid"): np.arange(num_nodes // 2, num_nodes),
        original_id_array(NODE_TYPE): np.arange(num_nodes) * 10,
        graph_array("weights"): rng.random((4, 2)),
    }
    with StoreWriter(
        path, page_bytes=page_bytes, shard_bytes=shard_bytes, overwrite=overwrite
    ) as writer:
        specs = _write(writer, paged, compressed, {node_array(NODE_TYPE, "x"): feature_dtype})
        node = NodeTypeSpec(
            NODE_TYPE,
            num_nodes,
            {name: specs[node_array(NODE_TYPE, name)] for name in ("x", "y", "train_mask")},
            {name: specs[split_array(NODE_TYPE, name)] for name in ("train", "valid")},
            specs[original_id_array(NODE_TYPE)],
        )
        edge = EdgeTypeSpec(
            *EDGE_TYPE,
            len(order),
            specs[f"{edges}/indptr"],
            specs[f"{edges}/indices"],
            specs[f"{edges}/edge_id"],
            {"edge_attr": specs[f"{edges}/attrs/edge_attr"]},
        )
        weights = {"weights": specs[graph_array("weights")]}
        schema = Schema((node,), (edge,), {"name": "example"}, weights)
        final = writer.commit(schema, {"kind": "example"})
    return ExampleStore(final, paged | compressed)


def _write(
    writer: StoreWriter,
    paged: Mapping[str, npt.NDArray[Any]],
    compressed: Mapping[str, npt.NDArray[Any]],
    dtypes: Mapping[str, str],
) -> dict[str, AttributeSpec]:
    """Write arrays, and return what describes them by their paths."""
    specs: dict[str, AttributeSpec] = {}
    for path, values in paged.items():
        array = writer.paged(
            path,
            name=path.rsplit("/", 1)[1],
            row_shape=values.shape[1:],
            dtype=dtypes.get(path, values.dtype.name),
            num_rows=len(values),
        )
        array.append(values)
        specs[path] = array.spec
    for path, values in compressed.items():
        specs[path] = writer.compressed(path, values, name=path.rsplit("/", 1)[1])
    return specs


CITES = ("paper", "cites", "paper")
WRITES = ("author", "writes", "paper")


def write_two_typed_store(
    path: str | os.PathLike[str],
    *,
    num_papers: int = 300,
    num_authors: int = 170,
    num_institutions: int = 20,
    num_edges: int = 1500,
    widths: tuple[int, int] = (25, 9),
    seed: int = 0,
) -> ExampleStore:
    """Write a store of papers and authors, whose rows are of unequal width, and institutions."""
    rng = np.random.default_rng(seed)
    counts = {"paper": num_papers, "author": num_authors, "institution": num_institutions}
    arrays: dict[str, npt.NDArray[Any]] = {
        node_array("paper", "x"): rng.random((num_papers, widths[0]), dtype=np.float32),
        node_array("author", "x"): rng.random((num_authors, widths[1]), dtype=np.float32),
    }
    for edge_type in (CITES, WRITES):
        directory = edge_directory(*edge_type)
        targets = np.sort(rng.integers(0, num_papers, num_edges))
        sources = rng.integers(0, counts[edge_type[0]], num_edges).astype(np.int32)
        order = np.lexsort((sources, targets))
        arrays[f"{directory}/indptr"] = np.searchsorted(targets, np.arange(num_papers + 1))
        arrays[f"{directory}/indices"] = sources[order]
        if edge_type == CITES:
            arrays[f"{directory}/edge_id"] = order.astype(np.int32)
            arrays[f"{directory}/attrs/edge_attr"] = rng.random((num_edges, 3), dtype=np.float32)
    compressed = {
        node_array("paper", "y"): rng.integers(0, 4, num_papers),
        split_array("paper", "train"): np.arange(num_papers // 2),
        split_array("paper", "valid"): np.arange(num_papers // 2, num_papers),
    }
    with StoreWriter(path, page_bytes=4096) as writer:
        specs = _write(writer, arrays, compressed, {})
        nodes = [
            NodeTypeSpec(
                name,
                count,
                {own.name: own for key, own in specs.items() if key.startswith(f"nodes/{name}/")},
                {own.name: own for key, own in specs.items() if key.startswith(f"splits/{name}/")},
            )
            for name, count in counts.items()
        ]
        edges = [
            EdgeTypeSpec(
                *edge_type,
                num_edges,
                specs[f"{edge_directory(*edge_type)}/indptr"],
                specs[f"{edge_directory(*edge_type)}/indices"],
                specs.get(f"{edge_directory(*edge_type)}/edge_id"),
                {
                    own.name: own
                    for key, own in specs.items()
                    if key.startswith(f"{edge_directory(*edge_type)}/attrs/")
                },
            )
            for edge_type in (CITES, WRITES)
        ]
        final = writer.commit(Schema(tuple(nodes), tuple(edges)), {"kind": "example"})
    return ExampleStore(final, arrays | compressed)


def assert_same_files(path: Path, other: Path) -> None:
    """Check that two directories have the same files with the same bytes."""
    ours, theirs = _files(path), _files(other)
    if ours.keys() != theirs.keys():
        raise AssertionError(f"only in one of them: {sorted(ours.keys() ^ theirs.keys())}")
    for name, file in ours.items():
        if not filecmp.cmp(file, theirs[name], shallow=False):
            raise AssertionError(f"{file} and {theirs[name]} differ")


def _files(path: Path) -> dict[str, Path]:
    return {str(file.relative_to(path)): file for file in path.rglob("*") if file.is_file()}


def arrays_of(path: Path) -> dict[str, Any]:
    """Return all arrays of a store, by their paths in it."""
    reader = StoreReader.open(path)
    return {spec.path: reader.read(spec) for spec in reader.schema.arrays()}
