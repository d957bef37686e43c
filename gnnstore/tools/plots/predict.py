"""A plot of the rows read by cache size (as in Ginex, figure 5), and of epoch times by memory."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.caching.policies.simulate import policies
from gnnstore.palette import GREY, strategy_looks
from gnnstore.pictures import new_axes, save_picture
from gnnstore.strategies.builtin import auto
from gnnstore.tools.predict.render import read_rate
from gnnstore.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What a line of the legend adds to a strategy's name.
_MEANINGS = {
    "memory": "everything is loaded once",
    "mmap": "the system reads a page when it is touched",
    "direct": "no cache, each row is read",
    "static-degree": "the cache holds nodes with most edges",
    "static-frequency": "the cache holds rows that are needed most often",
    "belady": "the cache holds rows that are needed again soonest",
    "packed": "as belady, and missed rows are gathered in one pass",
    "packed-epochs": "as packed, by 'gnnstore pack' before training",
    "lru": "the least recently used row leaves the cache (other systems)",
}
# The strategy that caches rows by a policy, if it has another name.
_STRATEGY_OF = {"degree": "static-degree", "frequency": "static-frequency"}


def draw_predictions(document: Mapping[str, Any], file: Path) -> Path:
    """Plot the rows read over the cache size, and predicted times over memory, as a PNG."""
    times = _times(document["predictions"])
    # Single points would compare nothing.
    is_curve = any(len(points) > 1 for points in times.values())
    figure, panels = new_axes(2, 13, 6.2) if is_curve else new_axes(1, 8, 5.6)
    _draw_reads(panels[0], document)
    if is_curve:
        _draw_times(panels[1], times, document["predictions"])
    _add_legend(figure, panels)
    return save_picture(
        figure,
        file,
        f"{Path(document['store']).name}: {document['num_batches']} batches of "
        f"{document['batch_size']} seeds",
    )


def _styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return how the line of each strategy is drawn, in all panels, and its label."""
    return {
        name: {
            "color": look.colour,
            "marker": look.marker,
            "markersize": 5,
            "label": f"{name}: {_MEANINGS[name]}" if name in _MEANINGS else name,
        }
        for name, look in strategy_looks(names).items()
    }


def _draw_reads(axes: Axes, document: Mapping[str, Any]) -> None:
    """Draw the share of rows that are read from disk over the size of the cache.

    A static cache is filled by its own reads and the others by their misses, so the former are
    added: without them a static cache would beat Belady's, though no cache can.
    """
    caches = sorted(document["caches"], key=lambda cache: cache["num_rows"])
    shares = [100 * cache["share"] for cache in caches]
    names = {policy: _STRATEGY_OF.get(policy, policy) for policy in policies()}
    styles = _styles(names.values())
    for policy, name in names.items():
        rates = [
            100 * read_rate(document, outcome)
            for cache in caches
            for outcome in cache["policies"]
            if outcome["policy"] == policy
        ]
        axes.plot(shares, rates, **styles[name])
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_title("Rows read by the size of the cache", fontsize=10)
    axes.set_xlabel("rows in the cache (% of all nodes)")
    axes.set_ylabel("rows read, also to fill the cache\n(% of the rows that batches need)")


def _add_legend(figure: Figure, panels: list[Axes]) -> None:
    """Put one legend below the panels: a colour and a marker mean the same in all of them."""
    entries: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries |= {
            label: handle
            for label, handle in zip(labels, handles, strict=True)
            if label not in entries
        }
    columns = len(panels)
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": columns, "frameon": False}
    figure.legend([*entries.values()], [*entries], fontsize=9, **where)


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


def _draw_times(
    axes: Axes, times: Mapping[str, list[tuple[float, float]]], predictions: Mapping[str, Any]
) -> None:
    """Draw the predicted seconds of an epoch over memory, for each possible strategy."""
    styles = _styles(times)
    for name, points in times.items():
        if points:
            memory, seconds = zip(*points, strict=True)
            axes.plot(memory, seconds, **styles[name])
    _draw_choice(axes, predictions, styles)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticker = importlib.import_module("matplotlib.ticker")  # optional, as all of matplotlib
    for axis in (axes.xaxis, axes.yaxis):
        # Often less than a power of ten apart: 1 and 10 alone would leave an axis without numbers.
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(ticker.NullFormatter())
    axes.xaxis.set_major_formatter(lambda value, _: format_size(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title("An epoch by the memory that a loader has", fontsize=10)
    axes.set_xlabel("memory")
    axes.set_ylabel("an epoch, predicted (s)")


def _draw_choice(
    axes: Axes, predictions: Mapping[str, Any], styles: Mapping[str, Mapping[str, Any]]
) -> None:
    """Draw a line at the memory asked for, and a star at what "auto" takes with it."""
    memory = predictions["memory_bytes"]
    is_asked = predictions["is_memory_asked"]
    text = f"memory={format_size(memory)}" + ("" if is_asked else ", the default here")
    axes.axvline(memory, color=GREY, linestyle="--", linewidth=1.4, label=text)
    for one in predictions["strategies"]:
        if one["is_chosen"] and one["seconds_per_epoch"] is not None:
            axes.plot(
                [memory],
                [one["seconds_per_epoch"]],
                marker="*",
                markersize=17,
                linestyle="none",
                color=styles[one["strategy"]]["color"],
                markeredgecolor="black",
                zorder=5,
                label=f"what strategy='auto' takes with it: {one['strategy']}",
            )
