"""What `torch.save` wrote: arrays are read out of it, and nothing else in a pickle ever runs."""

from __future__ import annotations

import io
import os
import pickle
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore.converters.inputs.pickled import open_pickled
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.errors import InputError, NotFoundError
from tests.support.effort import examples


def archive(path: Path, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("split_dict/data.pkl", data)
    return path


def read(path: Path) -> dict[str, Any]:
    found = open_pickled(path, "the splits")
    return {
        name: value.read()
        if not isinstance(value, Mapping)
        else {part: array.read() for part, array in value.items()}
        for name, value in found.items()
    }


def rows(source: ArraySource, step: int, start: int) -> Any:
    pieces = list(source.rows(step, start))
    assert all(0 < len(piece) <= step for piece in pieces)
    return np.concatenate(pieces) if pieces else np.empty((0, *source.shape[1:]), source.dtype)


VALUES = [
    np.arange(5),
    np.arange(70000, dtype=np.int32),
    np.arange(12).reshape(3, 4).T,
    np.arange(60000).reshape(2, 30000).T,
    np.arange(30000).reshape(30, 1000),
    np.arange(4).astype(">i8"),
    np.array([True, False]),
    np.array([], np.uint16),
    np.arange(2**40, 2**40 + 3),
    np.linspace(0, 1, 3000, dtype=np.float32),
]


# From protocol 5 on NumPy calls a function of its own; torch.save takes 2 unless told.
@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("values", VALUES)
def test_arrays_come_out_as_they_went_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int, values: np.ndarray[Any, Any]
) -> None:
    monkeypatch.setattr("gnnstore.converters.inputs.pickled._PIECE_BYTES", 2**10 + 3)
    splits = {"train": values, "test": np.arange(2)}
    found = open_pickled(archive(tmp_path / "a.pt", pickle.dumps(splits, protocol)), "the splits")
    assert list(found) == ["train", "test"]
    source: Any = found["train"]
    assert (source.shape, source.dtype) == (values.shape, values.dtype.newbyteorder("="))
    np.testing.assert_array_equal(source.read(), values)
    np.testing.assert_array_equal(rows(source, 7, 0), values)
    np.testing.assert_array_equal(rows(source, 100, 2), values[2:])


@pytest.mark.parametrize("form", ["archive", "before 1.6", "tensors"])
def test_what_torch_saves_is_read(tmp_path: Path, form: str) -> None:
    splits: dict[str, Any] = {
        "train": {"edge": np.arange(6000).reshape(3000, 2), "weight": np.ones(3000, np.float32)},
        "valid": {"edge": np.arange(600).reshape(2, 300).T, "year": np.arange(300)[::-1].copy()},
        "test": {"edge": np.empty((0, 2), np.int64), "flag": np.array([True])},
    }
    saved = splits
    if form == "tensors":
        saved = {k: {n: torch.from_numpy(v) for n, v in d.items()} for k, d in splits.items()}
        saved["train"]["weight"] = torch.arange(5000, dtype=torch.float32)[1000:4000] * 0 + 1
        saved["valid"]["year"] = torch.arange(600).flip(0)[300:].to(torch.int32)
    is_archive = form != "before 1.6"
    torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=is_archive)
    found = read(tmp_path / "a.pt")
    for name, arrays in splits.items():
        assert list(found[name]) == list(arrays)
        for part, values in arrays.items():
            np.testing.assert_array_equal(found[name][part], values)
    assert found["train"]["weight"].dtype == np.float32


def test_numbers_stay_on_disk(tmp_path: Path) -> None:
    many = np.full((4000, 1000), 200)  # 32 MB, more as text
    torch.save({"neg": many, "edge": np.arange(8)}, tmp_path / "a.pt")
    tracemalloc.start()
    try:
        found: Any = open_pickled(tmp_path / "a.pt", "the splits")
        num_rows = sum(len(piece) for piece in found["neg"].rows(64))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_rows == 4000
    assert peak < 2**24
    assert found["edge"].read().tolist() == list(range(8))


