"""Partitions: the sizes of buffers that `gnnstore predict` compares, and `gnnstore partition`."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gnnstore.budget.limits import Memory, MemoryBudget, memory_of
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
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.container.workdir import check_final
from gnnstore.formats.partitions import PartitionsManifest, PartitionsReader
from gnnstore.graph.sizes import StoreSizes
from gnnstore.graph.store import GraphStore
from gnnstore.graph.store import open as open_store
from gnnstore.graph.table_registry import shared_tables
from gnnstore.partitions.buffer import building_threads
from gnnstore.partitions.policy import (
    BufferSizes,
    Contents,
    best_sizes,
    buffer_sizes,
    most_partitions,
)
from gnnstore.tools.describe import PARTITIONS_TEXT, describe_partitions, describe_store
from gnnstore.tools.layout import Block, Layout, program_of_partitions
from gnnstore.tools.session import Session
from gnnstore.units import format_count, format_duration, format_size

# Share of the sequential rate that reads of partitions and buckets are to reach.
_SHARE_OF_RATE = 0.9
_LEAST_BLOCK_BYTES = 1 << 16
# Row-wise Adagrad keeps one float32 for each row.
_STATE_BYTES = 4
# Dividing, sorting and writing edges, measured on 2 busy cores.
_EDGES_PER_SECOND = 1.5e6
_MANY = 2**62

PARTITIONS: Layout = (
    "A buffer of partitions for {store}",
    Block(
        "",
        {
            "train on": "{train_on}",
            "memory": "{memory_bytes}",
            "rows": "{node_bytes}[, embeddings of {embedding_dim} columns and their state among "
            "them]",
            "edges": "{edge_bytes}",
            "reads of": "{block_bytes} or more, at the disk's full rate",
        },
    ),
    Block(
        "Orders",
        {
            "order": "{order}[ {is_best:*}]",
            "partitions": "{num_partitions}",
            "in the buffer": "{capacity}",
            "disk time": "{seconds_per_epoch}",
            "bias": "{bias:.2f}",
            "read": "{bytes_read}",
            "memory": "{memory_bytes}",
            "reads": "{table_reads:.2f}",
            "logical": "{logical}",
            "written": "{bytes_written:-}",
        },
        "sizes",
    ),
    (
        "*: the shortest epoch. Reads: how often an epoch reads the rows of all nodes. Bias: the "
        "Edge Permutation Bias, 0 for a shuffle of all edges, at most 1. Memory is the buffer's, "
        "with rows read ahead and written back, and staging; seeds and batches need more."
    ),
)


def predict_partitions(
    session: Session,
    path: str,
    *,
    for_edges: bool,
    embedding_dim: int | None,
    memory: Memory,
) -> None:
    """Find the sizes that fit, and print them."""
    store = open_store(path)
    contents = _contents(store, embedding_dim)
    budget = MemoryBudget.of(memory_of(memory, store.schema.bytes_in_memory))
    memory_bytes = budget.num_bytes
    with session.progress() as progress:
        profile = disk_profile(store.path, progress)
    block_bytes = full_rate_bytes(profile)
    found = buffer_sizes(
        contents, memory_bytes, block_bytes, for_edges=for_edges, source=budget.source
    )
    best = best_sizes(
        found,
        read_rate=profile.sequential_read_bytes_per_second,
        write_rate=profile.sequential_write_bytes_per_second,
    )
    document: dict[str, Any] = {
        "store": str(store.path),
        "train_on": "edges" if for_edges else "nodes",
        "memory_bytes": memory_bytes,
        "node_bytes": contents.node_bytes,
        "edge_bytes": contents.edge_bytes,
        "embedding_dim": embedding_dim,
        "block_bytes": block_bytes,
        "sizes": [_of_sizes(sizes, profile, is_best=sizes is best) for sizes in found],
    }
    command = ("gnnstore", "partition", str(store.path), "-p", str(best.num_partitions))
    session.emit(document, PARTITIONS, [command])


def _contents(store: GraphStore, embedding_dim: int | None) -> Contents:
    specs = [own for own in store.schema.node.attributes.values() if own.layout == "paged"]
    row_bytes = sum(spec.row_bytes for spec in specs)
    row_bytes += 0 if embedding_dim is None else 4 * embedding_dim + _STATE_BYTES
    if not row_bytes or not store.num_nodes or not store.num_edges:
        remedy = "; give --embedding-dim for a table of embeddings" if store.num_edges else ""
        raise UsageError(
            f"{store.path}: {format_count(store.num_nodes, 'node')} with "
            f"{format_size(row_bytes * store.num_nodes)} of rows and "
            f"{format_count(store.num_edges, 'edge')}: nothing to divide into partitions{remedy}"
        )
    return Contents(
        store.num_nodes,
        id_dtype(store.num_nodes).itemsize + row_bytes,
        store.num_edges,
        id_dtype(store.num_edges).itemsize,
        writes=embedding_dim is not None,
        num_building=building_threads(),
        fixed_bytes=_fixed_bytes(store),
    )


def _fixed_bytes(store: GraphStore) -> int:
    """Return the memory of a loader that does not depend on partitions, without batches."""
    path = store.reader.paged(store.schema.edge.indices).file_paths[0]
    engine = shared_tables(store).engine(path, None)
    return engine.staging_bytes + StoreSizes.from_schema(store.schema).compressed_bytes


def full_rate_bytes(profile: DeviceProfile) -> int:
    """Return the smallest read that reaches most of the disk's sequential rate."""
    share = _SHARE_OF_RATE / (1 - _SHARE_OF_RATE)
    needed = share * profile.seconds_per_read * profile.sequential_read_bytes_per_second
    return max(_LEAST_BLOCK_BYTES, 1 << (int(needed) - 1).bit_length() if needed >= 1 else 0)


