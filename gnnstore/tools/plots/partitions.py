"""A plot of the costs of orders of partitions: the time of their reads, and their bias."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

from gnnstore.palette import SERIES
from gnnstore.pictures import new_axes, save_picture


def draw_partitions(document: Mapping[str, Any], file: Path) -> Path:
    """Plot the Edge Permutation Bias over the seconds of an epoch's reads and writes, as a PNG."""
    figure, (axes,) = new_axes(1, 7)
    orders = list(dict.fromkeys(one["order"] for one in document["sizes"]))
    for order, series in zip(orders, cycle(SERIES), strict=False):
        of_order = [one for one in document["sizes"] if one["order"] == order]
        axes.plot(
            [one["seconds_per_epoch"] for one in of_order],
            [one["bias"] or 0 for one in of_order],
            color=series.colour,
            marker=series.marker,
            label=order,
        )
        for one in of_order:
            place = (one["seconds_per_epoch"], one["bias"] or 0)
            axes.annotate(
                f"{one['capacity']} of {one['num_partitions']}",
                place,
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=8,
            )
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1)
    axes.set_xlabel("reading and writing, an epoch (s)")
    axes.set_ylabel("Edge Permutation Bias")
    axes.legend(frameon=False)
    return save_picture(figure, file, f"{Path(document['store']).name}: partitions in the buffer")
