"""Arrays in files of `torch.save`, unpickled with a list of allowed names.

OGB publishes splits as `torch.save` of a dict of NumPy arrays (or of a dict of such dicts). That is
a pickle in a zip archive, with tensors in members of their own, or a few pickles in a row before
torch 1.6. So is a `Data` of PyG. An allowed name means a function of this module: NumPy's and
torch's own constructors believe what is in a pickle, and `torch.load` would run an archive that
claims to be TorchScript.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from functools import cache
from itertools import chain
from operator import index
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.inputs.kinds import ZIP_MAGIC
from gnnstore.converters.inputs.opening import (
    PathLike,
    existing_file,
    open_input,
    open_zip,
    refuse_kind,
)
from gnnstore.converters.inputs.source import ArraySource, MemoryArray
from gnnstore.errors import InputError, storage_error, storage_errors

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

_MAX_MESSAGE = 200  # characters of a value in a message
# Bytes in memory for each byte of the file: the pickle, its texts, their bytes, and a read piece.
_TIMES_FILE = 4
# The first of the four pickles that torch wrote before it wrote archives.
_OLD_TORCH = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
_NUM_PICKLES_BEFORE = 3
_MAX_OPCODES = 2**16  # most opcodes of a pickle; OGB's have a few hundred
_MAX_DIMENSIONS = 32
_SMALL_BYTES = 2**20  # bytes of values that may have any number of names
# Opcodes whose results may be fetched from the memo, and so may tuples of up to three atoms. Others
# may not: the hash of n tuples, each of which holds the one before twice, takes 2^n steps.
_ATOMS = {
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
}
_SHARED = {"BYTEARRAY8", "EMPTY_DICT", "EMPTY_LIST", "GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ"}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_GETS, _PUTS = {"BINGET", "LONG_BINGET"}, {"BINPUT", "LONG_BINPUT", "MEMOIZE"}
_OPCODES = {
    *(*_ATOMS, *_SHARED, *_GETS, *_PUTS, *_TUPLES, "TUPLE", "PROTO", "FRAME", "MARK"),
    *("BINPERSID", "BUILD", "STOP", "SETITEM", "SETITEMS"),
} - {"NEWOBJ", "BINFLOAT", "EMPTY_LIST"}
# Objects with values that are not arrays.
_OBJECT_OPCODES = {"NEWOBJ", "BINFLOAT", "EMPTY_LIST", "APPEND", "APPENDS"}
_CODES = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}

T = TypeVar("T")

Arrays = Mapping[str, "ArraySource | Mapping[str, ArraySource]"]
_StorageReader = Callable[[str, str], npt.NDArray[Any]]


class NotArraysError(Exception):
    """A pickle holds something else than dicts of arrays, which the message names."""


def open_pickled(path: Path, what: str, memory: Ledger) -> Arrays:
    """Read the arrays of a (nested) dict that `torch.save` wrote."""

    def read(found: Any) -> Arrays:
        arrays: Arrays = _sources(path, found)
        return arrays

    return read_pickled(path, what, memory, read)


def open_counts(path: Path, what: str, memory: Ledger) -> dict[str, int]:
    """Read the numbers of a dict that `torch.save` wrote."""
    return read_pickled(path, what, memory, _counts, expected="a dict of counts")


def read_pickled(
    path: Path,
    what: str,
    memory: Ledger,
    read: Callable[[Any], T],
    *,
    expected: str = "a dict of arrays",
    names: Mapping[str, Any] | None = None,
) -> T:
    """Return `read` of what `torch.save` wrote, in which `names` are allowed as well as arrays."""
    existing_file(path, what)
    remedy = f"with numpy.savez as {path.with_suffix('.npz').name} and move it away"
    with storage_errors(f"read {what}", path):
        size = _TIMES_FILE * path.stat().st_size
    whole = Reservation(f"{path.name}, which is read whole", size)
    memory.add(whole).check(None, f"save the arrays of {path} {remedy}")
    try:
        return read(_load(path, names or {}))
    except OSError as error:
        raise storage_error(error, f"read {what}", path) from error
    except MemoryError:
        found = "more than there is memory for, or a malformed pickle"
    except InputError:  # a file of another kind
        raise
    except NotArraysError as error:
        found = str(error)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        found = f"a damaged archive ({error})"
    except Exception as error:  # on odd bytes pickletools, unpacking and NumPy raise anything
        found = f"a malformed pickle ({error})"
    raise InputError(
        f"{path}: expected {expected} as torch.save writes it, found {found[:_MAX_MESSAGE]}. "
        f"Nothing else in a pickle is read; if you trust the file, save its arrays {remedy}",
        path=path,
    )


def _load(path: Path, names: Mapping[str, Any]) -> Any:
    most_bytes = _SMALL_BYTES + _TIMES_FILE * path.stat().st_size
    with open_input(path) as file:
        if file.read(len(_OLD_TORCH)) == _OLD_TORCH:
            stream = io.BytesIO(_OLD_TORCH + file.read())
            for _ in range(_NUM_PICKLES_BEFORE):
                _check_opcodes(stream, _OPCODES)
            return _unpickle(stream, _no_storage, names, most_bytes)
    refuse_kind(path, ZIP_MAGIC)
    with open_zip(path) as archive:
        members, read = archive.infolist(), cache(archive.read)
        if members and all(m.filename.endswith(".npy") for m in members):
            raise InputError(
                f"{path}: is an archive of arrays (.npz), which 'gnnstore convert numpy' reads",
                path=path,
            )
        # Stored members that do not overlap are not larger than the file, whose bytes are counted.
        is_stored = all(m.compress_type == zipfile.ZIP_STORED for m in members)
        if not is_stored or sum(m.file_size for m in members) > path.stat().st_size:
            raise NotArraysError("an archive as torch.save never writes it")
        pickles = [m for m in archive.namelist() if m.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise NotArraysError(f"{len(pickles)} members data.pkl")
        prefix = pickles[0].removesuffix("data.pkl")
        storages = {m.removeprefix(f"{prefix}data/"): m for m in archive.namelist()}
        is_big = f"{prefix}byteorder" in storages and archive.read(f"{prefix}byteorder") == b"big"

        def read_storage(key: str, code: str) -> npt.NDArray[Any]:
            return np.frombuffer(read(storages[key]), f"{'<>'[is_big]}{code}")

        return _unpickle(io.BytesIO(archive.read(pickles[0])), read_storage, names, most_bytes)


def _no_storage(_key: str, _code: str) -> npt.NDArray[Any]:
    raise NotArraysError("a tensor as torch wrote it before 1.6; load and save it again")


def _check_opcodes(stream: IO[bytes], allowed: Collection[str]) -> int:
    """Return the number of opcodes of a pickle; refuse those that what is read does not need."""
    memo: dict[int, str] = {}
    kind, num_atoms, count = "", 0, 0  # of the last result, and how many atoms in a row there are
    for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if count >= _MAX_OPCODES:
            raise NotArraysError(f"more than {_MAX_OPCODES} opcodes")
        if opcode.name not in allowed:
            raise NotArraysError(f"the opcode {opcode.name}")
        if opcode.name in _PUTS:
            entry = len(memo) if argument is None else argument
            if entry >= _MAX_OPCODES:  # the memo is an array
                raise NotArraysError(f"the entry {entry} of the memo")
            memo[entry] = kind
            continue
        if opcode.name in _GETS:
            kind = memo.get(cast(int, argument), "")
            if not kind:
                raise NotArraysError("a tuple that occurs twice")
        elif opcode.name in _TUPLES:
            kind = "shared" if num_atoms >= _TUPLES[opcode.name] else ""
        else:
            is_atom = opcode.name in _ATOMS
            kind = "atom" if is_atom else "shared" if opcode.name in _SHARED else ""
        num_atoms = num_atoms + 1 if kind == "atom" else 0
    return count


def _unpickle(
    stream: IO[bytes], read_storage: _StorageReader, names: Mapping[str, Any], most_bytes: int
) -> Any:
    begin = stream.tell()
    num_opcodes = _check_opcodes(stream, _OPCODES | _OBJECT_OPCODES if names else _OPCODES)
    stream.seek(begin)
    found = _Unpickler(stream, read_storage, names).load()
    _check_shared(found, num_opcodes, most_bytes)
    return found


def _check_shared(found: Any, most_values: int, most_bytes: int) -> None:
    """Refuse values that lie in few bytes because many names or lists share them."""
    waiting = [found]
    while waiting:
        value = waiting.pop()
        if isinstance(value, PickledArray):
            most_bytes -= value.values.nbytes
        elif isinstance(value, str | bytes):
            most_bytes -= len(value)
        elif isinstance(value, dict | list | tuple):
            most_values -= len(value)
            parts = chain(value, value.values()) if isinstance(value, dict) else value
            waiting.extend(parts if most_values >= 0 else ())
        elif isinstance(state := getattr(value, "state", None), dict):  # an object of PyG
            most_values -= len(state)
            waiting.extend(own for name, own in state.items() if name != "_parent")
        if most_values < 0 or most_bytes < 0:
            raise NotArraysError("values that occur many times; save a copy for each")


class PickledArray:
    """An array of a pickle: nothing in a pickle can change it but its own state."""

    def __init__(self, values: npt.NDArray[Any] | None = None) -> None:
        self.values = np.empty(0) if values is None else values

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        self.values = _frombuffer(data, dtype, shape, "F" if is_fortran else "C").values


class _Dtype:
    """A NumPy element type of a pickle."""

    def __init__(self, code: str) -> None:
        if code not in _CODES:
            raise NotArraysError(f"an array of {code}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        self.dtype = self.dtype.newbyteorder(">" if state[1] == ">" else "<")


class _Unpickler(pickle.Unpickler):
    """Unpickles dicts of arrays."""

    def __init__(
        self, stream: IO[bytes], read_storage: _StorageReader, names: Mapping[str, Any]
    ) -> None:
        super().__init__(stream)
        self._read_storage = read_storage
        self._names = {**_NAMES, **names}
        self._encode = cache(_encode)  # a pickle may ask for the bytes of a text thousands of times

    def find_class(self, module: str, name: str) -> Any:
        """Return this module's replacement for a name."""
        # NumPy 2 calls its module numpy._core, earlier versions numpy.core.
        full = f"{module}.{name}".replace("numpy._core.", "numpy.core.")
        if full == "_codecs.encode":
            return self._encode
        if full not in self._names:
            raise NotArraysError(f"the name {full}")
        return self._names[full]

    def persistent_load(self, saved: Any) -> PickledArray:
        """Return a storage of torch: ("storage", class, key, device, number of elements)."""
        word, code, key = saved[:3]
        if word != "storage" or code not in _CODES:
            raise NotArraysError("a persistent id of something else than a storage")
        return PickledArray(self._read_storage(key, code))


