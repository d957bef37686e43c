"""A plot of the rows read by cache size (as in Ginex, figure 5), and of epoch times by memory."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.caching.policies.registry import POLICIES
from gnnstore.caching.policies.simulate import policies
from gnnstore.strategies.builtin import auto
from gnnstore.tools.plots.pictures import LINES, new_axes, save_picture
from gnnstore.tools.predict.render import read_rate
from gnnstore.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_predictions(document: Mapping[str, Any], file: Path) -> Path:
    """Plot the rows read over the cache size, and predicted times over memory, as a PNG."""
    times = _times(document["predictions"])
    # Single points would compare nothing.
    is_curve = any(len(points) > 1 for points in times.values())
    figure, panels = new_axes(2, 13) if is_curve else new_axes(1, 7)
    _draw_reads(panels[0], document)
    if is_curve:
        _draw_times(panels[1], times)
    return save_picture(
        figure,
        file,
        f"{Path(document['store']).name}: {document['num_batches']} batches of "
        f"{document['batch_size']} seeds",
    )


def _draw_reads(axes: Axes, document: Mapping[str, Any]) -> None:
    """Draw the share of rows that are read from disk over the size of the cache.

    A static cache is filled by its own reads and the others by their misses, so the former are
    added: without them a static cache would beat Belady's, though no cache can.
    """
    caches = sorted(document["caches"], key=lambda cache: cache["num_rows"])
    shares = [100 * cache["share"] for cache in caches]
    titles = {"lru": "LRU", **{policy.name: policy.title for policy in POLICIES}}
    for policy, (colour, marker) in zip(policies(), cycle(LINES), strict=False):
        title = titles.get(policy, f"{policy} (static)")
        rates = [
            100 * read_rate(document, outcome)
            for cache in caches
            for outcome in cache["policies"]
            if outcome["policy"] == policy
        ]
        axes.plot(shares, rates, color=colour, marker=marker, markersize=4.5, label=title)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows in the cache (% of all nodes)")
    axes.set_ylabel("rows read (% of the rows that batches need)")
    axes.legend(frameon=False, title="filling the cache included")


def _times(predictions: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Return the memory in bytes and the predicted seconds of an epoch, by candidate."""
    return {
        candidate.choice: [
            (point["memory_bytes"], point["seconds_per_epoch"][candidate.choice])
            for point in predictions["curve"] or ()
            if point["seconds_per_epoch"].get(candidate.choice) is not None
        ]
        for candidate in auto().candidates
    }


def _draw_times(axes: Axes, times: Mapping[str, list[tuple[float, float]]]) -> None:
    """Draw the predicted seconds of an epoch over memory, for each possible strategy."""
    for candidate, (colour, marker) in zip(auto().candidates, cycle(LINES), strict=False):
        if points := times[candidate.choice]:
            memory, seconds = zip(*points, strict=True)
            style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4.5}
            axes.plot(memory, seconds, label=candidate.title, **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticker = importlib.import_module("matplotlib.ticker")  # optional, as all of matplotlib
    for axis in (axes.xaxis, axes.yaxis):
        # Often less than a power of ten apart: 1 and 10 alone would leave an axis without numbers.
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(ticker.NullFormatter())
    axes.xaxis.set_major_formatter(lambda value, _: format_size(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("memory")
    axes.set_ylabel("an epoch, predicted (s)")
    axes.legend(frameon=False)
