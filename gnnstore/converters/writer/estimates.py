"""Estimates the space, memory and time of a conversion before it begins.

Sizes follow from the inputs. Times follow from rates, and rates are measured: for work of
minutes a trial of a fraction of a second on the disk and processors at hand costs nothing,
and for work of seconds the rates of an ordinary laptop are good enough.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

# Imported here: NumPy would import it in the middle of a conversion, and an interrupt at that
# moment may be lost (Cython passes over errors as its modules start).
from numpy.random import default_rng

from gnnstore import _core
from gnnstore.budget.limits import available_bytes
from gnnstore.converters.edges.columns import estimate_peak_bytes
from gnnstore.converters.edges.on_disk.runs import record_bytes_for, spill_bytes_per_edge
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.inputs.text_tables import TableFormat, TextTable
from gnnstore.converters.read_ahead import num_threads
from gnnstore.converters.writer.workload import Workload
from gnnstore.errors import GnnstoreError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.units import format_duration, format_size

# Work that would take this long on an ordinary laptop pays for a trial, of up to half a second.
_TRIAL_FROM_SECONDS = 30.0
_TRIAL_EDGES = 2**20
# The first trial of a process pays for memory that is touched for the first time: 17 M edges a
# second, and 43 M the next time.
_TRIALS = 3
_TRIAL_BYTES = 2**25
_TRIAL_SECONDS = 0.3
_TRIAL_BLOCK_BYTES = 2**21
# Whole conversions take this many times as long per edge as the sort alone: the ends are
# read, checked, joined and written as well. (25 M random edges and 64 features on 2 busy cores:
# estimates of 6 and 7 s, 6.5 and 8.6 s measured.)
_EDGE_WORK = 3.0
# Work of sorting on disk, without writing and reading: at 100 M edges 0.83 of the rate in memory,
# at 25 M 0.71.
_SPILL_WORK = 1.1
# Where edges may be equal, or loops missing, runs are merged once more to count what is left:
# 0.37 of the rate in memory at 25 M edges, both with reverse ones.
_COUNT_WORK = 1.0
_BASE_MEMORY_BYTES = 2**27  # the interpreter, NumPy, pyarrow and buffers


@dataclass(frozen=True)
class Rates:
    """Rates of a machine, for each second."""

    edges: float = 20e6  # edges sorted into columns
    write_bytes: float = 500e6  # bytes written and synchronised
    text_bytes: float = 150e6  # bytes of decompressed text parsed
    basis: str = "at the rates of an ordinary laptop"  # the source of the numbers, as a phrase


@dataclass(frozen=True)
class Estimate:
    """The expected cost of a conversion."""

    final_bytes: int  # the finished store
    least_bytes: int  # a lower bound of the store; 0 if the inputs do not state their sizes exactly
    spill_bytes: int  # temporary files while edges are sorted that memory cannot hold
    memory_bytes: int  # peak memory
    seconds: float
    basis: str  # the source of the numbers

    def __str__(self) -> str:
        spilled = f"{format_size(self.spill_bytes)} of temporary space, "
        return (
            f"expected: {format_size(self.final_bytes)} in the store, "
            f"{spilled if self.spill_bytes else 'no temporary space, '}"
            f"up to {format_size(self.memory_bytes)} of memory, "
            f"{'about ' if self.seconds >= 1 else 'at most '}"
            f"{format_duration(max(1.0, self.seconds))} ({self.basis})"
        )


def estimate(
    workload: Workload,
    rules: EdgeRules,
    *,
    directory: Path,
    memory_bytes: int | None = None,
    page_bytes: int | None = None,
    feature_item_bytes: int | None = None,
) -> Estimate:
    """Estimate the cost of a conversion."""
    num_nodes, copies = workload.num_nodes, rules.copies
    loops = num_nodes if rules.self_loops == "add" else 0
    total = workload.num_edges * copies + loops
    id_bytes = id_dtype(num_nodes).itemsize
    edge_bytes = id_bytes + workload.edge_row_bytes
    edge_bytes += id_dtype(total).itemsize if rules.keep_ids else 0
    node_bytes = workload.node_bytes
    if feature_item_bytes is not None:
        node_bytes = workload.node_items * feature_item_bytes
    padding = sum(
        table.padding_bytes(feature_item_bytes or table.item_bytes, page_bytes)
        for table in workload.node_tables
    )
    node_bytes += padding
    fixed = 8 * (num_nodes + 1)
    peak = estimate_peak_bytes(rules, workload.num_edges, num_nodes, workload.edge_row_bytes)
    budget = available_bytes() if memory_bytes is None else memory_bytes
    spill = 0
    if peak > budget:
        record_bytes = record_bytes_for(num_nodes - 1)
        spill = workload.num_edges * spill_bytes_per_edge(
            rules, record_bytes, workload.edge_row_bytes
        )
    final = fixed + node_bytes + total * edge_bytes
    # De-duplication and dropped self-loops may remove almost all edges.
    shrinks = rules.undirected or rules.self_loops == "drop"
    # Edge ids are left out where they are 0, 1, 2, ...
    sure_bytes = id_bytes + workload.edge_row_bytes
    least = fixed + min(node_bytes, workload.node_bytes + padding)
    least += 0 if shrinks else workload.num_edges * sure_bytes
    work = _EDGE_WORK
    if spill:
        counts = rules.undirected or rules.self_loops == "add"
        work *= _SPILL_WORK + (_COUNT_WORK if counts else 0)

    def seconds_at(rates: Rates) -> float:
        return (
            total / rates.edges * work
            + (final + 2 * spill) / rates.write_bytes
            + workload.text_bytes / rates.text_bytes
        )

    rates = Rates()
    if seconds_at(rates) > _TRIAL_FROM_SECONDS:
        rates = measure_rates(directory, workload)
    sizes = "sizes as the input states them"
    if not workload.is_exact:
        guessed = workload.text_path is not None
        sizes = "sizes guessed from the beginning of each file" if guessed else "sizes roughly"
    return Estimate(
        final_bytes=final,
        least_bytes=least if workload.is_exact else 0,
        spill_bytes=spill,
        memory_bytes=min(peak, budget) + _BASE_MEMORY_BYTES,
        seconds=seconds_at(rates),
        basis=f"{sizes}, time {rates.basis}",
    )


def measure_rates(directory: Path, workload: Workload) -> Rates:
    """Measure for about a second the rates of sorting edges, writing bytes and parsing text."""
    ends = default_rng(0).integers(0, _TRIAL_EDGES // 8, (2, _TRIAL_EDGES), np.int32)
    edges = max(_measure_sorting(ends) for _ in range(_TRIALS))
    write_bytes = _measure_writing(directory)
    basis = (
        f"from a trial: {edges / 1e6:.0f} M edges/s sorted, {format_size(write_bytes)}/s written"
    )
    text_bytes = None
    if workload.text_path is not None:
        text_bytes = _measure_parsing(workload.text_path, workload.text_ratio)
    if text_bytes is not None:
        basis += f", {format_size(text_bytes)}/s of text read"
    return Rates(edges, write_bytes, text_bytes or Rates.text_bytes, basis)


def _measure_sorting(ends: npt.NDArray[np.int32]) -> float:
    """Return edges per second."""
    began = time.perf_counter()
    _core.csc_from_coo(
        ends[0],
        ends[1],
        _TRIAL_EDGES // 8,
        num_threads=num_threads(),
        with_edge_id=True,
    )
    return _TRIAL_EDGES / (time.perf_counter() - began)


def _measure_parsing(path: Path, ratio: float) -> float | None:
    """Return bytes of text per second, from the first blocks; None if they cannot be read."""
    table_format = TableFormat("float32", delimiter=None, comments=b"#%")
    blocks = TextTable(path, table_format, block_bytes=_TRIAL_BLOCK_BYTES).blocks()
    num_blocks, began = 0, time.perf_counter()
    try:
        while time.perf_counter() - began < _TRIAL_SECONDS and next(blocks, None) is not None:
            num_blocks += 1
    except GnnstoreError:  # the conversion will say what is wrong, and where
        return None
    elapsed = time.perf_counter() - began
    del blocks  # ends its threads
    if not num_blocks:
        return None
    num_bytes = min(num_blocks * _TRIAL_BLOCK_BYTES, path.stat().st_size * ratio)
    return num_bytes / elapsed


def _measure_writing(directory: Path) -> float:
    """Return bytes per second, synchronised; the trial's file never has a name."""
    data = default_rng(0).bytes(_TRIAL_BYTES)
    try:
        descriptor = os.open(directory, os.O_TMPFILE | os.O_WRONLY, 0o600)
    except OSError:  # not every file system can
        return Rates.write_bytes
    try:
        began = time.perf_counter()
        written = os.write(descriptor, data)
        os.fsync(descriptor)
        return written / (time.perf_counter() - began)
    except OSError:
        return Rates.write_bytes
    finally:
        os.close(descriptor)
