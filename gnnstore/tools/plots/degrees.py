"""Plots of degree distributions: of one graph, and of two to compare."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnstore.converters.synthetic.degrees import DegreeComparison, DegreeDistribution
from gnnstore.palette import SERIES
from gnnstore.pictures import legend_below, new_axes, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gnnstore.tools.inspect.scan import Degrees


_FEW = 12  # degrees, of which a line alone would not show all
# Levels choose bits of a node's number, and the probability of 0 differs from that of 1.
_STEPS = (
    "Steps are R-MAT's: the expected degree of a node depends on how many bits of its number are "
    "1, so that degrees come in groups. Real graphs have no such steps."
)


def draw_degrees(name: str, degrees: Degrees, file: Path, kind: str = "") -> Path:
    """Plot the share of nodes with at least each in-degree and out-degree, as a PNG.

    Parameters
    ----------
    kind : str
        The converter of the store: steps in the curves of "rmat" are explained.
    """
    figure, (axes,) = new_axes(1, 8)
    for line, (direction, found) in enumerate((("in", degrees.inward), ("out", degrees.outward))):
        label = (
            f"{direction}-degree: highest {found.max:,}, {found.zero_share:.1%} "
            "of the nodes have none"
        )
        _draw(axes, found, line, label)
    inward = degrees.inward
    axes.set_xlabel("degree")
    axes.set_ylabel("share of nodes with at least this degree")
    legend_below(figure, axes, ncols=1, **_explained(kind))
    return save_picture(
        figure,
        file,
        f"{name}: {inward.num_nodes:,} nodes, {inward.num_edges:,} edges, "
        f"{inward.mean:.3g} per node",
    )


def draw_comparison(comparison: DegreeComparison, file: Path, kind: str = "") -> Path:
    """Plot the share of nodes with at least each in-degree, before and after, as a PNG.

    Parameters
    ----------
    kind : str
        The converter of the graph before, as in `draw_degrees`.
    """
    before, after = comparison.before, comparison.after
    figure, (plain, scaled) = new_axes(2, 10)
    for line, (name, found) in enumerate((("before", before), ("after", after))):
        _draw(plain, found, line, name)
        _draw(scaled, found, line, name, unit=found.mean)
    plain.set_xlabel("in-degree")
    scaled.set_xlabel("in-degree / mean in-degree")
    plain.set_ylabel("share of nodes with at least this degree")
    scaled.annotate(
        f"distance (Kolmogorov-Smirnov): {comparison.distance:.4f}",
        (0.03, 0.05),
        xycoords="axes fraction",
        fontsize=9,
    )
    legend_below(figure, plain, **_explained(kind))
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


def _explained(kind: str) -> dict[str, Any]:
    """Return a title of the legend that says where steps come from, if a generator made them."""
    if kind != "rmat":
        return {}
    return {"title": fill(_STEPS, 110), "title_fontsize": 9}
