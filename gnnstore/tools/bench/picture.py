"""The picture of a comparison of strategies, drawn with matplotlib if it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from gnnstore.pictures import (
    legend_below,
    looks_of,
    new_axes,
    save_picture,
)
from gnnstore.tools.bench.harness import BASELINE, STAGES
from gnnstore.units import format_count, format_size


def draw_load(document: Mapping[str, Any], file: Path) -> Path:
    """Plot the time of an epoch by strategy, and its stages within."""
    found = [item for item in document["strategies"] if item["rounds"]]
    figure, (axes,) = new_axes(1, 10, 2.3 + 0.42 * len(found))
    axes.grid(visible=False, axis="y")
    shown = [stage for stage in STAGES if any(item["stages"][stage] > 0 for item in found)]
    left = np.zeros(len(found))
    for stage, look in looks_of(shown).items():
        widths = [item["stages"][stage] for item in found]
        bars: dict[str, Any] = {"left": left.tolist(), "color": look.colour, "hatch": look.hatch}
        bars |= {"edgecolor": "white", "linewidth": 0.3, "label": stage}
        axes.barh(range(len(found)), widths, 0.66, **bars)
        left += widths
    # The stages of a round add up to its time; the text is the median of all rounds.
    for place, (item, end) in enumerate(zip(found, left.tolist(), strict=True)):
        text = f"{item['seconds_per_epoch']:.3g} s"
        if item["times_baseline"] is not None and item["strategy"] != BASELINE:
            text += f", {item['times_baseline']:.1f} x as fast as {BASELINE}"
        stages = item["stages"]
        if stages[longest := max(STAGES[:-1], key=stages.__getitem__)]:
            text += f", {stages[longest] / sum(stages.values()):.0%} {longest}"
        by: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points"}
        axes.annotate(text, (end, place), va="center", fontsize=9, **by)
    axes.set_yticks(range(len(found)), [item["strategy"] for item in found])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.75 * max(1e-9, *left))  # room for the text next to the longest
    axes.set_xlabel("seconds per epoch")
    legend_below(figure, axes, fontsize=9, ncols=4)
    device, limit = document["device"], document["limit"]
    memory = f"memory for {limit['share']:.0%} of {format_size(document['feature_bytes'])}"
    title = (
        f"{Path(document['store']).name}: {format_count(document['epoch_batches'], 'batch')} of "
        f"{format_count(document['batch_size'], 'seed')}, "
        f"{memory if limit['cgroup'] else 'no memory limit'}; "
        f"disk: {median(device['random_reads_per_second']) / 1e3:.0f} k random reads per second, "
        f"{format_size(median(device['bytes_per_second']))}/s in order"
    )
    return save_picture(figure, file, title)
