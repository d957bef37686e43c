"""What mypy infers for code of users: checked by `make types`, and never run."""

from __future__ import annotations

from typing import Any, assert_type

import numpy.typing as npt
from torch import Tensor

import gnnstore
from gnnstore.graph.lazy import LazyTensor
from gnnstore.graph.typed import NodeView
from gnnstore.layerwise.result import Embeddings


def check_types_of_a_store(store: gnnstore.GraphStore) -> None:
    """Infer the nodes of a type, and attributes to which PyG gives types."""
    assert_type(store["paper"], NodeView)
    assert_type(store["paper"].x, LazyTensor)
    assert_type(store["paper"].y, LazyTensor)
    assert_type(store["paper"].train_mask, Tensor)
    assert_type(store["paper"].num_nodes, int)


def check_types_of_inference(store: gnnstore.GraphStore) -> None:
    """Infer the result from the output."""
    assert_type(gnnstore.inference([], store), Tensor)
    assert_type(gnnstore.inference([], store, memory="1GB"), Tensor)
    assert_type(gnnstore.inference([], store, "out"), Embeddings | npt.NDArray[Any])
