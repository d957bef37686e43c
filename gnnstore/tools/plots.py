"""Plots of the commands, drawn with matplotlib if it is installed."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import cycle
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gnnstore.caching.policies.simulate import policies
from gnnstore.converters.synthetic.degrees import DegreeComparison, DegreeDistribution
from gnnstore.disk.profile import DeviceProfile
from gnnstore.palette import GREY, PARTS, SERIES, part_looks, strategy_looks
from gnnstore.pictures import draw_level, legend_below, new_axes, save_picture
from gnnstore.strategies.builtin import auto
from gnnstore.tools.bench.stages import STAGES
from gnnstore.tools.bench.ways import BASELINE
from gnnstore.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gnnstore.tools.inspect.packed import PackedRowCounts
    from gnnstore.tools.inspect.scan import Degrees

_FEW = 12  # degrees, of which a line alone would not show all
# Levels choose bits of a node's number, and the probability of 0 differs from that of 1.
# By the converter that made the graph: a title of the legend.
_STEPS = (
    "Steps are R-MAT's: the expected degree of a node depends on how many bits of its number are "
    "1, so that degrees come in groups. Real graphs have no such steps."
)
_EXPLAINED = {"rmat": {"title": fill(_STEPS, 110), "title_fontsize": 9}}


def draw_degrees(name: str, degrees: Degrees, file: Path, kind: str = "") -> Path:
    """Plot the share of nodes with at least each in-degree and out-degree, as a PNG."""
    figure, (axes,) = new_axes(1, 8)
    for line, (direction, found) in enumerate((("in", degrees.inward), ("out", degrees.outward))):
        none = f"{found.zero_share:.1%} of the nodes have none"
        _draw(axes, found, line, f"{direction}-degree: highest {found.max:,}, {none}")
    inward = degrees.inward
    axes.set_xlabel("degree")
    axes.set_ylabel("share of nodes with at least this degree")
    legend_below(figure, axes, ncols=1, **_EXPLAINED.get(kind, {}))
    title = f"{name}: {inward.num_nodes:,} nodes, {inward.num_edges:,} edges, "
    return save_picture(figure, file, f"{title}{inward.mean:.3g} per node")


def draw_comparison(comparison: DegreeComparison, file: Path, kind: str = "") -> Path:
    """Plot the share of nodes with at least each in-degree, before and after, as a PNG."""
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
    legend_below(figure, plain, **_EXPLAINED.get(kind, {}))
    return save_picture(
        figure,
        file,
        f"{before.num_nodes:,} nodes and {before.num_edges:,} edges, expanded to "
        f"{after.num_nodes:,} and {after.num_edges:,}",
    )


def _draw(
    axes: Axes, distribution: DegreeDistribution, line: int, label: str, unit: float = 1.0
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
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.12g}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")


def block_name(block_bytes: int) -> str:
    """Return "512 B" or "4 KiB": blocks are powers of two, and so is their unit."""
    return f"{block_bytes} B" if block_bytes < 1024 else f"{block_bytes // 1024} KiB"


def speed(bytes_per_second: float) -> str:
    """Return "4.2 GB/s"."""
    return f"{format_size(bytes_per_second)}/s"


def draw_profile(profile: DeviceProfile, file: Path) -> Path:
    """Plot reads per second and bandwidth over the queue depth, as a PNG."""
    figure, (reads, bandwidth) = new_axes(2, 10)
    blocks = sorted(profile.random_reads_per_second.items())
    for (block, rates), series in zip(blocks, SERIES, strict=False):
        depths = sorted(rates)
        label = f"{block_name(block)} per read"
        look: dict[str, Any] = {"color": series.colour, "marker": series.marker}
        look |= {"markersize": 4.5, "label": label}
        reads.plot(depths, [rates[depth] for depth in depths], **look)
        bandwidth.plot(depths, [rates[depth] * block for depth in depths], **look)
    # Random reads cannot exceed sequential ones.
    in_sequence = profile.sequential_read_bytes_per_second
    draw_level(bandwidth, in_sequence, f"in sequence: {speed(in_sequence)}")
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
    bandwidth.yaxis.set_major_formatter(lambda value, _: speed(value))
    legend_below(figure, reads)
    cached = "" if profile.is_direct else ", through the page cache"
    return save_picture(
        figure,
        file,
        f"{profile.mount_point} ({profile.filesystem_type}, {profile.device}), read by "
        f"{profile.engine}{cached}, {profile.measured_at[:10]}",
    )


_NAMES = {
    "sampling": "sampling neighbours",
    "reading": "reading rows from the disk",
    "planning": "planning the cache",
    "filling": "filling the cache",
    "packing": "packing rows",
    "assembling": "copying rows and assembling",
    "other": "none of these",
}


def draw_load(document: Mapping[str, Any], file: Path) -> Path:
    """Plot the time of an epoch by strategy, and its stages within, as a PNG."""
    found = [item for item in document["strategies"] if item["rounds"]]
    figure, (axes,) = new_axes(1, 10, 2.3 + 0.42 * len(found))
    axes.grid(visible=False, axis="y")
    shown = [stage for stage in STAGES if any(item["stages"][stage] > 0 for item in found)]
    left = [0.0] * len(found)
    for stage, look in part_looks(shown).items():
        widths = [item["stages"][stage] for item in found]
        bars: dict[str, Any] = {"left": left, "color": look.colour, "hatch": look.hatch}
        bars |= {"edgecolor": "white", "linewidth": 0.3, "label": _NAMES[stage]}
        axes.barh(range(len(found)), widths, 0.66, **bars)
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    # The stages of a round add up to it; the text says the median of all rounds.
    for place, (item, end) in enumerate(zip(found, left, strict=True)):
        by: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points"}
        axes.annotate(_describe_times(item), (end, place), va="center", fontsize=9, **by)
    axes.set_yticks(range(len(found)), [item["strategy"] for item in found])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.75 * max(1e-9, *left))  # room for the text next to the longest
    axes.set_xlabel("seconds per epoch")
    legend_below(figure, axes, fontsize=9, ncols=4)
    return save_picture(figure, file, _title(document))


def _describe_times(item: Mapping[str, Any]) -> str:
    """Return the seconds, the speed-up, and the longest stage: a short bar does not show it."""
    found = [f"{item['seconds_per_epoch']:.3g} s"]
    if item["times_baseline"] is not None and item["strategy"] != BASELINE:
        found.append(f"{item['times_baseline']:.1f} x as fast as {BASELINE}")
    stages, total = item["stages"], sum(item["stages"].values())
    longest = max((stage for stage in stages if stage != "other"), key=lambda name: stages[name])
    if stages[longest]:
        found.append(f"{stages[longest] / total:.0%} {longest}")
    return ", ".join(found)


def _title(document: Mapping[str, Any]) -> str:
    device, limit = document["device"], document["limit"]
    reads = median(device["random_reads_per_second"]) / 1e3
    memory = f"memory for {limit['share']:.0%} of {format_size(document['feature_bytes'])}"
    return (
        f"{Path(document['store']).name}: {document['epoch_batches']} batches of "
        f"{document['batch_size']} seeds, {memory if limit['cgroup'] else 'no memory limit'}; "
        f"disk: {reads:.0f} k random reads per second, "
        f"{format_size(median(device['bytes_per_second']))}/s in order"
    )


# Dashes are for grey print, and for lines that lie on one another.
_LINES = (
    ("needed", "assembling", "-", "needed by the batch"),
    ("missed", "reading", "--", "missed by the cache"),
    ("packed", "packing", ":", "packed in the batch's own chunk"),
)


def draw_packed(name: str, rows: PackedRowCounts, file: Path) -> Path:
    """Plot the rows of each batch, and the reuse distances of rows, as a PNG."""
    figure, (by_batch, reuse) = new_axes(2, 10)
    _draw_rows(by_batch, rows)
    _draw_reuse(reuse, rows)
    legend_below(figure, by_batch, fontsize=9, ncols=2)
    return save_picture(
        figure,
        file,
        f"{name}: {len(rows.needed):,} batches, {rows.num_slots:,} rows cached; "
        f"{rows.missed.sum() / max(1, rows.needed.sum()):.1%} of the rows missed",
    )


def _draw_rows(axes: Axes, rows: PackedRowCounts) -> None:
    # A single batch is a point, which no line shows.
    marker = "o" if len(rows.needed) < 20 else None
    for what, part, dashes, title in _LINES:
        amounts = getattr(rows, what)
        label = f"{title}: {amounts.mean() if len(amounts) else 0:,.0f} on average"
        style: dict[str, Any] = {"color": PARTS[part].colour, "linestyle": dashes, "linewidth": 2}
        axes.plot(amounts, marker=marker, markersize=4, label=label, **style)
    for epoch in range(rows.batches_per_epoch, len(rows.needed), rows.batches_per_epoch):
        label = "the next epoch" if epoch == rows.batches_per_epoch else ""
        axes.axvline(epoch - 0.5, color=GREY, linewidth=0.8, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch" if len(rows.needed) <= rows.batches_per_epoch else "batch, by epoch")
    axes.set_ylabel("rows")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _draw_reuse(axes: Axes, rows: PackedRowCounts) -> None:
    total = max(1, int(rows.ages.sum()))
    shares = 100 * np.cumsum(rows.ages[1:]) / total
    ages = np.arange(1, len(rows.ages))
    colour = PARTS["assembling"].colour  # of the rows that batches need
    axes.plot(ages, shares, color=colour, drawstyle="steps-post", marker="o", markersize=3)
    first = 100 * rows.ages[0] / total if len(rows.ages) else 0.0
    text = f"the other {first:.1f} % are needed for the first time in their epoch"
    draw_level(axes, 100 - first, text)
    if len(ages) > 1:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(0, 108)
    axes.set_xlabel("batches since the row was last needed")
    axes.set_ylabel("rows that are needed again by then (%)")


def draw_partitions(document: Mapping[str, Any], file: Path) -> Path:
    """Plot the Edge Permutation Bias over the seconds of an epoch's reads and writes, as a PNG."""
    figure, (axes,) = new_axes(1, 7)
    orders = list(dict.fromkeys(one["order"] for one in document["sizes"]))
    for order, series in zip(orders, cycle(SERIES), strict=False):
        of_order = [one for one in document["sizes"] if one["order"] == order]
        axes.plot(
            [one["seconds_per_epoch"] for one in of_order],
            [one["bias"] or 0 for one in of_order],
            color=series.colour,
            marker=series.marker,
            label=order,
        )
        for one in of_order:
            text = f"{one['capacity']} of {one['num_partitions']}"
            place = (one["seconds_per_epoch"], one["bias"] or 0)
            by: dict[str, Any] = {"xytext": (4, 4), "textcoords": "offset points"}
            axes.annotate(text, place, fontsize=8, **by)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1)
    axes.set_xlabel("reading and writing, an epoch (s)")
    axes.set_ylabel("Edge Permutation Bias")
    axes.legend(frameon=False)
    return save_picture(figure, file, f"{Path(document['store']).name}: partitions in the buffer")


