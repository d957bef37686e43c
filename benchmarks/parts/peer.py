"""Samples or loads batches with a peer, in the process that it is started in.

It runs on the Python of `make bench-peers`, whose torch is an older one, and so imports numpy,
torch and the peers only, nothing of gnnstore. `benchmarks.parts.peers` starts it with a job, as
JSON: the name of the peer, what to do, and the files of the arrays. It prints a line when it is
ready, and then, for each number that comes in, as many batches, a line of JSON each: seconds, CPU
seconds, and nodes. Without a job it prints which peers can be imported here.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import json
import mmap
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

PEERS = {"GraphBolt": ("dgl", "dgl.graphbolt"), "torch-sparse": ("torch_sparse",) * 2}
PEERS["pyg-lib"] = ("pyg_lib",) * 2

Job = dict[str, Any]


def imported() -> dict[str, dict[str, str]]:
    """Return the version of each peer that can be imported, or the reason why it cannot."""
    found = {}
    for name, (package, module) in PEERS.items():
        try:
            importlib.import_module(module)
            version = importlib.import_module(package).__version__
            found[name] = {"version": f"{version}, torch {torch.__version__}"}
        except Exception as error:
            reason = (str(error) or type(error).__name__).strip().splitlines()[0]
            found[name] = {"problem": reason}
    return found


def read_array(entry: Job, *, is_mapped: bool = False) -> Any:
    """Return an array whose bytes lie in files, one behind the other, in memory or mapped."""
    files: list[tuple[str, int]] = entry["files"]
    total = sum(num_bytes for _, num_bytes in files)
    whole = mapped(files, total) if is_mapped else np.empty(total, np.uint8)
    first = 0
    for path, num_bytes in files if not is_mapped else ():
        with Path(path).open("rb") as file:
            file.readinto(whole[first : first + num_bytes].data)
        first += num_bytes
    dtype, shape = np.dtype(entry["dtype"]), entry["shape"]
    used = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(whole[:used].view(dtype).reshape(shape))


def mapped(files: list[tuple[str, int]], total: int) -> Any:
    """Map files one behind the other, for random reads: without the advice, no run ends."""
    region = mmap.mmap(-1, max(1, total))
    whole = np.frombuffer(region, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address, fixed = whole.ctypes.data, 0x10
    for path, num_bytes in files:
        descriptor = os.open(path, os.O_RDONLY)
        flags = mmap.MAP_PRIVATE | fixed
        got = libc.mmap(address, num_bytes, mmap.PROT_READ, flags, descriptor, 0)
        os.close(descriptor)
        if got != address:
            raise OSError(ctypes.get_errno(), "cannot map", path)
        address += num_bytes
    region.madvise(mmap.MADV_RANDOM)
    return whole


def graphbolt(job: Job, arrays: dict[str, Any]) -> Callable[[int], Any]:
    """Return a function of a number of batches, which makes GraphBolt's."""
    gb = importlib.import_module("dgl.graphbolt")
    graph = gb.fused_csc_sampling_graph(arrays["indptr"], arrays["indices"])
    store = None
    if "x" in arrays:
        store = gb.BasicFeatureStore({("node", None, "x"): gb.TorchBasedFeature(arrays["x"])})

    def batches(num_batches: int) -> Iterator[Any]:
        seeds = arrays["seeds"].reshape(-1)[: num_batches * job["batch_size"]]
        # The sampler takes ids of the type that the graph has.
        items: Any = (seeds.to(graph.indices.dtype),)
        names: Any = ("seed_nodes",)
        if "y" in arrays:
            items, names = (*items, arrays["y"][seeds]), (*names, "labels")
        pipe = gb.ItemSampler(gb.ItemSet(items, names=names), batch_size=job["batch_size"])
        pipe = pipe.sample_neighbor(graph, job["fanouts"])
        if store is not None:
            pipe = pipe.fetch_feature(store, node_feature_keys=["x"])
        for batch in gb.DataLoader(pipe, num_workers=job["workers"]):
            yield len(batch.node_ids())

    return batches


def pyg(job: Job, arrays: dict[str, Any]) -> Callable[[int], Any]:
    """Return what makes PyG's batches, of nodes or of links; its edges are pairs of int64."""
    from torch_geometric.data import Data  # noqa: PLC0415
    from torch_geometric.loader import LinkNeighborLoader, NeighborLoader  # noqa: PLC0415

    indptr, indices = arrays["indptr"], arrays["indices"]
    edge_index = torch.empty((2, len(indices)), dtype=torch.int64)
    edge_index[0] = indices
    edge_index[1] = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
    data = Data(x=arrays["x"], y=arrays["y"], edge_index=edge_index)
    common = {"batch_size": job["batch_size"], "is_sorted": True, "num_workers": job["workers"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that pyg-lib has replaced torch-sparse
        if job["work"] == "links":
            loader = LinkNeighborLoader(
                data, job["fanouts"], arrays["seeds"], neg_sampling="binary", **common
            )
        else:
            loader = NeighborLoader(data, job["fanouts"], arrays["seeds"].reshape(-1), **common)
    return lambda _: (batch.num_nodes for batch in loader)


def pyg_sampling(job: Job, arrays: dict[str, Any]) -> Callable[[int], Any]:
    """Return what samples batches with the operator that PyG's loader calls."""
    graph = (arrays["indptr"], arrays["indices"].long())  # they take int64 only
    fanouts = job["fanouts"]

    def sample(seeds: Any) -> Any:
        if job["peer"] == "pyg-lib":
            take = importlib.import_module("pyg_lib.sampler").neighbor_sample
            return take(*graph, seeds, fanouts, csc=True)[2]
        importlib.import_module("torch_sparse")
        return torch.ops.torch_sparse.neighbor_sample(*graph, seeds, fanouts, False, True)[0]

    return lambda count: (len(sample(seeds)) for seeds in arrays["seeds"][:count])


def perform(job: Job) -> None:
    """Prepare, and time as many batches as each number that comes in."""
    # One thread samples; a loader without workers of its own gathers with all.
    is_sampling = job["work"] == "sample"
    torch.set_num_threads(1 if is_sampling or job["workers"] else len(os.sched_getaffinity(0)))
    arrays = {
        name: read_array(entry, is_mapped=job["is_mapped"] and name == "x")
        for name, entry in job["arrays"].items()
    }
    if job["peer"] == "GraphBolt":
        make = graphbolt(job, arrays)
    else:
        make = (pyg_sampling if is_sampling else pyg)(job, arrays)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        count = int(line)
        # Epoch after epoch, where the seeds are fewer.
        batches = itertools.chain.from_iterable(make(count) for _ in itertools.count())
        for _ in range(count):
            start, cpu_start = perf_counter(), process_time()
            num_nodes = next(batches)
            seconds, cpu_seconds = perf_counter() - start, process_time() - cpu_start
            print(json.dumps([seconds, cpu_seconds, num_nodes]), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        perform(json.loads(sys.argv[1]))
    else:
        print(json.dumps(imported()))
