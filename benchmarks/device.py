"""Batches on a GPU by `device=`, next to the link's rate, the model alone, and PyG's prefetching.

An R-MAT graph, 2^20 nodes, 15 edges a node, 128 float32 features, all in memory; batches of 1,024
random nodes, fan-out 10, 10, 10; three layers of GraphSAGE. What is compared runs in turns, in one
process, and the ratios are of one run:

- copies: the rate of the loader's copies to the device over the rate of one copy of 256 MiB of
  pinned memory, with a bar of 0.9, and over the rate of `tensor.to(device)` from ordinary memory,
  with a bar of 2
- epoch: an epoch with training over the slower of loader and model alone, with a bar of 1.05
- prefetch: PyG's `PrefetchLoader` with the same model over ours: around its `NodeLoader` with our
  `StoreSampler`, with a bar of 1.3, and around its `NeighborLoader` where pyg-lib is installed,
  with one of 3
- peak: the device's memory without a model, with a bar of five times the tensors of the largest
  batch and 64 MiB
- rows: an epoch with a tenth of the rows on the device, by frequency (`device_cache=`), and with
  "auto", over one without; the rows that come from the host, with a bar of 0.33 for a tenth; the
  device's memory, with the rows on top of the bar above; and gathering of these rows over the rate
  of the device's memory, with a bar of 0.5
- match: an epoch with the rows of the batch before (`reorder=1`), alone and beside a tenth of the
  rows, over one without; the rows that come from the host, with a bar of 0.58 for the former. With
  `strategy="belady"` also in windows of 16 batches; and in windows of 1 and 4 K on K communities
  whose batches come by turns, where rows moved have a bar of 0.6 of those in windows of 1
- disk: the rows that strategies read from disk in a later epoch, with a tenth of the rows on the
  device and without, at one `memory=` and a cache of a tenth: they must be fewer
- levels: the four levels of packed epochs (DiskGNN), a tenth of the rows for the device and a tenth
  in the host's memory; and an epoch with training of `strategy="packed"` with as much on both, over
  the slower of loader and model alone, with a bar of 1.05

Run `python -m benchmarks.device`; `--sections` chooses some, `--cache DIR` keeps the store, and
`--seconds` ends rounds early. It needs gnnstore, torch for the device and PyG, and no network.
`--device cpu`, the default where torch has no GPU, runs the same loops and prints rows and bytes,
and no times but the last one, where loader and model share the processor.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch_geometric
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PygNeighborLoader
from torch_geometric.loader import NodeLoader, PrefetchLoader

import gnnstore
from benchmarks.harness import directory_of, parser, report, several
from benchmarks.parts.training import Training
from benchmarks.parts.workloads import BATCH_SIZE, FANOUTS, SEED, make_store
from gnnstore.converters import from_pyg
from gnnstore.nn import AdjT
from gnnstore.packing.job import EpochPacker
from gnnstore.packing.sampling import PackSettings
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.units import format_size, spread

BAR_LINK, BAR_PAGEABLE, BAR_EPOCH = 0.9, 2.0, 1.05
BARS_PREFETCH = {"NodeLoader, StoreSampler": 1.3, "NeighborLoader, pyg-lib": 3.0}
BAR_PEAK, SPARE_BYTES = 5, 64 << 20
BAR_ROWS, BAR_GATHER = 0.33, 0.5
BAR_MATCH, BAR_WINDOWS, WINDOW = 0.58, 0.6, 16
COMMUNITIES, COMMUNITY_NODES, COMMUNITY_BATCH = 4, 4096, 256
LINK_BYTES, HIDDEN = 256 << 20, 256
BATCHES_IN_MEMORY = 16

Rows = list[tuple[str, str]]


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors that have the memory of a batch."""
    for store in batch.stores:
        for value in store.values():
            if isinstance(value, AdjT):
                yield from value.arrays()
            elif isinstance(value, Tensor):
                yield value


def bytes_of(batch: Any) -> int:
    """Return the bytes of a batch's tensors."""
    return sum(tensor.nbytes for tensor in tensors_of(batch))


def verdict(is_reached: bool) -> str:
    """Return the word for a bar."""
    return "reached" if is_reached else "MISSED"


