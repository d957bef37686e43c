"""What torch, PyG and frameworks call or look for in a `DataLoader` besides iterating it."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch.utils.data import get_worker_info
from torch_geometric.sampler import SamplerOutput

from gnnstore.errors import UsageError
from gnnstore.loaders.assemble import Assembler, OutputAssembler
from gnnstore.loaders.device import BatchPlacer
from gnnstore.loaders.stateful import StatefulLoader
from gnnstore.pipeline.batch import Batch, Recorder
from gnnstore.seeds.base import ON_DEMAND_EPOCH, BatchKey, SeedLabels


class TorchLoader(StatefulLoader):
    """A loader that prepares a batch on demand, and can be copied and bound to cores."""

    filter_per_worker = True

    _assembler: Assembler
    _recorder: Recorder
    _placer: BatchPlacer | None  # None: batches stay in host memory

    def __init__(
        self,
        num_seeds: int,
        *,
        labels: type[SeedLabels],
        transform: Callable[[Any], Any] | None,
        transform_sampler_output: Callable[[Any], Any] | None,
        device: torch.device | None,
        reorder: int,
        options: dict[str, Any],
        **of_order: Any,
    ) -> None:
        # Frameworks that build a loader anew pass these two, which the loader sets itself.
        options = {k: v for k, v in options.items() if k not in {"dataset", "collate_fn"}}
        options["collate_fn"] = self.collate_fn
        super().__init__(num_seeds, options=options, **of_order)
        self._placer = None if device is None else BatchPlacer(device, matches=reorder > 0)
        self.transform = transform
        self.transform_sampler_output = transform_sampler_output
        self._labels = labels
        self._num_calls = 0
        self._loader_cores: set[int] | None = None

    def __copy__(self) -> Self:
        """Return a loader at the same position, which advances on its own, on the same data."""
        copied = object.__new__(type(self))
        shared = {id(self._order): self._order}  # with the user's sampler, as torch's loaders do
        own = {
            name: copy.deepcopy(vars(self)[name], shared)
            for name in ("_cursor", "_recorder", "_totals")
        }
        vars(copied).update(vars(self) | own)
        copied._recorder.progress = self._recorder.progress.another()
        return copied

    def __call__(self, index: Any) -> Any:
        """Return the batch of some positions among the seeds, prepared in this thread."""
        output = self.collate_fn(index)
        return output if self.filter_per_worker else self.filter_fn(output)

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """The function that prepares a batch on demand, from positions in the input nodes."""
        return self._collate

    @collate_fn.setter
    def collate_fn(self, value: Any) -> None:
        if getattr(value, "__func__", value) is not type(self)._collate:
            raise _no_step_of("collate_fn")
        # Torch sets it, and frameworks look for it among a loader's attributes. Bound to the loader
        # it would keep the loader and its files alive.
        self.__dict__["collate_fn"] = type(self)._collate

    def _refuse_steps_of_others(self) -> None:
        """Refuse to iterate if a user has replaced a step that only PyG's iterations call."""
        if getattr(self.filter_fn, "__func__", None) is not TorchLoader.filter_fn:
            raise _no_step_of("filter_fn")
        if type(self).collate_fn is not TorchLoader.collate_fn:
            raise _no_step_of("collate_fn")

    @property
    def _outputs(self) -> OutputAssembler:
        """The round trip through PyG's `SamplerOutput`."""
        return OutputAssembler(self._assembler, self._source.refusal)

    def _collate(self, index: Any) -> Any:
        """Sample a batch; join it with its attributes too if `filter_per_worker` is set."""
        seed = self._draw_seed()
        worker = get_worker_info()
        epoch = ON_DEMAND_EPOCH if worker is None else worker.seed
        call, self._num_calls = self._num_calls, self._num_calls + 1
        batch = Batch(BatchKey(seed, epoch, call), index)
        self._source.prepare(batch)
        output = self._outputs.output(batch)
        return self.filter_fn(output) if self.filter_per_worker else output

    def filter_fn(self, out: SamplerOutput) -> Any:
        """Join sampler output with its attributes, and apply the transforms."""
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        labels = self._labels.from_metadata(out.metadata)
        data = self._outputs.join(out, labels)
        if self._placer is not None:
            data = self._placer.moved(data)
        return data if self.transform is None else self.transform(data)

    @contextmanager
    def enable_cpu_affinity(self, loader_cores: list[Any] | None = None) -> Iterator[None]:
        """Bind preparing threads that start within the context to cores, or lists of cores."""
        cores = os.sched_getaffinity(0) if loader_cores is None else loader_cores
        self._loader_cores = {
            core for each in cores for core in ([each] if isinstance(each, int) else each)
        }
        try:
            yield
        finally:
            self._loader_cores = None

    @contextmanager
    def enable_multithreading(self, worker_threads: int | None = None) -> Iterator[None]:  # noqa: ARG002
        """Do nothing: threads prepare batches anyway, as many as `num_threads` says."""
        yield

    def check_worker_number_rationality(self) -> None:
        """Do nothing: torch's check counts processes, but none are started."""


def _no_step_of(name: str) -> UsageError:
    return UsageError(
        f"{name} was replaced, but iterations prepare batches ahead without it; change batches "
        "with transform=, and samples with transform_sampler_output="
    )
