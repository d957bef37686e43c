"""A picture of a graph's degrees. Draws with matplotlib, which is an optional extra."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gnnstore.tools.plots.pictures import make_plain, new_figure, save_png

if TYPE_CHECKING:
    from gnnstore.tools.inspect.scan_degrees import Degrees

# Told apart by everyone, the colour-blind included, and in grey by their shapes.
_IN, _OUT = ("#0072b2", "o"), ("#d55e00", "x")


def draw_store(name: str, degrees: Degrees, file: Path) -> Path:
    """Draw how many nodes have at least each degree, in and out, as a PNG.

    Parameters
    ----------
    name : str
        Of the store.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    figure = new_figure(7)
    axes = figure.subplots()
    inward = degrees.inward
    for distribution, (colour, marker), direction in (
        (degrees.inward, _IN, "in"),
        (degrees.outward, _OUT, "out"),
    ):
        # Degree 0 has no place on a logarithmic axis; the legend says how many have it.
        shown = distribution.degrees > 0
        label = (
            f"{direction}-degree: highest {distribution.max:,}, {distribution.zero_share:.1%} "
            "of the nodes have none"
        )
        axes.plot(
            distribution.degrees[shown],
            distribution.survival()[shown],
            linestyle="none",
            color=colour,
            marker=marker,
            markersize=4,
            markerfacecolor="none",
            label=label,
        )
    if inward.num_edges:  # nothing positive, nothing logarithmic
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel("degree")
    axes.set_ylabel("share of nodes with at least this degree")
    make_plain(axes)
    axes.legend(frameon=False, fontsize=9, loc="lower left")
    figure.suptitle(
        f"{name}: {inward.num_nodes:,} nodes, {inward.num_edges:,} edges, {inward.mean:.3g} a node",
        fontsize=11,
    )
    return save_png(figure, file)
