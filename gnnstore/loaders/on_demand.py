"""Batches that are asked for by index instead of by iterating, as PyG's own tools do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info

from gnnstore.loaders.assemble.homogeneous import BatchBuilder
from gnnstore.loaders.threaded import ThreadedLoader
from gnnstore.pipeline.prepared import PreparedBatch
from gnnstore.pipeline.seeds.nodes import InputNodes

if TYPE_CHECKING:
    from torch_geometric.sampler import SamplerOutput

# Epoch of such batches; no run counts so far.
_ON_DEMAND_EPOCH = 2**63 - 1


class OnDemandLoader(ThreadedLoader):
    """Base of the loaders that sample: a batch for any positions, prepared here and now.

    Subclasses set `_seeds`, `_builder` and `filter_per_worker`.
    """

    _seeds: InputNodes
    _builder: BatchBuilder
    filter_per_worker: bool
    # Class-wide, so that an unpickled loader has it.
    _num_calls = 0

    def __call__(self, index: Any) -> Any:
        """Return the batch of some positions in `input_nodes`, prepared here and now."""
        output = self.collate_fn(index)
        return output if self.filter_per_worker else self.filter_fn(output)

    def _collate(self, index: Any) -> Any:
        """Sample a batch; join it with its attributes too if `filter_per_worker` is set.

        Parameters
        ----------
        index : list or tensor of int [B]
            Positions in `input_nodes`.

        Notes
        -----
        Every call draws anew. In a worker process of another loader (PyG's `ZipLoader`),
        torch's seed of that worker takes the place of the epoch.
        """
        self._draw_seed()
        worker = get_worker_info()
        epoch = _ON_DEMAND_EPOCH if worker is None else worker.seed
        call, self._num_calls = self._num_calls, self._num_calls + 1
        sampled = self._sample(index, epoch=epoch, batch=call)
        return self.filter_fn(sampled.output) if self.filter_per_worker else sampled.output

    def filter_fn(self, out: SamplerOutput) -> Any:
        """Join sampler output with its attributes, and apply the transforms."""
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        data, _, _ = self._builder.assemble(out)
        return data if self.transform is None else self.transform(data)

    def _sample(self, index: Any, *, epoch: int, batch: int) -> PreparedBatch:
        seeds, input_id = self._seeds.select(index)
        return self._builder.sample(seeds, input_id, epoch=epoch, batch=batch)
