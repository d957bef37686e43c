"""Predicts the epoch of each strategy within budgets, for `gnnstore predict`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from gnnstore.errors import BudgetError
from gnnstore.graph.store import GraphStore
from gnnstore.pipeline.lookahead.presample import Presampler
from gnnstore.pipeline.order.epoch import order_bytes
from gnnstore.progress import Progress
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


def predict_strategies(
    store: GraphStore,
    presampler: Presampler,
    seeds: SeedSource,
    *,
    num_threads: int,
    memory_bytes: int | None,
    disk_bytes: int | None,
    candidates: tuple[Strategy, ...],
    draws_curve: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Measure the disk if it has not been, sample, and predict."""
    spec = LoaderSpec(
        store,
        ReadOptions(auto(), memory=memory_bytes, planned=PlannedSettings(disk_bytes=disk_bytes)),
        presampler,
        seeds_bytes=seeds.num_bytes + order_bytes(len(seeds), shuffles=True),
        num_threads=num_threads,
        may_use_fewer=True,
        knows_epochs=True,
    )
    memory = {"memory_bytes": memory_bytes, "is_memory_asked": memory_bytes is not None}
    try:
        placement = place_for(spec, STATIC)
    except BudgetError:
        # An epoch may be sampled with more memory than its prediction has.
        options = replace(spec.options, memory=None)
        placement = place_for(replace(spec, options=options), STATIC)
    optimizer = StrategyOptimizer.of(spec, placement, progress)
    if optimizer is None:
        return {**memory, "disk_bytes": 0, "strategies": [], "curve": []}
    if any(candidate.score == "degree" for candidate in candidates):
        with progress.phase("count degrees"):
            optimizer = optimizer.with_degrees()
    predictions = optimizer.predictions(candidates)
    chosen = optimizer.choice(auto(), predictions)
    return {
        **memory,
        "memory_bytes": memory_bytes or placement.budget_bytes,
        "disk_bytes": spec.disk_bytes(),
        "sampled_batches": optimizer.epoch.workload.sampled_batches,
        "disk_is_assumed": optimizer.epoch.machine.disk.engine == "assumed",
        "strategies": [_describe(p, is_chosen=p.strategy == chosen) for p in predictions],
        "curve": _curve(candidates, optimizer, progress) if draws_curve else [],
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
    candidates: tuple[Strategy, ...], optimizer: StrategyOptimizer, progress: Progress
) -> list[dict[str, Any]]:
    """Return the seconds of an epoch with several budgets of memory."""
    total = optimizer.total_bytes
    points = []
    with progress.phase("predict", _CURVE_POINTS, "budgets") as phase:
        for i in range(_CURVE_POINTS):
            step = i / (_CURVE_POINTS - 1)
            memory = round(total * _LEAST_SHARE * (_MOST_SHARE / _LEAST_SHARE) ** step)
            predictions = optimizer.predictions(candidates, memory=memory)
            seconds = {p.choice: _number(p.seconds) for p in predictions}
            points.append({"memory_bytes": memory, "seconds_per_epoch": seconds})
            phase.advance()
    return points
