"""The text of `gnnstore predict`, drawn from the same values that --json prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from gnnstore.caching.policies.registry import POLICIES
from gnnstore.tools.inspect.programs import program
from gnnstore.tools.ui.options import describe_fanouts, describe_seeds
from gnnstore.tools.ui.tables import (
    print_facts,
    print_next,
    print_table,
    print_text,
    print_title,
)
from gnnstore.units import format_duration, format_size

_REMARK = (
    "Misses are fractions of the rows that batches need. Static caches are filled once, with the "
    "reads under 'fill'; the other caches start empty, and their first misses fill them."
)
_PREDICTED = (
    "*: the choice of strategy='auto'. Setup: work before or during the first epoch. Random: reads "
    "of rows or pages. Sequential: bytes read and written sequentially. Memory: what a loader "
    "reserves; batches in flight have the rest. Packed-epochs: what 'gnnstore pack' makes."
)
_NARROW = "No strategy is predicted: rows are so narrow that loaders hold them in memory."
_NONE_FITS = "No strategy has enough memory; raise --memory."
_ASSUMED = (
    "The disk could not be measured, so these times are those of a usual one: 80,000 reads and "
    "500 MB a second."
)
_PARTLY = (
    "Not all of the epoch was sampled, so misses of caches that start empty are overestimated; "
    "raise --batches for better estimates."
)


def miss_rate(document: Mapping[str, Any], policy: Mapping[str, Any]) -> float:
    """Return the share of the rows of batches that a cache did not hold."""
    rate: float = policy["misses"] / max(1, document["rows_needed"])
    return rate


def render_predictions(console: Console, document: Mapping[str, Any]) -> None:
    """Print the sample, and a table of caches."""
    console.print(f"Strategies and caches for {document['store']}", style="bold")
    print_facts(console, _facts(document))
    _render_strategies(console, document["predictions"])
    _render_caches(console, document)
    print_text(console, _REMARK)
    if document["num_batches"] < document["epoch_batches"]:
        print_text(console, _PARTLY)
    for problem in document["problems"]:
        print_text(console, problem)
    if document["measured_at"] is None:
        print_text(console, "The time of the reads is unknown: the disk has not been measured.")
    _render_next(console, document)


def _render_next(console: Console, document: Mapping[str, Any]) -> None:
    found = document["predictions"]["strategies"]
    if found and all(one["problem"] is not None for one in found):
        print_text(console, _NONE_FITS)
        return
    store, links = document["store"], document.get("links")
    # Rows in memory leave a benchmark of strategies nothing to limit.
    commands = [("gnnstore", "bench", "load", store)] if found else []
    if document["measured_at"] is None:
        commands = [("gnnstore", "bench", "disk", store)]
    memory = document["predictions"]["memory_bytes"]
    print_next(
        console,
        commands,
        program(
            store,
            document["input_nodes"],
            *([f"memory={memory:_}"] if memory else []),
            links=links,
            num_neighbors=document["num_neighbors"],
            batch_size=document["batch_size"],
        ),
    )


def _facts(document: Mapping[str, Any]) -> dict[str, object]:
    batches, needed = document["num_batches"], document["rows_needed"]
    rows = f"{needed / max(1, batches):,.0f} rows of {document['row_bytes']} bytes each"
    fanouts = describe_fanouts(document)
    measured = document["measured_at"]
    return {
        "batches": f"{batches:,} of the {document['epoch_batches']:,} of an epoch, {rows}",
        "seeds": f"{document['batch_size']:,} a batch, of {document['num_input_nodes']:,} "
        f"({describe_seeds(document)}); fan-out {fanouts}",
        "took": f"{document['sampling_seconds']:.2f} s to sample, {_planning(document)}",
        "rows of": ", ".join(document["arrays"]),
        "reads": f"in units of {document['alignment_bytes']} bytes, rows up to "
        f"{document['gap_bytes']} bytes apart together",
        "disk": None if measured is None else f"as measured at {measured}",
        "drawn in": document["drawn_to"],
    }


def _render_strategies(console: Console, predictions: Mapping[str, Any]) -> None:
    """Print the predictions of an epoch, and the reasons for impossible strategies."""
    found = predictions["strategies"]
    if not found:
        print_text(console, _NARROW)
        return
    memory, disk = (format_size(predictions[f"{name}_bytes"]) for name in ("memory", "disk"))
    print_title(console, f"An epoch, predicted, with {memory} of memory and {disk} of disk")
    columns = ["strategy", "epoch", "setup", "bottleneck", "random", "sequential", "memory", "disk"]
    columns += ["cached"]
    rows = []
    for one in found:
        if one["problem"] is not None:
            continue
        rows.append(
            [
                one["strategy"] + (" *" if one["is_chosen"] else ""),
                _time(one["seconds_per_epoch"]),
                _time(one["seconds_once"]) if one["seconds_once"] else "-",
                one["bottleneck"],
                f"{one['random_reads']:,}" if one["random_reads"] else "-",
                _bytes(one["sequential_bytes"] + one["written_bytes"]),
                format_size(one["memory_bytes"]),
                _bytes(one["disk_bytes"]),
                _bytes(one["cached_bytes"]),
            ]
        )
    right = [name for name in columns if name != "bottleneck"][1:]
    optional = ["cached", "sequential", "random", "disk", "setup", "bottleneck"]
    print_table(console, columns, rows, right=right, optional=optional)
    for one in found:
        if one["problem"] is not None:
            print_text(console, f"{one['strategy']}: {one['problem']}")
    by_note: dict[str, list[str]] = {}
    for one in found:
        by_note.setdefault(one["edge_ids"] or "", []).append(one["strategy"])
    for note, strategies in by_note.items():
        if note:
            print_text(console, f"{', '.join(strategies)}: {note}")
    print_text(console, _PREDICTED)
    if predictions["disk_is_assumed"]:
        print_text(console, _ASSUMED)


def _bytes(num_bytes: int) -> str:
    return format_size(num_bytes) if num_bytes else "-"


def _planning(document: Mapping[str, Any]) -> str:
    """Return the longest time of a plan by a policy that knows the batches to come."""
    looking_ahead = {policy.name: policy.title for policy in POLICIES if policy.looks_ahead}
    seconds: float = max(
        policy["planning_seconds"]
        for cache in document["caches"]
        for policy in cache["policies"]
        if policy["policy"] in looking_ahead
    )
    return f"{seconds:.2f} s to plan one of {' or '.join(looking_ahead.values())}'s caches"


def _render_caches(console: Console, document: Mapping[str, Any]) -> None:
    columns = ["cache", "policy", "misses", "fill", "reads an epoch", "bytes an epoch"]
    is_measured = document["measured_at"] is not None
    if is_measured:
        columns.append("time an epoch")
    rows = []
    for cache in document["caches"]:
        for policy in cache["policies"]:
            cells = [
                _size(cache),
                policy["policy"],
                f"{miss_rate(document, policy):.1%}",
                f"{policy['fill_reads']:,}" if policy["filled_rows"] else "-",
                f"{policy['reads_per_epoch']:,}",
                format_size(policy["bytes_per_epoch"]),
            ]
            if is_measured:
                cells.append(_time(policy["seconds_per_epoch"]))
            rows.append(cells)
    print_title(console, "What they read from disk")
    optional = ["fill", "bytes an epoch", "reads an epoch"]
    print_table(console, columns, rows, right=columns[2:], optional=optional)


def _size(cache: Mapping[str, Any]) -> str:
    return f"{cache['share']:.1%} ({format_size(cache['num_bytes'])})"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else format_duration(seconds)
