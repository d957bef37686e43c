"""A trace with the name of a picture is one: a row for each thread, a colour for each stage."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch_geometric")

from gnnstore import NeighborLoader
from gnnstore.errors import NotFoundError, UsageError
from gnnstore.loaders.trace_picture import draw_timeline
from gnnstore.palette import PARTS, part_looks
from gnnstore.timeline import Timeline
from tests.support.stores import write_example_store

MS = 1_000_000


@pytest.fixture
def loader(tmp_path: Path) -> NeighborLoader:
    store = write_example_store(tmp_path / "a.gnn", num_nodes=60, num_edges=300).path
    return NeighborLoader(store, [3], batch_size=20, num_threads=1, strategy="direct")


def bars_of(axes: Any) -> dict[tuple[str, float], list[tuple[float, float]]]:
    """Return the begins and lengths of bars, by their colour and the height of their row."""
    to_hex = pytest.importorskip("matplotlib.colors").to_hex
    found = {}
    for bars in axes.collections:
        boxes = [path.get_extents() for path in bars.get_paths()]
        key = to_hex(bars.get_facecolor()[0]), round(boxes[0].height, 6)
        found[key] = [(round(box.x0, 6), round(box.width, 6)) for box in boxes]
    return found


def test_every_stage_is_drawn_where_it_ran(tmp_path: Path, figures: list[Any]) -> None:
    timeline = Timeline()
    begin = timeline.recording().begin_ns
    timeline.add("training", begin, begin + 10 * MS)
    timeline.add("forward", begin + 2 * MS, begin + 5 * MS)
    timeline.add("wait", begin + 10 * MS, begin + 40 * MS)

    def gather() -> None:
        timeline.add("gathering", begin + 12 * MS, begin + 20 * MS)
        timeline.add("gathering", begin + 22 * MS, begin + 40 * MS)

    thread = threading.Thread(target=gather, name="a loader thread")
    thread.start()
    thread.join()
    draw_timeline(timeline, tmp_path / "a.svg")
    (axes,) = figures[0].axes
    rows = [text.get_text() for text in axes.get_yticklabels()]
    assert rows == [threading.current_thread().name, "a loader thread"]
    own = part_looks(["forward"])["forward"].colour
    assert bars_of(axes) == {
        (PARTS["training"].colour, 0.8): [(0.0, 0.01)],
        (own, 0.48): [(0.002, 0.003)],  # within the training, which is seen around it
        (PARTS["wait"].colour, 0.8): [(0.01, 0.03)],
        (PARTS["reading"].colour, 0.8): [(0.012, 0.008), (0.022, 0.018)],
    }
    (legend,) = figures[0].legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == [
        "training: your code has the batch",
        "waiting for a batch",
        "gathering rows: reading and copying",
        "forward",
    ]
    title = figures[0].get_suptitle()
    assert title == "a.svg: 1 batch in 0.04 s, of which the loop waited 75%"
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")


def test_what_is_left_out_is_said(tmp_path: Path, figures: list[Any]) -> None:
    timeline = Timeline(max_events=1)
    for _ in range(4):
        with timeline.span("training"):
            pass
    draw_timeline(timeline, tmp_path / "a.png")
    assert [text.get_text() for text in figures[0].axes[0].texts] == [
        "3 stages after these are left out; max_events= keeps more"
    ]


def test_nothing_recorded_is_a_picture_too(tmp_path: Path, figures: list[Any]) -> None:
    draw_timeline(Timeline(), tmp_path / "a.png")
    assert figures[0].get_suptitle() == "a.png"


def test_a_loader_draws_by_the_name_of_the_file(
    loader: NeighborLoader, tmp_path: Path, figures: list[Any]
) -> None:
    for name in ("epoch.PNG", "epoch.json"):
        with loader.trace(tmp_path / name):
            assert len(list(loader)) == 3
    assert (tmp_path / "epoch.PNG").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert json.loads((tmp_path / "epoch.json").read_text())["traceEvents"]
    assert len(figures) == 1
    assert "3 batches in " in figures[0].get_suptitle()


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
