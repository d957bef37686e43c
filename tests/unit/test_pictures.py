"""What can be seen in a picture: parts apart from one another, arrows that touch their boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.pictures import looks_of
from gnnstore.tools import plots


def test_no_two_parts_of_a_picture_look_alike() -> None:
    parts = ["topology", "sampling", "planning", "traces and plans", "filling", "cached rows"]
    parts += [f"part {number}" for number in range(9)]
    looks = looks_of(parts)
    assert list(looks) == parts
    assert len(set(looks.values())) == len(parts)
    assert looks["planning"] == looks_of(["traces and plans"])["traces and plans"]


def test_arrows_between_types_end_at_the_edges_of_boxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    drawn: list[Any] = []

    def keep(figure: Any, file: Path, _: str) -> Path:
        drawn.append(figure)
        return file

    monkeypatch.setattr(plots, "save_picture", keep)
    nodes: list[dict[str, Any]] = [
        {"name": name, "num_nodes": 3, "attributes": []} for name in ("paper", "author")
    ]
    types = [("author", "writes", "paper"), ("paper", "cites", "paper")]
    edges = [{"type": type_, "num_edges": 5} for type_ in types]
    graph = {"node_types": nodes, "edge_types": edges, "num_nodes": 6, "num_edges": 10}
    plots.draw_types("store", graph, tmp_path / "types.svg")
    (figure,) = drawn
    figure.draw_without_rendering()
    (axes,) = figure.axes
    texts = {text.get_text().split("\n")[0]: text for text in axes.texts if text.get_text()}
    arrows = [text.arrow_patch for text in axes.texts if text.arrow_patch is not None]
    assert len(arrows) == 3  # a loop has two halves
    for arrow, begin, end in zip(
        arrows, ("author", "paper", None), ("paper", None, "paper"), strict=True
    ):
        points = arrow.get_transform().transform(arrow.get_path().vertices)
        for name in filter(None, (begin, end)):
            box = texts[name].get_bbox_patch().get_window_extent()
            inside = np.minimum(points - box.min, box.max - points).min(axis=1)
            # As far in as a line is wide, and no point between it and the box.
            assert -4 < inside.max() < 4
