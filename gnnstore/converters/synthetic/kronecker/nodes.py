"""Attributes and splits of an expanded graph's nodes: those of the seed, the features with noise.

Without noise, the copies of a node would be told apart by their neighbours alone, and rows of
features would compress, and cache, as those of no real graph do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.keyed_random import draw_noise
from gnnstore.converters.stores.copy import CopiedRows
from gnnstore.converters.stores.graph import StoreInput
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES, from_bfloat16_bits, to_bfloat16_bits
from gnnstore.formats.arrays.spec import AttributeSpec

_NOISE = 0x6B726F6E6F697365  # "kronoise": not that of other generators
_CHUNK_VALUES = 2**17  # intermediate results stay in a core's cache: twice as fast
# Deviations are taken from at most this many rows, in blocks spread over all rows.
_SAMPLE_ROWS, _SAMPLE_BLOCK_ROWS = 2**16, 2**8
_MAX_NOISY_INTEGER_BYTES = 4


def write_nodes(
    writer: GraphWriter, graph: StoreInput, num_copies: int, feature_noise: float | None, seed: int
) -> None:
    """Write the attributes and splits of `num_copies` copies of the seed's nodes."""
    for name, spec in graph.nodes.attributes.items():
        noise = None
        if name == "x":
            if feature_noise is None:
                continue
            noise = Noise(graph, spec, feature_noise, seed) if feature_noise > 0 else None
        source = CopiedRows(graph, spec, num_copies, None if noise is None else noise.added)
        writer.set_node_attribute(name, source, dtype=spec.dtype, cat_dim=spec.cat_dim)
    first_ids = np.arange(num_copies, dtype=np.int64)[:, None] * graph.num_nodes
    for name, spec in graph.nodes.splits.items():
        writer.set_split(name, (first_ids + graph.read(spec)).reshape(-1))


class Noise:
    """Adds noise to features: a function of (seed, row, column) for pieces of any size."""

    def __init__(self, graph: StoreInput, spec: AttributeSpec, share: float, seed: int) -> None:
        self._dtype = spec.dtype
        self._seed = seed
        # Multiples of a scale lie in -127, ..., 127, so that negating one never overflows.
        self._is_scaled = graph.reader.schema.scales_of(spec) is not None
        kind, size = STORAGE_DTYPES[spec.dtype].kind, STORAGE_DTYPES[spec.dtype].itemsize
        self._is_exact = (
            kind == "b"
            or spec.row_bytes == 0
            or (kind in "iu" and size > _MAX_NOISY_INTEGER_BYTES and spec.dtype != "bfloat16")
        )
        if not self._is_exact:
            wide = np.float64 if kind == "f" and size == 8 else np.float32
            with np.errstate(over="ignore", invalid="ignore"):
                deviations = share * self._column_deviations(graph, spec)
            # Noise has at most five deviations, and must not be infinite itself. (Columns that
            # spread too far to be squared get none.)
            largest = float(np.finfo(wide).max) / 8
            deviations = np.minimum(np.nan_to_num(deviations, posinf=0.0), largest)
            self._deviations: npt.NDArray[Any] = deviations.astype(wide)

    def _column_deviations(self, graph: StoreInput, spec: AttributeSpec) -> npt.NDArray[np.float64]:
        """Return the standard deviation of each column's finite values, float64 [F]."""
        num_blocks = -(-spec.num_rows // _SAMPLE_BLOCK_ROWS)
        stride = max(1, num_blocks // (_SAMPLE_ROWS // _SAMPLE_BLOCK_ROWS))
        count = sums = squares = np.zeros(math.prod(spec.shape[1:]))
        origin: npt.NDArray[np.float64] | None = None
        for block in range(0, num_blocks, stride):
            first = block * _SAMPLE_BLOCK_ROWS
            last = min(first + _SAMPLE_BLOCK_ROWS, spec.num_rows)
            values = self._decoded(graph.rows(spec, first, last)).reshape(last - first, -1)
            finite = np.isfinite(values)
            if origin is None:  # sums around a value of the column lose fewer digits
                origin = np.where(finite[0], values[0], 0.0).astype(np.float64)
            centred = np.where(finite, values - origin, 0.0)
            count = count + finite.sum(axis=0)
            sums = sums + centred.sum(axis=0)
            squares = squares + (centred * centred).sum(axis=0)
        count = np.maximum(count, 1)
        return np.sqrt(np.maximum(0.0, squares / count - (sums / count) ** 2))

    def added(self, rows: npt.NDArray[Any], first: int) -> npt.NDArray[Any]:
        """Return rows [k, ...] of the features with noise, in their own type."""
        if self._is_exact or not rows.size:
            return rows
        out = np.empty_like(rows)
        step = max(1, _CHUNK_VALUES * len(rows) // rows.size)
        for begin in range(0, len(rows), step):
            part = slice(begin, begin + step)
            out[part] = self._added(rows[part], first + begin)
        return out

    def _added(self, rows: npt.NDArray[Any], first: int) -> npt.NDArray[Any]:
        flat = self._decoded(rows).reshape(len(rows), -1)
        noise = draw_noise(self._seed, _NOISE, first, (flat.shape[0], flat.shape[1]), 1.0)
        with np.errstate(over="ignore"):
            noisy = flat + noise * self._deviations
        return self._encoded(noisy, flat).reshape(rows.shape)

    def _decoded(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values in a float type that holds them."""
        if self._dtype == "bfloat16":
            return from_bfloat16_bits(rows)
        if rows.dtype.kind in "iu":
            return rows.astype(np.float64)
        return rows.astype(np.float32) if rows.dtype == np.float16 else rows

    def _encoded(self, noisy: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return noisy values in the type of the features; none becomes infinite."""
        dtype = STORAGE_DTYPES[self._dtype]
        if self._dtype != "bfloat16" and dtype.kind in "iu":
            limits = np.iinfo(dtype)
            lowest = -limits.max if self._is_scaled else limits.min
            whole: npt.NDArray[Any] = np.clip(np.rint(noisy), lowest, limits.max)
            return whole.astype(dtype)
        # bfloat16's largest value is float32's with the lower half of the bits cut off.
        largest = 3.3895313892515355e38 if self._dtype == "bfloat16" else np.finfo(dtype).max
        over = (np.abs(noisy) > largest) & np.isfinite(values)
        if over.any():
            noisy[over] = np.copysign(largest, noisy[over])
        if self._dtype == "bfloat16":
            return to_bfloat16_bits(noisy)
        return noisy.astype(dtype, copy=False)