@dataclass
class Workload:
    """The graph, the seeds of an epoch, the device, and how long the benchmark may take."""

    store: gnnstore.GraphStore
    seeds: np.ndarray[Any, np.dtype[np.int64]]
    device: torch.device
    arguments: argparse.Namespace
    ends: float

    @property
    def is_timed(self) -> bool:
        """Whether times say something: without a GPU there is nothing to hide."""
        return self.device.type != "cpu"

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return len(self.seeds) // BATCH_SIZE

    def loader(self, *, is_on_device: bool = True, **options: Any) -> gnnstore.NeighborLoader:
        """Return a loader whose batches are on the device, or in the host's memory."""
        given: dict[str, Any] = {"strategy": "memory", "batch_size": BATCH_SIZE, "seed": SEED}
        given |= {"num_threads": self.arguments.threads}
        given |= {"device": self.device} if is_on_device else {}
        return gnnstore.NeighborLoader(self.store, FANOUTS, self.seeds, **given | options)

    def training(self) -> Training:
        """Return the model on the device."""
        num_classes = int(self.store.labels.max()) + 1
        made = Training(self.store.features.shape[1], num_classes, HIDDEN, len(FANOUTS))
        made.model.to(self.device)
        return made

    def wait(self) -> None:
        """Wait for the device."""
        if self.is_timed:
            getattr(torch, self.device.type).synchronize(self.device)

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the seconds of some work, until the device has done it."""
        self.wait()
        start = perf_counter()
        work()
        self.wait()
        return perf_counter() - start

    def rounds(self, work: dict[str, Callable[[], object]]) -> list[dict[str, float]]:
        """Do all pieces of work in turns, once to warm up, and return the seconds of each turn."""
        found = []
        for number in range(1 + self.arguments.repeats):
            found.append({name: self.seconds(run) for name, run in work.items()})
            if number and perf_counter() > self.ends:
                break
        return found[1:]


def dropped(loader: Any) -> None:
    """Go through an epoch whose batches are dropped at once."""
    for batch in loader:
        del batch


def trained(training: Training, loader: Any) -> None:
    """Go through an epoch with a step for each batch."""
    training.model.train()
    for batch in loader:
        training.step(batch)
        del batch


# --- sections -------------------------------------------------------------------------------


def copies(workload: Workload) -> tuple[Rows, dict[str, Any]]:
    """Compare the loader's copies with one large copy, and with copies from ordinary memory."""
    loader, before = workload.loader(), workload.loader(is_on_device=False)
    dropped(loader)  # takes its memory
    start = loader.stats()
    if not workload.is_timed:
        dropped(loader)
        moved, batch = loader.stats().since(start).bytes_to_device, next(iter(before))
        rows = [
            ("bytes to the device", format_size(moved)),
            ("the first batch", f"{format_size(bytes_of(batch))} of tensors"),
            ("its rows", f"{batch.num_nodes:,} of {format_size(batch.x[:1].nbytes)}"),
        ]
        return rows, {"bytes_to_device": moved, "bytes_of_first_batch": bytes_of(batch)}
    pinned = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(LINK_BYTES, dtype=torch.uint8, device=workload.device)
    host = [*tensors_of(next(iter(before)))]
    turns = workload.rounds({
        "link": lambda: target.copy_(pinned, non_blocking=True),
        "device": target.clone,
        "pageable": lambda: [tensor.to(workload.device) for tensor in host],
    })  # fmt: skip
    num_bytes = sum(tensor.nbytes for tensor in host)
    link = [LINK_BYTES / turn["link"] for turn in turns]
    ordinary = [num_bytes / turn["pageable"] for turn in turns]
    on_device = statistics.median(LINK_BYTES / turn["device"] for turn in turns)
    ours = []
    for _ in turns:
        start = loader.stats()
        seconds = copying_seconds(loader)
        ours.append(loader.stats().since(start).bytes_to_device / seconds if seconds else 0.0)
    rows = [
        ("the link", f"{spread(rate / 1e9 for rate in link)} GB/s of pinned memory"),
        ("the device's memory", f"{on_device / 1e9:.0f} GB/s copied"),
        ("a batch", f"{format_size(num_bytes)} of tensors"),
    ]
    if not min(ours):
        return [*rows, ("the loader's copies", "not seen by torch's profiler")], {"link": link}
    over = [own / rate for own, rate in zip(ours, link, strict=True)]
    times = [own / rate for own, rate in zip(ours, ordinary, strict=True)]
    rows += [
        ("the loader's copies over the link", bar(over, BAR_LINK)),
        ("and over tensor.to(device)", bar(times, BAR_PAGEABLE)),
    ]
    return rows, {"over_link": over, "over_pageable": times, "link": link, "device": on_device}


