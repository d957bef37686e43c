"""Rows that are loaded into memory, or mapped: nothing is planned."""

from __future__ import annotations

from gnnstore.strategies.base import OpenStore, Strategy
from gnnstore.strategies.loader_spec import LoaderSpec
from gnnstore.strategies.placement import Placement, check_two_batches
from gnnstore.strategies.prediction import EpochCosts, HardwareRates, Prediction, Resources
from gnnstore.strategies.sampled_epoch import SampledEpoch
from gnnstore.strategies.workload import PAGE_BYTES, ReadTotals, Workload


class InMemoryStrategy(Strategy):
    """All rows are loaded into memory, or mapped."""

    def reserve(self, loader: LoaderSpec, placement: Placement) -> Placement:
        """Check that two batches fit, before everything else is loaded."""
        loader.check_two_batches(placement)
        return placement

    def predict(self, epoch: SampledEpoch, loader: LoaderSpec, placement: Placement) -> Prediction:
        """Predict an epoch; a mapping has the memory left by batches for its pages."""
        if placement.budget_is_promise:
            check_two_batches(placement.ledger, epoch.seen.expected_bytes)
        pages_bytes = 0
        if self.mode == "mmap":  # although pages are not counted
            left_bytes = placement.left_bytes - 2 * epoch.seen.largest_bytes
            if placement.topology == "mmap":
                left_bytes -= loader.sizes.topology_bytes
            pages_bytes = max(0, left_bytes)
        resources = Resources(placement.resident_bytes, cached_bytes=pages_bytes)
        return self.predict_with(epoch.workload, epoch.machine, resources)

    def predict_with(
        self, workload: Workload, machine: HardwareRates, resources: Resources
    ) -> Prediction:
        """Predict an epoch with some resources."""
        reads, reading = ReadTotals(), 0.0
        if self.mode == "mmap":
            num_pages, num_batches = resources.cached_bytes // PAGE_BYTES, workload.epoch_batches
            faults = round(workload.pages.lru_misses(num_pages, num_batches) * num_batches)
            reads = ReadTotals(faults, faults * PAGE_BYTES)
            reading = faults / machine.faults_per_second()
            first = workload.pages.lru_first_misses(num_pages, num_batches)
            once = first / machine.faults_per_second()
        else:
            once = machine.disk.sequential_seconds(workload.table_bytes)
        costs = EpochCosts(workload, machine)
        return costs.one_by_one(self, resources, reads, reading, once=once)

    def open(self, loader: LoaderSpec, placement: Placement) -> OpenStore:
        """Load or map the graph's topology and the rows."""
        return OpenStore(loader, placement)
