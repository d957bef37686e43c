"""Integer arrays out of a `split_dict.pt`, without unpickling it.

OGB publishes some splits only as `torch.save` of a dict of NumPy arrays, which is a pickle in
a zip archive, and loading a pickle runs the code in it. Here its opcodes are read as data by
the standard library's disassembler. The few that such a dict is made of build plain values;
nothing is imported, looked up or called, and everything else is refused by name.
"""

from __future__ import annotations

import math
import pickletools
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.arrays.npz import BOUNDED_METHODS
from gnnstore.converters.inputs import existing_file, open_zip
from gnnstore.errors import InputError, storage_error

# MAG240M's has 1.4 million ids, 8 bytes each, up to half more in the pickle's text form.
_MAX_BYTES = 2**28
_MAX_ARRAYS = 64  # one array under a million names would fill any memory
_MARK = object()
_PUSHED = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES"} | {
    *("BINBYTES8", "BININT", "BININT1", "BININT2", "LONG1")
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = ("PROTO", "FRAME")


class _NotAnArrayDictError(Exception):
    """A pickle holds something beside arrays of integers."""


@dataclass(frozen=True)
class _Global:
    """The name of something that a pickle would import."""

    name: str


@dataclass
class _Dtype:
    code: str
    byte_order: str = "="


@dataclass
class _Array:
    state: tuple[Any, ...] = ()

    def values(self) -> npt.NDArray[Any]:
        _, shape, dtype, fortran_order, data = self.state
        stored = np.dtype(dtype.code).newbyteorder(dtype.byte_order)
        if stored.kind not in "iub" or len(data) != stored.itemsize * math.prod(shape):
            raise _NotAnArrayDictError(f"an array of {stored} of {len(data)} bytes")
        flat = np.frombuffer(data, stored).astype(stored.newbyteorder("="))
        return flat.reshape(shape, order="F" if fortran_order else "C")


def read_split_dict(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a `split_dict.pt` by name.

    Raises
    ------
    NotFoundError, StorageError
        If it is not there, or cannot be read.
    InputError
        If it is no archive, or holds anything but a dict of integer arrays.
    """
    existing_file(path, "the splits")
    try:
        with open_zip(path) as archive:
            pickles = [m for m in archive.infolist() if m.filename.endswith("/data.pkl")]
            if len(pickles) != 1 or pickles[0].file_size > _MAX_BYTES:
                raise _NotAnArrayDictError("no data.pkl of a reasonable size")
            if pickles[0].compress_type not in BOUNDED_METHODS:
                raise _NotAnArrayDictError("a data.pkl that torch.save has not compressed")
            with archive.open(pickles[0]) as file:
                # Without a number, whatever it expands to is taken into memory first.
                data = file.read(pickles[0].file_size)
        return arrays_of_pickle(data)
    except OSError as error:
        raise storage_error(error, "read the splits", path) from error
    except MemoryError:
        raise
    except _NotAnArrayDictError as error:
        found = str(error)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        found = f"a damaged archive ({error})"
    except Exception as error:  # on odd bytes pickletools, unpacking and NumPy raise anything
        found = f"a malformed pickle ({error})"
    raise InputError(
        f"{path}: expected a dict of integer arrays as torch.save writes it, found {found}. "
        "Nothing else in a pickle is read; if you trust the file, save its arrays beside it with "
        f"numpy.savez as {path.with_suffix('.npz').name} and remove it",
        path=path,
    )


def arrays_of_pickle(data: bytes) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a pickled dict of NumPy arrays by name."""
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "STOP":
            break
        machine.step(opcode.name, argument)
    (found,) = machine.stack
    if (
        not isinstance(found, dict)
        or len(found) > _MAX_ARRAYS
        or not all(
            isinstance(name, str) and isinstance(value, _Array) for name, value in found.items()
        )
    ):
        raise _NotAnArrayDictError(f"a {type(found).__name__} of something else")
    return {name: value.values() for name, value in found.items()}


class _Machine:
    """Follows the opcodes of a pickle, building nothing but plain values."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._steps: dict[str, Callable[[], None]] = {
            "EMPTY_DICT": lambda: self.stack.append({}),
            "MARK": lambda: self.stack.append(_MARK),
            "MEMOIZE": lambda: self._memo.update({len(self._memo): self.stack[-1]}),
            "STACK_GLOBAL": self._stack_global,
            "TUPLE": lambda: self.stack.append(tuple(self._since_mark())),
            "SETITEM": lambda: self._set_items([self.stack.pop(-2), self.stack.pop()]),
            "SETITEMS": lambda: self._set_items(self._since_mark()),
            "REDUCE": self._reduce,
            "BUILD": self._build,
        }

    def step(self, name: str, argument: Any) -> None:
        """Follow one opcode."""
        if name in _IGNORED:
            return
        if name in _PUSHED:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            count = _TUPLES[name]
            self.stack[-count:] = [tuple(self.stack[-count:])]
        elif name == "GLOBAL":
            self.stack.append(_Global(argument.replace(" ", ".")))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self._memo[argument])
        elif name in self._steps:
            self._steps[name]()
        else:
            raise _NotAnArrayDictError(f"the opcode {name}")

    def _since_mark(self) -> list[Any]:
        begin = len(self.stack) - 1 - self.stack[::-1].index(_MARK)
        items = self.stack[begin + 1 :]
        del self.stack[begin:]
        return items

    def _set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise _NotAnArrayDictError("items of something else than a dict")
        target.update(zip(items[::2], items[1::2], strict=True))

    def _stack_global(self) -> None:
        module, name = self.stack.pop(-2), self.stack.pop()
        self.stack.append(_Global(f"{module}.{name}"))

    def _reduce(self) -> None:
        function, arguments = self.stack.pop(-2), self.stack.pop()
        name = function.name if isinstance(function, _Global) else repr(function)
        # NumPy 2 calls its module numpy._core, earlier versions numpy.core.
        if name in ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"):
            self.stack.append(_Array())
        elif name == "numpy.dtype":
            self.stack.append(_Dtype(str(arguments[0])))
        elif name == "_codecs.encode" and arguments[1] == "latin1":
            self.stack.append(arguments[0].encode("latin1"))
        elif name in ("__builtin__.bytes", "builtins.bytes") and arguments == ():
            self.stack.append(b"")  # the bytes of an empty array, which have no text
        else:
            raise _NotAnArrayDictError(f"a call of {name}")

    def _build(self) -> None:
        target, state = self.stack[-2], self.stack.pop()
        if isinstance(target, _Dtype):
            target.byte_order = {"<": "<", ">": ">"}.get(state[1], "=")
        elif isinstance(target, _Array):
            target.state = state
        else:
            raise _NotAnArrayDictError(f"the state of a {type(target).__name__}")
