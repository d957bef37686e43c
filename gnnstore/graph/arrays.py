"""The arrays of an open store: rows by number, texts, splits, nodes by original id."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore.errors import (
    BadIndexError,
    CorruptStoreError,
    InputError,
    NoSplitError,
    did_you_mean,
)
from gnnstore.features.source import Decoding
from gnnstore.formats import AttributeSpec, StoreReader
from gnnstore.formats.store.schema import EdgeSplitSpec, EdgeTypeSpec, NodeTypeSpec, TextSpec
from gnnstore.formats.store.values import decode_value
from gnnstore.graph.lazy import LazySource, LazyTensor, Rows, require_memory

Int64Array = npt.NDArray[np.int64]

_PIECE_BYTES = 2**23
_KEPT_BYTES = 2**25  # bytes of original ids or names, which are sorted once for all look-ups
_PIECE_TEXTS = 2**16
_KEPT_TEXT_BYTES = 150  # bytes of a text in a dictionary, but its letters
_NAMED_IDS = 5

T = TypeVar("T")
S = TypeVar("S")

SPLIT_ALIASES = {"val": "valid", "validation": "valid", "training": "train", "testing": "test"}


@dataclass(frozen=True)
class ArrayRows(LazySource):
    """Rows of an array of a store, along the axis that they had in its input."""

    reader: StoreReader
    spec: AttributeSpec
    axis: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reader, self.spec, self.axis)

    @property
    def name(self) -> str:  # type: ignore[override]
        """The array's path in the store."""
        return self.spec.path

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape with the rows along their axis."""
        rest = self.spec.shape[1:]
        return (*rest[: self.axis], *self.spec.shape[:1], *rest[self.axis :])

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """Type of the elements."""
        return getattr(torch, self.spec.shown_dtype)  # type: ignore[no-any-return]

    @property
    def stored_bytes(self) -> int:
        """Bytes of all values as they are stored."""
        return self.spec.num_bytes

    def read(self) -> Tensor:
        """Return all values."""
        found = self._shown(self.reader.read(self.spec))
        return found.movedim(0, self.axis) if self.axis else found

    @cached_property
    def values(self) -> npt.NDArray[Any]:
        """All rows, read once and kept."""
        require_memory(self.name, self.spec.num_bytes)
        return self.reader.read(self.spec)

    def take(self, rows: Rows) -> Tensor:
        """Return a copy of some rows; of a compressed array all are read, once."""
        if self.spec.layout != "paged":
            some = slice(rows.start, rows.stop, rows.step) if isinstance(rows, range) else rows
            return self._shown(self.values[some].copy())
        array = self.reader.paged(self.spec)
        if isinstance(rows, range) and rows.step == 1 and len(rows) > 1:
            found = array.read_slice(rows.start, rows.stop)
            if not found.flags.writeable and self.spec.scaled is None:
                found = found.copy()  # a mapping is read-only
        else:
            found = array.gather(np.asarray(rows, np.int64))
        return self._shown(found)

    def _shown(self, rows: npt.NDArray[Any]) -> Tensor:
        """Return rows as they are shown: those whose columns have scales are decoded."""
        decoding = Decoding.from_attribute(self.spec, self.reader.scales)
        values = rows if decoding is None else decoding.decode(rows)
        return as_tensor(values, self.spec.shown_dtype)


def stored(reader: StoreReader, spec: AttributeSpec) -> LazyTensor:
    """Return a stored array, rows first, as a tensor that is read when it is used."""
    return LazyTensor(ArrayRows(reader, spec))


def as_tensor(values: npt.NDArray[Any], dtype: str) -> Tensor:
    """Return a tensor that shares memory with `values`; bits of bfloat16 become bfloat16."""
    tensor = torch.from_numpy(np.asarray(values))  # a single value is not an array
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def whole_values(
    values: Mapping[str, Any],
    arrays: Mapping[str, AttributeSpec],
    read: Callable[[AttributeSpec], npt.NDArray[Any]],
) -> dict[str, Any]:
    """Return what a graph or a type has as a whole: copies of JSON values, and tensors."""
    tensors = {name: as_tensor(read(spec), spec.dtype) for name, spec in arrays.items()}
    return {**{name: decode_value(value) for name, value in values.items()}, **tensors}


class Texts(Sequence[str]):
    """Texts by number, read as they are asked for: `texts[3]`, `texts[10:20]`."""

    def __init__(self, reader: StoreReader, spec: TextSpec) -> None:
        self._letters = reader.paged(spec.bytes)
        self._offsets = reader.paged(spec.offsets)

    def __len__(self) -> int:
        return self._offsets.num_rows - 1

    @overload
    def __getitem__(self, key: int) -> str: ...

    @overload
    def __getitem__(self, key: slice) -> list[str]: ...

    def __getitem__(self, key: int | slice) -> str | list[str]:
        """Return a text, or a list of texts."""
        if isinstance(key, slice):
            return [self[i] for i in range(*key.indices(len(self)))]
        number = int(key)
        if not -len(self) <= number < len(self):
            raise BadIndexError(f"there is no text {number}; there are {len(self)}")
        number %= len(self)
        begin, end = self._offsets.read_slice(number, number + 2).tolist()
        if not 0 <= begin <= end <= self._letters.num_rows:
            raise CorruptStoreError(
                f"{self._offsets.spec.path}: text {number} goes from byte {begin} to {end} of "
                f"{self._letters.num_rows}; run gnnstore verify --level full"
            )
        return self._letters.read_slice(begin, end).tobytes().decode("utf-8", "replace")

    def find(self, texts: Iterable[str]) -> dict[str, int]:
        """Return the numbers of those texts that are there."""
        asked = set(texts)
        num_bytes = self._letters.num_rows + _KEPT_TEXT_BYTES * len(self)
        if num_bytes <= _KEPT_BYTES:
            return {text: self._numbers[text] for text in asked & self._numbers.keys()}
        return {text: number for text, number in self._numbered() if text in asked}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return dict(self._numbered())

    def _numbered(self) -> Iterator[tuple[str, int]]:
        for first in range(0, len(self), _PIECE_TEXTS):
            ends = self._offsets.read_slice(first, min(first + _PIECE_TEXTS, len(self)) + 1)
            begin, end = int(ends[0]), int(ends[-1])
            if not 0 <= begin <= end <= self._letters.num_rows or (np.diff(ends) < 0).any():
                raise CorruptStoreError(
                    f"{self._offsets.spec.path}: the texts from {first} on do not follow one "
                    "another; run gnnstore verify --level full"
                )
            letters = self._letters.read_slice(begin, end).tobytes()
            places = (ends - begin).tolist()
            for number, (low, high) in enumerate(pairwise(places), first):
                yield letters[low:high].decode("utf-8", "replace"), number

    def __repr__(self) -> str:
        return f"Texts({len(self)})"


def check_nodes(
    reader: StoreReader, spec: AttributeSpec, ids: npt.NDArray[Any], num_nodes: int
) -> None:
    """Refuse a stored split that is not a list of node ids."""
    is_list = ids.ndim == 1 and ids.dtype.kind in "iu"
    if not is_list or (ids.size and not 0 <= ids.min() <= ids.max() < num_nodes):
        path = reader.path / spec.path
        raise CorruptStoreError(
            f"{path}: the split is not a list of node ids below {num_nodes}; run 'gnnstore verify' "
            "on "
            "the store, and convert again",
            path=path,
        )


class ByName(Mapping[str, T], Generic[T, S]):
    """What a store has of some specs, by name; "val" finds "valid"."""

    def __init__(self, reader: StoreReader, specs: Mapping[str, S]) -> None:
        self._reader, self._specs = reader, specs

    def find(self, name: str) -> S | None:
        """Return the spec of a name; None if there is none."""
        if not isinstance(name, str):
            return None
        return self._specs.get(name) or self._specs.get(SPLIT_ALIASES.get(name, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


_HOW_TO_SPLIT = (
    ". Name the nodes yourself with input_nodes= (ids, or a mask), or convert again with splits: "
    "train_mask, val_mask and test_mask of a Data, --splits FILE.npz of 'gnnstore convert snap', "
    "or, of every kind, --split-fractions [TYPE=]0.8,0.1,0.1, which draws them"
)


class Splits(ByName[Tensor, AttributeSpec]):
    """Node ids by split name, int64; "val" finds "valid"."""

    def __init__(self, reader: StoreReader, node: NodeTypeSpec) -> None:
        super().__init__(reader, node.splits)
        self._attributes = node.attributes
        self._num_nodes = node.num_nodes

    def __getitem__(self, name: str) -> Tensor:
        """Return the ids of a split."""
        spec = self.find(name)
        if spec is None:
            there = ", ".join(self._specs) or "none"
            path = self._reader.path
            help_ = "" if self._specs else _HOW_TO_SPLIT
            raise NoSplitError(
                f"{path}: there is no split {name!r}{did_you_mean(name, self)}; the "
                f"store's splits: {there}{help_}",
                path=path,
            )
        ids = self._reader.read(spec)
        check_nodes(self._reader, spec, ids, self._num_nodes)
        return torch.from_numpy(ids.astype(np.int64, copy=False))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {spec.num_rows}" for name, spec in self._specs.items())
        return f"Splits({sizes})"


def _as_names(given: Any) -> npt.NDArray[Any] | None:
    """Return texts, of any shape, as an array of str; None if they are not all text."""
    if isinstance(given, torch.Tensor) or (
        isinstance(given, np.ndarray) and given.dtype.kind in "biuf"
    ):
        return None
    try:
        found = np.asarray(given, dtype=object)
    except ValueError:
        return None
    is_text = found.size and all(isinstance(name, str) for name in found.reshape(-1))
    return found if is_text else None


class NodeIds:
    """Finds nodes by their ids or names in the original data."""

    def __init__(
        self,
        reader: StoreReader,
        original: AttributeSpec | None,
        num_nodes: int,
        names: TextSpec | None = None,
    ) -> None:
        self._reader = reader
        self._original = original
        self._num_nodes = num_nodes
        self._names = None if names is None else Texts(reader, names)

    def find(self, ids: Any) -> Any:
        """Return nodes by their original ids or names, int64, as a tensor if these are one."""
        if (names := _as_names(ids)) is not None:
            return self._find_names(names)
        try:
            given = torch.as_tensor(ids).cpu().numpy()
            if given.size and given.dtype.kind not in "iu":
                raise TypeError(f"they are {given.dtype}")
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"original ids are integers or names, got {reprlib.repr(ids)} ({error})"
            ) from error
        asked, places = np.unique(given.astype(np.int64), return_inverse=True)
        nodes = self.find_ascending(asked)
        if (missing := asked[nodes < 0]).size:
            raise self._unknown("id", missing.tolist())
        found = nodes[places].reshape(given.shape)
        return torch.from_numpy(found) if isinstance(ids, torch.Tensor) else found

    def _find_names(self, names: npt.NDArray[Any]) -> Int64Array:
        if self._names is None:
            raise InputError(
                f"{self._reader.path}: the nodes have no names; look them up by integers"
            )
        flat = names.reshape(-1).tolist()
        known = self._names.find(flat)
        if missing := [name for name in dict.fromkeys(flat) if name not in known]:
            raise self._unknown("name", missing)
        return np.array([known[name] for name in flat], np.int64).reshape(names.shape)

    def _unknown(self, what: str, missing: Sequence[Any]) -> InputError:
        named = ", ".join(map(repr, missing[:_NAMED_IDS]))
        more = f" and {len(missing) - _NAMED_IDS} more" if len(missing) > _NAMED_IDS else ""
        return InputError(
            f"{self._reader.path}: no node has the original {what} {named}{more}; "
            f"store.original_{what}s are those there are"
        )

    def find_ascending(self, asked: Int64Array) -> Int64Array:
        """Return the node of each id, -1 where there is none."""
        if self._original is None:
            return np.where((asked >= 0) & (asked < self._num_nodes), asked, -1)
        if not len(asked):
            return asked
        if self._original.num_bytes <= _KEPT_BYTES:
            ids, nodes = self._sorted
            rank = np.minimum(np.searchsorted(ids, asked), len(ids) - 1)
            return np.where(ids[rank] == asked, nodes[rank], -1) if len(ids) else asked * 0 - 1
        found = np.full(len(asked), -1, np.int64)
        for first, ids in self._reader.pieces(self._original, _PIECE_BYTES):
            rank = np.minimum(np.searchsorted(asked, ids), len(asked) - 1)
            here = np.flatnonzero(asked[rank] == ids)
            found[rank[here]] = first + here
        return found

    @cached_property
    def _sorted(self) -> tuple[Int64Array, Int64Array]:
        """The original ids, ascending, and their nodes."""
        assert self._original is not None  # noqa: S101 - see its caller
        ids = self._reader.read(self._original)
        nodes = np.argsort(ids, kind="stable")
        return ids[nodes], nodes

    @cached_property
    def greatest(self) -> int:
        """The greatest of the original ids; -1 if there is none."""
        if self._original is None:
            return self._num_nodes - 1
        pieces = self._reader.pieces(self._original, _PIECE_BYTES)
        return max((int(ids.max(initial=-1)) for _, ids in pieces), default=-1)


class EdgeSplit:
    """The L edges of a split; its arrays are read when they are used."""

    def __init__(self, reader: StoreReader, spec: EdgeSplitSpec, counts: tuple[int, int]) -> None:
        def attribute(part: AttributeSpec | None) -> LazyTensor | None:
            return None if part is None else stored(reader, part)

        self._reader = reader
        self._spec = spec
        self._counts = counts  # nodes that are sources, and targets
        self.source = stored(reader, spec.source)  # source nodes, [L]
        self.target = stored(reader, spec.target)  # target nodes, [L]
        self.edge_ids = attribute(spec.edge_id)  # positions of the edges in the original input, [L]
        # Nodes [L, A] that replace the source of each edge.
        self.source_negatives = attribute(spec.source_negatives)
        # Nodes [L, A] that replace the target of each edge.
        self.target_negatives = attribute(spec.target_negatives)
        # Attributes of the edges, [L, ...].
        self.attributes = {name: stored(reader, own) for name, own in spec.attributes.items()}

    def __len__(self) -> int:
        return self._spec.num_edges

    @property
    def edge_index(self) -> torch.Tensor:
        """Sources and targets, int64 [2, L]."""
        return torch.from_numpy(self.ends(np.dtype(np.int64)))

    @property
    def negative_edges(self) -> torch.Tensor | None:
        """Negative edges that all edges share, int64 [2, K]; None if there are none."""
        source, target = self._spec.negative_source, self._spec.negative_target
        if source is None or target is None:
            return None
        return torch.from_numpy(self._pair(source, target, np.dtype(np.int64)))

    def ends(self, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return sources and targets, [2, L]."""
        return self._pair(self._spec.source, self._spec.target, dtype)

    def _pair(
        self, source: AttributeSpec, target: AttributeSpec, dtype: np.dtype[Any]
    ) -> npt.NDArray[Any]:
        found = np.empty((2, source.num_rows), dtype)
        for row, spec, count in zip(found, (source, target), self._counts, strict=True):
            ids = stored(self._reader, spec).read()
            check_nodes(self._reader, spec, ids, count)
            row[:] = ids
        return found

    def __repr__(self) -> str:
        return f"EdgeSplit({len(self)}, attributes={list(self.attributes)})"


