"""Writes node attributes and splits into a store: compressed or in pages, cast or scaled.

The size of an attribute and of its rows decides between compression and pages. A finite value that
would become infinite, or a fraction in an integer type, stops the conversion.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.inputs.ids import check_ids
from gnnstore.converters.inputs.source import (
    ArraySource,
    MemoryArray,
    as_array,
    as_source,
    check_count,
    check_rows,
    read_ahead,
    row_bytes,
)
from gnnstore.converters.inputs.times import as_times
from gnnstore.converters.writer.edge_splits import copy_array
from gnnstore.converters.writer.options import ConvertOptions, refuse_scales_name
from gnnstore.converters.writer.orders import integer_times
from gnnstore.converters.writer.scales import (
    MAX_ERROR,
    MAX_LOST,
    Columns,
    Quantizer,
    column_name,
    decoded_dtype,
    find_columns,
    float16_errors,
    location,
    summary_of,
)
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.arrays.dtypes import (
    STORAGE_DTYPES,
    dtype_name,
    from_bfloat16_bits,
    storage_dtype,
    to_bfloat16_bits,
)
from gnnstore.formats.arrays.paged import PagedArrayWriter
from gnnstore.formats.arrays.spec import AttributeSpec, DecodedDtype, Scaled, ScaleError
from gnnstore.formats.base import names
from gnnstore.formats.store.schema import NODE_TYPE, NodeTypeSpec, TextSpec, scales_name
from gnnstore.formats.store.store import StoreWriter
from gnnstore.progress import Phase, Progress
from gnnstore.random_words import keyed, permutation
from gnnstore.units import format_count

_LOG = logging.getLogger(__name__)
# Most bytes of an attribute row (a label, a mask, a weight) in an array that is kept compressed and
# read whole; wider rows are read one by one, so they are laid out in pages.
MAX_COMPRESSED_ROW_BYTES = 8
# Most bytes of a compressed array, which is in memory as a whole; larger ones are laid out in pages
# too.
MAX_COMPRESSED_BYTES = 2**26
# Every name that public data sets use -> the name in a store.
_SUFFIXES = ("", "_mask", "_idx")
_NAMES = {"train": "train", "valid": "valid", "val": "valid", "test": "test"}
SPLIT_KEYS = {name + suffix: split for name, split in _NAMES.items() for suffix in _SUFFIXES}
_NAMES_DRAWN = ("train", "valid", "test")
_SPLITS = 0x73706C697473_0000  # the second word of the generator's key; a type's checksum is added
_BYTES_PER_DRAW = 4 * 8  # bytes of a draw: a word, its place, and both while they are sorted
# Bytes of an entry of a split: the array, its ids as int64, and these sorted to find repeated ids.
_BYTES_PER_ENTRY = 3 * 8


class Caster:
    """Casts pieces of one attribute from their element type to the stored type."""

    def __init__(self, name: str, source: str, target: str) -> None:
        for dtype in (source, target):
            storage_dtype(dtype, what=f"the attribute {name!r}")
        self.name = name
        self.source = source
        self.target = target
        self.num_rows_done = 0  # also rows that need no cast, so that messages name the right ones

    def __call__(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return rows in the storage type of the target."""
        values, target = rows, STORAGE_DTYPES[self.target]
        if self.source != self.target:
            if self.source == "bfloat16":
                values = from_bfloat16_bits(rows)
            values = self._cast(values, target)
        self.num_rows_done += len(rows)
        return np.asarray(values, dtype=target)

    def _cast(self, values: npt.NDArray[Any], target: np.dtype[Any]) -> npt.NDArray[Any]:
        is_bfloat16 = self.target == "bfloat16"
        with np.errstate(over="ignore", invalid="ignore"):
            cast = values.astype(np.float32 if is_bfloat16 else target)
            if is_bfloat16:
                cast = to_bfloat16_bits(cast)
            wide = from_bfloat16_bits(cast) if is_bfloat16 else cast
            if wide.dtype.kind == "f":
                infinite = np.isinf(wide)  # rare: search for their cause only where one occurs
                if infinite.any():
                    self._refuse(infinite & np.isfinite(values), values, "overflows")
                return cast
            # float64 holds 2**63 but int64 does not, and the two would compare as equal.
            changed = (cast != values) | ((cast < 0) != (values < 0))
            if values.dtype.kind == "f":
                wide = np.abs(values.astype(np.float64, copy=False))
                changed |= ~np.isfinite(wide) | (wide >= 2.0**63)
        self._refuse(changed, values, "has no exact value in")
        return cast

    def _refuse(self, bad: npt.NDArray[np.bool_], values: npt.NDArray[Any], problem: str) -> None:
        if bad.any():
            raise InputError(
                f"the attribute {self.name!r}, {location(bad, self.num_rows_done)}: "
                f"{values.flat[np.argmax(bad)]!s} {problem} {self.target}; choose a wider type or "
                "rescale the data"
            )


