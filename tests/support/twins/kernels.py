"""NumPy twins of kernels of storage and embeddings: short, slow, and their definition.

A kernel is correct when it agrees with its twin. Twins take the same arguments, less the
threads, and check nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_EDGES_PURPOSE = int.from_bytes(b"rmat-edg", "big")
_PERMUTE_PURPOSE = int.from_bytes(b"perm-ids", "big")
_INITIAL_PURPOSE = int.from_bytes(b"emb-init", "big")
_PERMUTE_ROUNDS = 8
_F32 = np.float32
_MULTIPLIERS = (np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157))
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def crc32c(data: NDArray[np.uint8], initial: int = 0) -> int:
    """Return the CRC-32C of `data`, [n] uint8, after bytes of checksum `initial`, bit by bit."""
    crc = initial ^ 0xFFFFFFFF
    for byte in data.tolist():
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def gather_rows(
    table: NDArray[np.uint8],
    ids: NDArray[Any],
    *,
    row_bytes: int,
    rows_per_page: int,
    page_stride_bytes: int,
) -> NDArray[np.uint8]:
    """Return rows `ids`, [n] integers, of a table in pages, one behind the other: [n * row_bytes].

    Reading a whole table without its padding is ``gather_rows(body, arange(num_rows), ...)``.
    """
    page, row = np.divmod(ids.astype(np.int64), rows_per_page)
    first_byte = page * page_stride_bytes + row * row_bytes
    rows: NDArray[np.uint8] = table[first_byte[:, None] + np.arange(row_bytes)]
    return rows.ravel()


def decode_rows(
    rows: NDArray[np.int8], scales: NDArray[np.float32], dtype: str
) -> NDArray[np.uint8]:
    """Return what rows, [n, width], of columns with scales, [width], stand for, as bytes."""
    values = rows.astype(np.float32) * scales
    if dtype == "bfloat16":  # the upper half of the bits, to nearest, ties to even
        bits = values.view(np.uint32)
        values = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    else:
        with np.errstate(over="ignore"):  # -128 is not written, and may be too large for float16
            values = values.astype(dtype)
    return values.reshape(-1).view(np.uint8)


def csc_from_coo(
    src: NDArray[Any], dst: NDArray[Any], num_nodes: int
) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]:
    """Return (indptr [N + 1], indices [E], edge_id [E]) of edges ``src[e] -> dst[e]``.

    Columns are sorted by (source, position in the input); lexsort's last key comes first,
    and equal keys keep their order.
    """
    order = np.lexsort((src, dst))
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(dst, minlength=num_nodes), out=indptr[1:])
    edge_id = order.astype(np.int32 if len(src) < 2**31 else np.int64)
    return indptr, src[order], edge_id


def rmat_edges(
    first_edge: int, num_edges: int, scale: int, probabilities: NDArray[np.float64], seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (src, dst), [num_edges] int64, of consecutive edges of an R-MAT graph."""
    edges = np.arange(first_edge, first_edge + num_edges, dtype=np.uint64)
    src = np.zeros(num_edges, dtype=np.int64)
    dst = np.zeros(num_edges, dtype=np.int64)
    for level in range(scale):
        block = philox4x64_10((edges, level // 8, 0, 0), (seed, _EDGES_PURPOSE))
        # Eight draws of 32 bits, the lower half of each word first.
        draw = block.astype("<u8", copy=False).view("<u4")[:, level % 8]
        a, b, c, _ = probabilities[level]
        ends = np.floor(np.minimum([a, a + b, a + b + c], 1.0) * 2**32 + 0.5).astype(np.uint64)
        quadrant = np.searchsorted(ends, draw.astype(np.uint64), side="right")
        src = src << 1 | quadrant >> 1
        dst = dst << 1 | quadrant & 1
    return src, dst


def permute_ids(
    ids: NDArray[np.int64], scale: int, seed: int, inverse: bool = False
) -> NDArray[np.int64]:
    """Return the images of `ids`, [n] in [0, 2^scale), under the seed's bijection.

    Rounds change the low ``ceil(scale / 2)`` bits by a hash of the high ones and the high
    ones by a hash of the low ones, in turn; undoing them in reverse order is the inverse.
    """
    keys = philox4x64_10((np.arange(2), 0, 0, 0), (seed, _PERMUTE_PURPOSE)).ravel()
    low_bits = np.uint64(scale - scale // 2)
    high, low = ids.astype(np.uint64) >> low_bits, ids.astype(np.uint64) & _mask(low_bits)
    rounds = range(_PERMUTE_ROUNDS)
    for i in reversed(rounds) if inverse else rounds:
        if i % 2 == 0:
            low = low ^ _hash(high ^ keys[i]) & _mask(low_bits)
        else:
            high = high ^ _hash(low ^ keys[i]) & _mask(np.uint64(scale // 2))
    return (high << low_bits | low).astype(np.int64)


def _mask(bits: np.uint64) -> np.uint64:
    return np.uint64((1 << int(bits)) - 1)


def _hash(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = value * np.uint64(0x9E3779B97F4A7C15)
    value = value ^ value >> np.uint64(32)
    return value * np.uint64(0xD6E8FEB86659FD93) >> np.uint64(32)


def multiply_high(a: NDArray[np.uint64], b: np.uint64) -> NDArray[np.uint64]:
    """Return the upper 64 bits of the 128-bit products of `a` and `b`."""
    a_low, a_high = a & _LOW, a >> _HALF
    b_low, b_high = b & _LOW, b >> _HALF
    middle = a_high * b_low + (a_low * b_low >> _HALF)
    carry = (middle & _LOW) + a_low * b_high
    high: NDArray[np.uint64] = a_high * b_high + (middle >> _HALF) + (carry >> _HALF)
    return high


# The kernels draw every random number from this generator, keyed by what the number is for.
def philox4x64_10(counter: tuple[ArrayLike, ...], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Return the blocks of four draws at the given counters.

    Words of counters, lowest first, are broadcast. The result, uint64 [..., 4], equals
    ``numpy.random.Philox(counter=c - 1, key=key).random_raw(4)`` for each counter c: NumPy
    increments its counter before the first block.
    """
    words = np.broadcast_arrays(*(np.asarray(word, dtype=np.uint64) for word in counter))
    c0, c1, c2, c3 = (np.atleast_1d(word) for word in words)
    k0, k1 = key
    for _ in range(10):
        high0, low0 = multiply_high(c0, _MULTIPLIERS[0]), c0 * _MULTIPLIERS[0]
        high1, low1 = multiply_high(c2, _MULTIPLIERS[1]), c2 * _MULTIPLIERS[1]
        c0, c1 = high1 ^ c1 ^ np.uint64(k0), low1
        c2, c3 = high0 ^ c3 ^ np.uint64(k1), low0
        k0, k1 = (k0 + _WEYL[0]) % 2**64, (k1 + _WEYL[1]) % 2**64
    return np.stack([c0, c1, c2, c3], axis=-1).reshape(*words[0].shape, 4)


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
