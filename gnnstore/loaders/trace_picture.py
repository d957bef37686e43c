"""Draws the timeline of a loader: a row for each thread, and a bar for each stage."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnnstore.errors import UsageError
from gnnstore.palette import GREY, part_looks
from gnnstore.pictures import check_picture, legend_below, new_axes, save_picture
from gnnstore.timeline import Event, Timeline
from gnnstore.units import format_count, format_duration

# What the legend says of a stage; others have their own names.
_NAMES = {
    "training": "training: your code has the batch",
    "wait": "waiting for a batch",
    "sampling": "sampling neighbours",
    "gathering": "gathering rows: reading and copying",
    "recalling": "reading a sampled batch back",
    "planning": "planning the cache",
    "filling": "filling the cache",
    "packing": "packing rows",
    "pinning": "copying to pinned memory",
    "transform": "your transform",
    "transform_sampler_output": "your transform of the sampler's output",
    "partitions": "the next partitions",
}
_MOST_ROWS = 40  # threads that are drawn
_FEW = 2000  # stages


def writer_of(path: str | os.PathLike[str]) -> Callable[[Timeline, Path], object]:
    """Return what writes a timeline to a file of this name; check that pictures can be drawn."""
    suffix = Path(path).suffix.lower()
    if suffix == ".json":
        return Timeline.write
    if suffix not in {".png", ".svg"}:
        raise UsageError(
            f"trace() {path}: a timeline is .json, for ui.perfetto.dev, or a picture, .png or .svg"
        )
    check_picture(Path(path), "trace()")
    return draw_timeline


def draw_timeline(timeline: Timeline, file: Path) -> Path:
    """Draw the stages of each thread over time, as SVG or PNG by the file's suffix."""
    begin_ns, events, threads, num_dropped = timeline.recording()
    bars: dict[str, dict[tuple[int, int], list[tuple[float, float]]]] = {}
    busy = {thread for _, _, thread, _, _ in events}
    shown = [thread for thread in threads if thread in busy][:_MOST_ROWS]
    rows = {thread: row for row, thread in enumerate(shown)}
    for event, depth in zip(events, _depths(events), strict=True):
        start, end, thread, name, _ = event
        if thread in rows:
            of_stage = bars.setdefault(name, defaultdict(list))
            of_stage[rows[thread], depth].append(((start - begin_ns) / 1e9, (end - start) / 1e9))
    figure, (axes,) = new_axes(1, 12, 2.2 + 0.45 * len(rows))
    axes.grid(visible=False, axis="y")
    gap = 0.2 if len(events) < _FEW else 0.0  # between bars, unless it would hide most of them
    looks = part_looks(name for name in (*_NAMES, *sorted(bars.keys() - _NAMES)) if name in bars)
    for name, look in looks.items():
        label: str | None = _NAMES.get(name, name)
        for (row, depth), spans in bars[name].items():
            height = 0.8 * 0.6**depth  # the stages within another one are seen on it
            place = (row - height / 2, height)
            style: dict[str, Any] = {"facecolor": look.colour, "edgecolor": "white"}
            axes.broken_barh(spans, place, linewidth=gap, label=label, zorder=2 + depth, **style)
            label = None
    axes.set_yticks(range(len(rows)), [threads[thread] for thread in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    last_ns = max((end for _, end, _, _, _ in events), default=begin_ns)
    axes.set_xlim(0, max(1e-6, (last_ns - begin_ns) / 1e9))
    axes.set_xlabel("seconds since the recording began")
    axes.set_ylabel("thread")
    if num_dropped:
        text = f"{num_dropped:,} stages after these are left out; max_events= keeps more"
        axes.annotate(text, (1, 1), xycoords="axes fraction", ha="right", va="bottom", color=GREY)
    if bars:
        legend_below(figure, axes, fontsize=9, ncols=4)
    return save_picture(figure, file, _title(file.name, events))


def _depths(events: list[Event]) -> list[int]:
    """Return how many stages of its thread each event lies within."""
    open_until: dict[int, list[int]] = defaultdict(list)
    found = []
    for start, end, thread, _, _ in events:
        ends = open_until[thread]
        while ends and ends[-1] <= start:
            ends.pop()
        found.append(len(ends))
        ends.append(end)
    return found


def _title(name: str, events: list[Event]) -> str:
    """Return what the loop did: batches, their time, and what of it was waiting."""
    seconds: dict[str, float] = defaultdict(float)
    for start, end, _, stage, _ in events:
        seconds[stage] += (end - start) / 1e9
    num_batches = sum(stage == "training" for _, _, _, stage, _ in events)
    total = seconds["training"] + seconds["wait"]
    if not total:
        return name
    took = f"{total:.3g} s" if total < 100 else format_duration(total)
    return (
        f"{name}: {format_count(num_batches, 'batch')} in {took}, "
        f"of which the loop waited {seconds['wait'] / total:.0%}"
    )
