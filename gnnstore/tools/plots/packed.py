"""A picture of a packed plan. Draws with matplotlib, which is an optional extra."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnnstore.tools.plots.pictures import make_plain, new_figure, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gnnstore.tools.inspect.scan_plan import PlanRows

# Told apart by everyone, the colour-blind included, and in grey by their dashes.
_LINES = (
    ("needed", "#0072b2", "-"),
    ("missed", "#d55e00", "--"),
    ("packed", "#009e73", ":"),
)
_GREY = "#555555"


def draw_packed(name: str, rows: PlanRows, file: Path) -> Path:
    """Draw rows by batch, and how soon rows are needed again, as a PNG.

    Parameters
    ----------
    name : str
        Of the plan.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    figure = new_figure(10)
    by_batch, reuse = figure.subplots(1, 2)
    _draw_rows(by_batch, rows)
    _draw_reuse(reuse, rows)
    for axes in (by_batch, reuse):
        make_plain(axes)
    figure.suptitle(
        f"{name}: {len(rows.needed):,} batches, {rows.num_slots:,} rows cached; "
        f"{rows.missed.sum() / max(1, rows.needed.sum()):.1%} of the rows missed",
        fontsize=11,
    )
    return save_png(figure, file)


def _draw_rows(axes: Axes, rows: PlanRows) -> None:
    # A single batch is a point, which no line shows.
    marker = "o" if len(rows.needed) < 20 else None
    for what, colour, dashes in _LINES:
        amounts = getattr(rows, what)
        label = f"{what}: {amounts.mean() if len(amounts) else 0:,.0f} on average"
        axes.plot(amounts, color=colour, linestyle=dashes, marker=marker, markersize=4, label=label)
    for epoch in range(rows.batches_per_epoch, len(rows.needed), rows.batches_per_epoch):
        axes.axvline(epoch - 0.5, color=_GREY, linewidth=0.8)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch" if len(rows.needed) <= rows.batches_per_epoch else "batch, by epoch")
    axes.set_ylabel("rows")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(frameon=False, fontsize=9)


def _draw_reuse(axes: Axes, rows: PlanRows) -> None:
    total = max(1, int(rows.ages.sum()))
    shares = 100 * np.cumsum(rows.ages[1:]) / total
    ages = np.arange(1, len(rows.ages))
    axes.plot(ages, shares, color="#0072b2", drawstyle="steps-post", marker="o", markersize=3)
    first = 100 * rows.ages[0] / total if len(rows.ages) else 0.0
    axes.axhline(100 - first, color=_GREY, linestyle="--", linewidth=1.2)
    axes.annotate(
        f"the other {first:.1f} % are needed for the first time in their epoch",
        (0.02, 100 - first),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        color=_GREY,
        fontsize=9,
    )
    if len(ages) > 1:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(0, 108)
    axes.set_xlabel("batches since the row was last needed")
    axes.set_ylabel("rows that are needed again by then (%)")
