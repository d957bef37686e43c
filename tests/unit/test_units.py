"""Sizes as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnstore.errors import UsageError
from gnnstore.units import format_at_least, format_count, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        (8e9, 8 * 10**9),
        ("4096B", 4096),
        ("8GB", 8 * 10**9),
        ("8 gb", 8 * 10**9),
        ("8G", 8 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5 KiB", 1536),
        ("0.5kB", 500),
        (" 2TiB ", 2 * 2**40),
        ("9007199254740993", 2**53 + 1),  # one that a float cannot hold
    ],
)
def test_parse_size(text: float | str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(
    "text", ["", "eight", "8XB", "-1", "1e9", "8 G B", "0x10", "1.", "∞", None, 1.5, float("inf")]
)
def test_parse_size_refuses_what_is_no_size(text: object) -> None:
    with pytest.raises(UsageError, match=r"memory=.* is not a size; write .* such as '8GB'"):
        parse_size(text, name="memory")  # type: ignore[arg-type]


def test_parse_size_refuses_a_negative_number() -> None:
    with pytest.raises(UsageError, match="memory=-5 is negative"):
        parse_size(-5, name="memory")


@pytest.mark.parametrize(
    "size",
    [2**63, pytest.param(10**5000, id="too long to be written"), "9" * 30, "10000000TiB"],
)
def test_parse_size_refuses_more_than_64_bits_count(size: int | str) -> None:
    with pytest.raises(UsageError, match=r"memory is more bytes than .* 64 bits count"):
        parse_size(size, name="memory")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (134217728, "134 MB"),
        (8_589_934_592, "8.59 GB"),
        (999_600_000, "1 GB"),
        (2.5e12, "2.5 TB"),
        (-4096, "-4.1 kB"),
    ],
)
def test_format_size(num_bytes: float, text: str) -> None:
    assert format_size(num_bytes) == text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "batch", "1 batch"),
        (2000, "batch", "2,000 batches"),
        (0, "row", "0 rows"),
        (3, "entry", "3 entries"),
    ],
)
def test_format_count(number: int, noun: str, text: str) -> None:
    assert format_count(number, noun) == text


@given(st.integers(min_value=0, max_value=999 * 10**12))
def test_a_formatted_size_reads_back_to_three_digits(num_bytes: int) -> None:
    assert parse_size(format_size(num_bytes)) == pytest.approx(num_bytes, rel=0.006)


@pytest.mark.parametrize("num_bytes", [0, 7, 999, 1_034_433, 10**9 + 1, 999_999])
def test_what_is_missing_is_never_rounded_down(num_bytes: int) -> None:
    assert num_bytes <= parse_size(format_at_least(num_bytes)) <= 1.02 * num_bytes + 1
