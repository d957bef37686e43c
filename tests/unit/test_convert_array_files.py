"""Arrays in `.npy` and `.npz`: read in pieces, checked first, never unpickled."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gnnstore.converters.inputs.files import open_npy, open_npz
from gnnstore.converters.inputs.source import ArraySource, MemoryArray
from gnnstore.errors import BudgetError, InputError, NotFoundError

Opener = Callable[[Path, npt.NDArray[Any]], ArraySource]


def in_memory(folder: Path, array: npt.NDArray[Any]) -> ArraySource:
    return MemoryArray("a", array)


def in_npy(folder: Path, array: npt.NDArray[Any]) -> ArraySource:
    np.save(folder / "a.npy", array)
    return open_npy(folder / "a.npy")


def in_npz(folder: Path, array: npt.NDArray[Any]) -> ArraySource:
    np.savez(folder / "a.npz", other=np.arange(3), a=array)
    return open_npz(folder / "a.npz")["a"]


def in_compressed_npz(folder: Path, array: npt.NDArray[Any]) -> ArraySource:
    np.savez_compressed(folder / "c.npz", a=array)
    return open_npz(folder / "c.npz")["a"]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnstore.converters.inputs.source.StoredArray._block_bytes", 40)
    monkeypatch.setattr("gnnstore.converters.inputs.files.NpzMember._block_bytes", 40)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("opener", [in_memory, in_npy, in_npz, in_compressed_npz])
@pytest.mark.parametrize("shape", [(7,), (2, 11), (5, 3), (4, 2, 3), (0,), (2, 0), (0, 3), (3, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">i8", "bool"])
def test_pieces_are_the_array(
    tmp_path: Path, opener: Opener, shape: tuple[int, ...], order: str, dtype: str
) -> None:
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    array = np.asarray(values, order="F" if order == "F" else "C")
    source = opener(tmp_path, array)
    assert source.shape == shape
    assert source.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(source.read(), values)
    for step in (1, 3, 1000):
        rows = [np.empty((0, *shape[1:])), *source.rows(step)]
        np.testing.assert_array_equal(np.concatenate(rows), values)
        assert all(piece.dtype == source.dtype for piece in rows[1:])
        if len(shape) == 2:
            columns = [np.empty((shape[0], 0)), *source.columns(step)]
            np.testing.assert_array_equal(np.concatenate(columns, axis=1), values)


def test_a_single_value_is_read(tmp_path: Path) -> None:
    for opener in (in_memory, in_npy, in_npz):
        source = opener(tmp_path, np.array(42))
        assert source.shape == ()
        assert int(source.read()) == 42


def refused(folder: Path, data: bytes, name: str = "a.npy") -> str:
    """Return what is said of an `.npy` file with these bytes, alone and in an archive."""
    path = folder / name
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        open_npy(path)
    assert str(path) in str(caught.value)
    archive = folder / "a.npz"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(name, data)
    with pytest.raises(InputError, match=r"a\.npz: a: "):
        open_npz(archive)
    return str(caught.value)


def npy_bytes(array: npt.NDArray[Any], *, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    data = npy_bytes(np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert "holds pickled Python objects, which a store cannot hold" in refused(tmp_path, data)


@pytest.mark.parametrize(
    "array",
    [np.array(["a"]), np.array([1j]), np.array([1], "m8[s]"), np.zeros(2, [("a", "i4")])],
)
def test_types_that_no_store_holds_are_refused(tmp_path: Path, array: npt.NDArray[Any]) -> None:
    message = refused(tmp_path, npy_bytes(array))
    assert "which a store cannot hold" in message
    assert ("names of nodes, goes into a table" in message) == (array.dtype.kind == "U")


def test_truncated_and_foreign_files_are_refused(tmp_path: Path) -> None:
    whole = npy_bytes(np.arange(100))
    assert "needs 928 bytes, but there are 900" in refused(tmp_path, whole[:900])
    assert "needs 928 bytes, but there are 929" in refused(tmp_path, whole + b"x")
    assert "not a valid .npy array" in refused(tmp_path, whole[:40])
    assert "not a valid .npy array" in refused(tmp_path, b"hello")
    assert "not a valid .npy array" in refused(tmp_path, b"")


def test_a_header_of_the_second_version_is_read(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, np.arange(4), version=(2, 0))
    assert open_npy(tmp_path / "a.npy").read().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("(8888888,), }", "needs 71111232 bytes, but there are 192"),
        ("(8,), }, {{{ ", "not a valid .npy array"),
        ("(((((((((((((", "not a valid .npy array"),
        ("(-2, -4), }  ", "not a valid .npy array (shape (-2, -4))"),
        ("'eight', }   ", "not a valid .npy array"),
    ],
)
def test_a_hostile_header_is_refused(tmp_path: Path, shape: str, message: str) -> None:
    data = npy_bytes(np.arange(8)).replace(b"(8,), }      ", shape.encode())
    assert message in refused(tmp_path, data)


def test_missing_files_are_named(tmp_path: Path) -> None:
    for opener in (open_npy, open_npz):
        with pytest.raises(NotFoundError, match=r"none does not exist"):
            opener(tmp_path / "none")
    with pytest.raises(InputError, match=r"should be a file, but .* is a directory"):
        open_npz(tmp_path)


@pytest.mark.parametrize("compress", [False, True])
def test_a_flipped_byte_in_an_archive_is_noticed(tmp_path: Path, compress: bool) -> None:
    path = tmp_path / "a.npz"
    save = np.savez_compressed if compress else np.savez
    save(path, a=np.random.default_rng(0).integers(0, 2**40, (2, 5000)))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
    source = open_npz(path)["a"]
    with pytest.raises(InputError, match=r"a\.npz: a: the archive is damaged"):
        source.read()
    with pytest.raises(InputError, match=r"a\.npz: a: the archive is damaged"):
        list(source.columns(100))


@pytest.mark.parametrize("compressed", [False, True])
def test_what_is_too_large_to_be_read_whole_is_refused_before_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool
) -> None:
    values = np.zeros(2**20)
    if compressed:
        np.savez_compressed(tmp_path / "a.npz", a=values)
        source = open_npz(tmp_path / "a.npz")["a"]
    else:
        np.save(tmp_path / "a.npy", values)
        source = open_npy(tmp_path / "a.npy")
    monkeypatch.setattr("gnnstore.converters.inputs.source._SMALL_BYTES", 0)
    monkeypatch.setattr("gnnstore.budget.limits.available_bytes", lambda: 2**22)
    with pytest.raises(
        BudgetError,
        match=r"(?s)needs 8388608 bytes.* has 4194304 .* 8\.39 MB of \[1048576\] of float64",
    ):
        source.read()
    assert sum(map(len, source.rows(1000))) == 2**20


def test_members_that_are_no_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("notes.txt", "hello")
    with pytest.raises(InputError, match=r"notes\.txt: is not an array"):
        open_npz(path)
