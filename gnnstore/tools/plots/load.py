"""A plot of the epoch times of strategies, divided into the stages that make them up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from gnnstore.palette import part_looks
from gnnstore.pictures import legend_below, new_axes, save_picture
from gnnstore.tools.bench.stages import STAGES
from gnnstore.tools.bench.ways import BASELINE
from gnnstore.units import format_size

_NAMES = {"sampling": "sampling neighbours", "reading": "reading rows from the disk"}
_NAMES |= {"planning": "planning the cache", "filling": "filling the cache"}
_NAMES |= {"packing": "packing rows", "assembling": "copying rows and assembling"}
_NAMES |= {"other": "none of these"}


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
        axes.annotate(_label(item), (end, place), va="center", fontsize=9, **by)
    axes.set_yticks(range(len(found)), [item["strategy"] for item in found])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.75 * max(1e-9, *left))  # room for the text next to the longest
    axes.set_xlabel("seconds per epoch")
    legend_below(figure, axes, fontsize=9, ncols=4)
    return save_picture(figure, file, _title(document))


def _label(item: Mapping[str, Any]) -> str:
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
