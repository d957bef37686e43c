"""The texts of `gnnstore predict`; see `caches` and `partitions` for the fields of documents."""

from __future__ import annotations

from collections.abc import Iterator

from gnnstore.tools.ui.layout import Block, Document, Layout

PREDICTIONS: Layout = (
    "Strategies and caches for {store}",
    Block(
        "",
        {
            "batches": "{num_batches} of the {epoch_batches} of an epoch, {rows_per_batch:,.0f} "
            "rows of {row_bytes:,} bytes each",
            "seeds": "{batch_size} a batch, of {num_input_nodes} ([input nodes {input_nodes}]"
            "[links {links}]); fan-out {num_neighbors}",
            "took": "{sampling_seconds} to sample",
            "rows of": "{arrays}",
            "reads": "in units of {alignment_bytes:d} bytes, rows up to {gap_bytes:d} bytes apart "
            "together",
            "disk": "as measured at {measured_at}",
        },
    ),
    Block(
        "An epoch, predicted, with {predictions.memory_bytes} of memory and "
        "{predictions.disk_bytes} of disk",
        {
            "strategy": "{strategy}[ {is_chosen:*}]",
            "epoch": "{seconds_per_epoch}",
            "setup": "{seconds_once:-}",
            "bottleneck": "{bottleneck}",
            "memory": "{memory_bytes}",
            "disk": "{disk_bytes:-}",
            "random": "{random_reads:-}",
            "sequential": "{sequential_bytes:-}",
            "written": "{written_bytes:-}",
            "cached": "{cached_bytes:-}",
        },
        "predictions.strategies",
    ),
    Block("", "\n{strategy}: {problem}", "predictions.strategies"),
    Block(
        "What caches read from disk",
        {
            "cache": "{share} ({num_bytes})",
            "policy": "{policy}",
            "misses": "{miss_share}",
            "time an epoch": "{seconds_per_epoch}",
            "reads an epoch": "{reads_per_epoch}",
            "bytes an epoch": "{bytes_per_epoch}",
            "fill": "{fill_reads:-}",
        },
        "caches.policies",
    ),
)
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


def remarks(document: Document) -> Iterator[str]:
    """Yield what is to be known of predictions."""
    found = document["predictions"]["strategies"]
    if not found:
        yield "No strategy is predicted: rows are so narrow that loaders hold them in memory."
    elif all(one["problem"] is not None for one in found):
        yield "No strategy has enough memory; raise --memory."
    else:
        yield (
            "*: the choice of strategy='auto'. Setup: work before or during the first epoch. "
            "Random: reads of rows or pages. Memory: what a loader reserves; batches in flight "
            "have the rest. Packed-epochs: what 'gnnstore pack' makes."
        )
    by_note: dict[str, list[str]] = {}
    for one in found:
        by_note.setdefault(one["edge_ids"] or "", []).append(one["strategy"])
    for note in filter(None, by_note):
        yield f"{', '.join(by_note[note])}: {note}"
    if document["predictions"].get("disk_is_assumed"):
        yield (
            "The disk could not be measured, so these times are those of a usual one: 80,000 reads "
            "and 500 MB a second."
        )
    yield (
        "Misses are fractions of the rows that batches need. Static caches are filled once, with "
        "the reads under 'fill'; the other caches start empty, and their first misses fill them."
    )
    if document["num_batches"] < document["epoch_batches"]:
        yield (
            "Not all of the epoch was sampled, so misses of caches that start empty are "
            "overestimated; raise --batches for better estimates."
        )
    if document["measured_at"] is None:
        yield "The time of the reads is unknown: the disk has not been measured."