# What a line of the legend adds to a strategy's name.
_MEANINGS = {
    "memory": "everything is loaded once",
    "mmap": "the system reads a page when it is touched",
    "direct": "no cache, each row is read",
    "static-degree": "the cache holds nodes with most edges",
    "static-frequency": "the cache holds rows that are needed most often",
    "belady": "the cache holds rows that are needed again soonest",
    "packed": "as belady, and missed rows are gathered in one pass",
    "packed-epochs": "as packed, by 'gnnstore pack' before training",
    "lru": "the least recently used row leaves the cache (other systems)",
}
# The strategy that caches rows by a policy, if it has another name.
_STRATEGY_OF = {"degree": "static-degree", "frequency": "static-frequency"}


def draw_predictions(document: Mapping[str, Any], file: Path) -> Path:
    """Plot the rows read over the cache size, and predicted times over memory, as a PNG."""
    times = _times(document["predictions"])
    # Single points would compare nothing.
    is_curve = any(len(points) > 1 for points in times.values())
    figure, panels = new_axes(2, 13, 6.2) if is_curve else new_axes(1, 8, 5.6)
    _draw_reads(panels[0], document)
    if is_curve:
        _draw_times(panels[1], times, document["predictions"])
    legend_below(figure, *panels, fontsize=9, ncols=len(panels))
    return save_picture(
        figure,
        file,
        f"{Path(document['store']).name}: {document['num_batches']} batches of "
        f"{document['batch_size']} seeds",
    )


