"""`split_dict.pt`: arrays are read out of it, and nothing else in a pickle ever runs."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore.converters.arrays.pickled import arrays_of_pickle, read_split_dict
from gnnstore.errors import InputError, NotFoundError
from gnnstore.testing.effort import examples


def archive(path: Path, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("split_dict/data.pkl", data)
    return path


# From protocol 5 on NumPy calls a function of its own; torch.save takes 2 unless told.
@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize(
    "values",
    [
        np.arange(5),
        np.arange(70000, dtype=np.int32),
        np.arange(12).reshape(3, 4).T,
        np.arange(4).astype(">i8"),
        np.array([True, False]),
        np.array([], np.uint16),
        np.arange(2**40, 2**40 + 3),
    ],
)
def test_arrays_come_out_as_they_went_in(protocol: int, values: np.ndarray[Any, Any]) -> None:
    found = arrays_of_pickle(pickle.dumps({"train": values, "test": np.arange(2)}, protocol))
    assert list(found) == ["train", "test"]
    np.testing.assert_array_equal(found["train"], values)


def test_what_torch_saves_is_read(tmp_path: Path) -> None:
    splits = {"train": np.arange(300), "valid": np.array([7]), "test": np.arange(5)[::-1].copy()}
    torch.save(splits, tmp_path / "split_dict.pt")
    found = read_split_dict(tmp_path / "split_dict.pt")
    assert found.keys() == splits.keys()
    for name, ids in splits.items():
        np.testing.assert_array_equal(found[name], ids)


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
            with pytest.raises(InputError, match=r"split_dict.pt: expected a dict of integer arr"):
                read_split_dict(path)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Attack(trap)))  # noqa: S301 - the trap works
    assert trap.exists()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([1, 2], "the opcode"),
        ({"train": 3}, "a dict of something else"),
        ({"train": np.array([0.5])}, "an array of float64"),
        ({"train": torch.arange(3)}, "found "),
        (OrderedDict(train=np.arange(3)), "a call of collections.OrderedDict"),
        ({str(i): 0 for i in range(100)}, "a dict of something else"),
    ],
)
def test_what_is_no_dict_of_integer_arrays_is_named(
    tmp_path: Path, content: Any, found: str
) -> None:
    path = archive(tmp_path / "split_dict.pt", pickle.dumps(content, 4))
    with pytest.raises(InputError) as caught:
        read_split_dict(path)
    assert found in str(caught.value)
    assert "save its arrays beside it with numpy.savez as split_dict.npz" in str(caught.value)


def test_files_that_are_no_archive(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"the splits does not exist"):
        read_split_dict(tmp_path / "none.pt")
    path = tmp_path / "split_dict.pt"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(InputError, match=r"a damaged archive"):
        read_split_dict(path)
    torch.save({"train": np.arange(1000)}, path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"a damaged archive"):
        read_split_dict(path)


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
        found = read_split_dict(path)
    except InputError:
        return
    assert all(array.dtype.kind in "iub" for array in found.values())
