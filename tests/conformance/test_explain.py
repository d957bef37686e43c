"""What loaders read and why, in three lines, and their memory as a table."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

import gnnstore
from gnnstore import LinkNeighborLoader, NeighborLoader, PartitionPolicy
from gnnstore.budget.ledger import ALWAYS
from gnnstore.converters.stores.partition import partition
from gnnstore.errors import NotFoundError, UsageError
from gnnstore.loaders.base import BatchLoader
from gnnstore.plugins import STRATEGIES
from gnnstore.testing.graphs import random_graph
from tests.support.packing import pack
from tests.support.stores import CITES, write_two_typed_store

OPTIONS: dict[str, Any] = {"batch_size": 16, "num_threads": 1, "seed": 3}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = random_graph(300, 3000, seed=1, feature_dim=100, num_classes=3, skew=2.0)
    path = graph.write(tmp_path_factory.mktemp("explain") / "g.gnn")
    partition(path, 8, name="p", seed=3)
    pack(path, [4, 4])
    return path


def without_path(loader: BatchLoader) -> list[str]:
    """Return the lines about a loader, of the path its last name."""
    assert str(loader) == repr(loader) == f"{type(loader).__name__}()", "as PyG's"
    first, *others = loader.explain().about.splitlines()
    words = first.split(" ", 2)
    return [" ".join([*words[:2], words[2][words[2].rfind("/") + 1 :]]), *others]


# --- explain().about -------------------------------------------------------------------------


def test_a_loader_of_nodes(path: Path) -> None:
    loader = NeighborLoader(path, [4, 4], "train", shuffle=True, memory="100MB", **OPTIONS)
    num_seeds = len(gnnstore.open(path).splits["train"])
    assert without_path(loader) == [
        "NeighborLoader of g.gnn: 300 nodes, 3,000 edges",
        f"seeds: {num_seeds} nodes (train), 16 a batch, shuffled: {len(loader)} batches an epoch",
        "strategy 'memory' because all 149 kB of the store fit 100 MB of the memory= budget",
    ]
    assert loader.stats().reason.startswith(without_path(loader)[2] + "; ")


def test_seeds_without_a_name_in_order_by_a_rank(path: Path) -> None:
    loader = NeighborLoader(
        path, [4], [5, 6, 7], strategy="mmap", rank=1, world_size=2, **{**OPTIONS, "batch_size": 1}
    )
    assert without_path(loader)[1:] == [
        "seeds: 3 nodes, 1 a batch, in order, rank 1 of 2: 2 batches an epoch",
        "strategy 'mmap' because it was asked for",
    ]


def test_a_loader_of_links_on_a_graph_with_types(tmp_path: Path) -> None:
    path = write_two_typed_store(tmp_path / "t.gnn").path
    loader = LinkNeighborLoader(path, [2], (CITES, None), strategy="direct", **OPTIONS)
    seeds = "1,500 typed links (paper__cites__paper:all)"
    assert without_path(loader) == [
        "LinkNeighborLoader of t.gnn: 490 nodes of 3 types, 3,000 edges of 2 types",
        f"seeds: {seeds}, 16 a batch, in order: 94 batches an epoch",
        "strategy 'direct' because it was asked for",
    ]
    assert "staging for reads" in str(loader.explain())


def test_packed_epochs_with_the_store_and_without(path: Path) -> None:
    alone = gnnstore.open_packed(path / "plans" / "base").loader(num_threads=1)
    lines = without_path(alone)
    assert lines[0] == "PackedLoader of base: 300 nodes, 3,000 edges"
    assert lines[1].startswith("seeds: ")
    assert lines[2].startswith("strategy 'packed': packed before as 'base': ")
    assert "cached rows" in str(alone.explain())


def test_partitions_do_not_make_the_loader_draw_its_seed(path: Path) -> None:
    policy = PartitionPolicy("dispersed", capacity=2, name="p")
    loader = NeighborLoader(path, [4], "train", partitions=policy, shuffle=True, num_threads=1)
    lines = without_path(loader)
    assert lines[1].endswith(" 1 a batch, shuffled, epochs differ in their number of batches")
    assert lines[2] == (
        "strategy 'partitions': 2 of 8 partitions in memory in 4 logical groups, kind 'dispersed'"
    )
    assert loader.seed is None, "which would take a number of the user's generator"
    assert "4 partitions" in {part.what for part in loader.explain().parts}


# --- loader.explain() ----------------------------------------------------------------------


def test_the_memory_of_a_loader_is_a_table(path: Path) -> None:
    loader = NeighborLoader(path, [4, 4], "train", strategy="mmap", memory="1MB", **OPTIONS)
    explained = loader.explain()
    lines = str(explained).splitlines()
    assert lines[:3] == explained.about.splitlines()
    assert repr(explained) == str(explained)
    assert "\n".join(lines[3:]) == inspect.cleandoc(
        """
        NeighborLoader, strategy 'mmap': 1 MB of the memory= budget

          part                    memory   share
          topology               14.4 kB    1.4%
          seeds and their order  2.88 kB    0.3%
          compressed attributes   2.4 kB    0.2%
          batches in flight       980 kB   98.0%
          budget                    1 MB  100.0%
        """
    )


@pytest.mark.parametrize("strategy", [s.name for s in STRATEGIES if not s.alias_of])
def test_parts_add_up_to_the_budget(path: Path, strategy: str) -> None:
    loader = NeighborLoader(
        path, [4, 4], "train", strategy=strategy, memory="60MB", shuffle=True, **OPTIONS
    )
    explained = loader.explain()
    always = sum(part.num_bytes for part in explained.parts if part.phase == ALWAYS)
    phases = [
        sum(part.num_bytes for part in explained.parts if part.phase == phase)
        for phase in explained.phases
    ]
    assert always + max(phases, default=0) == explained.limit_bytes == 60_000_000
    assert explained.parts[-1].num_bytes == loader._sources.placement.spare_bytes
    assert bool(phases) == (strategy in ("belady", "packed"))
    text = str(explained)
    assert all(part.what in text for part in explained.parts)
    assert ("One phase at a time" in text) == (len(phases) > 1)


def test_parts_are_drawn_as_stacked_bars(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    save = figure.Figure.savefig

    def keep(self: Any, *args: Any, **named: Any) -> None:
        drawn.append(self)
        save(self, *args, **named)

    monkeypatch.setattr(figure.Figure, "savefig", keep)
    options: dict[str, Any] = {"shuffle": True, "strategy": "belady", **OPTIONS}
    loader = NeighborLoader(path, [4, 4], "train", memory="60MB", **options)
    explained = loader.explain(plot=tmp_path / "a.svg")
    assert str(explained) == str(loader.explain())
    assert (tmp_path / "a.svg").read_text().lstrip().startswith("<?xml")
    (axes,) = drawn[0].axes
    tops: dict[float, float] = {}
    for bar in axes.patches:
        tops[bar.get_x()] = max(tops.get(bar.get_x(), 0), bar.get_y() + bar.get_height())
    assert len(tops) == len(explained.phases)
    assert max(tops.values()) == pytest.approx(60e6, rel=0.02), "less what is too small to draw"
    assert [line.get_ydata()[0] for line in axes.lines] == [60_000_000]
    NeighborLoader(path, [4, 4], "train", strategy="mmap", **OPTIONS).explain(tmp_path / "b.png")
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


def test_plots_that_cannot_be_drawn(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = NeighborLoader(path, [4], "train", **OPTIONS)
    with pytest.raises(NotFoundError, match="none"):
        loader.explain(plot=tmp_path / "none" / "a.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"plot= .*\.gif: pictures are SVG or PNG"):
        loader.explain(plot=tmp_path / "a.gif")
    with pytest.raises(UsageError, match=r"plot= draws with matplotlib.*gnnstore\[plot\]"):
        loader.explain(plot=tmp_path / "a.png")
