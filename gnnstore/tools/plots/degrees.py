"""A picture of two degree distributions. Draws with matplotlib, which is an optional extra."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.converters.synthetic.degrees import DegreeComparison, DegreeDistribution
from gnnstore.tools.plots.pictures import make_plain, new_figure, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Told apart by everyone, the colour-blind included, and in grey by their shapes.
_BEFORE: dict[str, Any] = {
    "color": "#0072b2",
    "marker": "o",
    "markersize": 4.5,
    "markerfacecolor": "none",
}
_AFTER: dict[str, Any] = {"color": "#d55e00", "marker": "x", "markersize": 4}


def draw_degrees(comparison: DegreeComparison, file: Path) -> Path:
    """Draw how many nodes have at least each degree, before and after, as a PNG.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    before, after = comparison.before, comparison.after
    figure = new_figure(10)
    plain, scaled = figure.subplots(1, 2)
    for distribution, look, name in ((before, _BEFORE, "seed"), (after, _AFTER, "expanded")):
        _draw(plain, distribution, 1.0, look, name)
        _draw(scaled, distribution, distribution.mean, look, name)
    plain.set_xlabel("in-degree")
    scaled.set_xlabel("in-degree / mean in-degree")
    plain.set_ylabel("share of nodes with at least this degree")
    scaled.annotate(
        f"distance (Kolmogorov-Smirnov): {comparison.distance:.4f}",
        (0.03, 0.05),
        xycoords="axes fraction",
        fontsize=9,
    )
    for axes in (plain, scaled):
        make_plain(axes)
    handles, labels = plain.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(
        f"{before.num_nodes:,} nodes and {before.num_edges:,} edges, expanded to "
        f"{after.num_nodes:,} and {after.num_edges:,}",
        fontsize=11,
    )
    return save_png(figure, file)


def _draw(
    axes: Axes,
    distribution: DegreeDistribution,
    unit: float,
    look: dict[str, Any],
    name: str,
) -> None:
    """Draw the survival function; degree 0 has no place on a logarithmic axis."""
    shown = distribution.degrees > 0
    if shown.any():
        axes.loglog(
            distribution.degrees[shown] / unit,
            distribution.survival()[shown],
            linestyle="none",
            label=name,
            **look,
        )