def _of_sizes(sizes: BufferSizes, profile: DeviceProfile, *, is_best: bool) -> dict[str, Any]:
    seconds = sizes.io_seconds(
        profile.sequential_read_bytes_per_second, profile.sequential_write_bytes_per_second
    )
    own = ("order", "num_partitions", "capacity", "table_reads", "bytes_read", "bytes_written")
    return {
        **{name: getattr(sizes, name) for name in (*own, "memory_bytes")},
        "logical": sizes.num_groups,
        "bias": None if sizes.order == "dispersed" else sizes.bias(),
        "seconds_per_epoch": seconds,
        "is_best": is_best,
    }


def partition_store(
    session: Session,
    path: str,
    *,
    num_partitions: int | None,
    estimate: bool,
    **options: Any,
) -> None:
    """Choose, estimate, write, and print a summary; other options as in `partition`."""
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
            if not estimate:
                progress.note(reason)
        of_plan = [options[name] for name in ("train_first", "seed", "memory_bytes", "order")]
        plan = Partitioning(graph, num_partitions or 0, *of_plan)
        final = partitions_path(plan, options["name"], options["output"])
        if not (options["overwrite"] or estimate):
            check_final(final, PartitionsManifest, overwrite=False)
        facts = _facts(plan, profile, final, reason)
        facts["text"] = _in_words(facts)
        if not estimate:
            progress.note(f"partitioning takes {facts['text']}", facts)
            began = time.perf_counter()
            made = partition(path, plan.num_partitions, **options, progress=progress)
            seconds = time.perf_counter() - began
    document["estimate"] = facts
    if estimate:
        words = "{estimate.num_partitions} partitions of {estimate.rows_per_partition} nodes"
        text = f"Partitioning would take {{estimate.text}}. {words}, in {{estimate.path}}."
        command = session.without_estimate()
        session.emit(document, [text, "{estimate.reason}"], [command])
        return
    document |= {"seconds": seconds, **describe_partitions(PartitionsReader.open(made))}
    made_at = document["path"]
    commands = [
        ("gnnstore", "inspect", made_at),
        ("gnnstore", "verify", made_at, "--level", "full"),
    ]
    program = program_of_partitions(describe_store(graph.reader), document)
    session.emit(document, [*PARTITIONS_TEXT, "Partitioned in {seconds}."], commands, program)


def _choose(graph: StoreInput, profile: DeviceProfile) -> tuple[int, str]:
    """Return the largest power of two that the disk reads well, and the reason."""
    if graph.num_nodes < 2:
        raise UsageError(
            f"{graph.reader.path} has {format_count(graph.num_nodes, 'node')}: nothing to divide "
            "into partitions"
        )
    block_bytes = full_rate_bytes(profile)
    row_bytes = sum(spec.row_bytes for spec in graph.nodes.attributes.values())
    # Without rows, which will be learned, edges alone decide.
    contents = Contents(graph.num_nodes, row_bytes or _MANY, graph.num_edges)
    found = 1 << most_partitions(contents, block_bytes).bit_length() - 1
    while found > 2:
        with suppress(UsageError):
            rows_per_partition(graph.num_nodes, found, [1])
            break
        found //= 2
    return found, (
        f"{found} partitions: the most, as a power of two, whose rows and buckets are mostly read "
        f"in pieces of {format_size(block_bytes)}, at the disk's full rate"
    )


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


def _in_words(facts: dict[str, Any]) -> str:
    seconds, temporary = facts["seconds"], facts["temporary_bytes"]
    while_made = f" and {format_size(temporary)} while it is made" if temporary else ""
    in_time = "" if seconds is None else f", and about {format_duration(max(1.0, seconds))}"
    return f"about {format_size(facts['disk_bytes'])} on disk{while_made}{in_time}"
