"""Plots of degree distributions: of one graph, and of two to compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gnnstore.converters.synthetic.degrees import DegreeComparison, DegreeDistribution
from gnnstore.tools.plots.pictures import LINES, legend_below, new_axes, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gnnstore.tools.inspect.scan import Degrees


def draw_degrees(name: str, degrees: Degrees, file: Path) -> Path:
    """Plot the share of nodes with at least each in-degree and out-degree, as a PNG."""
    figure, (axes,) = new_axes(1, 7)
    for line, (direction, found) in enumerate((("in", degrees.inward), ("out", degrees.outward))):
        label = (
            f"{direction}-degree: highest {found.max:,}, {found.zero_share:.1%} "
            "of the nodes have none"
        )
        _draw(axes, found, line, label)
    inward = degrees.inward
    axes.set_xlabel("degree")
    axes.set_ylabel("share of nodes with at least this degree")
    axes.legend(frameon=False, fontsize=9, loc="lower left")
    return save_picture(
        figure,
        file,
        f"{name}: {inward.num_nodes:,} nodes, {inward.num_edges:,} edges, "
        f"{inward.mean:.3g} per node",
    )


def draw_comparison(comparison: DegreeComparison, file: Path) -> Path:
    """Plot the share of nodes with at least each in-degree, before and after, as a PNG."""
    before, after = comparison.before, comparison.after
    figure, (plain, scaled) = new_axes(2, 10)
    for line, (name, found) in enumerate((("seed", before), ("expanded", after))):
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
    legend_below(figure, plain)
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
    colour, marker = LINES[line]
    shown = distribution.degrees > 0
    axes.plot(
        distribution.degrees[shown] / unit,
        distribution.survival()[shown],
        linestyle="none",
        color=colour,
        marker=marker,
        markersize=4,
        markerfacecolor="none",
        label=label,
    )
    if shown.any():
        axes.set_xscale("log")
        axes.set_yscale("log")
