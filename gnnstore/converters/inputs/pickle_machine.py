"""Follows the opcodes of a pickle of arrays as data: nothing is imported, looked up or called.

A pickle is a program, and loading one runs the code that it names. Its opcodes are read here by the
standard library's disassembler; the few that dicts of arrays are made of build plain values, and
everything else is refused by name. The numbers of an array are not taken into memory: where they
lie in the stream is.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}
# OGB's have a few hundred steps; a text or bytes above the limit are the numbers of an array.
_MAX_STEPS = 2**16
_MAX_INLINE_BYTES = 2**10
_MAX_LINE_BYTES = 2**10
_SKIP_BYTES = 2**20
_MARK = object()
# Opcodes whose argument follows its size, and the bytes that the size takes.
_SIZED = {
    "SHORT_BINUNICODE": 1,
    "BINUNICODE": 4,
    "BINUNICODE8": 8,
    "SHORT_BINBYTES": 1,
    "BINBYTES": 4,
    "BINBYTES8": 8,
}
_PUSHED = {*_SIZED, "BININT", "BININT1", "BININT2", "LONG1"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = ("PROTO", "FRAME")


class NotArraysError(Exception):
    """A pickle holds something beside dicts of arrays; the text says what."""


@dataclass(frozen=True)
class Place:
    """The position of bytes in a stream."""

    first_byte: int  # place of the bytes in the stream
    num_bytes: int  # place of the bytes in the stream
    # Whether they are the characters 0 to 255 as UTF-8, as pickles had them before protocol 3.
    is_text: bool


@dataclass
class Dtype:
    """A NumPy element type: its code ("i8") and byte order."""

    code: str
    byte_order: str = "="


@dataclass
class NumpyArray:
    """A NumPy array: version, shape, dtype, whether it is in Fortran order, bytes or a `Place`."""

    state: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Storage:
    """The numbers of tensors: the name of torch's class, key in the archive, number of elements."""

    kind: str
    key: str
    num_items: int


@dataclass(frozen=True)
class StridedTensor:
    """A part of a storage, by torch's strides."""

    storage: Storage
    first_item: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _Global:
    """The name of something that a pickle would import."""

    name: str


def follow_pickle(file: IO[bytes], first_byte: int = 0) -> tuple[Any, int]:
    """Return the value of a pickle, and the byte behind it in the stream.

    Values are dicts, tuples, numbers, texts, bytes, `NumpyArray` and `StridedTensor`.
    """
    opcodes, machine = _Opcodes(file, first_byte), _Machine()
    for name, argument in opcodes:
        machine.step(name, argument)
    (found,) = machine.stack
    return found, opcodes.position


class _Opcodes:
    """Reads opcodes and their arguments from a stream."""

    def __init__(self, file: IO[bytes], first_byte: int) -> None:
        self._file = file
        self.position = first_byte

    def read(self, num_bytes: int) -> bytes:
        """Return the next bytes, as `pickletools` asks for them."""
        data = self._file.read(num_bytes)
        self.position += len(data)
        return data

    def readline(self) -> bytes:
        """Return the next line, as `pickletools` asks for it."""
        data = self._file.readline(_MAX_LINE_BYTES)
        self.position += len(data)
        return data

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for _ in range(_MAX_STEPS):
            opcode = _OPCODES[self.read(1).decode("latin1")]
            if opcode.name == "STOP":
                return
            if opcode.name in _SIZED:
                size = int.from_bytes(self.read(_SIZED[opcode.name]), "little")
                yield opcode.name, self._sized(size, is_text="UNICODE" in opcode.name)
            else:
                yield opcode.name, opcode.arg.reader(cast(IO[bytes], self)) if opcode.arg else None
        raise NotArraysError(f"more than {_MAX_STEPS} opcodes")

    def _sized(self, size: int, *, is_text: bool) -> str | bytes | Place:
        if size > _MAX_INLINE_BYTES:
            place = Place(self.position, size, is_text)
            skip(self._file, size)
            self.position += size
            return place
        data = self.read(size)
        if len(data) != size:
            raise EOFError("it ends early")
        return data.decode() if is_text else data


def skip(file: IO[bytes], num_bytes: int) -> None:
    """Read so many bytes of a stream and drop them."""
    while num_bytes:
        got = len(file.read(min(num_bytes, _SKIP_BYTES)))
        if not got:
            raise EOFError(f"{num_bytes} bytes are missing")
        num_bytes -= got


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
            "BINPERSID": self._persistent,
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
            raise NotArraysError(f"the opcode {name}")

    def _since_mark(self) -> list[Any]:
        begin = len(self.stack) - 1 - self.stack[::-1].index(_MARK)
        items = self.stack[begin + 1 :]
        del self.stack[begin:]
        return items

    def _set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise NotArraysError("items of something else than a dict")
        target.update(zip(items[::2], items[1::2], strict=True))

    def _stack_global(self) -> None:
        module, name = self.stack.pop(-2), self.stack.pop()
        self.stack.append(_Global(f"{module}.{name}"))

    def _persistent(self) -> None:
        """Torch's id of a storage: ("storage", class, key, device, number of elements)."""
        word, kind, key, _, num_items, *_ = self.stack.pop()
        if word != "storage" or not isinstance(kind, _Global):
            raise NotArraysError(f"a persistent {word!r}")
        self.stack.append(Storage(kind.name.removeprefix("torch."), key, num_items))

    def _reduce(self) -> None:
        function, arguments = self.stack.pop(-2), self.stack.pop()
        name = function.name if isinstance(function, _Global) else repr(function)
        # NumPy 2 calls its module numpy._core, earlier versions numpy.core.
        if name in ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"):
            self.stack.append(NumpyArray())
        elif name == "numpy.dtype":
            self.stack.append(Dtype(str(arguments[0])))
        elif name == "_codecs.encode" and arguments[1] == "latin1":
            text = arguments[0]
            self.stack.append(text if isinstance(text, Place) else text.encode("latin1"))
        elif name in ("__builtin__.bytes", "builtins.bytes") and arguments == ():
            self.stack.append(b"")  # the bytes of an empty array, which have no text
        elif name == "torch._utils._rebuild_tensor_v2" and isinstance(arguments[0], Storage):
            self.stack.append(StridedTensor(*arguments[:4]))
        elif name == "collections.OrderedDict" and arguments == ():
            self.stack.append({})  # the hooks of a tensor
        else:
            raise NotArraysError(f"a call of {name}")

    def _build(self) -> None:
        target, state = self.stack[-2], self.stack.pop()
        if isinstance(target, Dtype):
            target.byte_order = {"<": "<", ">": ">"}.get(state[1], "=")
        elif isinstance(target, NumpyArray):
            target.state = state
        else:
            raise NotArraysError(f"the state of a {type(target).__name__}")
