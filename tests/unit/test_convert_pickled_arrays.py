"""What `torch.save` wrote: arrays are read out of it, and nothing but allowed names is called."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.inputs.pickled import open_pickled
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.errors import BudgetError, InputError, NotFoundError
from tests.support.effort import choose, examples


def archive(path: Path, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("split_dict/data.pkl", data)
    return path


def opened(path: Path, memory_bytes: int | None = None) -> Any:
    return open_pickled(path, "the splits", memory_ledger("reading the splits", memory_bytes))


def read(path: Path) -> dict[str, Any]:
    found = opened(path)
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
    np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
    np.arange(24).reshape(2, 12)[:, ::3],
    np.arange(2**40, 2**40 + 3),
    np.linspace(0, 1, 3000, dtype=np.float32),
]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("values", VALUES)
def test_arrays_come_out_as_they_went_in(
    tmp_path: Path, protocol: int, values: np.ndarray[Any, Any]
) -> None:
    splits = {"train": values, "test": np.arange(2)}
    found = opened(archive(tmp_path / "a.pt", pickle.dumps(splits, protocol)))
    assert list(found) == ["train", "test"]
    source: Any = found["train"]
    assert (source.shape, source.dtype) == (values.shape, values.dtype.newbyteorder("="))
    np.testing.assert_array_equal(source.read(), values)
    np.testing.assert_array_equal(rows(source, 7, 0), values)
    np.testing.assert_array_equal(rows(source, 100, 2), values[2:])


def test_names_of_numpy_1_are_read(tmp_path: Path) -> None:
    data = pickle.dumps({"train": np.arange(5)}, 2).replace(b"numpy._core.", b"numpy.core.")
    assert read(archive(tmp_path / "a.pt", data))["train"].tolist() == list(range(5))


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
        saved["test"]["flag"] = torch.tensor([True, False, True])[::2][:1]
    is_archive = form != "before 1.6"
    torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=is_archive)
    found = read(tmp_path / "a.pt")
    for name, arrays in splits.items():
        assert list(found[name]) == list(arrays)
        for part, values in arrays.items():
            np.testing.assert_array_equal(found[name][part], values)
    assert found["train"]["weight"].dtype == np.float32


@pytest.mark.parametrize("form", ["archive", *choose([], ["before 1.6"]), "protocol 5", "tensors"])
def test_reading_takes_four_times_the_file_and_says_so(tmp_path: Path, form: str) -> None:
    path = tmp_path / "test.pt"
    many: Any = np.full((1000, 1000), -2)  # 8 MB, and twice that as text
    saved = {"neg": torch.from_numpy(many) if form == "tensors" else many, "edge": np.arange(8)}
    torch.save(
        saved,
        path,
        pickle_protocol=5 if form == "protocol 5" else 2,
        _use_new_zipfile_serialization=form != "before 1.6",
    )
    size = path.stat().st_size
    tracemalloc.start()
    try:
        found = opened(path, 4 * size)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found["neg"].read(), many)
    assert peak < 4 * size + 2**18
    assert held < size + 2**18
    with pytest.raises(BudgetError) as caught:
        opened(path, 4 * size - 1)
    assert "of test.pt, which is read whole" in str(caught.value)
    assert f"or save the arrays of {path} with numpy.savez as test.npz" in str(caught.value)


@pytest.mark.long("what else a pickle names is refused")
def test_nothing_is_read_by_torch(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", pickle.dumps({"train": np.arange(3)}))
    code = (
        "import sys; from pathlib import Path; sys.modules['torch'] = None\n"
        "from gnnstore.converters.inputs.pickled import open_pickled\n"
        "from gnnstore.budget.limits import memory_ledger\n"
        f"found = open_pickled(Path({str(path)!r}), 'the splits', memory_ledger('it', None))\n"
        "print(found['train'].read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[0 1 2]\n"


class Attack:
    """Makes a directory when it is unpickled."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.where),))


def test_only_allowed_names_are_called(tmp_path: Path) -> None:
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
        ([1, 2], "the opcode EMPTY_LIST"),
        ({"train": 3}, "a dict of something else (train is a int)"),
        ({"train": np.array([0.5j])}, "an array of c16"),
        ({"train": np.array([{}])}, "the opcode EMPTY_LIST"),
        ({"train": torch.arange(3)}, "the name torch.storage._load_from_bytes"),
        ({"train": {"edge": {"a": np.arange(3)}}}, "train: edge is a dict"),
        (Counter("ab"), "the name collections.Counter"),
        ({"train": np.arange(3), 0: np.arange(3)}, "a dict of something else"),
    ],
)
def test_what_is_no_dict_of_arrays_is_named(tmp_path: Path, content: Any, found: str) -> None:
    path = archive(tmp_path / "split_dict.pt", pickle.dumps(content, 4))
    with pytest.raises(InputError) as caught:
        read(path)
    assert found in str(caught.value)
    assert "save its arrays with numpy.savez as split_dict.npz" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\x80\x02" + b"}" + b"q\0" * 2**16 + b".", "more than 65536 opcodes"),
        (b"\x80\x02}K\x01)\x85q\0h\0s.", "a tuple that occurs twice"),
        (b"\x80\x02}K\x01)\x85(uq\0h\0s.", "a tuple that occurs twice"),  # after SETITEMS
        (b"\x80\x02}r\0\0\0\x7f.", "the entry 2130706432 of the memo"),
        (b"\x80\x02c_codecs\nencode\nX\1\0\0\0aX\3\0\0\0hex\x86R.", "a text that is not byt"),
    ],
)
def test_a_pickle_that_nothing_writes_is_refused(tmp_path: Path, data: bytes, found: str) -> None:
    with pytest.raises(InputError) as caught:
        read(archive(tmp_path / "split_dict.pt", data))
    assert f"found {found}" in str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (torch.zeros(3, dtype=torch.bfloat16), "the name torch.BFloat16Storage"),
        (torch.zeros(1).expand(2**40), "a tensor that is larger than its storage; save a clone"),
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
