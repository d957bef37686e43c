"""The description of an array that a manifest carries: name, place, layout, type, shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from gnnstore.errors import CorruptStoreError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.base.names import check_relative_path
from gnnstore.formats.base.strict_json import Fields

if TYPE_CHECKING:
    import numpy as np

Layout = Literal["paged", "cold"]
DecodedDtype = Literal["float16", "bfloat16", "float32"]
DECODED_DTYPES: tuple[DecodedDtype, ...] = get_args(DecodedDtype)
TIME_UNITS = ("D", "s", "ms", "us", "ns")  # units of times since 1970, from the coarsest


@dataclass(frozen=True)
class ScaleError:
    """How far multiples are from the input: root mean squares / the columns' standard deviations.

    In a constant column the relative difference, or 0 if that is rounding alone.
    """

    worst: float  # of all columns
    column: int  # where that is, counted in C order
    median: float  # of all columns


@dataclass(frozen=True)
class Scaled:
    """What makes numbers of rows of int8: each is a multiple of its column's scale."""

    OMITTED: ClassVar[frozenset[str]] = frozenset({"error"})

    scales: AttributeSpec  # float32, of the shape of a row
    decoded: DecodedDtype  # the type of the input, which batches have unless another is asked for
    error: ScaleError | None = None  # None: not measured

    def check(self, rows: AttributeSpec, file: str) -> None:
        """Raise unless there is a compressed float32 for each column of rows of int8."""
        own = self.scales
        found, expected = (rows.dtype, own.dtype, own.layout), ("int8", "float32", "cold")
        if found != expected or own.shape != rows.shape[1:]:
            raise CorruptStoreError(
                f"{file}: the array {rows.path!r} is {rows.dtype} {list(rows.shape)}, and its "
                f"scales {own.path!r} are {own.layout} {own.dtype} {list(own.shape)}; expected "
                "int8, and cold float32 of the shape of a row",
                path=file,
            )


@dataclass(frozen=True)
class AttributeSpec:
    """One array of a store."""

    OMITTED: ClassVar[frozenset[str]] = frozenset({"time_unit", "scaled"})

    name: str  # the user's name ("x"); a role ("indptr") for structural arrays
    path: str  # directory of the Zarr array, relative to the store
    layout: Layout  # raw pages for arrays that are read by row; compressed for those read whole
    dtype: str  # element type, "bfloat16" included
    shape: tuple[int, ...]  # shape as stored: rows first
    cat_dim: int = 0  # the axis that counted rows in the original data (PyG's `__cat_dim__`)
    time_unit: str | None = None  # of times since 1970: one of `TIME_UNITS`; None: not recorded
    scaled: Scaled | None = None  # of node attributes of int8 whose columns have scales

    @property
    def num_rows(self) -> int:
        """Length of the row axis."""
        return self.shape[0] if self.shape else 1

    @property
    def num_bytes(self) -> int:
        """Bytes of the values, without padding or compression."""
        total = STORAGE_DTYPES[self.dtype].itemsize
        for extent in self.shape:
            total *= extent
        return total

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's values; 0 where there are no rows."""
        return self.num_bytes // max(1, self.num_rows)

    @property
    def shown_dtype(self) -> str:
        """Element type in batches."""
        return self.dtype if self.scaled is None else self.scaled.decoded

    @property
    def shown_row_bytes(self) -> int:
        """Bytes of a row's values in a batch."""
        stored, shown = (STORAGE_DTYPES[name].itemsize for name in (self.dtype, self.shown_dtype))
        return self.row_bytes // stored * shown

    def key(self, uuid: str, dtype: np.dtype[Any]) -> str:
        """Return the name of the whole array of a directory in memory, as elements of a type."""
        return f"{uuid}/{self.path} {dtype.name} {list(self.shape)}"

    def dimension_names(self, rows: str | None = None) -> list[str]:
        """Return a name for each axis."""
        names = [f"{self.name}_{axis}" for axis in range(len(self.shape))]
        return names if rows is None else [rows, *names[1:]]

    def check(self, dtype: str, shape: tuple[int, ...], file: str) -> None:
        """Compare with the type and shape in the array's own metadata."""
        if (dtype, shape) != (self.dtype, self.shape):
            raise CorruptStoreError(
                f"{file}: the array is {dtype} {list(shape)}, but the schema says {self.dtype} "
                f"{list(self.shape)}",
                path=file,
            )

    def expect(
        self,
        file: object,
        shape: tuple[Any, ...],
        dtypes: tuple[str, ...] = (),
        advice: str = "",
    ) -> None:
        """Raise unless the array has a shape, and is paged and of one of some types, if given.

        In a shape, None is any length, and a last Ellipsis any further axes.
        """
        lengths = [length for length in shape if length is not ...]
        own = self.shape[: len(lengths)] if ... in shape else self.shape
        is_alike = len(own) == len(lengths) and all(
            length in (None, found) for length, found in zip(lengths, own, strict=True)
        )
        if is_alike and (not dtypes or (self.dtype in dtypes and self.layout == "paged")):
            return
        shown = ", ".join({None: "n", ...: "..."}.get(length, str(length)) for length in shape)
        what = f"paged {' or '.join(dtypes)} " if dtypes else ""
        raise CorruptStoreError(
            f"{file}: the array {self.path!r} is {self.layout} {self.dtype} {list(self.shape)}; "
            f"expected {what}[{shown}]{advice}",
            path=str(file),
        )

    @classmethod
    def from_json(cls, fields: Fields) -> AttributeSpec:
        """Check a parsed description; `dataclasses.asdict` is the way back."""
        shape = fields.integers("shape")
        num_axes = max(1, len(shape))
        return cls(
            name=fields.text("name"),
            path=check_relative_path(fields.text("path"), file=fields.path),
            layout=fields.choice("layout", ("paged", "cold")),  # type: ignore[arg-type]
            dtype=fields.choice("dtype", tuple(STORAGE_DTYPES)),
            shape=shape,
            cat_dim=fields.integer("cat_dim", -num_axes, num_axes - 1),
            time_unit=fields.choice("time_unit", TIME_UNITS) if fields.has("time_unit") else None,
            scaled=fields.fields("scaled").parse(Scaled) if fields.has("scaled") else None,
        )