class Attack:
    """Makes a directory when it is unpickled."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.where),))


def test_nothing_in_a_pickle_runs(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    for content in (
        Attack(trap),
        {"train": Attack(trap)},
        {"train": np.arange(3), "x": [Attack(trap)]},
    ):
        for protocol in range(6):
            path = archive(tmp_path / "split_dict.pt", pickle.dumps(content, protocol))
            with pytest.raises(InputError, match=r"split_dict.pt: expected a dict of arrays as"):
                read(path)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Attack(trap)))  # noqa: S301 - the trap works
    assert trap.exists()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([1, 2], "the opcode"),
        ({"train": 3}, "a dict of something else (train is a int)"),
        ({"train": np.array([0.5j])}, "an array of complex128"),
        ({"train": torch.arange(3)}, "found "),
        ({"train": {"edge": {"a": np.arange(3)}}}, "train: edge is a dict"),
        (Counter("ab"), "a call of collections.Counter"),
        ({str(i): 0 for i in range(100)}, "a dict of something else"),
        ({"train": {str(i): 0 for i in range(100)}}, "a dict of something else"),
        ({"train": np.arange(3), 0: np.arange(3)}, "a dict whose keys are no names"),
    ],
)
def test_what_is_no_dict_of_arrays_is_named(tmp_path: Path, content: Any, found: str) -> None:
    path = archive(tmp_path / "split_dict.pt", pickle.dumps(content, 4))
    with pytest.raises(InputError) as caught:
        read(path)
    assert found in str(caught.value)
    assert "save its arrays beside it with numpy.savez as split_dict.npz" in str(caught.value)


class Persistent(pickle.Pickler):
    """Gives Ellipsis a persistent id, as torch gives its storages."""

    def __init__(self, file: IO[bytes], persistent: Any) -> None:
        super().__init__(file, 2)
        self._persistent = persistent

    def persistent_id(self, value: Any) -> Any:
        return self._persistent if value is ... else None


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\x80\x02" + b"}" + b"q\0" * 2**16 + b".", "more than 65536 opcodes"),
        (b"\x80\x02)(K\x01K\x02u.", "items of something else than a dict"),
        (b"\x80\x02}X\x01\0\0", "a damaged archive"),
        (b"\x80\x02}X\0\0\1\0some", "a damaged archive (65532 bytes are missing)"),
    ],
)
def test_a_pickle_that_nothing_writes_is_refused(tmp_path: Path, data: bytes, found: str) -> None:
    with pytest.raises(InputError) as caught:
        read(archive(tmp_path / "split_dict.pt", data))
    assert f"found {found}" in str(caught.value)


@pytest.mark.parametrize("persistent", [("module", 1, 2, 3, 4), ("storage", "torch.X", 2, 3, 4)])
def test_a_storage_is_one_of_torchs(tmp_path: Path, persistent: Any) -> None:
    pickled = io.BytesIO()
    Persistent(pickled, persistent).dump({"train": ...})
    with pytest.raises(InputError, match=f"found a persistent '{persistent[0]}'"):
        read(archive(tmp_path / "split_dict.pt", pickled.getvalue()))


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (torch.zeros(3, dtype=torch.bfloat16), "a tensor in a BFloat16Storage"),
        (torch.zeros(8)[::2], "a tensor of strides [2]; save a clone"),
    ],
)
def test_a_tensor_that_is_not_read_is_named(tmp_path: Path, tensor: Any, found: str) -> None:
    torch.save({"train": tensor}, tmp_path / "split_dict.pt")
    with pytest.raises(InputError) as caught:
        read(tmp_path / "split_dict.pt")
    assert f"found {found}" in str(caught.value)


def test_a_tensor_from_before_archives_is_named(tmp_path: Path) -> None:
    saved = {"train": torch.arange(3)}
    torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(InputError, match=r"as torch wrote it before 1\.6; load and save it again"):
        read(tmp_path / "a.pt")


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda m: {**m, "b/data.pkl": b""}, "2 members data.pkl"),
        (lambda m: {**m, "a/data/0": m["a/data/0"][:8]}, "a tensor beyond the 8 bytes of its stor"),
    ],
)
def test_an_archive_that_torch_does_not_write(tmp_path: Path, change: Any, found: str) -> None:
    torch.save({"train": torch.arange(3)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as file:
        for name, data in change(members_of(tmp_path / "a.pt")).items():
            file.writestr(name, data)
    with pytest.raises(InputError) as caught:
        read(tmp_path / "b.pt")
    assert f"found {found}" in str(caught.value)


def test_many_columns_in_fortran_order_are_refused(tmp_path: Path) -> None:
    torch.save({"train": np.zeros((1000, 17), order="F")}, tmp_path / "a.pt")
    with pytest.raises(InputError) as caught:
        read(tmp_path / "a.pt")
    assert str(caught.value) == (
        f"{tmp_path / 'a.pt'}: train: is an array of shape [1000, 17] in Fortran order, which "
        "takes a pass over the file for each column; save it in C order (numpy.ascontiguousarray)"
    )


def test_numbers_that_are_damaged_after_they_were_found(tmp_path: Path) -> None:
    """What is missing, too much or no text is noticed where the numbers are read."""
    path = tmp_path / "a.pt"
    torch.save({"train": np.arange(3000)}, path)  # as text, of which half take two bytes
    found: Any = open_pickled(path, "the splits")
    pickled = members_of(path)["a/data.pkl"]
    begin = pickled.index(bytes(7) + b"\x01")
    for changed, message in (
        (pickled[:begin] + b"\xff" + pickled[begin + 1 :], "the file is damaged ('utf-8' codec"),
        (pickled[: len(pickled) // 2], "bytes are missing); download or copy it again"),
        (
            pickled[:begin] + b"\xc3\xbf" + pickled[begin + 2 :],
            "train: has not the bytes of an array of shape [3000]; download or copy it again",
        ),
    ):
        archive(path, b"")
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("a/data.pkl", changed)
        with pytest.raises(InputError) as caught:
            found["train"].read()
        assert str(caught.value).startswith(f"{path}: train: ")
        assert message in str(caught.value)


def test_files_that_are_no_archive(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"the splits: .* does not exist"):
        read(tmp_path / "none.pt")
    path = tmp_path / "split_dict.pt"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(InputError, match=r"a damaged archive"):
        read(path)
    torch.save({"train": np.arange(1000)}, path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"a damaged archive"):
        read(path)


WHOLE = pickle.dumps({"train": np.arange(4), "test": np.arange(2, dtype=np.int32)}, 2)


@settings(max_examples=examples(300), deadline=None)
@given(
    position=st.integers(0, len(WHOLE) - 1),
    byte=st.integers(0, 255),
    keep=st.integers(0, len(WHOLE)),
)
def test_damaged_pickles_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, position: int, byte: int, keep: int
) -> None:
    data = bytearray(WHOLE)
    data[position] = byte
    path = archive(tmp_path_factory.mktemp("p") / "split_dict.pt", bytes(data[:keep]))
    try:
        found = read(path)
    except InputError:
        return
    assert all(array.dtype.kind in "iubf" for array in found.values())
