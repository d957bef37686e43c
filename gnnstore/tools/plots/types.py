"""A drawing of the types of a graph: node types on a circle, edge types as arrows between them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnnstore.palette import GREY, SERIES
from gnnstore.pictures import new_axes, save_picture

_MARGIN = 0.7  # around the circle, which has a radius of 1
_NODE_POINTS = 30  # of text around a node, which arrows do not enter


def draw_types(name: str, graph: Mapping[str, Any], file: Path) -> Path:
    """Draw the types of `describe_store`'s graph, as a PNG or SVG.

    An arrow goes from sources to targets, as messages do. Types between the same two node types
    are arcs side by side; those within a type are loops.
    """
    nodes, edges = graph["node_types"], graph["edge_types"]
    places = {node["name"]: _on_circle(number, len(nodes)) for number, node in enumerate(nodes)}
    lowest, highest = (limit(y for _, y in places.values()) for limit in (min, max))
    bottom, top = lowest - _MARGIN, highest + _MARGIN
    figure, (axes,) = new_axes(1, 8, 8 * (top - bottom) / (2 + 2 * _MARGIN))
    axes.set_axis_off()
    drawn: Counter[frozenset[str]] = Counter()
    for number, edge in enumerate(edges):
        source, relation, target = edge["type"]
        colour = SERIES[number % len(SERIES)].colour
        pair = frozenset((source, target))
        bend = 0.18 + 0.22 * drawn[pair]
        drawn[pair] += 1
        text = f"{relation}\n{edge['num_edges']:,} edges"
        if source == target:
            side = 1 if drawn[pair] % 2 else -1
            _draw_loop(axes, places[source], bend, colour, text, side=side)
        else:
            _draw_arc(axes, (places[source], places[target]), bend, colour, text)
    for node in nodes:
        attributes = ", ".join(node["attributes"]) or "no attributes"
        axes.annotate(
            f"{node['name']}\n{node['num_nodes']:,} nodes\n{attributes}",
            places[node["name"]],
            ha="center",
            va="center",
            fontsize=9,
            bbox={"boxstyle": "round", "facecolor": "white", "edgecolor": GREY},
        )
    axes.set_xlim(-1 - _MARGIN, 1 + _MARGIN)
    axes.set_ylim(bottom, top)
    num_nodes, num_edges = graph["num_nodes"], graph["num_edges"]
    return save_picture(figure, file, f"{name}: {num_nodes:,} nodes, {num_edges:,} edges")


def _on_circle(number: int, count: int) -> tuple[float, float]:
    if count == 1:
        return (0.0, 0.0)
    angle = math.pi / 2 - 2 * math.pi * number / count
    return (math.cos(angle), math.sin(angle))


def _draw_arc(
    axes: Any, ends: tuple[tuple[float, float], ...], bend: float, colour: str, text: str
) -> None:
    (x0, y0), (x1, y1) = ends
    axes.annotate(
        "",
        (x1, y1),
        (x0, y0),
        arrowprops={
            "arrowstyle": "-|>",
            "color": colour,
            "connectionstyle": f"arc3,rad={bend}",
            "shrinkA": _NODE_POINTS,
            "shrinkB": _NODE_POINTS,
        },
    )
    # The middle of a quadratic curve is half as far off as its control point.
    middle = ((x0 + x1) / 2 + bend / 2 * (y1 - y0), (y0 + y1) / 2 - bend / 2 * (x1 - x0))
    _label(axes, middle, colour, text)


def _draw_loop(
    axes: Any, place: tuple[float, float], bend: float, colour: str, text: str, *, side: int
) -> None:
    length = math.hypot(*place)
    out = (place[0] / length, place[1] / length) if length else (0.0, 1.0)
    far, half = 0.25 + bend, 0.12  # of the top of the loop, and half its width
    edge = (place[0] + 0.16 * out[0], place[1] + 0.16 * out[1])
    begin, end = ((edge[0] + way * half * out[1], edge[1] - way * half * out[0]) for way in (1, -1))
    axes.annotate(
        "",
        end,
        begin,
        arrowprops={
            "arrowstyle": "-|>",
            "color": colour,
            "connectionstyle": f"arc3,rad={(far - 0.16) / half}",
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )
    # Next to the loop, in turns on either side: on it, texts would cover one another.
    off, along = 0.3 * side, 0.75 * far
    middle = (place[0] + along * out[0] + off * out[1], place[1] + along * out[1] - off * out[0])
    _label(axes, middle, colour, text)


def _label(axes: Any, place: tuple[float, float], colour: str, text: str) -> None:
    # Darker than the arrow, since a thin text is harder to read.
    ink = "#" + "".join(f"{int(colour[i : i + 2], 16) * 5 // 8:02x}" for i in (1, 3, 5))
    box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
    axes.annotate(text, place, ha="center", va="center", fontsize=8, color=ink, bbox=box)