def _styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return how the line of each strategy is drawn, in all panels, and its label."""
    return {
        name: {
            "color": look.colour,
            "marker": look.marker,
            "markersize": 5,
            "label": f"{name}: {_MEANINGS[name]}" if name in _MEANINGS else name,
        }
        for name, look in strategy_looks(names).items()
    }


def _draw_reads(axes: Axes, document: Mapping[str, Any]) -> None:
    """Draw the share of rows that are read from disk over the size of the cache.

    A static cache is filled by its own reads and the others by their misses, so the former are
    added: without them a static cache would beat Belady's, though no cache can.
    """
    caches = sorted(document["caches"], key=lambda cache: cache["num_rows"])
    shares = [100 * cache["share"] for cache in caches]
    names = {policy: _STRATEGY_OF.get(policy, policy) for policy in policies()}
    styles = _styles(names.values())
    for policy, name in names.items():
        rates = [
            100 * (outcome["misses"] + outcome["filled_rows"]) / max(1, document["rows_needed"])
            for cache in caches
            for outcome in cache["policies"]
            if outcome["policy"] == policy
        ]
        axes.plot(shares, rates, **styles[name])
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_title("Rows read by the size of the cache", fontsize=10)
    axes.set_xlabel("rows in the cache (% of all nodes)")
    axes.set_ylabel("rows read, also to fill the cache\n(% of the rows that batches need)")


def _times(predictions: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Return the memory in bytes and the predicted seconds of an epoch, by candidate."""
    return {
        candidate.choice: [
            (point["memory_bytes"], point["seconds_per_epoch"][candidate.choice])
            for point in predictions["curve"] or ()
            if point["seconds_per_epoch"].get(candidate.choice) is not None
        ]
        for candidate in auto().candidates
    }