class EdgeSplits(ByName[EdgeSplit, EdgeSplitSpec]):
    """Edge splits by name; "val" finds "valid".

    The training split is not among them where it is the edges of the graph.
    """

    def __init__(self, reader: StoreReader, edge: EdgeTypeSpec) -> None:
        super().__init__(reader, edge.splits)
        schema = reader.schema
        ends = (schema.node_of(edge.source), schema.node_of(edge.target))
        self._counts = (ends[0].num_nodes, ends[1].num_nodes)
        # Whether the edges of the graph are the training split: there are splits, and none is
        # called "train".
        self.has_message_train = bool(self._specs) and "train" not in self._specs

    def __getitem__(self, name: str) -> EdgeSplit:
        """Return a split."""
        spec = self.find(name)
        if spec is not None:
            return EdgeSplit(self._reader, spec, self._counts)
        help_ = "it has no edge splits; make a store that has, with 'gnnstore split-edges'"
        if self._specs:
            help_ = f"its edge splits: {', '.join(self._specs)}"
            help_ += "; its own edges are those to train on" * self.has_message_train
        raise NoSplitError(
            f"{self._reader.path}: there is no edge split {name!r}"
            f"{did_you_mean(name, self)}; {help_}",
            path=self._reader.path,
        )

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {spec.num_edges}" for name, spec in self._specs.items())
        return f"EdgeSplits({sizes})"
