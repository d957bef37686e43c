"""Plots of the commands, drawn with matplotlib if it is installed."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gnnstore.caching.belady import policies
from gnnstore.disk.profile import DeviceProfile
from gnnstore.pictures import (
    GREY,
    PARTS,
    SERIES,
    draw_level,
    legend_below,
    looks_of,
    new_axes,
    save_picture,
)
from gnnstore.strategies.registry import auto
from gnnstore.tools.layout import block_name
from gnnstore.units import format_count, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gnnstore.tools import scan

_FEW = 12  # degrees, of which a line alone would not show all


def draw_degrees(name: str, degrees: scan.Degrees, file: Path) -> Path:
    """Plot the share of nodes with at least each in-degree and out-degree."""
    figure, (axes,) = new_axes(1, 8)
    for line, (direction, found) in enumerate((("in", degrees.inward), ("out", degrees.outward))):
        none = f"{found.zero_share:.1%} of the nodes have none"
        _draw(axes, found, line, f"{direction}-degree: highest {found.max:,}, {none}")
    inward = degrees.inward
    axes.set(xlabel="degree", ylabel="share of nodes with at least this degree")
    legend_below(figure, axes, ncols=1)
    nodes, edges = format_count(inward.num_nodes, "node"), format_count(inward.num_edges, "edge")
    title = f"{name}: {nodes}, {edges}, "
    return save_picture(figure, file, f"{title}{inward.mean:.3g} per node")


def draw_comparison(comparison: scan.DegreeComparison, file: Path) -> Path:
    """Plot the share of nodes with at least each in-degree, before and after."""
    before, after = comparison.before, comparison.after
    figure, (plain, scaled) = new_axes(2, 10)
    for line, (name, found) in enumerate((("before", before), ("after", after))):
        _draw(plain, found, line, name)
        _draw(scaled, found, line, name, unit=found.mean)
    plain.set_xlabel("in-degree")
    scaled.set_xlabel("in-degree / mean in-degree")
    plain.set_ylabel("share of nodes with at least this degree")
    text = f"distance (Kolmogorov-Smirnov): {comparison.distance:.4f}"
    scaled.annotate(text, (0.03, 0.05), xycoords="axes fraction", fontsize=9)
    legend_below(figure, plain)
    first, last = (
        f"{format_count(d.num_nodes, 'node')} and {format_count(d.num_edges, 'edge')}"
        for d in (before, after)
    )
    return save_picture(figure, file, f"{first}, expanded to {last}")


def _draw(
    axes: Axes, distribution: scan.DegreeDistribution, line: int, label: str, unit: float = 1.0
) -> None:
    """Draw the survival function; a logarithmic axis has no place for degree 0."""
    look, shown = SERIES[line], distribution.degrees > 0
    axes.plot(
        distribution.degrees[shown] / unit,
        distribution.survival()[shown],
        drawstyle="steps-pre",
        linestyle="-" if line == 0 else (0, (4, 2)),  # where they lie on one another
        linewidth=2,
        color=look.colour,
        marker=look.marker if np.count_nonzero(shown) < _FEW else "",
        markersize=4,
        label=label,
    )
    if shown.any():
        axes.set(xscale="log", yscale="log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.12g}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")


def draw_profile(profile: DeviceProfile, file: Path) -> Path:
    """Plot reads per second and bandwidth over the queue depth."""
    figure, (reads, bandwidth) = new_axes(2, 10)
    blocks = sorted(profile.random_reads_per_second.items())
    for (block, rates), series in zip(blocks, SERIES, strict=False):
        depths = sorted(rates)
        look: dict[str, Any] = {"color": series.colour, "marker": series.marker, "markersize": 4.5}
        look["label"] = f"{block_name(block)} per read"
        reads.plot(depths, [rates[depth] for depth in depths], **look)
        bandwidth.plot(depths, [rates[depth] * block for depth in depths], **look)
    # Random reads cannot exceed sequential ones.
    in_sequence = profile.sequential_read_bytes_per_second
    draw_level(bandwidth, in_sequence, f"in sequence: {format_size(in_sequence)}/s")
    reads.set_ylabel("random reads per second")
    bandwidth.set_ylabel("bytes read per second")
    depths = sorted({d for rates in profile.random_reads_per_second.values() for d in rates})
    for axes in (reads, bandwidth):
        axes.set_xscale("log", base=2)
        axes.set_xticks(depths, [str(depth) for depth in depths])
        axes.minorticks_off()
        axes.set_xlabel("reads in flight")
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])  # room for the text above the highest line
    reads.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    bandwidth.yaxis.set_major_formatter(lambda value, _: f"{format_size(value)}/s")
    legend_below(figure, reads)
    cached = "" if profile.is_direct else ", through the page cache"
    title = f"{profile.mount_point} ({profile.filesystem_type}, {profile.device}), read by "
    title += f"{profile.engine}{cached}, {profile.measured_at[:10]}"
    return save_picture(figure, file, title)


# Dashes are for grey print, and for lines that lie on one another.
_LINES = (
    ("needed", "assembling", "-", "needed by the batch"),
    ("missed", "reading", "--", "missed by the cache"),
    ("packed", "packing", ":", "packed in the batch's own chunk"),
)


def draw_packed(name: str, rows: scan.PackedRowCounts, file: Path) -> Path:
    """Plot the rows of each batch, and the reuse distances of rows."""
    figure, (by_batch, reuse) = new_axes(2, 10)
    for what, part, dashes, title in _LINES:
        amounts = getattr(rows, what)
        style: dict[str, Any] = {"color": PARTS[part].colour, "linestyle": dashes, "linewidth": 2}
        # A single batch is a point, which no line shows.
        style |= {"marker": "o" if len(amounts) < 20 else None, "markersize": 4}
        mean = amounts.mean() if len(amounts) else 0
        by_batch.plot(amounts, label=f"{title}: {mean:,.0f} on average", **style)
    for epoch in range(rows.batches_per_epoch, len(rows.needed), rows.batches_per_epoch):
        label = "the next epoch" if epoch == rows.batches_per_epoch else ""
        by_batch.axvline(epoch - 0.5, color=GREY, linewidth=0.8, label=label)
    by_batch.set_ylim(bottom=0)
    by_batch.set(xlabel="batch", ylabel="rows")
    by_batch.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")

    total = max(1, int(rows.ages.sum()))
    ages, shares = np.arange(1, len(rows.ages)), 100 * np.cumsum(rows.ages[1:]) / total
    look: dict[str, Any] = {"color": PARTS["assembling"].colour, "marker": "o", "markersize": 3}
    reuse.plot(ages, shares, drawstyle="steps-post", **look)
    first = 100 * rows.ages[0] / total if len(rows.ages) else 0.0
    text = f"the other {first:.1f} % are needed for the first time in their epoch"
    draw_level(reuse, 100 - first, text)
    if len(ages) > 1:
        reuse.set_xscale("log", base=2)
        reuse.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    reuse.set_ylim(0, 108)
    reuse.set(
        xlabel="batches since the row was last needed",
        ylabel="rows that are needed again by then (%)",
    )
    legend_below(figure, by_batch, fontsize=9, ncols=2)
    missed = rows.missed.sum() / max(1, rows.needed.sum())
    batches, slots = format_count(len(rows.needed), "batch"), format_count(rows.num_slots, "row")
    title = f"{name}: {batches}, {slots} cached; "
    return save_picture(figure, file, f"{title}{missed:.1%} of the rows missed")


# The strategy that caches rows by a policy, if it has another name.
_STRATEGY_OF = {"degree": "static-degree", "frequency": "static-frequency"}


def draw_predictions(document: Mapping[str, Any], file: Path) -> Path:
    """Plot the rows read over the cache size, and predicted times over memory."""
    curve = document["predictions"]["curve"]
    figure, panels = new_axes(2, 13, 6.2) if len(curve) > 1 else new_axes(1, 8, 5.6)
    _draw_reads(panels[0], document)
    if len(curve) > 1:
        _draw_times(panels[1], document["predictions"])
    legend_below(figure, *panels, fontsize=9, ncols=len(panels))
    batches = format_count(document["num_batches"], "batch")
    seeds = format_count(document["batch_size"], "seed")
    return save_picture(figure, file, f"{Path(document['store']).name}: {batches} of {seeds}")


def _styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return how the line of each strategy is drawn, in all panels, and its label."""
    return {
        name: {"color": look.colour, "marker": look.marker, "markersize": 5, "label": name}
        for name, look in looks_of(names).items()
    }