def _encode(text: str, codec: str) -> bytes:
    if codec != "latin1":
        raise NotArraysError("a text that is not bytes")
    return text.encode(codec)


def _frombuffer(data: Any, dtype: _Dtype, shape: Any, order: Any, *axes: Any) -> PickledArray:
    array = np.frombuffer(data, dtype.dtype)
    if order == "K":
        return PickledArray(array.reshape(shape).transpose(*axes))
    return PickledArray(array.reshape(shape, order=order))


def _hooks() -> dict[str, Any]:
    """Return the hooks of a tensor; `dict` would make copies."""
    return {}


def _tensor(storage: PickledArray, first: Any, shape: Any, strides: Any, *_: Any) -> PickledArray:
    items = storage.values
    steps = [items.itemsize * index(stride) for stride in strides]
    values = np.ndarray(shape, items.dtype, items, items.itemsize * index(first), steps)
    if values.nbytes > items.nbytes:
        raise NotArraysError("a tensor that is larger than its storage; save a clone")
    return PickledArray(values)


# Replacements for names: functions, since a pickle could set the attributes of a class.
_NAMES: dict[str, Any] = {
    "numpy.ndarray": None,
    "numpy.dtype": lambda code, *_: _Dtype(code),
    "numpy.core.multiarray._reconstruct": lambda *_: PickledArray(),
    "numpy.core.numeric._frombuffer": _frombuffer,
    "__builtin__.bytes": lambda: b"",  # of an empty array, which has no text
    "builtins.bytes": lambda: b"",
    "torch._utils._rebuild_tensor_v2": _tensor,
    "collections.OrderedDict": _hooks,
    "torch.BoolStorage": "b1",
    "torch.ByteStorage": "u1",
    "torch.CharStorage": "i1",
    "torch.ShortStorage": "i2",
    "torch.IntStorage": "i4",
    "torch.LongStorage": "i8",
    "torch.HalfStorage": "f2",
    "torch.FloatStorage": "f4",
    "torch.DoubleStorage": "f8",
}


