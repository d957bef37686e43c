"""Attributes as int8 with a scale per column: the scales, and the error that is measured."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore.converters import ConvertOptions, from_arrays, from_numpy
from gnnstore.converters.inputs.source import MemoryArray
from gnnstore.converters.writer.scales import Quantizer, find_columns
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.arrays.dtypes import from_bfloat16_bits, to_bfloat16_bits
from gnnstore.formats.arrays.spec import Scaled
from gnnstore.formats.store.store import StoreReader
from gnnstore.progress import NullPhase
from tests.support.effort import choose, examples

EDGES = np.array([[0, 1], [1, 0]])
INT8 = ConvertOptions(feature_dtype="int8", feature_scale="column")


def quantized(
    x: npt.NDArray[Any], dtype: str | None = None
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Return the multiples of an array, their scales, and the errors."""
    source = MemoryArray("x", x)
    dtype = dtype or x.dtype.name
    columns = find_columns(source, dtype, NullPhase())
    quantizer = Quantizer(columns, dtype)
    rows = np.concatenate([quantizer(piece) for piece in source.rows(7)])
    return rows, columns.scales, quantizer.errors()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_errors_are_root_mean_squares_by_deviation(dtype: str) -> None:
    drawn = np.random.default_rng(1).standard_normal((500, 5))
    x: npt.NDArray[Any] = drawn * [1, 1e-3, 50, 3, 9] + [0, 0, 5, 1e2, 0]
    x = x.astype(np.float32 if dtype == "bfloat16" else dtype)
    bits = to_bfloat16_bits(x) if dtype == "bfloat16" else x
    x = from_bfloat16_bits(bits) if dtype == "bfloat16" else x
    rows, scales, errors = quantized(bits, dtype)
    decoded = rows.astype(np.float32) * scales
    if dtype == "bfloat16":
        decoded = from_bfloat16_bits(to_bfloat16_bits(decoded))
    if dtype == "float16":
        decoded = decoded.astype(np.float16).astype(np.float32)
    off = decoded.astype(np.float64) - x.astype(np.float64)
    expected = np.sqrt((off**2).mean(axis=0)) / x.astype(np.float64).std(axis=0)
    np.testing.assert_allclose(errors, expected, rtol=1e-3)


@settings(max_examples=examples(100), deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(1, 9))
def test_constant_columns(value: float, count: int) -> None:
    x = np.full((count, 1), value, np.float32)
    rows, scales, errors = quantized(x)
    assert scales[0] >= np.finfo(np.float32).tiny
    off = np.abs(rows[:, 0] * np.float64(scales[0]) - np.float64(x[0, 0]))
    if np.abs(x[0, 0]) >= np.finfo(np.float32).tiny or value == 0:
        assert (off <= 2.0**-22 * abs(float(x[0, 0]))).all()
        assert errors[0] == 0
    else:  # no scale has so few bits
        assert errors[0] == pytest.approx(off[0] / abs(float(x[0, 0])))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_scales_hold_for_any_finite_column(values: list[float]) -> None:
    x = np.array(values, np.float32)[:, None]
    rows, scales, _ = quantized(x)
    assert np.finfo(np.float32).tiny <= scales[0] < np.inf
    off = np.abs(rows * scales.astype(np.float64) - x.astype(np.float64))
    assert (off <= 0.5001 * scales).all()


def test_integers_that_int8_holds_stay_as_they_are() -> None:
    x = np.array([[0, 1, -127, 5, 0.5], [3, 0, 127, 5, 1], [-2, 1, 0, 5, 0]], np.float64)
    rows, scales, errors = quantized(x)
    assert scales[:4].tolist() == [1, 1, 1, 1]
    np.testing.assert_array_equal(rows[:, :4], x[:, :4])
    assert errors[:4].tolist() == [0, 0, 0, 0]
    rows, scales, _ = quantized(np.array([[-128.0], [128], [0]]))
    assert scales.tolist() == [np.float32(128) / np.float32(127)]
    assert rows[:, 0].tolist() == [-127, 127, 0]


def test_small_numbers_and_large_ones() -> None:
    tiny = np.finfo(np.float32).tiny
    x = np.array([[3.4e38, 3 * tiny, -3.4e38], [0, tiny, 3.4e38], [-1e38, 0, 0]], np.float32)
    rows, scales, errors = quantized(x)
    assert np.isfinite(scales).all()
    assert (scales >= tiny).all()
    assert rows[:, 1].tolist() == [3, 1, 0]
    assert errors.max() < 0.01


def stored(path: Path, name: str = "x") -> Scaled:
    scaled = StoreReader.open(path).schema.node.attributes[name].scaled
    assert scaled is not None
    return scaled


@pytest.mark.parametrize("shape", [(2, 0), *choose([], [(2, 3), (2,)]), (2, 2, 3), (0, 4)])
def test_rows_of_any_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    edges = EDGES[:, : shape[0]]
    path = from_arrays({"edge_index": edges, "x": x}, tmp_path / "a.gnn", options=INT8)
    reader = StoreReader.open(path)
    spec = reader.schema.node.attributes["x"]
    if 0 in shape[1:]:  # nothing is stored
        assert (spec.scaled, spec.dtype) == (None, "float32")
        return
    assert (spec.dtype, spec.layout, spec.shape) == ("int8", "paged", shape)
    assert spec.scaled is not None
    assert spec.scaled.scales.shape == shape[1:]
    assert (reader.read(spec.scaled.scales) == 1).all()
    assert spec.scaled.error is not None
    assert (spec.scaled.error.worst, spec.scaled.error.median) == (0, 0)


