"""Predicts the epoch of each strategy within budgets, for `gnnstore predict`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gnnstore.errors import BudgetError
from gnnstore.graph.store import GraphStore
from gnnstore.pipeline.lookahead.presample import Presampler
from gnnstore.pipeline.order.epoch import order_bytes
from gnnstore.progress import Progress
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.seeds.base import SeedSource
from gnnstore.strategies.auto import StrategyOptimizer
from gnnstore.strategies.base import Strategy
from gnnstore.strategies.builtin import STATIC, auto
from gnnstore.strategies.loader_spec import LoaderSpec, ReadOptions
from gnnstore.strategies.predict.cost import Prediction
from gnnstore.strategies.sizes.placing import place_for
from gnnstore.strategies.sizes.settings import PlannedSettings

# Where curves are drawn: from a hundredth of the store's bytes in memory to all of them.
_CURVE_POINTS = 13
_LEAST_SHARE = 0.01
_MOST_SHARE = 1.1


@dataclass(frozen=True, eq=False)
class PredictionRequest:
    """Options of a prediction."""

    store: GraphStore
    config: SamplingConfig
    seeds: SeedSource
    batch_size: int
    num_threads: int  # threads that would prepare batches
    memory_bytes: int | None  # memory budget; None: a loader's default
    disk_bytes: int | None  # disk budget; None: a loader's default
    candidates: tuple[Strategy, ...]  # strategies to predict
    draws_curve: bool  # whether to predict for other budgets too

    def spec(self, memory_bytes: int | None) -> LoaderSpec:
        """Return the specification of a loader with `strategy="auto"`."""
        planned = PlannedSettings(disk_bytes=self.disk_bytes)
        return LoaderSpec(
            self.store,
            ReadOptions(auto(), memory=memory_bytes, planned=planned),
            Presampler.of(self.store, self.config, self.seeds, self.batch_size, False),
            seeds_bytes=self.seeds.num_bytes + order_bytes(len(self.seeds), shuffles=True),
            num_threads=self.num_threads,
            may_use_fewer=True,
            knows_epochs=True,
        )


def predict_strategies(asked: PredictionRequest, progress: Progress) -> dict[str, Any]:
    """Measure the disk if it has not been, sample, and predict."""
    spec, memory_bytes = asked.spec(asked.memory_bytes), asked.memory_bytes
    memory = {"memory_bytes": memory_bytes, "is_memory_asked": memory_bytes is not None}
    try:
        placement = place_for(spec, STATIC)
    except BudgetError:
        # An epoch may be sampled with more memory than its prediction has.
        placement = place_for(asked.spec(None), STATIC)
    optimizer = StrategyOptimizer.of(spec, placement, progress)
    if optimizer is None:
        return {**memory, "disk_bytes": 0, "strategies": [], "curve": []}
    if any(candidate.score == "degree" for candidate in asked.candidates):
        with progress.phase("count degrees"):
            optimizer = optimizer.with_degrees()
    predictions = optimizer.predictions(asked.candidates)
    chosen = optimizer.choice(auto(), predictions)
    return {
        **memory,
        "memory_bytes": memory_bytes or placement.budget_bytes,
        "disk_bytes": spec.disk_bytes(),
        "sampled_batches": optimizer.epoch.workload.sampled_batches,
        "disk_is_assumed": optimizer.epoch.machine.disk.engine == "assumed",
        "strategies": [_describe(p, is_chosen=p.strategy == chosen) for p in predictions],
        "curve": _curve(asked, optimizer, progress) if asked.draws_curve else [],
    }


def _describe(prediction: Prediction, *, is_chosen: bool) -> dict[str, Any]:
    resources = prediction.resources
    return {
        "strategy": prediction.choice,
        "is_chosen": is_chosen,
        "problem": prediction.problem or None,
        "edge_ids": prediction.ids_note or None,
        "seconds_per_epoch": _number(prediction.seconds),
        "seconds_once": _number(prediction.seconds_once),
        "stages": dict(prediction.stages),
        "bottleneck": prediction.bottleneck or None,
        "random_reads": prediction.reads.reads,
        "random_bytes": prediction.reads.num_bytes,
        "sequential_bytes": prediction.sequential_bytes,
        "written_bytes": prediction.written_bytes,
        "memory_bytes": resources.memory_bytes,
        "disk_bytes": resources.disk_bytes,
        "cached_bytes": resources.cached_bytes,
        "superbatch": resources.superbatch,
    }


def _number(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds


def _curve(
    asked: PredictionRequest, optimizer: StrategyOptimizer, progress: Progress
) -> list[dict[str, Any]]:
    """Return the seconds of an epoch with several budgets of memory."""
    total = optimizer.total_bytes
    points = []
    with progress.phase("predict", _CURVE_POINTS, "budgets") as phase:
        for i in range(_CURVE_POINTS):
            step = i / (_CURVE_POINTS - 1)
            memory = round(total * _LEAST_SHARE * (_MOST_SHARE / _LEAST_SHARE) ** step)
            predictions = optimizer.predictions(asked.candidates, memory=memory)
            seconds = {p.choice: _number(p.seconds) for p in predictions}
            points.append({"memory_bytes": memory, "seconds_per_epoch": seconds})
            phase.advance()
    return points
