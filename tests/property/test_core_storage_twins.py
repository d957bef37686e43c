"""Every storage kernel computes what its NumPy twin computes, for any thread count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gnnstore import _core
from tests.support.effort import examples, paired
from tests.support.twins import kernels as twin
from tests.support.twins.kernels import multiply_high, philox4x64_10

# One byte; not dividing a page; just below, at and above a page; several pages.
ROW_BYTES = [1, 2, 4, 8, 16, 32, 64, 100, 128, 400, 511, 512, 513, 1200, 4095, 4096, 4097, 12288]
words = st.integers(0, 2**64 - 1)
threads = st.sampled_from([1, 2, 5])
index_dtypes = st.sampled_from([np.int32, np.int64])


def some_bytes(num_bytes: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8)


# Around every length at which the implementation changes its step: 8, 3 * 256, 3 * 4096, 1024.
@given(
    st.integers(0, 2000) | st.sampled_from([12287, 12288, 12289, 30000, 131072]),
    st.integers(0, 40),
    st.floats(0, 1),
)
def test_crc32c(num_bytes: int, start: int, cut: float) -> None:
    data = some_bytes(num_bytes + start)[start:]
    expected = google_crc32c.value(data.tobytes())
    at = int(cut * num_bytes)
    for checksum in (_core.crc32c, _core.crc32c_streams, _core.crc32c_portable):
        assert checksum(data) == expected
        assert checksum(data[at:], checksum(data[:at])) == expected
    if num_bytes <= 2000:
        assert twin.crc32c(data[at:], twin.crc32c(data[:at])) == expected


@given(st.integers(0, 5000), st.integers(1, 6000))
def test_crc32c_blocks(num_bytes: int, block_bytes: int) -> None:
    data = some_bytes(num_bytes)
    blocks = [data[at : at + block_bytes] for at in range(0, num_bytes, block_bytes)]
    checksums = _core.crc32c_blocks(data, block_bytes)
    assert checksums.dtype == np.uint32
    assert checksums.tolist() == [google_crc32c.value(block.tobytes()) for block in blocks]


def geometry(row_bytes: int, page_bytes: int | None) -> dict[str, int]:
    """Return where rows lie: in pages, or one behind the other for a page of None."""
    if page_bytes is None:
        return {"row_bytes": row_bytes, "rows_per_page": 1, "page_stride_bytes": row_bytes}
    return {
        "row_bytes": row_bytes,
        "rows_per_page": max(1, page_bytes // row_bytes),
        "page_stride_bytes": -(-row_bytes // page_bytes) * page_bytes,
    }


def end_of_rows(num_rows: int, place: dict[str, int]) -> int:
    last_page, last_row = divmod(num_rows - 1, place["rows_per_page"])
    return last_page * place["page_stride_bytes"] + (last_row + 1) * place["row_bytes"]


@pytest.mark.parametrize("page_bytes", [None, 4096, 16384])
@pytest.mark.parametrize("row_bytes", ROW_BYTES)
def test_gather_rows(row_bytes: int, page_bytes: int | None) -> None:
    num_rows = 777
    place = geometry(row_bytes, page_bytes)
    table = some_bytes(end_of_rows(num_rows, place))  # without the last page's padding
    rng = np.random.default_rng(row_bytes)
    # The last two sizes lie on either side of where outputs start to bypass the caches.
    for size in (0, 1, 2, 300, (4 << 20) // row_bytes - 1, (4 << 20) // row_bytes + 65):
        size = min(size, 20_000)  # noqa: PLW2901
        ids = rng.integers(0, num_rows, size)
        ids[-1:] = num_rows - 1
        expected = twin.gather_rows(table, ids, **place)
        given_ids: list[NDArray[Any]] = [ids.astype(np.int32), ids, ids]
        ways = zip(given_ids, (1, 1, 3), strict=True)
        # Odd beginnings cannot be streamed to; the neighbours must stay as they are.
        for (values, num_threads), shift in paired(ways, (0, 1, 64)):
            buffer = _core.pool_empty(size * row_bytes + shift + 64)
            buffer[:] = 7
            out = buffer[shift : shift + size * row_bytes]
            _core.gather_rows(
                table,
                values,
                out,
                num_rows=num_rows,
                num_threads=num_threads,
                **place,
            )
            assert np.array_equal(out, expected)
            assert np.all(buffer[:shift] == 7)
            assert np.all(buffer[shift + len(out) :] == 7)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("width", "page_bytes"), [(1, None), (100, 4096), (128, 4096), (768, 8192)]
)
def test_decoding(width: int, page_bytes: int | None, dtype: str) -> None:
    """Copied rows and gathered ones, of every multiple of scales of all sizes."""
    num_rows, place = 999, geometry(width, page_bytes)
    table = some_bytes(end_of_rows(num_rows, place))
    rng = np.random.default_rng(width)
    # Products are zeros, subnormal halves, halves, and for others than float16 any.
    powers = rng.uniform(-30, 8, width) if dtype == "float16" else rng.uniform(-126, 120, width)
    scales = np.exp2(powers).astype(np.float32)
    scales[0] = np.float32(65504) / 127 if dtype == "float16" else np.finfo(np.float32).tiny
    item = 4 if dtype == "float32" else 2
    for size in (0, 1, 300, min(20_000, (4 << 20) // (width * item) + 65)):
        ids = rng.integers(0, num_rows, size)
        stored = twin.gather_rows(table, ids, **place)
        expected = twin.decode_rows(stored.view(np.int8).reshape(size, width), scales, dtype)
        for num_threads, chosen in ((1, ids), (3, ids.astype(np.int32))):
            out, own = (_core.pool_empty(size * width * item + 4 * item) for _ in range(2))
            for begin in (0, 4 * item):  # the second cannot be streamed to
                end = begin + len(expected)
                _core.gather_decoded(
                    table,
                    chosen,
                    scales,
                    out[begin:end],
                    num_rows=num_rows,
                    dtype=dtype,
                    num_threads=num_threads,
                    **place,
                )
                _core.decode_rows(
                    stored, scales, own[begin:end], dtype=dtype, num_threads=num_threads
                )
                assert np.array_equal(out[begin : begin + len(expected)], expected)
                assert np.array_equal(own[begin : begin + len(expected)], expected)
    with pytest.raises(ValueError, match=f"there are {width + 1} scales, and rows of {width} byt"):
        _core.gather_decoded(
            table, np.zeros(1, np.int64), np.ones(width + 1, np.float32), _core.pool_empty(item),
            num_rows=num_rows, dtype=dtype, **place,
        )  # fmt: skip
    with pytest.raises(ValueError, match=r"dtype must be float32, float16 or bfloat16, got int8"):
        _core.decode_rows(table[:width], scales, table.copy()[:width], dtype="int8")


@pytest.mark.parametrize("row_bytes", ROW_BYTES)
@pytest.mark.parametrize("pages_per_shard", [1, 3, 1000])
@pytest.mark.parametrize("padded_end", [False, True])
def test_read_pages(tmp_path: Path, row_bytes: int, pages_per_shard: int, padded_end: bool) -> None:
    num_rows = 4 if row_bytes > 4096 else 1000 if row_bytes < 100 else 41
    place = geometry(row_bytes, 4096)
    stride = place["page_stride_bytes"]
    num_pages = -(-num_rows // place["rows_per_page"])
    table = some_bytes(num_pages * stride)
    end = len(table) if padded_end else end_of_rows(num_rows, place)
    paths, body_bytes = [], []
    for shard, at in enumerate(range(0, end, pages_per_shard * stride)):
        body = table[at : min(end, at + pages_per_shard * stride)]
        paths.append(tmp_path / str(shard))
        body_bytes.append(len(body))
        paths[-1].write_bytes(body.tobytes() + b"what follows a body")
    expected = twin.gather_rows(table, np.arange(num_rows), **place)
    for num_threads in (1, 4):
        out = np.full(num_rows * row_bytes, 7, dtype=np.uint8)
        _core.read_pages(
            paths, body_bytes, out, num_rows=num_rows, num_threads=num_threads, **place
        )
        assert np.array_equal(out, expected)


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[NDArray[Any], NDArray[Any], int]:
    num_nodes = draw(st.integers(1, 60) | st.sampled_from([300, 70_000]))
    num_edges = draw(st.integers(0, 200) | st.sampled_from([3000, 20_000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    # Powers skew the degrees, so that short, middle and long columns are all sorted.
    skew = draw(st.sampled_from([1, 3, 8]))
    dtype = draw(index_dtypes)
    src, dst = (num_nodes * rng.random((2, num_edges)) ** skew).astype(dtype)
    return src, dst, num_nodes


@given(edge_lists(), threads)
def test_csc_from_coo(edges: tuple[NDArray[Any], NDArray[Any], int], num_threads: int) -> None:
    src, dst, num_nodes = edges
    expected = twin.csc_from_coo(src, dst, num_nodes)
    found = _core.csc_from_coo(src, dst, num_nodes, num_threads)
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    indptr, indices, edge_id = _core.csc_from_coo(src, dst, num_nodes, num_threads, False)
    assert np.array_equal(indptr, expected[0])
    assert np.array_equal(indices, expected[1])
    assert edge_id is None


@given(edge_lists(), threads, st.integers(1, 5), st.booleans())
def test_edge_buckets(
    edges: tuple[NDArray[Any], NDArray[Any], int], num_threads: int, num_blocks: int, gives: bool
) -> None:
    src, dst, num_nodes = edges
    src, dst = src.astype(np.int32), dst.astype(np.int32)
    expected = twin.csc_from_coo(src, dst, num_nodes)
    buckets = _core.EdgeBuckets(num_nodes, num_threads)
    blocks = list(
        zip(np.array_split(src, num_blocks), np.array_split(dst, num_blocks), strict=True)
    )
    for block in blocks:
        buckets.sample(block[1])
    buckets.plan(len(src))
    position = len(src)
    for sources, targets in reversed(blocks):
        position -= len(sources)
        buckets.add(sources, targets, position)
        if gives:
            for ends in (sources, targets):
                buckets.give(ends.copy())
    buckets.finish()
    for with_edge_id in (True, False):
        pieces = [buckets.sort(k, with_edge_id) for k in range(buckets.num_pieces)]
        # The first entry of each is the last one of the piece before.
        pointers = [indptr[bool(k) :] for k, (indptr, _, _) in enumerate(pieces)]
        assert np.array_equal(np.concatenate(pointers), expected[0])
        assert np.array_equal(np.concatenate([indices for _, indices, _ in pieces]), expected[1])
        ids = [ids for _, _, ids in pieces if ids is not None]
        assert bool(ids) == with_edge_id
        if ids:
            assert np.array_equal(np.concatenate(ids), expected[2])


@given(words, words, st.integers(0, 2**64 - 2), words, st.tuples(words, words))
@example(0, 0, 0, 0, (0, 0))
def test_philox_is_numpys(w3: int, w2: int, w0: int, w1: int, key: tuple[int, int]) -> None:
    generator = np.random.Philox(
        counter=np.array([w0, w1, w2, w3], dtype=np.uint64), key=np.array(key, dtype=np.uint64)
    )
    assert philox4x64_10((w0 + 1, w1, w2, w3), key).tolist() == generator.random_raw(4).tolist()


@given(words, words)
def test_multiply_high(a: int, b: int) -> None:
    assert multiply_high(np.array([a], dtype=np.uint64), np.uint64(b)).tolist() == [a * b >> 64]


@st.composite
def quadrants(draw: st.DrawFn) -> NDArray[np.float64]:
    scale = draw(st.integers(0, 40) | st.just(62))
    weights = draw(
        st.lists(
            st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any),
            min_size=scale,
            max_size=scale,
        )
    )
    table = np.array(weights, dtype=np.float64).reshape(scale, 4)
    table /= table.sum(axis=1, keepdims=True)
    return table


@settings(max_examples=examples(100), deadline=None)
@given(quadrants(), words, st.integers(0, 2**62), st.integers(0, 50), threads)
def test_rmat_edges(
    probabilities: NDArray[np.float64], seed: int, first_edge: int, num_edges: int, num_threads: int
) -> None:
    scale = len(probabilities)
    found = _core.rmat_edges(first_edge, num_edges, scale, probabilities, seed, num_threads)
    expected = twin.rmat_edges(first_edge, num_edges, scale, probabilities, seed)
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)
    # Any chunking draws the same edges.
    cut = num_edges // 3
    parts = [
        _core.rmat_edges(first_edge, cut, scale, probabilities, seed),
        _core.rmat_edges(first_edge + cut, num_edges - cut, scale, probabilities, seed),
    ]
    for end in (0, 1):
        assert np.array_equal(np.concatenate([part[end] for part in parts]), found[end])


@given(st.integers(0, 62), words, threads, st.integers(0, 2**32))
def test_permute_ids(scale: int, seed: int, num_threads: int, id_seed: int) -> None:
    ids = np.random.default_rng(id_seed).integers(0, 2**scale, 100)
    images = _core.permute_ids(ids, scale, seed, num_threads=num_threads)
    assert np.array_equal(images, twin.permute_ids(ids, scale, seed))
    assert images.min() >= 0
    assert int(images.max()) < 2**scale
    back = _core.permute_ids(images, scale, seed, inverse=True, num_threads=num_threads)
    assert np.array_equal(back, ids)
    assert np.array_equal(twin.permute_ids(images, scale, seed, inverse=True), ids)


@pytest.mark.parametrize("scale", range(12))
def test_permute_ids_is_a_bijection(scale: int) -> None:
    images = _core.permute_ids(np.arange(2**scale), scale, 11)
    assert np.array_equal(np.sort(images), np.arange(2**scale))