def _draw_reads(axes: Axes, document: Mapping[str, Any]) -> None:
    """Draw the share of rows that are read from disk over the size of the cache.

    A static cache is filled by its own reads and the others by their misses, so the former are
    added: without them a static cache would beat Belady's, though no cache can.
    """
    caches = sorted(document["caches"], key=lambda cache: cache["num_rows"])
    names = {policy: _STRATEGY_OF.get(policy, policy) for policy in policies()}
    styles = _styles(names.values())
    for policy, name in names.items():
        found = [one for cache in caches for one in cache["policies"] if one["policy"] == policy]
        rows = np.array([one["misses"] + one["filled_rows"] for one in found])
        rates = 100 * rows / max(1, document["rows_needed"])
        axes.plot([100 * cache["share"] for cache in caches], rates, **styles[name])
    axes.set(xlim=(0, None), ylim=(0, None))
    axes.set_title("Rows read by the size of the cache", fontsize=10)
    axes.set(
        xlabel="rows in the cache (% of all nodes)",
        ylabel="rows read, also to fill the cache\n(% of the rows that batches need)",
    )


def _draw_times(axes: Axes, predictions: Mapping[str, Any]) -> None:
    """Draw the predicted seconds of an epoch over memory, the budget, and what "auto" takes."""
    styles = _styles(candidate.choice for candidate in auto().candidates)
    for name, style in styles.items():
        seconds = {
            p["memory_bytes"]: p["seconds_per_epoch"].get(name) for p in predictions["curve"]
        }
        if points := [(memory, each) for memory, each in seconds.items() if each is not None]:
            axes.plot(*zip(*points, strict=True), **style)
    memory = predictions["memory_bytes"]
    text = f"memory={format_size(memory)}"
    text += "" if predictions["is_memory_asked"] else ", the default here"
    axes.axvline(memory, color=GREY, linestyle="--", linewidth=1.4, label=text)
    for one in predictions["strategies"]:
        if one["is_chosen"] and one["seconds_per_epoch"] is not None:
            star: dict[str, Any] = {"marker": "*", "markersize": 17, "markeredgecolor": "black"}
            star |= {"linestyle": "none", "color": styles[one["strategy"]]["color"], "zorder": 5}
            star["label"] = f"what strategy='auto' takes with it: {one['strategy']}"
            axes.plot([memory], [one["seconds_per_epoch"]], **star)
    axes.set(xscale="log", yscale="log")
    ticker = importlib.import_module("matplotlib.ticker")  # optional, as all of matplotlib
    for axis in (axes.xaxis, axes.yaxis):
        # Often less than a power of ten apart: 1 and 10 alone would leave an axis without numbers.
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(ticker.NullFormatter())
    axes.xaxis.set_major_formatter(lambda value, _: format_size(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title("An epoch by the memory that a loader has", fontsize=10)
    axes.set(xlabel="memory", ylabel="an epoch, predicted (s)")


_MARGIN = 0.7  # around the circle, which has a radius of 1
_Place: TypeAlias = tuple[float, float]


def draw_types(name: str, graph: Mapping[str, Any], file: Path) -> Path:
    """Draw the types of `describe_store`'s graph.

    An arrow goes from sources to targets, as messages do. Types between the same two node types
    are arcs side by side; those within a type are loops.
    """
    nodes, edges = graph["node_types"], graph["edge_types"]
    angles = [math.pi / 2 - 2 * math.pi * i / len(nodes) for i in range(len(nodes))]
    circle = [(math.cos(a), math.sin(a)) for a in angles] if len(nodes) > 1 else [(0.0, 0.0)]
    places: dict[str, _Place] = dict(zip((node["name"] for node in nodes), circle, strict=True))
    lowest, highest = (limit(y for _, y in places.values()) for limit in (min, max))
    bottom, top = lowest - _MARGIN, highest + _MARGIN
    figure, (axes,) = new_axes(1, 8, 8 * (top - bottom) / (2 + 2 * _MARGIN))
    axes.set_axis_off()
    boxes = {}
    for node in nodes:
        attributes = ", ".join(node["attributes"]) or "no attributes"
        text = f"{node['name']}\n{format_count(node['num_nodes'], 'node')}\n{attributes}"
        boxes[node["name"]] = _write(axes, places[node["name"]], text, "black", GREY)
    drawn: Counter[frozenset[str]] = Counter()
    for number, edge in enumerate(edges):
        source, relation, target = edge["type"]
        pair = frozenset((source, target))
        route = _loop if source == target else _arc
        stops, bend, middle = route(places[source], places[target], drawn[pair])
        drawn[pair] += 1
        colour = SERIES[number % len(SERIES)].colour
        _draw_arrow(axes, stops, (boxes[source], boxes[target]), colour, bend)
        # Darker than the arrow, since a thin text is harder to read.
        ink = "#" + "".join(f"{int(colour[i : i + 2], 16) * 5 // 8:02x}" for i in (1, 3, 5))
        _write(axes, middle, f"{relation}\n{format_count(edge['num_edges'], 'edge')}", ink, "none")
    axes.set(xlim=(-1 - _MARGIN, 1 + _MARGIN), ylim=(bottom, top))
    nodes, edges = (format_count(graph[f"num_{noun}s"], noun) for noun in ("node", "edge"))
    title = f"{name}: {nodes}, {edges}"
    return save_picture(figure, file, title)


# The places that an arrow goes through, how much it bends between them, and the place of its text.
_Route: TypeAlias = tuple[list[_Place], float, _Place]


def _arc(source: _Place, target: _Place, number: int) -> _Route:
    """Return an arrow that bends more than those before it."""
    (x0, y0), (x1, y1), bend = source, target, 0.18 + 0.22 * number
    # The middle of a quadratic curve is half as far off as its control point.
    middle = (x0 + x1) / 2 + bend / 2 * (y1 - y0), (y0 + y1) / 2 - bend / 2 * (x1 - x0)
    return [source, target], bend, middle


def _loop(place: _Place, _: _Place, number: int) -> _Route:
    """Return a loop on the outer side, larger than those before it."""
    length, far, half = math.hypot(*place), 0.32 + 0.18 * number, 0.05
    x, y = (place[0] / length, place[1] / length) if length else (0.0, 1.0)
    begin, end = ((place[0] + way * half * y, place[1] - way * half * x) for way in (1, -1))
    # In turns on either side: on the loop, texts would cover one another.
    off, along = -0.3 if number % 2 else 0.3, 0.95 * far
    middle = place[0] + along * x + off * y, place[1] + along * y - off * x
    return [begin, (place[0] + far * x, place[1] + far * y), end], 0.4, middle


def _draw_arrow(
    axes: Any, stops: list[_Place], boxes: tuple[Any, Any], colour: str, bend: float
) -> None:
    """Draw an arrow from the edge of one box to the edge of the other; its ends are in them."""
    style = {"color": colour, "connectionstyle": f"arc3,rad={bend}", "shrinkA": 0, "shrinkB": 0}
    last = len(stops) - 2
    for number, (begin, end) in enumerate(pairwise(stops)):
        style["arrowstyle"] = "-|>" if number == last else "-"
        style["patchA"] = None if number else boxes[0].get_bbox_patch()
        style["patchB"] = boxes[1].get_bbox_patch() if number == last else None
        axes.annotate("", end, begin, arrowprops=dict(style))


def _write(axes: Any, place: _Place, text: str, ink: str, frame: str) -> Any:
    box = {"boxstyle": "round", "facecolor": "white", "edgecolor": frame, "alpha": 0.9}
    style = {"ha": "center", "va": "center", "fontsize": 8.5}
    return axes.annotate(text, place, color=ink, bbox=box, **style)
