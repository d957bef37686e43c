"""The first page: its first block as pasted, its figure and its computed numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.parts import headline, images, published
from tests.support.forks import ForkServer

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


_INTERPRETER = """
import code, sys
sys.ps1 = sys.ps2 = ""
code.interact("", local={"__name__": "__main__"}, exitmsg="")
"""


def test_the_first_block_runs_as_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forks: ForkServer
) -> None:
    """Line by line into an interpreter, twice, in a directory without any data."""
    block, shown = re.findall(r"^```(?:python|text)\n(.*?)^```$", README, re.M | re.S)[:2]
    monkeypatch.chdir(tmp_path)
    done = forks.run(_INTERPRETER, text=f"{block}\n{block}")
    assert "Error" not in done.stderr, done.stderr
    expected = shown.split("last loss", 1)[1]
    outputs = done.stdout.split("last loss")[1:]
    assert len(outputs) == 2
    for output in outputs:
        # Other processors round otherwise. The other numbers depend on the machine.
        assert float(output.split()[0]) == pytest.approx(float(expected.split()[0]), abs=0.01)
        assert _words(output)[: len(_words(expected))] == _words(expected)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]{4,}", text)


def test_the_figure_is_drawn_from_the_benchmarks() -> None:
    points = headline.read_points(headline.SOURCE.read_text())
    assert headline.PICTURE.read_text() == headline.draw(points)
    for strategy in ("packed", "mmap"):
        assert f"{points[strategy][-1].median:.2f} x" in README


def test_every_picture_is_made_by_a_command_or_listed() -> None:
    listed = [*images.MADE, *images.MEASURED, *images.BY_HAND]
    assert sorted(listed) == sorted(path.name for path in images.IMAGES.iterdir())


def test_the_picture_of_epochs_shows_the_numbers_of_the_benchmarks() -> None:
    picture = (images.IMAGES / "epoch.svg").read_text()
    found = images.read_epochs(headline.SOURCE.read_text())
    (base,) = {each["epochs"][0]["seconds"] for each in found["in_memory"]}
    assert len(found["outcomes"]) == 6
    for case in found["outcomes"]:
        epoch = case["rounds"][0]["epochs"][0]
        share = epoch["waiting"] / epoch["seconds"]
        assert f"<!-- {epoch['seconds'] / base:.2f} x, {share:.0%} waiting -->" in picture
    assert "page faults" in picture


@pytest.mark.parametrize("graph", published.GRAPHS, ids=lambda graph: graph.name)
def test_sizes_and_minutes_of_published_graphs_are_computed(graph: published.Graph) -> None:
    (row,) = re.findall(rf"^\| {graph.name} \| (.*) \|$", README, re.M)
    cells = row.split(" | ")
    assert cells[0].startswith(f"{graph.num_nodes:,}, ")
    edges = float(cells[0].split(", ")[1].split()[0]) * (1e9 if cells[0].endswith("G") else 1e6)
    assert edges == pytest.approx(graph.num_edges, rel=0.01)
    assert tuple(cells[2:]) == published.store_and_minutes(graph)
