"""`gnnstore inspect --plot`: degrees of a graph, rows of packed epochs; and `--packed`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.features.packed_rows import PackedFiles
from gnnstore.formats.packed import PackedReader
from gnnstore.loaders.packed_loader import open_packed
from tests.support.effort import choose
from tests.support.hetero import hetero_store
from tests.support.packing import pack
from tests.support.stores import write_example_store

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = write_example_store(
        tmp_path_factory.mktemp("packed") / "a.gnn", num_nodes=800, num_edges=5000
    ).path
    pack(store, [3, 3], cache_bytes="20kB", batch_size=50, epochs=2)
    return store


def test_degrees_equal_numpy(run: Any, tmp_path: Path, figures: list[Any]) -> None:
    written = write_example_store(tmp_path / "a.gnn", num_nodes=500, num_edges=700)
    picture = tmp_path / "a.png"
    done = run("inspect", written.path, "--plot", picture, "--json")
    assert (done.status, done.stderr) == (0, "")
    indptr = written.arrays["edges/node__to__node/indptr"]
    indices = written.arrays["edges/node__to__node/indices"]
    inward, outward = np.diff(indptr), np.bincount(indices, minlength=500)
    document = done.document
    assert document["drawn_to"] == str(picture)
    for found, expected in (("in", inward), ("out", outward)):
        degrees = document["degrees"][found]
        assert degrees["max"] == expected.max()
        assert degrees["mean"] == pytest.approx(expected.mean())
        assert degrees["zero_share"] == pytest.approx((expected == 0).mean())
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    (axes,) = figures[0].axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    for line, expected in zip(axes.lines, (inward, outward), strict=True):
        degrees = np.unique(expected[expected > 0])
        assert list(line.get_xdata()) == degrees.tolist()
        shares = [(expected >= degree).mean() for degree in degrees]
        assert line.get_ydata() == pytest.approx(shares)


def test_a_graph_without_edges(run: Any, tmp_path: Path) -> None:
    path = write_example_store(tmp_path / "a.gnn", num_nodes=5, num_edges=0).path
    done = run("inspect", path, "--plot", tmp_path / "a.png")
    assert done.status == 0
    assert f"Drawn in {tmp_path / 'a.png'}" in done.stdout


def test_rows_of_packed_epochs_equal_their_batches(
    run: Any, packed: Path, tmp_path: Path, figures: list[Any]
) -> None:
    picture = tmp_path / "rows.png"
    done = run("inspect", packed, "--packed", "base", "--plot", picture, "--json")
    assert (done.status, done.stderr) == (0, "")
    rows = done.document["rows"]
    reader = PackedReader.open(packed / "plans" / "base")
    per_epoch = reader.manifest.batches_per_epoch
    loader = open_packed(packed / "plans" / "base").loader()
    batches = [batch.n_id.numpy() for _ in range(2) for batch in loader]
    assert rows["needed"] == [len(ids) for ids in batches]
    missed = [
        np.count_nonzero(PackedFiles.open(reader).record(i).slots < 0) for i in range(len(batches))
    ]
    assert rows["missed"] == rows["packed"] == missed
    assert 0 < sum(missed) < sum(rows["needed"])
    ages, last = np.zeros(per_epoch, np.int64), dict[int, int]()
    for number, ids in enumerate(batches):
        place = number % per_epoch
        last = {} if place == 0 else last
        for node in ids.tolist():
            ages[place - last.get(node, place)] += 1
            last[node] = place
    assert rows["ages"] == ages.tolist()

    by_batch, reuse = figures[0].axes
    drawn = {line.get_label().split()[0]: list(line.get_ydata()) for line in by_batch.lines}
    for name in ("needed", "missed", "packed"):
        assert drawn[name] == rows[name]
    # What is drawn in both panels are the rows that batches need.
    assert reuse.lines[0].get_color() == by_batch.lines[0].get_color()
    shares = 100 * np.cumsum(ages[1:]) / ages.sum()
    assert list(reuse.lines[0].get_ydata()) == pytest.approx(shares)


def test_packed_epochs_by_their_path_and_by_their_name(
    run: Any, packed: Path, tmp_path: Path
) -> None:
    by_name = run("inspect", packed, "--packed", "base", "--json").document
    by_path = run("inspect", packed / "plans" / "base", "--json").document
    assert by_name == by_path
    assert by_name["name"] == "base"
    done = run("inspect", packed / "plans" / "base", "--plot", tmp_path / "a.png")
    assert done.status == 0
    assert "cached rows" in done.stdout
    assert f"Drawn in {tmp_path / 'a.png'}" in done.stdout


def test_packed_epochs_that_are_not_there(run: Any, packed: Path) -> None:
    done = run("inspect", packed, "--packed", "other")
    assert done.status == 3
    assert "no directory of packed epochs 'other'" in done.stderr


@pytest.mark.parametrize("words", [("--array", "x"), ("--stats",)])
def test_options_of_stores_are_refused_for_plans(
    run: Any, packed: Path, words: tuple[str, ...]
) -> None:
    done = run("inspect", packed, "--packed", "base", *words)
    assert done.status == 2
    assert "are for stores, not for packed epochs, partitions" in done.stderr


def test_there_is_no_picture_of_one_array(run: Any, example: Path, tmp_path: Path) -> None:
    done = run("inspect", example, "--array", "x", "--plot", tmp_path / "a.png")
    assert done.status == 2
    assert "leave it out, or --array" in done.stderr
    assert not (tmp_path / "a.png").exists()


def test_what_cannot_be_drawn_is_found_out_before(
    run: Any, example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("inspect", example, "--plot", tmp_path / "none" / "a.png").status == 3
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = run("inspect", example, "--plot", tmp_path / "a.png")
    assert done.status == 2
    assert "pip install 'gnnstore[plot]'" in done.stderr


@pytest.mark.parametrize("ending", ["svg", *choose([], ["png"])])
def test_a_drawing_of_the_types(run: Any, tmp_path: Path, figures: list[Any], ending: str) -> None:
    store = hetero_store(tmp_path / "a.gnn", time_attr=["time"], reverse="at")
    picture = tmp_path / f"a.{ending}"
    done = run("inspect", store.path, "--plot", picture, "--json")
    assert (done.status, done.stderr) == (0, "")
    assert done.document["drawn_to"] == str(picture)
    assert picture.stat().st_size > 1000
    (axes,) = figures[0].axes
    arrows = [text for text in axes.texts if text.get_text() == ""]
    words = [text.get_text() for text in axes.texts if text.get_text()]
    loops = [source for source, _, target in store.edge_types if source == target]
    assert len(arrows) == len(store.edge_types) + len(loops) == 8  # a loop has two pieces
    assert "author\n35 nodes\ntime, x" in words
    assert "institution\n6 nodes\nno attributes" in words
    assert {"cites\n300 edges", "rev_at\n24 edges", "teaches\n70 edges"} <= set(words)


def test_types_in_text(run: Any, tmp_path: Path) -> None:
    store = hetero_store(tmp_path / "a.gnn", time_attr=["time"], weight_attr=["w"])
    done = run("inspect", store.path)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["institution", "6", "-", "-"] in lines
    assert ["author", "->", "institution", "at", "24", "4", "edge_time,", "w", "time", "w"] in lines
    types = run("inspect", store.path, "--json").document["graph"]["edge_types"]
    assert [(own["type"][1], own["orders"], own["weight_sums"]) for own in types][:1] == [
        ("cites", ["time"], ["w"])
    ]
