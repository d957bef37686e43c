"""A plot of the rows of packed epochs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnstore.palette import GREY, PARTS
from gnnstore.pictures import draw_level, legend_below, new_axes, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gnnstore.tools.inspect.packed import PackedRowCounts

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
