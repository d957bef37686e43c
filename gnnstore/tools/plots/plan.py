"""Miss-ratio curves of caches (Ginex, figure 5), and what an epoch takes with how much memory.

Draws with matplotlib, an optional extra.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.caching.policies.registry import POLICIES
from gnnstore.caching.policies.simulate import policies
from gnnstore.strategies.builtin import auto
from gnnstore.tools.plan.render import miss_rate
from gnnstore.tools.plots.pictures import make_plain, new_figure, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Told apart by everyone, the colour-blind included, and in grey by their markers.
_LINES = (
    ("#0072b2", "o"),
    ("#56b4e9", "s"),
    ("#e69f00", "^"),
    ("#cc79a7", "D"),
    ("#000000", "v"),
    ("#009e73", "*"),
    ("#999999", "x"),
    ("#d55e00", "P"),
)


def draw_plan(document: Mapping[str, Any], file: Path) -> Path:
    """Draw misses over the size of a cache, and predicted times over memory, as a PNG.

    Parameters
    ----------
    document : mapping
        What `gnnstore plan --json` prints.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    curve = document["predictions"]["curve"]
    figure = new_figure(13 if curve else 7)
    panels = figure.subplots(1, 2 if curve else 1, squeeze=False)[0]
    _draw_misses(panels[0], document)
    if curve:
        _draw_times(panels[1], document["predictions"])
    figure.suptitle(
        f"{Path(document['store']).name}: {document['num_batches']} batches of "
        f"{document['batch_size']} seeds",
        fontsize=11,
    )
    return save_png(figure, file)


def _draw_misses(axes: Axes, document: Mapping[str, Any]) -> None:
    """Draw the share of missing rows over the size of the cache."""
    caches = sorted(document["caches"], key=lambda cache: cache["num_rows"])
    shares = [100 * cache["share"] for cache in caches]
    for policy, (colour, marker) in zip(policies(), cycle(_LINES), strict=False):
        title = POLICIES[policy].title if policy in POLICIES else f"{policy} (static)"
        rates = [
            100 * miss_rate(document, outcome)
            for cache in caches
            for outcome in cache["policies"]
            if outcome["policy"] == policy
        ]
        axes.plot(shares, rates, color=colour, marker=marker, markersize=4.5, label=title)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows in the cache (% of all nodes)")
    axes.set_ylabel("misses (% of the rows that batches need)")
    make_plain(axes)
    axes.legend(frameon=False)


def _draw_times(axes: Axes, predictions: Mapping[str, Any]) -> None:
    """Draw the predicted seconds of an epoch over memory, of each strategy that can be."""
    curve = predictions["curve"]
    for candidate, (colour, marker) in zip(auto().candidates, cycle(_LINES), strict=False):
        points = [
            (point["memory_bytes"] / 1e9, point["seconds_per_epoch"].get(candidate.name))
            for point in curve
            if point["seconds_per_epoch"].get(candidate.name) is not None
        ]
        if points:
            memory, seconds = zip(*points, strict=True)
            style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4.5}
            axes.plot(memory, seconds, label=candidate.title, **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("memory (GB)")
    axes.set_ylabel("an epoch, predicted (s)")
    make_plain(axes)
    if axes.lines:
        axes.legend(frameon=False)
