"""What a loader reads and why, in three lines, its memory as a table, and pictures."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.budget.ledger import ALWAYS, Part, largest_phase
from gnnstore.errors import UsageError
from gnnstore.pictures import (
    GREY,
    check_picture,
    draw_level,
    legend_below,
    looks_of,
    new_axes,
    save_picture,
)
from gnnstore.timeline import Event, Timeline
from gnnstore.units import format_count, format_size

if TYPE_CHECKING:
    from gnnstore.formats.store.schema import Schema
    from gnnstore.strategies.placement import Placement

_LEAST_SHOWN = 1 / 500  # least share of all for which a bar has a part


def describe(what: str, schema: Schema, placement: Placement, seeds: list[str]) -> str:
    """Return a line each for the graph, the seeds, and the strategy with its first reason."""
    nodes, edges = schema.node_types, schema.edge_types
    is_typed = not schema.is_homogeneous
    counts = [
        format_count(sum(node.num_nodes for node in nodes), "node"),
        f" of {format_count(len(nodes), 'type')}" * is_typed,
        f", {format_count(sum(edge.num_edges for edge in edges), 'edge')}",
        f" of {format_count(len(edges), 'type')}" * is_typed,
    ]
    why, begin = placement.reason.partition("; ")[0], f"strategy {placement.strategy.choice!r}"
    strategy = why if why.startswith(begin) else f"{begin}: {why}"
    return f"{what}: {''.join(counts)}\nseeds: {', '.join(seeds)}\n{strategy}"


@dataclass(frozen=True, repr=False)
class Explanation:
    """What a loader reads and why, and its memory by its parts; prints as a table.

    Parts of different phases, such as sampling and packing a superbatch, are never there at once:
    of the phases, the one that takes the most counts.

    Attributes
    ----------
    loader, strategy : str
    about : str
        A line each for the graph, the seeds, and the strategy with its reason.
    limit_bytes : int
        The budget of memory.
    source : str
        The origin of the budget, as a phrase that follows its size.
    is_promise : bool
        Whether the user set the budget, so that batches in flight stay within it, too.
    parts : tuple of Part
        Each has `what`, `phase` ("": always) and `num_bytes`. Those that are always there come
        first, and larger ones before smaller ones; the last one is what is left to batches.
    """

    loader: str
    about: str
    strategy: str
    limit_bytes: int
    source: str
    is_promise: bool
    parts: tuple[Part, ...]

    @classmethod
    def from_placement(cls, loader: str, about: str, placement: Placement) -> Explanation:
        """Return the parts of a loader's memory."""
        ledger, is_promise = placement.ledger, placement.budget_is_promise
        parts = placement.parts
        phases = [ALWAYS, *sorted({part.phase for part in parts} - {ALWAYS})]
        parts.sort(key=lambda part: phases.index(part.phase))
        rest = "batches in flight" if is_promise else "free, also for batches in flight"
        parts.append(Part(rest, ALWAYS, max(0, placement.left_bytes)))
        name = placement.strategy.choice
        return cls(loader, about, name, ledger.limit, ledger.source, is_promise, tuple(parts))

    @property
    def phases(self) -> list[str]:
        """The phases with parts that are not always there, in the order of the parts."""
        return list(dict.fromkeys(part.phase for part in self.parts if part.phase))

    def __str__(self) -> str:
        """Return the lines about the loader, and the table."""
        rows = [("part", "while", "memory", "share")]
        rows += [(part.what, part.phase, *self._amount(part.num_bytes)) for part in self.parts]
        rows.append(("budget", "", *self._amount(self.limit_bytes)))
        # Shares of all free memory would mean nothing.
        shown = [0, *[1] * bool(self.phases), 2, *[3] * self.is_promise]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [
            "  ".join(["", *(f"{row[i]:{'<<>>'[i]}{widths[i]}}" for i in shown)]) for row in rows
        ]
        note = []
        if len(self.phases) > 1:
            most = largest_phase(self.parts)
            note = ["", f"One phase at a time: {most} takes the most, and counts."]
        return "\n".join([self.about, self.title, "", *lines, *note])

    __repr__ = __str__

    @property
    def title(self) -> str:
        """Loader, strategy and budget."""
        limit = f"{format_size(self.limit_bytes)} {self.source}"
        return f"{self.loader}, strategy {self.strategy!r}: {limit}"

    def _amount(self, num_bytes: int) -> tuple[str, str]:
        return format_size(num_bytes), f"{num_bytes / max(1, self.limit_bytes):.1%}"


def draw_memory(found: Explanation, file: Path) -> None:
    """Draw the parts as stacked bars, one for each phase, as SVG or PNG by the suffix."""
    check_picture(file, "plot=")
    phases = found.phases or [ALWAYS]
    figure, (axes,) = new_axes(1, 6.5 + 0.9 * len(phases))
    axes.grid(visible=False, axis="x")
    # Without a budget most memory is free, and other parts would not be seen next to it.
    parts = found.parts if found.is_promise else found.parts[:-1]
    heights: dict[str, list[int]] = {}
    for part in parts:
        own = [part.num_bytes * (part.phase in (ALWAYS, phase)) for phase in phases]
        others = heights.get(part.what, [0] * len(phases))
        heights[part.what] = [one + other for one, other in zip(own, others, strict=True)]
    least = _LEAST_SHOWN * max(map(sum, zip(*heights.values(), strict=True)), default=0)
    shown = {what: own for what, own in heights.items() if max(own) >= least}
    tops, looks = [0] * len(phases), looks_of(shown)
    for what, own in shown.items():
        look, name = looks[what], f"{what}: {format_size(max(own))}"
        style: dict[str, Any] = {"color": look.colour, "hatch": look.hatch, "edgecolor": "white"}
        axes.bar(range(len(phases)), own, 0.6, tops, label=name, **style)
        tops = [top + height for top, height in zip(tops, own, strict=True)]
    if found.is_promise:
        draw_level(axes, found.limit_bytes, f"{format_size(found.limit_bytes)} {found.source}")
    axes.set_ylim(0, 1.1 * max(1, *tops, found.limit_bytes * found.is_promise))
    axes.set_xticks(range(len(phases)), [phase.replace(": ", ":\n") for phase in phases])
    if found.phases:
        axes.set_xlabel("while")
    axes.yaxis.set_major_formatter(lambda value, _: format_size(value))
    axes.set_ylabel("memory")
    handles, labels = axes.get_legend_handles_labels()
    order: dict[str, Any] = {"loc": "outside right center", "frameon": False, "fontsize": 9}
    figure.legend(handles[::-1], labels[::-1], **order)  # as they lie on one another
    save_picture(figure, file, found.title)


_FEW = 2000  # most stages for which bars have white edges
# Names of stages in the legend; others have their own.
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
    "placing": "placing on the device",
    "transform": "your transform",
    "transform_sampler_output": "your transform of the sampler's output",
    "partitions": "the next partitions",
}
_MOST_ROWS = 40  # most threads that are drawn


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
    gap = 0.2 if len(events) < _FEW else 0.0  # many bars are narrower than their white edges
    looks = looks_of(name for name in (*_NAMES, *sorted(bars.keys() - _NAMES)) if name in bars)
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
    return save_picture(figure, file, file.name)


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
