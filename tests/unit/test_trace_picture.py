"""A trace with the name of a picture is one: a row for each thread, a colour for each stage."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch_geometric")

from gnnstore import NeighborLoader
from gnnstore.errors import NotFoundError, UsageError
from tests.support.stores import write_example_store


@pytest.fixture
def loader(tmp_path: Path) -> NeighborLoader:
    store = write_example_store(tmp_path / "a.gnn", num_nodes=60, num_edges=300).path
    return NeighborLoader(store, [3], batch_size=20, num_threads=1, strategy="direct")


def test_a_loader_draws_by_the_name_of_the_file(
    loader: NeighborLoader, tmp_path: Path, figures: list[Any]
) -> None:
    for name in ("epoch.PNG", "epoch.json"):
        with loader.trace(tmp_path / name):
            assert len(list(loader)) == 3
    assert (tmp_path / "epoch.PNG").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert json.loads((tmp_path / "epoch.json").read_text())["traceEvents"]
    assert len(figures) == 1
    assert figures[0].get_suptitle() == "epoch.PNG"


def test_an_epoch_that_fails_is_drawn(loader: NeighborLoader, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    def fail() -> None:
        with loader.trace(tmp_path / "a.png"):
            next(iter(loader))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (tmp_path / "a.png").exists()


def test_what_cannot_be_drawn_is_said_before_the_epoch(
    loader: NeighborLoader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(NotFoundError), loader.trace(tmp_path / "none" / "a.png"):
        pytest.fail("the directory is missing")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with (
        pytest.raises(UsageError, match=r"pip install 'gnnstore\[plot\]'"),
        loader.trace(tmp_path / "a.png"),
    ):
        pytest.fail("matplotlib is missing")
    with loader.trace(tmp_path / "a.json"):
        pass
    with (
        pytest.raises(UsageError, match=r"t\.html: a timeline is \.json"),
        loader.trace(tmp_path / "t.html"),
    ):
        pytest.fail("no such picture")
    assert not (tmp_path / "t.html").exists()
