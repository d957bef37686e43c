"""Stores that released versions wrote are read for ever, bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from gnnstore.formats import StoreReader, TableManifest
from gnnstore.pipeline.check import verify

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
STORES = sorted(GOLDEN.glob("v*.gnn"))


def test_there_is_one_for_each_released_version() -> None:
    assert [store.stem for store in STORES] == ["v1"]


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.stem)
def test_golden_store(store: Path, tmp_path: Path) -> None:
    # A checkout may change modes and times, never bytes; a copy shows that location is nothing.
    copy = tmp_path / "moved.gnn"
    shutil.copytree(store, copy)
    assert verify(copy, "full").ok
    reader = StoreReader.open(copy)
    with np.load(store.with_suffix(".npz"), allow_pickle=False) as expected:
        specs = {spec.path: spec for spec in reader.schema.arrays()}
        assert specs.keys() == {name.replace("|", "/") for name in expected}
        for name in expected:
            values = reader.read(specs[name.replace("|", "/")])
            assert values.dtype == expected[name].dtype
            np.testing.assert_array_equal(values, expected[name])


def test_golden_table() -> None:
    text = (GOLDEN / "v1.table.json").read_bytes()
    manifest = TableManifest.decode(text, "v1.table.json")
    assert [commit.slots.tolist() for commit in manifest.commits] == [[-1], [0]]
    assert manifest.encode() == text
