"""A picture of the results of `benchmarks.epoch`: the first figure of the README."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from gnnstore.pictures import GREY, PARTS, new_axes, save_picture
from gnnstore.units import format_size

_TRAINING, _WAITING, _ALONE = PARTS["training"].colour, PARTS["wait"].colour, "#000000"
# The two cannot be told apart: a page fault stops the model's own threads.
_FAULTING = PARTS["reading"].colour


def draw_epochs(document: Mapping[str, Any], file: Path) -> Path:
    """Draw the time of an epoch over that in memory, by strategy and memory.

    Bars are trained epochs, the part in which the model waits for a batch apart; with a memory map
    the other part holds its page faults too. Diamonds are the same epoch loaded without a model.

    Parameters
    ----------
    document : mapping
        The output of `benchmarks.epoch --json`.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    base = [each["epochs"][-1]["seconds"] for each in document["in_memory"]]
    cases = [{"strategy": "memory", "share": None, "rounds": document["in_memory"]}]
    cases += sorted(document["outcomes"], key=lambda case: -case["share"])
    figure, (axes,) = new_axes(1, 10, 2.0 + 0.4 * len(cases))
    axes.grid(visible=False, axis="y")
    names, longest = [], 1.0
    for place, case in enumerate(cases):
        epochs = [each["epochs"][-1] for each in case["rounds"]]
        whole = median(e["seconds"] / b for e, b in zip(epochs, base, strict=False))
        share = median(e["waiting"] / e["seconds"] for e in epochs)
        alone = median(
            each["alone"]["seconds"] / b for each, b in zip(case["rounds"], base, strict=False)
        )
        colour = _FAULTING if case["strategy"] == "mmap" else _TRAINING
        axes.barh(place, whole * (1 - share), 0.62, color=colour)
        axes.barh(
            place, whole * share, 0.62, left=whole * (1 - share), color=_WAITING, hatch="///",
            edgecolor="white", linewidth=0.3,
        )  # fmt: skip
        axes.plot(alone, place, "D", color=_ALONE, markeredgecolor="white", markersize=6)
        text = f"{whole:.2f} x" if case["share"] else f"{median(base):.3g} s"
        _write(axes, (max(whole, alone), place), f"{text}, {share:.0%} waiting")
        names.append("all in memory" if case["share"] is None else _name(case))
        longest = max(longest, whole, alone)
    axes.axvline(1, color=GREY, linestyle="--", linewidth=1.2)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -1.1)
    axes.set_xlim(0, 1.3 * longest)  # room for the text at the longest bar
    axes.set_xlabel("seconds of an epoch, over those with everything in memory")
    keys = [
        ("the model computes", _TRAINING),
        ("or page faults of a map stop it", _FAULTING),
        ("it waits for a batch", _WAITING),
        ("\u25c6 loaded alone", _ALONE),
    ]
    for start, (text, colour) in zip((0.01, 0.22, 0.56, 0.80), keys, strict=True):
        axes.annotate(
            text, (start, 0.995), xycoords="axes fraction", color=colour,
            va="top", fontsize=9, fontweight="bold",
        )  # fmt: skip
    return save_picture(figure, file, _title(document))


def _name(case: Mapping[str, Any]) -> str:
    return f"{case['strategy']}, {case['share']:.0%} in memory"


def _write(axes: Any, point: tuple[float, float], text: str) -> None:
    axes.annotate(text, point, xytext=(8, 0), textcoords="offset points", va="center", fontsize=9)


def _title(document: Mapping[str, Any]) -> str:
    machine, device = document["machine"], document["device"]
    limit = "" if document["is_limited"] else "; no memory limit, the page cache serves the mapping"
    rounds = len(document["in_memory"])
    return (
        f"GraphSAGE, 3 layers, {document['num_batches']} batches of {document['batch_size']} of "
        f"{document['num_nodes']:,} nodes with {format_size(document['feature_bytes'])} of features"
        f"{limit}\n{machine['cpu']}, {machine['cores']} cores; disk: "
        f"{device['random_reads_per_second'] / 1e3:.0f} k random reads per second, "
        f"{format_size(device['bytes_per_second'])}/s in order; {document['date']}, "
        f"median of {rounds} {'round' if rounds == 1 else 'rounds'}"
    )