def heavy(width: int = 3) -> npt.NDArray[np.float32]:
    """Return columns of which the last has a value far from the others."""
    x = np.random.default_rng(3).standard_normal((2000, width)).astype(np.float32)
    x[17, -1] = 100
    return x


def test_a_column_with_a_large_error_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", edge_index=EDGES, x=heavy())
    with pytest.raises(InputError) as caught:
        from_numpy(tmp_path / "a.npz", tmp_path / "a.gnn", options=INT8)
    said = str(caught.value)
    assert "x: column 2 as int8 differs from the input by " in said
    # By 0.0082 % in that column.
    assert "far above that deviation; store the attribute as float16, which differs by 0.02" in said
    assert said.endswith("or take the error with allow_error=True")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    options = ConvertOptions(feature_dtype="int8", feature_scale="column", allow_error=True)
    path = from_numpy(tmp_path / "a.npz", tmp_path / "a.gnn", options=options)
    error = stored(path).error
    assert error is not None
    assert (error.column, error.worst > 0.05, error.median < 0.05) == (2, True, True)
    provenance = StoreReader.open(path).manifest.provenance["options"]
    assert provenance["allow_error"] is True


@pytest.mark.parametrize(
    ("factor", "offset", "cure"),
    [(1, [0, 10_000], "subtract it, "), (1000, 0, ""), ([1e5, 1], 0, "")],
)
def test_float16_is_named_only_where_its_error_is_small(
    tmp_path: Path, factor: Any, offset: Any, cure: str
) -> None:
    """A column far from 0 has few digits left in float16, which holds nothing from 65,520 on."""
    x = heavy(2) * factor + offset  # the third: float16 is bad for the other column alone
    with pytest.raises(
        InputError, match=rf"deviation; {cure}leave the attribute as it is, or take"
    ) as err:
        from_arrays({"edge_index": EDGES % 2, "x": x}, tmp_path / "a.gnn", options=INT8)
    assert "float16" not in str(err.value)


def refusal(x: npt.NDArray[Any], path: Path) -> str:
    """Return why features are refused."""
    with pytest.raises(InputError) as caught:
        from_arrays({"edge_index": EDGES, "x": x}, path / "a.gnn", options=INT8)
    assert not any(path.iterdir())
    return str(caught.value)


@pytest.mark.parametrize(
    "column",
    [
        1.6e9 + np.random.default_rng(2).random(500) * 30,
        1_600_000_000 + np.arange(500) % 30,
        2**60 + np.arange(500) % 2,  # equal in float64, too
    ],
)
def test_wide_types_are_measured_as_they_are(column: npt.NDArray[Any], tmp_path: Path) -> None:
    """What float32 takes for a constant is not one."""
    x = np.stack([column, column % 7], axis=1)
    said = refusal(x, tmp_path)
    assert "x: column 0 as int8 differs from the input by " in said
    assert " its standard deviation (root mean square): " in said
    assert "its mean is far above that deviation; subtract it, leave the attribute as it" in said
    rows, scales, errors = quantized(np.full((3, 1), column[0]))
    assert errors[0] == 0
    assert rows * scales == pytest.approx(float(column[0]), rel=1e-6)


def test_an_outlier_that_leaves_only_zeros_is_refused(tmp_path: Path) -> None:
    """The deviation is then that value's alone, and the error a small part of it."""
    x = heavy()
    x[17, -1] = 1e6
    x[:, 0] *= np.arange(2000) % 4 == 0  # zeros are not lost
    assert quantized(x)[2].max() < 0.05
    said = refusal(x, tmp_path)
    assert "x: column 2 as int8 has 0 for 100.0% of the values that are not 0: its larg" in said
    assert said.endswith(
        "these; leave the attribute as it is, or take the error with allow_error=True"
    )
    x[0, 0] = 1e6
    assert "not 0, and 1 others of more than 50%: its largest magnitude" in refusal(x, tmp_path)
    options = ConvertOptions(feature_dtype="int8", feature_scale="column", allow_error=True)
    from_arrays({"edge_index": EDGES, "x": x}, tmp_path / "a.gnn", options=options)


@pytest.mark.parametrize(("is_constant", "unit"), [(True, "value"), (False, "standard deviation")])
def test_columns_below_the_least_scale_are_refused(
    tmp_path: Path, is_constant: bool, unit: str
) -> None:
    x = np.ones((4, 2), np.float32)
    x[:, 1] *= 1e-40 if is_constant else np.array([1e-40, 0, 0, 0])
    said = refusal(x, tmp_path)
    assert (
        f"its {unit} (root mean square): its largest magnitude is 1e-40, and scales are at least "
        "2^-126; multiply it by a constant, leave"
    ) in said


def test_the_largest_float_decodes_to_a_finite_one() -> None:
    """A 127th of it is rounded up, and 127 times that would be infinite."""
    most = np.finfo(np.float32).max
    rows, scales, errors = quantized(np.array([[most], [-most], [0], [most / 3]]))
    assert rows[:2, 0].tolist() == [127, -127]
    assert np.isfinite(rows * scales).all()
    assert errors[0] < 0.01


def test_what_float32_does_not_hold_is_refused(tmp_path: Path) -> None:
    said = refusal(np.array([[1, 2], [3, 1e300]]), tmp_path)
    assert "x: row 1, column 1: 1e+300 is beyond float32, which scales have; rescale" in said


def test_allow_error_needs_scales() -> None:
    with pytest.raises(UsageError, match="allow_error=True is for the error of multiples"):
        ConvertOptions(allow_error=True)