def _draw_times(
    axes: Axes, times: Mapping[str, list[tuple[float, float]]], predictions: Mapping[str, Any]
) -> None:
    """Draw the predicted seconds of an epoch over memory, for each possible strategy."""
    styles = _styles(times)
    for name, points in times.items():
        if points:
            memory, seconds = zip(*points, strict=True)
            axes.plot(memory, seconds, **styles[name])
    _draw_choice(axes, predictions, styles)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticker = importlib.import_module("matplotlib.ticker")  # optional, as all of matplotlib
    for axis in (axes.xaxis, axes.yaxis):
        # Often less than a power of ten apart: 1 and 10 alone would leave an axis without numbers.
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(ticker.NullFormatter())
    axes.xaxis.set_major_formatter(lambda value, _: format_size(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title("An epoch by the memory that a loader has", fontsize=10)
    axes.set_xlabel("memory")
    axes.set_ylabel("an epoch, predicted (s)")


def _draw_choice(
    axes: Axes, predictions: Mapping[str, Any], styles: Mapping[str, Mapping[str, Any]]
) -> None:
    """Draw a line at the memory asked for, and a star at what "auto" takes with it."""
    memory = predictions["memory_bytes"]
    is_asked = predictions["is_memory_asked"]
    text = f"memory={format_size(memory)}" + ("" if is_asked else ", the default here")
    axes.axvline(memory, color=GREY, linestyle="--", linewidth=1.4, label=text)
    for one in predictions["strategies"]:
        if one["is_chosen"] and one["seconds_per_epoch"] is not None:
            star: dict[str, Any] = {
                "marker": "*",
                "markersize": 17,
                "markeredgecolor": "black",
                "zorder": 5,
            }
            star |= {"linestyle": "none", "color": styles[one["strategy"]]["color"]}
            star |= {"label": f"what strategy='auto' takes with it: {one['strategy']}"}
            axes.plot([memory], [one["seconds_per_epoch"]], **star)


_MARGIN = 0.7  # around the circle, which has a radius of 1
_Place: TypeAlias = tuple[float, float]
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
    title = f"{name}: {graph['num_nodes']:,} nodes, {graph['num_edges']:,} edges"
    return save_picture(figure, file, title)


def _on_circle(number: int, count: int) -> tuple[float, float]:
    if count == 1:
        return (0.0, 0.0)
    angle = math.pi / 2 - 2 * math.pi * number / count
    return (math.cos(angle), math.sin(angle))


def _draw_arc(axes: Any, ends: tuple[_Place, ...], bend: float, colour: str, text: str) -> None:
    (x0, y0), (x1, y1) = ends
    _arrow(axes, ends, colour, bend, _NODE_POINTS)
    # The middle of a quadratic curve is half as far off as its control point.
    middle = ((x0 + x1) / 2 + bend / 2 * (y1 - y0), (y0 + y1) / 2 - bend / 2 * (x1 - x0))
    _label(axes, middle, colour, text)


def _draw_loop(axes: Any, place: _Place, bend: float, colour: str, text: str, *, side: int) -> None:
    length = math.hypot(*place)
    out = (place[0] / length, place[1] / length) if length else (0.0, 1.0)
    far, half = 0.25 + bend, 0.12  # of the top of the loop, and half its width
    edge = (place[0] + 0.16 * out[0], place[1] + 0.16 * out[1])
    begin, end = ((edge[0] + way * half * out[1], edge[1] - way * half * out[0]) for way in (1, -1))
    _arrow(axes, (begin, end), colour, (far - 0.16) / half, 0)
    # Next to the loop, in turns on either side: on it, texts would cover one another.
    off, along = 0.3 * side, 0.75 * far
    middle = (place[0] + along * out[0] + off * out[1], place[1] + along * out[1] - off * out[0])
    _label(axes, middle, colour, text)


def _arrow(axes: Any, ends: tuple[_Place, ...], colour: str, bend: float, room: int) -> None:
    arrow = {"arrowstyle": "-|>", "color": colour, "connectionstyle": f"arc3,rad={bend}"}
    axes.annotate("", ends[1], ends[0], arrowprops={**arrow, "shrinkA": room, "shrinkB": room})


def _label(axes: Any, place: _Place, colour: str, text: str) -> None:
    # Darker than the arrow, since a thin text is harder to read.
    ink = "#" + "".join(f"{int(colour[i : i + 2], 16) * 5 // 8:02x}" for i in (1, 3, 5))
    box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
    axes.annotate(text, place, ha="center", va="center", fontsize=8, color=ink, bbox=box)
