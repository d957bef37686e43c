"""The text of `gnnstore bench load`, drawn from the same values that --json prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from gnnstore.tools.bench.stages import STAGES
from gnnstore.tools.ui.options import describe_seeds
from gnnstore.tools.ui.tables import print_facts, print_table, print_title
from gnnstore.units import format_duration, format_size

_REMARK = (
    "A moment in which several threads work is divided evenly among what they do, so that a "
    "row adds up to the time of an epoch. For map and mmap, reading is page faults, and "
    "copying is counted with them; what is left over is under other."
)


def render_load(console: Console, document: Mapping[str, Any]) -> None:
    """Print what was run, a table of times, and one of stages."""
    console.print(f"Loading {document['store']}", style="bold")
    print_facts(console, _facts(document))
    found = [item for item in document["strategies"] if item["rounds"]]
    if found:
        _render_times(console, document, found)
        _render_stages(console, found)
    failed = [item for item in document["strategies"] if item["problem"] is not None]
    if failed:
        print_title(console, "Not timed")
        for item in failed:
            console.print(f"  {item['strategy']}: {item['problem']}", soft_wrap=True)
    for text in (*document["remarks"], *document.get("problems", ())):
        console.print(f"\n{text}", soft_wrap=True)


def _facts(document: Mapping[str, Any]) -> dict[str, object]:
    limit, device = document["limit"], document["device"]
    fanouts = ", ".join(str(fanout) for fanout in document["num_neighbors"])
    features = f"{limit['share']:.1%} of {format_size(document['feature_bytes'])} of features"
    text = f"structure and labels, {features}, and {format_size(limit['slack_bytes'])} of slack"
    kept = limit["cgroup"]
    reads = [rate / 1e3 for rate in device["random_reads_per_second"]]
    rates = [rate / 1e9 for rate in device["bytes_per_second"]]
    return {
        "epoch": f"{document['epoch_batches']:,} batches of {document['batch_size']:,} seeds "
        f"({describe_seeds(document)}); fan-out {fanouts}",
        "memory": text + (f", kept by a cgroup (version {kept})" if kept else ", not kept"),
        "disk": f"{_spread(reads, '.1f')} k random reads of 4 KiB a second, "
        f"{_spread(rates, '.2f')} GB/s sequentially ({device['engine']})",
        "took": format_duration(document["seconds"]),
        "drawn in": document.get("drawn_to"),
    }


def _render_times(
    console: Console, document: Mapping[str, Any], found: list[Mapping[str, Any]]
) -> None:
    columns = ["strategy", "a batch", "an epoch", "speed-up", "from disk", "reads", "cached"]
    columns += ["memory", "setup"]
    rows = []
    for item in found:
        rounds = item["rounds"]
        mid = {name: _median(rounds, name) for name in ("disk_bytes", "reads", "hit_rate")}
        held = max(item["group_peak_bytes"] or item["peak_rss_bytes"] for item in rounds)
        rows.append(
            [
                _name(item),
                _spread((r["seconds"] for r in rounds), ".3f") + " s",
                _time(item["seconds_per_epoch"]),
                _spread(item["times_baseline_by_round"], ".1f"),
                format_size(mid["disk_bytes"]) if mid["disk_bytes"] else "-",
                f"{mid['reads']:,.0f}" if mid["reads"] else "-",
                f"{mid['hit_rate']:.1%}" if mid["hit_rate"] else "-",
                format_size(held) + ("" if item["is_limited"] else " *"),
                _time(item["seconds_to_prepare"]),
            ]
        )
    print_title(console, f"Batches of {Path(document['store']).name}")
    print_table(console, columns, rows, right=columns[1:])
    console.print(
        f"\nSpeed-up: over {document['baseline'] or 'map'}. From disk, and reads: of a batch (-: "
        "none, or not counted). Cached: of its rows. Memory: the most that the process held, page "
        "cache included (*: without a limit). Setup: one-time work, before or during the first "
        "epoch.",
        soft_wrap=True,
    )


def _render_stages(console: Console, found: list[Mapping[str, Any]]) -> None:
    shown = [name for name in STAGES if any(item["stages"].get(name, 0) > 0 for item in found)]
    if not shown:  # none were recorded
        return
    rows = [[item["strategy"], *(_time(item["stages"][name]) for name in shown)] for item in found]
    print_title(console, "Where the time of an epoch goes")
    print_table(console, ["strategy", *shown], rows, right=shown)
    console.print(f"\n{_REMARK}", soft_wrap=True)


def _name(item: Mapping[str, Any]) -> str:
    chosen = item["rounds"][-1]["chosen"]
    return f"auto ({chosen})" if item["strategy"] == "auto" else str(item["strategy"])


def _median(rounds: list[Mapping[str, Any]], name: str) -> float:
    return float(median(outcome[name] for outcome in rounds))


def _spread(values: Iterable[float], form: str) -> str:
    """Return the median, and with several values the least and the most; "-" for none."""
    found = list(values)
    if not found:
        return "-"
    text = format(median(found), form)
    if len(found) == 1:
        return text
    return f"{text} [{min(found):{form}}, {max(found):{form}}]"


def _time(seconds: float) -> str:
    if seconds < 0.0005:
        return "-"
    return f"{seconds:.3g} s" if seconds < 100 else format_duration(seconds)