def _sources(path: Path, value: Any, *names: str) -> Any:
    """Return an array as a source, and likewise (nested) dicts of arrays."""
    if isinstance(value, PickledArray) and names:
        label = ": ".join((str(path), *(name[:_MAX_MESSAGE] for name in names)))
        return MemoryArray(label, value.values)
    if not isinstance(value, dict) or len(names) > 1 or not all(isinstance(n, str) for n in value):
        kind = type(value).__name__
        where = f" ({': '.join(names)} is a {kind})" if names else ""
        raise NotArraysError(f"a {'dict' if names else kind} of something else{where}")
    return {name: _sources(path, own, *names, name) for name, own in value.items()}


def _counts(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or not all(
        isinstance(name, str) and type(count) is int and count >= 0 for name, count in value.items()
    ):
        raise NotArraysError("something else than a dict of counts")
    return dict(value)


# ---- a Data or HeteroData of PyG

_MODULE = "torch_geometric.data"


def open_saved_data(path: PathLike, memory_bytes: int | None) -> Data | HeteroData:
    """Read a `Data` or `HeteroData`, or the single graph of a data set's processed file."""
    from torch_geometric.data import Data, HeteroData  # noqa: PLC0415  (seconds to import)

    class Saved:
        """An object of PyG; a class of its own for each file, which a pickle could change."""

        def __init__(self) -> None:
            self.state: Any = {}

        def __new__(cls, *_: Any) -> Saved:
            return super().__new__(cls)

        def __setstate__(self, state: Any) -> None:
            self.state = state

    names: dict[str, Any] = {
        f"{_MODULE}.data.Data": Saved,
        f"{_MODULE}.hetero_data.HeteroData": Saved,
        f"{_MODULE}.graph_store.EdgeAttr": None,
        f"{_MODULE}.feature_store.TensorAttr": None,
        **{
            f"{_MODULE}.storage.{kind}Storage": Saved for kind in ("Global", "Base", "Node", "Edge")
        },
        f"{_MODULE}.data.DataEdgeAttr": None,
        f"{_MODULE}.data.DataTensorAttr": None,
        # What a `Data` that was used remembers of its attributes.
        f"{_MODULE}.storage.AttrType": lambda *_: None,
        "collections.defaultdict": lambda *_: {},
        "__builtin__.set": lambda *_: None,
        "builtins.set": lambda *_: None,
        "torch.Size": _size,
    }

    def read(found: Any) -> Data | HeteroData:
        if isinstance(found, tuple):  # of a data set: attributes, where each graph begins, a class
            _check_one_graph(found)
            attributes = found[0]
        else:
            attributes = found
        if isinstance(attributes, Saved):
            attributes = attributes.state
            if isinstance(attributes, dict) and "_node_store_dict" in attributes:
                attributes = {
                    "_global_store": mapping(attributes.get("_global_store")),
                    **mapping(attributes["_node_store_dict"]),
                    **mapping(attributes.get("_edge_store_dict")),
                }
            elif isinstance(attributes, dict) and isinstance(attributes.get("_store"), Saved):
                attributes = mapping(attributes["_store"])
        attributes = mapping(attributes)
        if "_global_store" not in attributes:
            return _filled(Data(), attributes)
        data = HeteroData()
        for of, own in attributes.items():
            is_edge = isinstance(of, tuple) and len(of) == 3 and all(isinstance(n, str) for n in of)
            if of == "_global_store":
                _filled(data, mapping(own))
            elif is_edge or (isinstance(of, str) and not of.startswith("_")):
                _filled(data[of], mapping(own))
        return data

    def mapping(found: Any) -> dict[Any, Any]:
        """Return the attributes of a store of PyG, or a dictionary as it is."""
        if isinstance(found, Saved) and isinstance(found.state, dict):
            found = found.state.get("_mapping")
        if not isinstance(found, dict):
            raise NotArraysError(f"a {type(found).__name__}")
        return found

    place = existing_file(path, "the data")
    refuse_kind(place, ZIP_MAGIC, _OLD_TORCH, is_input=True)
    memory = memory_ledger("reading the data", memory_bytes)
    return read_pickled(
        place, "the data", memory, read, expected="a Data or HeteroData of PyG", names=names
    )


def _size(shape: Any = ()) -> list[Any]:
    if len(shape) > _MAX_DIMENSIONS:
        raise NotArraysError(f"a shape of {len(shape)} dimensions")
    return list(shape)


def _check_one_graph(found: tuple[Any, ...]) -> None:
    slices = found[1] if len(found) > 1 else None
    if not isinstance(slices, dict):
        return
    of_types = (own.values() for own in slices.values() if isinstance(own, dict))
    for places in chain(slices.values(), *of_types):
        if isinstance(places, PickledArray) and len(places.values) > 2:
            raise NotArraysError(f"a data set of {len(places.values) - 1} graphs; save one of them")


def _filled(data: Any, attributes: Mapping[Any, Any]) -> Any:
    """Return a `Data`, or a part of one, with attributes."""
    import torch  # noqa: PLC0415

    for name, value in attributes.items():
        if not isinstance(name, str) or name.startswith("_") or value is None:
            continue
        if isinstance(value, PickledArray):
            array = value.values
            data[name] = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=True))
        else:
            data[name] = _plain(value)
    return data


def _plain(value: Any) -> Any:
    """Return a value of numbers, texts, lists and dicts; refuse others."""
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    raise NotArraysError(f"a {type(value).__name__}")