class RowSink:
    """Takes the rows of one node attribute in order, in pieces of any size.

    `GraphWriter.node_rows` provides one in a context; when it ends, all rows must have come.
    """

    def __init__(self, array: PagedArrayWriter, caster: Caster, phase: Phase) -> None:
        self._array = array
        self._caster = caster
        self._phase = phase
        self.num_nan = self.num_infinite = 0  # such values among the appended rows

    @property
    def num_committed_rows(self) -> int:
        """Rows, from the first, that an interrupted conversion has written already."""
        return self._array.num_committed_rows

    def skip(self, num_rows: int) -> int:
        """Pass over at most that many rows that are written already; return their number."""
        known = self._array.skip(num_rows)
        self._caster.num_rows_done += known
        self._phase.advance(known)
        return known

    def append(self, rows: npt.ArrayLike) -> None:
        """Append the next rows.

        Parameters
        ----------
        rows : array, tensor or list, shape [k, *row_shape]
            In the type that was announced to `node_rows`. Rows that an interrupted conversion has
            written already are passed over.
        """
        rows = as_array(rows, "the rows")
        rows = rows[self.skip(len(rows)) :]
        if len(rows):
            values = from_bfloat16_bits(rows) if self._caster.source == "bfloat16" else rows
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                self.num_nan += int(np.isnan(values).sum())
                self.num_infinite += int(np.isinf(values).sum())
            self._array.append(self._caster(rows))
            self._phase.advance(len(rows))


