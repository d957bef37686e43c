"""A plot of the epoch times of strategies and of the stages that make them up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from gnnstore.tools.bench.stages import STAGES
from gnnstore.tools.plots.pictures import legend_below, new_axes, save_picture
from gnnstore.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours that the colour-blind can tell apart; hatches for grey print.
_LOOKS = {
    "sampling": ("#0072b2", ""),
    "planning": ("#56b4e9", "..."),
    "filling": ("#cc79a7", "\\\\\\"),
    "packing": ("#e69f00", "///"),
    "reading": ("#d55e00", ""),
    "assembling": ("#009e73", "xx"),
    "other": ("#bbbbbb", ""),
}
_NAMES = {"reading": "reading rows", "other": "none of these"}


def draw_load(document: Mapping[str, Any], file: Path) -> Path:
    """Plot the time of an epoch by strategy, and the shares of its stages, as a PNG."""
    found = [item for item in document["strategies"] if item["rounds"]]
    height = 1.9 + 0.42 * len(found)
    figure, (times, shares) = new_axes(2, 10, height, sharey=True, width_ratios=(3, 2))
    for axes in (times, shares):
        axes.grid(visible=False, axis="y")
    names = [item["strategy"] for item in found]
    shown = [stage for stage in STAGES if any(item["stages"][stage] > 0 for item in found)]
    _stack(times, found, shown, [1.0] * len(found))
    # The stages of a round add up to it; the text says the median of all rounds.
    totals = [max(1e-9, sum(item["stages"].values())) for item in found]
    _stack(shares, found, shown, [100 / total for total in totals])
    for place, (item, total) in enumerate(zip(found, totals, strict=True)):
        times.annotate(
            _label(item),
            (total, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    times.set_yticks(range(len(names)), names)
    times.invert_yaxis()
    times.set_xlim(0, 1.3 * max(totals))  # room for the text next to the longest
    times.set_xlabel("seconds per epoch")
    shares.set_xlim(0, 100)
    shares.set_xlabel("share of the epoch (%)")
    legend_below(figure, times, fontsize=9)
    return save_picture(figure, file, _title(document))


def _stack(
    axes: Axes, found: list[Mapping[str, Any]], shown: list[str], factors: list[float]
) -> None:
    left = [0.0] * len(found)
    for stage in shown:
        colour, hatch = _LOOKS[stage]
        widths = [
            item["stages"][stage] * factor for item, factor in zip(found, factors, strict=True)
        ]
        axes.barh(
            range(len(found)),
            widths,
            0.66,
            left=left,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.3,
            label=_NAMES.get(stage, stage),
        )
        left = [begin + width for begin, width in zip(left, widths, strict=True)]


def _label(item: Mapping[str, Any]) -> str:
    seconds = f"{item['seconds_per_epoch']:.3g} s"
    times = item["times_baseline"]
    return (
        seconds
        if times is None or item["strategy"] == "numpy-mmap"
        else f"{seconds}, {times:.1f} x"
    )


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
