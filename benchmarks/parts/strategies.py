"""The ways of `gnnstore bench load` to load batches, and PyTorch Geometric's loader beside them.

`benchmarks.out_of_core` starts this with a `Task`, in a process of its own under a memory
limit; it prints one `Outcome`, as JSON.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np

from gnnstore.tools.bench import worker as load_worker
from gnnstore.tools.bench.setup import Run, loader_batches
from gnnstore.tools.bench.task import ALLOWANCE_BYTES
from gnnstore.tools.bench.ways import Way, ways

WAYS = {**ways(), "pyg": Way(is_compared=False, is_even=True)}


def pyg_loader(run: Run) -> Any:
    """Return PyG's loader over the same mapping, its structure in memory."""
    import torch  # noqa: PLC0415
    from torch_geometric.data import Data  # noqa: PLC0415
    from torch_geometric.loader import NeighborLoader  # noqa: PLC0415

    csc = run.csc
    edge_index = np.empty((2, csc.num_edges), np.int64)
    edge_index[0] = csc.indices
    edge_index[1] = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    (features,) = run.features
    (labels,) = run.held.values()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mapping cannot be written to
        x = torch.from_numpy(features.view("random"))
        y = torch.from_numpy(labels.gather(np.arange(csc.num_nodes)).values)
        data = Data(x=x, y=y)
        data.edge_index = torch.from_numpy(edge_index)
        return NeighborLoader(
            data,
            list(run.task.fanouts),
            torch.from_numpy(run.seeds),
            batch_size=run.task.batch_size,
            is_sorted=True,
        )


def prepare(run: Run) -> load_worker.Prepared:
    """Return the batches of a strategy, under the limit."""
    if run.task.plan:
        run.limit()
        # Neither the structure nor the labels are the loader's: those are in the plan.
        memory = run.room_bytes - ALLOWANCE_BYTES
        followed = run.loader(plan=run.task.plan, topology="auto", memory=memory)
        return loader_batches(followed), followed
    if run.task.strategy != "pyg":
        return load_worker.prepare(run)
    loader = pyg_loader(run)  # its copy of the structure is part of what it needs
    run.limit()
    return loader_batches(loader), None


if __name__ == "__main__":
    sys.exit(load_worker.work(prepare))