class NodeArrays:
    """Writes the node attributes of one node type. Not thread-safe."""

    def __init__(
        self,
        store: StoreWriter,
        options: ConvertOptions,
        progress: Progress,
        node_type: str = NODE_TYPE,
        *,
        num_nodes: int | None = None,
    ) -> None:
        self.num_nodes = num_nodes  # N if known: attributes must have N rows
        self.attributes: dict[str, AttributeSpec] = {}  # the attributes written so far
        # Times that lie compressed, by path: edges are ordered by them.
        self.times: dict[str, npt.NDArray[np.int64]] = {}
        self.time_units: dict[str, str] = {}  # of attributes whose input states them
        self.shows_num_nodes = False  # whether batches have `num_nodes`
        self._store = store
        self._options = options
        self._progress = progress
        self._type = node_type
        self._of = "" if node_type == NODE_TYPE else f" of {node_type!r}"
        self._fractions = options.fractions_of(node_type)  # of the splits to draw
        self._splits: dict[str, AttributeSpec] = {}
        # Splits that wait until N is known: their name for messages, and their values.
        self._waiting: dict[str, tuple[str, npt.NDArray[Any]]] = {}
        self._original_ids: AttributeSpec | None = None
        self._original_names: TextSpec | None = None

    @contextmanager
    def rows(
        self,
        name: str,
        *,
        num_rows: int,
        row_shape: tuple[int, ...],
        dtype: str,
        cat_dim: int = 0,
        where: str | None = None,
        are_multiples: bool = False,
    ) -> Iterator[RowSink]:
        """Write an attribute row by row; see `GraphWriter.node_rows`."""
        if not are_multiples and self._options.is_scaled(self._type, name):
            raise UsageError(
                "feature_scale needs features that can be read twice, which these cannot; "
                "convert without it first"
            )
        where = where or repr(name)
        check_count(where, num_rows, self.num_nodes)
        stored = self._stored_type(name, has_times=name in self._options.time_attr)
        if name in self._options.time_attr and (dtype, row_shape) != ("int64", ()):
            raise InputError(
                f"{where}: times are int64, one for each node, and these are {dtype} with rows of "
                f"shape {list(row_shape)}"
            )
        caster = Caster(name, dtype, stored or dtype)
        array = self._store.paged(
            names.node_array(self._type, name),
            name=name,
            row_shape=row_shape,
            dtype=caster.target,
            num_rows=num_rows,
            cat_dim=cat_dim,
        )
        with self._progress.phase(f"write {name}", num_rows, "rows") as phase:
            sink = RowSink(array, caster, phase)
            yield sink
        if name == "x" and (sink.num_nan or sink.num_infinite):
            _LOG.warning(
                "%s: of %d values %d are NaN and %d infinite; replace them, or a model that sees "
                "them has no loss",
                where,
                math.prod((num_rows, *row_shape)),
                sink.num_nan,
                sink.num_infinite,
            )
        if array.is_complete:  # close now: work before the commit may be interrupted
            array.close()
        self.attributes[name] = array.spec

    def _set_scales(
        self,
        name: str,
        scales: npt.NDArray[np.float32],
        decoded: DecodedDtype,
        error: ScaleError | None,
    ) -> None:
        """Write the scales of an attribute whose rows of int8 are multiples of them."""
        path = names.scales_array(self._type, name)
        array = self._store.compressed(path, scales, name=f"{name}_scale")
        scaled = Scaled(array, decoded, error)
        self.attributes[name] = replace(self.attributes[name], scaled=scaled)

    def write(
        self,
        name: str,
        values: npt.NDArray[Any] | ArraySource,
        *,
        dtype: str | None = None,
        cat_dim: int = 0,
    ) -> None:
        """Write an attribute: compressed if its rows are single values, else in pages."""
        source = MemoryArray(repr(name), values) if isinstance(values, np.ndarray) else values
        check_rows(source, self.num_nodes)
        if source.dtype.kind == "M":
            source, dtype = as_times(source), None
        if source.time_unit is not None:
            self.time_units[name] = source.time_unit
        is_time = name in self._options.time_attr
        if is_time:
            of = f" of type {self._type!r}" if self._of else ""
            source, dtype = integer_times(source, f"the times {name!r} of nodes{of}"), "int64"
        dtype = dtype or dtype_name(source.dtype)
        stored = self._stored_type(name, has_times=is_time or source.time_unit is not None)
        width = row_bytes(source)
        num_bytes = source.shape[0] * width
        if width and (
            name == "x"
            or width > MAX_COMPRESSED_ROW_BYTES
            or num_bytes > MAX_COMPRESSED_BYTES
            or self._options.is_scaled(self._type, name)
        ):
            self._copy(name, source, dtype, cat_dim)
            return
        path, rows = names.node_array(self._type, name), source.read()
        if is_time:
            self.times[path] = rows
        if stored is not None and width:
            rows, dtype = Caster(name, dtype, stored)(rows), stored
        self.attributes[name] = self._store.compressed(
            path, rows, name=name, dtype=dtype, cat_dim=cat_dim
        )

    def write_multiples(
        self, name: str, source: ArraySource, cat_dim: int, scales: npt.NDArray[Any], scaled: Scaled
    ) -> None:
        """Write rows of int8 that are multiples already, with their scales."""
        self._copy(name, source, "int8", cat_dim)
        self._set_scales(name, scales, scaled.decoded, scaled.error)

    def _stored_type(self, name: str, *, has_times: bool) -> str | None:
        """Return the type to store an attribute as; None: its own."""
        stored = self._options.feature_dtype_of(self._type, name)
        if stored is not None and has_times:
            raise UsageError(
                f"feature_dtype={f'{name}={stored}'!r}: the attribute has times, which are stored "
                "as int64; leave it out"
            )
        found = {*self.attributes, name}
        for each in found & {name, scales_name(name)}:
            refuse_scales_name(self._options, self._type, each, f"the nodes{self._of}", found)
        return stored

    def _copy(self, name: str, source: ArraySource, dtype: str, cat_dim: int) -> None:
        """Copy an array into pages."""
        how: dict[str, Any] = {
            "num_rows": source.shape[0],
            "row_shape": source.shape[1:],
            "cat_dim": cat_dim,
            "where": source.label,
        }
        if self._options.is_scaled(self._type, name):
            self._quantize(name, source, dtype, how)
            return
        with self.rows(name, dtype=dtype, **how) as sink:
            for rows in read_ahead(source.pieces(sink.skip(sink.num_committed_rows))):
                sink.append(rows)

    def _quantize(self, name: str, source: ArraySource, dtype: str, how: dict[str, Any]) -> None:
        """Write an array as multiples of scales, and measure by how much these differ."""
        with self._progress.phase(f"find scales of {name}", source.shape[0], "rows") as phase:
            columns = find_columns(source, dtype, phase)
        quantizer = Quantizer(columns, dtype)
        with self.rows(name, dtype="int8", are_multiples=True, **how) as sink:
            # Also rows that an interrupted conversion has written: they count in the errors.
            for rows in read_ahead(map(quantizer, source.pieces())):
                sink.append(rows)
        errors = quantizer.errors()
        found = summary_of(errors)
        worst = column_name(source.shape[1:], found.column)
        self._progress.note(
            f"{name}{self._of}: int8 differs from the input by {found.median:.2%} of a column's "
            f"standard deviation (root mean square; the median), by {found.worst:.2%} in column "
            f"{worst or 0}"
        )
        lost = quantizer.lost()
        if (found.worst > MAX_ERROR or lost.max() > MAX_LOST) and not self._options.allow_error:
            self._refuse_error(source, dtype, columns, errors, lost)
        self._set_scales(name, columns.scales, decoded_dtype(dtype), found)

    def _refuse_error(
        self,
        source: ArraySource,
        dtype: str,
        columns: Columns,
        errors: npt.NDArray[np.float64],
        lost: npt.NDArray[np.float64],
    ) -> None:
        other = "leave the attribute as it is"
        if dtype != "float16":
            with self._progress.phase("measure float16", source.shape[0], "rows"):
                as_float16 = float(float16_errors(source, dtype, columns).max())
            if as_float16 <= MAX_ERROR:
                share = f"{100 * as_float16:.2g} %"
                other = f"store the attribute as float16, which differs by {share} at most"
        is_off = errors.max() > MAX_ERROR
        measure, limit, share = (errors, MAX_ERROR, "by") if is_off else (lost, MAX_LOST, "of")
        place = tuple(map(int, np.unravel_index(int(measure.argmax()), measure.shape)))
        worst = float(measure[place])
        problem = f"has 0 for {worst:.1%} of the values that are not 0"
        cause, cure = "its largest magnitude is far above these", ""
        if is_off:
            unit = "value" if columns.is_constant[place] else "standard deviation"
            by = f"{worst:.0%} of" if worst < 10 else f"{worst:.3g} times"
            problem = f"differs from the input by {by} its {unit} (root mean square)"
            cause, cure = columns.cause_of_error(place)
        num_more = int((measure > limit).sum()) - 1
        others = f", and {num_more} others {share} more than {limit:.0%}" if num_more else ""
        raise InputError(
            f"{source.label}: column {column_name(measure.shape, int(measure.argmax())) or 0} as "
            f"int8 {problem}{others}: {cause}; {f'{cure}, ' if cure else ''}{other}, or take the "
            "error with allow_error=True"
        )

    # ---- splits, ids and names

    def set_num_nodes(self, num_nodes: int) -> None:
        """Set N, and write the splits that wait for it."""
        self.num_nodes = num_nodes
        for name, (where, values) in self._waiting.items():
            self._write_split(name, where, values, num_nodes)
        self._waiting = {}

    def set_split(
        self, name: str, values: npt.ArrayLike | ArraySource, where: str | None = None
    ) -> int:
        """Name a set of nodes; return the bytes that are kept in memory until N is known."""
        name = split_name(name)
        if self._fractions is not None:
            raise UsageError(
                f"{where or 'the input'}: has the split {name!r}{self._of}, next to which none is "
                "drawn; leave out split_fractions=, or the splits"
            )
        where = where or f"the split {name!r}{self._of}"
        if name in self._splits or name in self._waiting:
            raise InputError(f"{where}: the split {name!r}{self._of} was given already")
        source = as_source(values, where)
        if isinstance(source, MemoryArray):
            found = source.read()
        else:
            found = read_split(source, self.num_nodes, self._options.memory_bytes)
        if self.num_nodes is None:
            self._waiting[name] = where, found
            return found.nbytes
        self._write_split(name, where, found, self.num_nodes)
        return 0

    def _write_split(self, name: str, where: str, values: npt.NDArray[Any], num_nodes: int) -> None:
        path, ids = names.split_array(self._type, name), split_ids(values, num_nodes, where)
        self._splits[name] = self._store.compressed(path, ids, name=name)

    def draw_splits(self) -> None:
        """Write the splits that the options ask for, once N is known."""
        if self._fractions is None:
            return
        count = self.num_nodes or 0
        drawn = Reservation(f"an order of {count} nodes", _BYTES_PER_DRAW * count)
        memory_ledger("drawing splits", self._options.memory_bytes).add(drawn).check()
        key = (self._options.seed, _SPLITS + zlib.crc32(self._type.encode()))
        order = permutation(count, keyed(key, (0, 0, 0, 0)))
        begin = 0
        for name, end in zip(_NAMES_DRAWN, split_ends(count, self._fractions), strict=True):
            if end > begin:
                where = f"the split {name!r}{self._of}"
                self._write_split(name, where, np.sort(order[begin:end]), count)
            begin = end

    def set_original_ids(self, ids: npt.ArrayLike | ArraySource) -> None:
        """Record the input's own id [N] of every node."""
        found = as_source(ids, f"the original ids{self._of}")
        check_count(f"the original ids{self._of}", found.shape[0], self.num_nodes)
        path = names.original_id_array(self._type)
        if isinstance(found, MemoryArray):
            self._original_ids = self._store.compressed(path, found.read(), name="original_id")
        else:
            directory, _, name = path.rpartition("/")
            self._original_ids = copy_array(self._store, directory, found, name)

    def set_original_names(
        self, texts: Iterable[list[bytes]], num_names: int, num_bytes: int
    ) -> None:
        """Record the input's own name of every node."""
        check_count(f"the original names{self._of}", num_names, self.num_nodes)
        directory = names.original_name_directory(self._type)
        self._original_names = self._store.texts(directory, texts, num_names, num_bytes)

    def spec(self) -> NodeTypeSpec:
        """Return the type with all that was written, once N is known."""
        num_nodes = self.num_nodes or 0
        for name, own in self.attributes.items():
            check_count(repr(name), own.num_rows, num_nodes)
        if self._original_ids is not None:
            check_count(f"the original ids{self._of}", self._original_ids.num_rows, num_nodes)
        return NodeTypeSpec(
            self._type,
            num_nodes,
            self.attributes,
            self._splits,
            self._original_ids,
            self._original_names,
            explicit_num_nodes=self.shows_num_nodes,
        )


