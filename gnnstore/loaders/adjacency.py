"""A batch's edges in CSR, made in the threads that prepare batches (`edge_format="csr"`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore.errors import NotFoundError, UsageError, check_choice
from gnnstore.formats.store.schema import EdgeType, Schema
from gnnstore.nn.adjacency import AdjT, Transpose

EDGE_FORMATS = ("coo", "csr")


@dataclass(frozen=True)
class CsrEdges:
    """How batches show edges with `edge_format="csr"`."""

    value: str | None = None  # the edge attribute that the values are

    @classmethod
    def of(
        cls, schema: Schema, edge_format: str, adj_value: str | None, subgraph_type: str
    ) -> CsrEdges | None:
        """Check the options `edge_format` and `adj_value`; None for "coo"."""
        check_choice("edge_format", edge_format, EDGE_FORMATS)
        is_typed = not schema.is_homogeneous
        if edge_format == "csr" and is_typed and subgraph_type == "bidirectional":
            raise UsageError(
                'edge_format="csr" and subgraph_type="bidirectional": edges of a type that get '
                "those of its reverse type are not sorted by target; make the loader with "
                'edge_format="coo", or choose another subgraph_type'
            )
        if adj_value is None:
            return None if edge_format == "coo" else cls()
        if edge_format == "coo":
            raise UsageError(
                f'adj_value={adj_value!r}: only a matrix has values; give edge_format="csr", or '
                "leave the option out"
            )
        with_it = [edge for edge in schema.edge_types if adj_value in edge.attributes]
        if not with_it:
            names = {name for edge in schema.edge_types for name in edge.attributes}
            known = ", ".join(sorted(names)) or "none"
            raise NotFoundError(
                f"adj_value={adj_value!r}: edges have no attribute of this name; they have: {known}"
            )
        for edge in with_it:
            spec = edge.attributes[adj_value]
            if spec.shape[1:] not in ((), (1,)) or spec.dtype.startswith("complex"):
                where = f" of {edge.type}" if is_typed else ""
                raise UsageError(
                    f"adj_value={adj_value!r}: a value of the matrix is one number, and this "
                    f"attribute{where} has {spec.dtype} of shape {list(spec.shape[1:])}; choose "
                    "another, or leave it out"
                )
        return cls(adj_value)

    def take_values(self, values: dict[str, Any]) -> Tensor | None:
        """Take the attribute out of a batch that is the values of its matrix."""
        if self.value is None:
            return None
        if self.value not in values:
            raise UsageError(
                f"adj_value={self.value!r}: the sampler output has no edge, so edges have no "
                "attributes; return it with edge, or leave the option out"
            )
        weights: Tensor = values.pop(self.value).reshape(-1).float()
        return weights


def adjacency(
    edge_index: npt.NDArray[Any],
    num_nodes: tuple[int, int],
    hop_sources: Sequence[int] | None,
    hop_edges: Sequence[int] | None,
    values: Tensor | None,
    *,
    edge_type: EdgeType | None = None,
) -> AdjT:
    """Return edges of one type as a matrix of targets and sources, with its layers' transposes."""
    num_targets, num_sources = num_nodes
    layers = [(edge_index.shape[1], num_sources)]
    if hop_sources is not None and hop_edges is not None:
        # Each layer takes a hop less than the one before.
        layers += [
            (sum(hop_edges[:left]), sum(hop_sources[: left + 1]))
            for left in range(len(hop_edges) - 1, 0, -1)
        ]
    weights = None if values is None else values.numpy()
    try:
        crow, col, transposes = _core.edges_by_node(
            edge_index, num_targets, num_sources, layers, weights
        )
    except (ValueError, IndexError) as error:
        where = "" if edge_type is None else f", edges of {edge_type}"
        raise UsageError(
            f'edge_format="csr"{where}: {error}. Return sampler output whose edges are sorted '
            'by target and end at its nodes, or make the loader with edge_format="coo"'
        ) from error
    return AdjT(
        torch.from_numpy(crow),
        torch.from_numpy(col),
        values,
        size=(num_targets, num_sources),
        transposes=[
            Transpose(
                torch.from_numpy(ptr),
                torch.from_numpy(index),
                None if of_layer is None else torch.from_numpy(of_layer),
            )
            for ptr, index, of_layer in transposes
        ],
    )
