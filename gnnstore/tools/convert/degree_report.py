"""What an expansion did to the degrees: a table, a statistic, and a picture on demand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.converters.synthetic.degrees import DegreeComparison, compare_degrees
from gnnstore.tools.ui.tables import print_table, print_title

if TYPE_CHECKING:
    from rich.console import Console

_ROWS = {
    "num_nodes": ("nodes", "{:,}"),
    "num_edges": ("edges", "{:,}"),
    "mean": ("mean in-degree", "{:,.2f}"),
    "max": ("highest in-degree", "{:,}"),
    "zero_share": ("nodes without in-neighbours", "{:.1%}"),
    "tail_exponent": ("exponent of the tail", "{:.2f}"),
}


class DegreeReport:
    """The comparison of a store with what it was expanded from, for `convert` to print.

    Parameters
    ----------
    before, after : path-like
        The seed store and its expansion.
    plot_file : Path, optional
        Where to draw both distributions.

    Raises
    ------
    NotFoundError, CorruptStoreError, StorageError
        If a store cannot be read or the picture cannot be written.
    """

    def __init__(self, before: str, after: Path, plot_file: Path | None) -> None:
        comparison: DegreeComparison = compare_degrees(before, after)
        self.document: dict[str, Any] = {"degrees": comparison.to_json()}
        self._plot_file = plot_file
        if plot_file is not None:
            from gnnstore.tools.plots.degrees import draw_degrees  # noqa: PLC0415 - optional

            draw_degrees(comparison, plot_file)
            self.document["plot"] = str(plot_file)

    def render(self, console: Console) -> None:
        """Print the comparison."""
        degrees = self.document["degrees"]
        print_title(console, "Degrees")
        rows = [
            (label, *(_show(shape, degrees[side][key]) for side in ("before", "after")))
            for key, (label, shape) in _ROWS.items()
        ]
        print_table(console, ("", "before", "after"), rows, right=("before", "after"))
        console.print(
            f"\n{degrees['node_factor']:g} times the nodes, {degrees['edge_factor']:.4g} times the "
            f"edges. Distance of the distributions (Kolmogorov-Smirnov, degrees in units of their "
            f"mean): {degrees['ks_distance']:.4f}"
        )
        if self._plot_file is not None:
            console.print(f"Picture: {self._plot_file}", soft_wrap=True)


def _show(shape: str, value: float | None) -> str:
    return "-" if value is None else shape.format(value)