def split_name(name: str) -> str:
    """Return a split's name in a store: "val" is called "valid" there."""
    return _NAMES.get(name, name)


def read_split(
    source: ArraySource, num_nodes: int | None, memory_bytes: int | None
) -> npt.NDArray[Any]:
    """Return the array of a split; refuse one that is longer than N or than memory allows."""
    num_entries = math.prod(source.shape)
    if num_nodes is not None and num_entries > num_nodes:
        raise InputError(
            f"{source.label}: has {format_count(num_entries, 'entry')}, but the graph has "
            f"{format_count(num_nodes, 'node')}"
        )
    if memory_bytes is not None:
        entries = Reservation(f"a split of {num_entries} entries", _BYTES_PER_ENTRY * num_entries)
        memory_ledger(f"{source.label}: reading it", memory_bytes).add(entries).check()
    return source.read()


def split_ids(values: npt.NDArray[Any], num_nodes: int, where: str) -> npt.NDArray[np.int64]:
    """Return the node ids of a split."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InputError(
            f"{where}: has shape {list(values.shape)}; a split is a list of node ids, or a mask "
            f"over the {format_count(num_nodes, 'node')}"
        )
    if values.dtype == np.bool_:
        if len(values) != num_nodes:
            raise InputError(
                f"{where}: the mask has {format_count(len(values), 'entry')}, but the graph has "
                f"{format_count(num_nodes, 'node')}"
            )
        return np.flatnonzero(values)
    check_ids(values, num_nodes, f"{where}: node id")
    ids = values.astype(np.int64)
    ordered = np.sort(ids)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise InputError(
            f"{where}: {len(repeated)} node ids are repeated, the first is {int(repeated[0])}; "
            "a split names each node once"
            + ("; a mask must be of the type bool" if len(ids) == num_nodes else "")
        )
    return ids


def split_ends(num_nodes: int, fractions: Sequence[float]) -> list[int]:
    """Return where splits of rounded shares of the nodes end: with N, if the shares make 1."""
    ends = (min(1.0, sum(fractions[: i + 1])) for i in range(len(fractions)))
    return [num_nodes if end > 1 - 1e-9 else math.floor(end * num_nodes + 0.5) for end in ends]


def split_ranges(
    num_nodes: int, fractions: tuple[float, float]
) -> dict[str, npt.NDArray[np.int64]]:
    """Return the node ids of train, valid and test."""
    train, valid = (int(num_nodes * fraction) for fraction in fractions)
    bounds = {"train": (0, train), "valid": (train, train + valid)}
    bounds["test"] = (train + valid, num_nodes)
    return {name: np.arange(*bound, dtype=np.int64) for name, bound in bounds.items()}
