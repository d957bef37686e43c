"""The work of `gnnstore partition`: choose the number of partitions, estimate, write, print."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.converters.stores.graph import StoreInput
from gnnstore.converters.stores.partition import (
    Partitioning,
    partition,
    partitions_path,
    rows_per_partition,
)
from gnnstore.disk.measure import disk_profile
from gnnstore.disk.profile import DeviceProfile, load_profile
from gnnstore.errors import UsageError
from gnnstore.formats.container.transaction import check_final
from gnnstore.formats.partitions.manifest import PartitionsManifest
from gnnstore.formats.partitions.reader import PartitionsReader
from gnnstore.partitions.sizes import Contents, most_partitions
from gnnstore.tools.inspect.describe import describe_partitions, describe_store
from gnnstore.tools.inspect.layouts import PARTITIONS
from gnnstore.tools.inspect.programs import program_of_partitions
from gnnstore.tools.predict.partitions import full_rate_bytes
from gnnstore.tools.ui.session import Session
from gnnstore.units import format_duration, format_size

if TYPE_CHECKING:
    from gnnstore.formats.partitions.manifest import OrderKind

# Dividing, sorting and writing edges, measured on 2 busy cores.
_EDGES_PER_SECOND = 1.5e6
_MANY = 2**62


_ESTIMATE = (
    (
        "Partitioning would take {estimate.text}. {estimate.num_partitions} partitions of "
        "{estimate.rows_per_partition} nodes, in {estimate.path}."
    ),
    "{estimate.reason}",
)


def partition_store(
    session: Session,
    path: str,
    *,
    num_partitions: int | None,
    name: str | None,
    output: str | None,
    train_first: str | None,
    order: OrderKind,
    seed: int,
    memory_bytes: int | None,
    estimate: bool,
    overwrite: bool,
    resume: bool,
) -> None:
    """Choose, estimate, write, and print a summary."""
    graph = StoreInput(path, "gnnstore partition")
    document: dict[str, Any] = {"store": str(graph.reader.path)}
    with session.progress() as progress:
        if num_partitions is None or estimate:
            profile: DeviceProfile | None = disk_profile(graph.reader.path, progress)
        else:
            profile = load_profile(graph.reader.path)
        reason = ""
        if num_partitions is None and profile is not None:
            num_partitions, reason = _choose(graph, profile)
            progress.note(reason)
        plan = Partitioning(graph, num_partitions or 0, train_first, seed, memory_bytes, order)
        final = partitions_path(plan, name, output)
        if not (overwrite or estimate):
            check_final(final, PartitionsManifest, overwrite=False)
        facts = _facts(plan, profile, final, reason)
        facts["text"] = _describe(facts)
        if not estimate:
            progress.note(f"partitioning takes {facts['text']}", facts)
            began = time.perf_counter()
            made = partition(
                path,
                plan.num_partitions,
                name=name,
                output=output,
                train_first=train_first,
                seed=seed,
                memory_bytes=memory_bytes,
                order=order,
                overwrite=overwrite,
                resume=resume,
                progress=progress,
            )
            seconds = time.perf_counter() - began
    document["estimate"] = facts
    if estimate:
        session.emit(document, _ESTIMATE)
        return
    document |= {"seconds": seconds, **describe_partitions(PartitionsReader.open(made))}
    session.emit(
        document,
        [*PARTITIONS, "Partitioned in {seconds}."],
        [
            ("gnnstore", "inspect", document["path"]),
            ("gnnstore", "verify", document["path"], "--level", "full"),
        ],
        program_of_partitions(describe_store(graph.reader), document),
    )


def _choose(graph: StoreInput, profile: DeviceProfile) -> tuple[int, str]:
    """Return the largest power of two that the disk reads well, and the reason."""
    if graph.num_nodes < 2:
        raise UsageError(
            f"{graph.reader.path} has {graph.num_nodes} nodes: nothing to divide into partitions"
        )
    block_bytes = full_rate_bytes(profile)
    row_bytes = sum(spec.row_bytes for spec in graph.nodes.attributes.values())
    # Without rows, which will be learned, edges alone decide.
    contents = Contents(graph.num_nodes, row_bytes or _MANY, graph.num_edges)
    most = most_partitions(contents, block_bytes)
    found = 1 << most.bit_length() - 1
    while found > 2 and not _works(graph.num_nodes, found):
        found //= 2
    return found, (
        f"{found} partitions: the most, as a power of two, whose rows and buckets are mostly read "
        f"in pieces of {format_size(block_bytes)}, at the disk's full rate"
    )


def _works(num_nodes: int, num_partitions: int) -> bool:
    try:
        rows_per_partition(num_nodes, num_partitions, [1])
    except UsageError:
        return False
    return True


def _facts(
    plan: Partitioning, profile: DeviceProfile | None, final: Path, reason: str
) -> dict[str, Any]:
    read, written = plan.moved_bytes
    seconds = None
    if profile is not None:
        seconds = profile.sequential_seconds(read, written)
        seconds += plan.graph.num_edges / _EDGES_PER_SECOND
    return {
        "path": str(final),
        "num_partitions": plan.num_partitions,
        "rows_per_partition": plan.rows,
        "reason": reason or None,
        "disk_bytes": plan.final_bytes,
        "temporary_bytes": plan.temporary_bytes,
        "read_bytes": read,
        "written_bytes": written,
        "seconds": seconds,
    }


def _describe(facts: dict[str, Any]) -> str:
    seconds, temporary = facts["seconds"], facts["temporary_bytes"]
    while_made = f" and {format_size(temporary)} while it is made" if temporary else ""
    in_time = "" if seconds is None else f", and about {format_duration(max(1.0, seconds))}"
    return f"about {format_size(facts['disk_bytes'])} on disk{while_made}{in_time}"