def copying_seconds(loader: Any) -> float:
    """Return how long the device's engine copied from the host in an epoch."""
    activity = torch.profiler.ProfilerActivity
    devices = [activity.CUDA if torch.cuda.is_available() else activity.XPU]
    with torch.profiler.profile(activities=devices) as profiler:
        dropped(loader)
        getattr(torch, devices[0].name.lower()).synchronize()
    found = [each for each in profiler.key_averages() if "HtoD" in each.key or "M2D" in each.key]
    return sum(
        getattr(each, "device_time_total", 0) or getattr(each, "cuda_time_total", 0)
        for each in found
    ) * 1e-6  # fmt: skip


def epoch(workload: Workload) -> tuple[Rows, dict[str, Any]]:
    """Compare an epoch of training with loading alone and with the model alone."""
    loader, training = workload.loader(), workload.training()
    if not workload.is_timed:
        text, numbers = counted(loader, training)
        return [("an epoch", text)], numbers
    return hidden(workload, loader, training)


def hidden(workload: Workload, loader: Any, training: Training) -> tuple[Rows, dict[str, Any]]:
    """Compare an epoch of a loader, of the model and of both."""
    all_fit = workload.is_timed and fits(workload, loader)
    kept = list(loader) if all_fit else list(first_of(loader))
    repeated = -(-workload.num_batches // len(kept))
    batches = (kept * repeated)[: workload.num_batches]
    before = loader.stats()
    turns = workload.rounds({
        "loader": lambda: dropped(loader),
        "model": lambda: trained(training, batches),
        "both": lambda: trained(training, loader),
    })  # fmt: skip
    waited = loader.stats().since(before).seconds_waiting
    ratios = [turn["both"] / max(turn["loader"], turn["model"]) for turn in turns]
    milliseconds = {
        name: spread(1e3 * turn[name] / workload.num_batches for turn in turns)
        for name in turns[0]
    }  # fmt: skip
    rows = [
        ("the loader alone", f"{milliseconds['loader']} ms a batch"),
        ("the model alone", f"{milliseconds['model']} ms a batch"),
        ("both", f"{milliseconds['both']} ms a batch"),
        ("an epoch over the slower of the two", bar(ratios, BAR_EPOCH, at_most=True)),
    ]
    if statistics.median(ratios) > BAR_EPOCH:
        slower = max(
            ("loader", "model"), key=lambda name: statistics.median(t[name] for t in turns)
        )
        rows.append(("why", f"the {slower} is slower; the loop waited {waited:.1f} s for batches"))
    return rows, {"ratios": ratios, "turns": turns, "seconds_waiting": waited}


def fits(workload: Workload, loader: Any) -> bool:
    """Return whether the batches of an epoch take at most a quarter of the device's memory."""
    free = getattr(torch, workload.device.type).mem_get_info(workload.device)[0]
    batch = next(iter(loader))
    loader.set_epoch(0)
    return bool(workload.num_batches * bytes_of(batch) < free / 4)


def first_of(loader: Any, count: int = 8) -> Iterator[Any]:
    """Yield the first batches of an epoch."""
    for number, batch in enumerate(loader, 1):
        yield batch
        if number == count:
            break
    loader.set_epoch(0)


def prefetch(workload: Workload) -> tuple[Rows, dict[str, Any]]:
    """Compare with PyG's `PrefetchLoader` around its own loaders, with the same model."""
    loader, training = workload.loader(), workload.training()
    peers = dict(peers_of(workload))
    names = [name for name in BARS_PREFETCH if not any(each.startswith(name) for each in peers)]
    missing = [(f"{name}", "is not installed") for name in names]
    if not workload.is_timed:
        rows, numbers = [], {}
        for name, each in {"gnnstore": loader, **peers}.items():
            text, numbers[name] = counted(each, training)
            rows.append((name, text))
        return rows + missing, numbers
    turns = workload.rounds(
        {"gnnstore": lambda: trained(training, loader)}
        | {name: lambda each=each: trained(training, each) for name, each in peers.items()}  # type: ignore[misc]
    )
    rows = [("gnnstore", f"{rate_of(workload, turns, 'gnnstore')} batches a second")]
    ratios = {name: [turn[name] / turn["gnnstore"] for turn in turns] for name in peers}
    for kind, least in BARS_PREFETCH.items():
        of_kind = {name: times for name, times in ratios.items() if name.startswith(kind)}
        rows += [(name, f"{rate_of(workload, turns, name)} batches a second") for name in of_kind]
        if of_kind:
            fastest = min(of_kind.values(), key=statistics.median)
            rows.append((f"over {kind}", bar(fastest, least)))
    return rows + missing, {"ratios": ratios, "turns": turns}


def peers_of(workload: Workload) -> Iterator[tuple[str, Any]]:
    """Yield PyG's loaders, without workers and with some."""
    data, seeds = workload.store.to_pyg(), torch.from_numpy(workload.seeds)
    ours = workload.loader(is_on_device=False)
    for workers in workload.arguments.peer_workers:
        options = {
            "input_nodes": seeds,
            "batch_size": BATCH_SIZE,
            "num_workers": workers,
            "persistent_workers": workers > 0,
        }
        loaders = {"NodeLoader, StoreSampler": NodeLoader(data, ours.node_sampler, **options)}
        if importlib.util.find_spec("pyg_lib"):
            found = PygNeighborLoader(data, list(FANOUTS), **options)
            loaders["NeighborLoader, pyg-lib"] = found
        for name, loader in loaders.items():
            yield f"{name}, {workers} workers", PrefetchLoader(loader, workload.device)


def peak(workload: Workload) -> tuple[Rows, dict[str, Any]]:
    """Compare the device's memory with the tensors of the largest batch."""
    largest = max(map(bytes_of, workload.loader(is_on_device=False)))
    rows = [("the largest batch", f"{format_size(largest)} of tensors")]
    if not workload.is_timed:
        return rows, {"largest": largest}
    loader, module = workload.loader(), getattr(torch, workload.device.type)
    module.empty_cache()
    held = module.memory_allocated(workload.device)
    module.reset_peak_memory_stats(workload.device)
    dropped(loader)
    workload.wait()
    most = module.max_memory_allocated(workload.device) - held
    limit = BAR_PEAK * largest + SPARE_BYTES
    text = f"{format_size(most)}; the bar of {format_size(limit)}: {verdict(most <= limit)}"
    return [*rows, ("the device's memory", text)], {"largest": largest, "peak": most}


def rows(workload: Workload) -> tuple[Rows, dict[str, Any]]:
    """Compare epochs with rows that stay on the device, and without."""
    tenth = tenth_of(workload)
    sizes: dict[str, int | str] = {"none": 0, "a tenth": tenth}
    if workload.is_timed:
        sizes["auto"] = "auto"
    loaders = {name: workload.loader(device_cache=size) for name, size in sizes.items()}
    training, found, numbers = workload.training(), list[tuple[str, str]](), dict[str, Any]()
    turns: list[dict[str, float]] = []
    if workload.is_timed:
        for loader in loaders.values():  # "auto" takes its memory once a step has been done
            trained(training, loader)
        turns = workload.rounds({
            name: lambda loader=loader: trained(training, loader)  # type: ignore[misc]
            for name, loader in loaders.items()
        })  # fmt: skip
    for name, loader in loaders.items():
        before = loader.stats()
        dropped(loader)
        stats = loader.stats().since(before)
        share = 1 - stats.rows_on_device / stats.nodes
        text = f"{format_size(stats.device_cache_bytes)} on the device; from the host {share:.3f} "
        text += f"of the rows, {format_size(stats.bytes_to_device)} copied"
        if name == "a tenth":
            text += f"; the bar of {BAR_ROWS:g}: {verdict(share <= BAR_ROWS)}"
        found.append((name, text))
        numbers[name] = {"share": share, "bytes": stats.bytes_to_device}
    for name in [*loaders][1:] if turns else ():
        ratios = [turn[name] / turn["none"] for turn in turns]
        found.append((f"an epoch with {name} over one without", spread(ratios)))
        numbers[name]["ratios"] = ratios
    if workload.is_timed:
        found += rows_on_gpu(workload, loaders["a tenth"], numbers)
    return found, numbers


def rows_on_gpu(workload: Workload, loader: Any, numbers: dict[str, Any]) -> Rows:
    """Compare the device's memory, and the gathering of rows that stay there, with bars."""
    module, there = getattr(torch, workload.device.type), loader._placer.rows
    largest = max(map(bytes_of, workload.loader(is_on_device=False)))
    held = module.memory_allocated(workload.device) - there.num_bytes
    module.reset_peak_memory_stats(workload.device)
    dropped(loader)
    workload.wait()
    most = module.max_memory_allocated(workload.device) - held
    limit = there.num_bytes + BAR_PEAK * largest + SPARE_BYTES
    (table,) = there.rows.values()
    places = torch.randint(0, len(table), (len(table),), device=workload.device)
    source = torch.empty(table.nbytes, dtype=torch.uint8, device=workload.device)
    turns = workload.rounds({
        "gather": lambda: [table.index_select(0, places) for _ in range(8)],
        "copy": lambda: [source.clone() for _ in range(8)],
    })  # fmt: skip
    ratios = [turn["copy"] / turn["gather"] for turn in turns]
    numbers["peak"], numbers["gather"] = most, ratios
    peak = f"{format_size(most)}; the bar of {format_size(limit)}: {verdict(most <= limit)}"
    return [
        ("the device's memory with a tenth", peak),
        ("gathering over a copy there", bar(ratios, BAR_GATHER)),
    ]


def match(workload: Workload) -> tuple[Rows, dict[str, Any]]:
    """Compare epochs that use rows of the batch before again, and without."""
    tenth = tenth_of(workload)
    planned: dict[str, Any] = {"strategy": "belady", "superbatch": WINDOW, "cache_bytes": tenth}
    loaders = {
        "none": workload.loader(),
        "reorder=1": workload.loader(reorder=1),
        "a tenth": workload.loader(device_cache=tenth),
        "a tenth, reorder=1": workload.loader(device_cache=tenth, reorder=1),
        "belady, reorder=1": workload.loader(**planned, reorder=1),
        f"belady, reorder={WINDOW}": workload.loader(**planned, reorder=WINDOW),
    }
    found, numbers = list[tuple[str, str]](), dict[str, Any]()
    turns: list[dict[str, float]] = []
    if workload.is_timed:
        training = workload.training()
        turns = workload.rounds({
            name: lambda loader=loader: trained(training, loader)  # type: ignore[misc]
            for name, loader in loaders.items()
        })  # fmt: skip
    for name, loader in loaders.items():
        share = share_moved(loader)
        text = f"from the host {share:.3f} of the rows"
        if name == "reorder=1":
            text += f"; the bar of {BAR_MATCH:g}: {verdict(share <= BAR_MATCH)}"
        found.append((name, text))
        numbers[name] = {"share": share}
    for name, base in (("reorder=1", "none"), ("a tenth, reorder=1", "a tenth")) if turns else ():
        numbers[name]["ratios"] = ratios = [turn[name] / turn[base] for turn in turns]
        found.append((f"an epoch with {name} over {base}", spread(ratios)))
    shares = {}
    for size in (1, COMMUNITIES, 4 * COMMUNITIES):
        shares[size] = share_moved(loader_of_communities(workload, size))
        text = f"from the host {shares[size]:.3f} of the rows"
        if size == 4 * COMMUNITIES:
            ratio = shares[size] / shares[1]
            text += f", {ratio:.2f} of those with 1; the bar of {BAR_WINDOWS:g}: "
            text += verdict(ratio <= BAR_WINDOWS)
        found.append((f"{COMMUNITIES} communities, reorder={size}", text))
    numbers["communities"] = shares
    return found, numbers


def share_moved(loader: Any) -> float:
    """Return the share of an epoch's rows that come from the host."""
    before = loader.stats()
    dropped(loader)
    stats = loader.stats().since(before)
    return 1.0 - float((stats.rows_on_device + stats.rows_kept) / stats.nodes)


def loader_of_communities(workload: Workload, size: int) -> gnnstore.NeighborLoader:
    """Return a loader of communities without edges between them, whose batches come by turns."""
    path = Path(workload.store.path).parent / "communities.gnn"
    num_nodes = COMMUNITIES * COMMUNITY_NODES
    if not path.exists():
        rng = torch.Generator().manual_seed(1)
        ends = torch.randint(0, COMMUNITY_NODES, (2, 15 * num_nodes), generator=rng)
        firsts = torch.randint(0, COMMUNITIES, (15 * num_nodes,), generator=rng)
        x = torch.rand(num_nodes, 32, generator=rng)
        from_pyg(Data(x=x, edge_index=ends + COMMUNITY_NODES * firsts), path)
    seeds = np.arange(num_nodes).reshape(COMMUNITIES, -1, COMMUNITY_BATCH).swapaxes(0, 1)
    return gnnstore.NeighborLoader(
        path,
        [10, 10],
        np.ascontiguousarray(seeds).reshape(-1),
        batch_size=COMMUNITY_BATCH,
        strategy="belady",
        superbatch=4 * COMMUNITIES,
        seed=SEED,
        device=workload.device,
        reorder=size,
    )


def disk(workload: Workload) -> tuple[Rows, dict[str, Any]]:
    """Compare the rows read from disk, with a tenth of all rows on the device and without."""
    found, numbers = list[tuple[str, str]](), dict[str, Any]()
    for strategy in ("direct", "static", "belady", "packed"):
        given, read = of_a_tenth(workload, strategy), list[int]()
        for size in (0, tenth_of(workload)):
            loader = workload.loader(device_cache=size, **given)
            dropped(loader)  # fills caches
            before = loader.stats()
            dropped(loader)
            read.append(loader.stats().since(before).rows_read)
            del loader
            gc.collect()  # the cache goes with the loader
        without, left = read
        text = f"{left:,} rows, {left / max(1, without):.3f} of {without:,} without; fewer: "
        found.append((f"{strategy} reads", text + verdict(left < without)))
        numbers[strategy] = read
    return found, numbers


def levels(workload: Workload) -> tuple[Rows, dict[str, Any]]:
    """Count the rows of each level of packed epochs, and compare `strategy="packed"` with a bar."""
    tenth, path = tenth_of(workload), Path(workload.store.path).parent / "levels.packed"
    settings = PackSettings(
        SamplingConfig(FANOUTS, seed=SEED),
        workload.seeds,
        BATCH_SIZE,
        1,
        cache_bytes=tenth,
        device_cache=tenth,
        segment=4,
        num_threads=workload.arguments.threads,
    )
    packer = EpochPacker(workload.store, settings)
    try:
        packer.pack(path, overwrite=True)
    finally:
        packer.close()
    packed = gnnstore.open_packed(path).loader(device=workload.device)
    dropped(packed)
    stats = packed.stats()
    shares = {
        "device": stats.rows_on_device / stats.nodes,
        "host": stats.rows_cached / stats.nodes,
        "segments and chunks": stats.rows_read / stats.nodes,
    }
    rows = [(f"packed epochs, {name}", f"{own:.3f} of the rows") for name, own in shares.items()]
    del packed
    loader = workload.loader(device_cache=tenth, **of_a_tenth(workload, "packed"))
    more, numbers = hidden(workload, loader, workload.training())
    return rows + more, {"shares": shares, **numbers}


def tenth_of(workload: Workload) -> int:
    """Return the bytes of a tenth of the rows."""
    features = workload.store.features
    return features.shape[0] // 10 * features.shape[1] * features[:1].element_size()


def of_a_tenth(workload: Workload, strategy: str) -> dict[str, Any]:
    """Return options for a cache of a tenth, and memory that has room for a tenth twice."""
    tenth, schema = tenth_of(workload), workload.store.reader.schema
    held = schema.edge.indptr.num_bytes + schema.edge.indices.num_bytes
    largest = max(map(bytes_of, first_of(workload.loader(is_on_device=False))))
    memory = held + 2 * tenth + BATCHES_IN_MEMORY * largest + SPARE_BYTES
    found: dict[str, Any] = {"strategy": strategy, "memory": memory}
    if strategy != "direct":
        found["cache_bytes"] = tenth
    if strategy in {"belady", "packed"}:
        found["superbatch"] = min(WINDOW, workload.num_batches)
    return found


SECTIONS = {
    "copies": copies,
    "epoch": epoch,
    "prefetch": prefetch,
    "peak": peak,
    "rows": rows,
    "match": match,
    "disk": disk,
    "levels": levels,
}


# --- rows of the table ----------------------------------------------------------------------


def bar(ratios: list[float], limit: float, *, at_most: bool = False) -> str:
    """Return ratios, and whether their median reaches a bar."""
    middle = statistics.median(ratios)
    is_reached = middle <= limit if at_most else middle >= limit
    return f"{spread(ratios)}; the bar of {limit:g}: {verdict(is_reached)}"


def rate_of(workload: Workload, turns: list[dict[str, float]], name: str) -> str:
    """Return batches a second."""
    return spread((workload.num_batches / turn[name] for turn in turns), ".1f")


def counted(loader: Any, training: Training) -> tuple[str, dict[str, int]]:
    """Train on two batches, and count the rows and bytes of an epoch."""
    batches = nodes = num_bytes = 0
    for batch in loader:
        if batches < 2:
            training.step(batch)
        batches, nodes = batches + 1, nodes + batch.num_nodes
        num_bytes += bytes_of(batch)
    text = f"{batches} batches, {nodes:,} rows, {format_size(num_bytes)} of tensors"
    return text, {"batches": batches, "rows": nodes, "bytes": num_bytes}


def device_of(name: str | None) -> torch.device:
    """Return the device of the option, or the machine's own."""
    gpus = [each for each in ("cuda", "xpu") if getattr(torch, each).is_available()]
    chosen = torch.device(name or [*gpus, "cpu"][0])
    if chosen.type not in (*gpus, "cpu"):
        raise SystemExit(f"torch {torch.__version__} has no {chosen.type} here; try --device cpu")
    if chosen.type != "cpu" and chosen.index is None:
        chosen = torch.device(chosen.type, getattr(torch, chosen.type).current_device())
    return chosen


def main() -> None:
    """Run the sections, and print ratios; rows and bytes without a GPU."""
    start = perf_counter()
    options = parser(__doc__)
    options.set_defaults(repeats=5)
    cores = len(os.sched_getaffinity(0))
    options.add_argument("--device", help="cuda, xpu or cpu (what torch has)")
    options.add_argument("--sections", type=several(choices=SECTIONS), default=[*SECTIONS])
    options.add_argument("--scale", type=int, default=20, help="2^scale nodes (20)")
    options.add_argument("--batches", type=int, default=64, help="of an epoch (64)")
    options.add_argument("--threads", type=int, help="threads of the loader (all cores)")
    options.add_argument("--peer-workers", type=several(int), default=[0, min(4, cores)])
    options.add_argument("--seconds", type=float, default=200, help="begin no round later (200)")
    options.add_argument("--cache", type=Path, help="directory that keeps the store")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.scale, arguments.batches = min(arguments.scale, 14), min(arguments.batches, 4)
        arguments.repeats, arguments.peer_workers = min(arguments.repeats, 2), [0]
    device = device_of(arguments.device)
    with directory_of(arguments) as directory:
        store = gnnstore.open(make_store(directory, arguments.scale))
        num_seeds = arguments.batches * BATCH_SIZE
        seeds = np.random.default_rng(1).integers(0, 1 << arguments.scale, num_seeds)
        ends = start + arguments.seconds
        workload = Workload(store, seeds, device, arguments, ends)
        rows: Rows = [("torch", f"{torch.__version__}; PyG {torch_geometric.__version__}")]
        if workload.is_timed:
            rows.append(("device", getattr(torch, device.type).get_device_name(device)))
        numbers: dict[str, Any] = {}
        for name in arguments.sections:
            if workload.is_timed and numbers and perf_counter() > ends:
                rows.append((name, f"left out after {arguments.seconds:g} s; see --seconds"))
                continue
            found, numbers[name] = SECTIONS[name](workload)
            rows += [(f"{name}: {what}", value) for what, value in found]
    title = f"batches on {device}, R-MAT, 2^{arguments.scale} nodes, {arguments.batches} batches"
    report(title, rows, as_json=arguments.json, torch=torch.__version__, sections=numbers)


if __name__ == "__main__":
    main()
