"""NumPy twins of the kernels of embedding tables, which define what these must compute."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnstore.testing.twins.kernels import philox4x64_10

_INITIAL_PURPOSE = int.from_bytes(b"emb-init", "big")
_F32 = np.float32


def initial_rows(
    ids: NDArray[Any], *, dim: int, distribution: str, scale: float, seed: int
) -> NDArray[np.float32]:
    """Return rows [n, dim] that depend on (seed, id, column) alone."""
    blocks = np.arange(-(-dim // 8), dtype=np.uint64)
    counter = (blocks[None], ids.astype(np.uint64)[:, None], 0, 0)
    words = philox4x64_10(counter, (seed, _INITIAL_PURPOSE))
    # Eight draws of 32 bits, the lower half of each word first.
    draws = words.astype("<u8", copy=False).view("<u4").reshape(len(ids), -1)
    if distribution == "uniform":
        unit = (draws >> np.uint32(8)).astype(_F32) * _F32(2**-23) - _F32(1)
    else:
        pairs = draws.astype(np.float64).reshape(len(ids), -1, 2)
        radius = np.sqrt(-2.0 * np.log((pairs[..., 0] + 1.0) * 2**-32))
        angle = 2.0 * np.pi * (pairs[..., 1] * 2**-32)
        both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
        unit = both.reshape(len(ids), -1).astype(_F32)
    rows: NDArray[np.float32] = (_F32(scale) * unit)[:, :dim]
    return rows


def update_rows(
    values: NDArray[np.float32],
    state: NDArray[np.float32],
    rows: NDArray[np.int64],
    gradients: NDArray[np.float32],
    *,
    rule: str,
    rate: float,
    eps: float = 0.0,
    beta1: float = 0.0,
    beta2: float = 0.0,
) -> None:
    """Change rows of `values` [N, dim] and their `state` [N, floats] by gradients [n, dim].

    Gradients of a row are summed first, in their order, in single precision.
    """
    r, e = _F32(rate), _F32(eps)
    for row in np.unique(rows):
        own = gradients[rows == row]
        g = own[0].copy()
        for more in own[1:]:
            g += more
        w, s = values[row], state[row]
        if rule == "sgd":
            w -= r * g
        elif rule == "rowwise_adagrad":
            s[0] += _mean_square(g)
            w -= r / (np.sqrt(s[0]) + e) * g
        elif rule == "adagrad":
            s += g * g
            w -= r * (g / (np.sqrt(s) + e))
        else:
            mean, square = s.reshape(2, -1)
            mean += (_F32(1) - _F32(beta1)) * (g - mean)
            square += (_F32(1) - _F32(beta2)) * (g * g - square)
            w -= r * (mean / (np.sqrt(square) + e))


def _mean_square(gradient: NDArray[np.float32]) -> np.float32:
    """Return the mean of squares: eight sums of every eighth column, then those in pairs."""
    wide = np.zeros(-(-len(gradient) // 8) * 8, _F32)
    wide[: len(gradient)] = gradient * gradient
    sums = np.zeros(8, _F32)
    for eight in wide.reshape(-1, 8):
        sums += eight
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return _F32(sums[0] / _F32(len(gradient)))
