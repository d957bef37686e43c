"""Packs epochs for `gnnstore pack`: estimates, checks the room, packs, and prints a summary."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.disk.profile import load_profile
from gnnstore.errors import UsageError
from gnnstore.formats.container.files import require_space
from gnnstore.formats.container.workdir import check_final
from gnnstore.formats.packed import PACKED as KIND
from gnnstore.formats.packed import PackedReader
from gnnstore.formats.store.units import unit_path, units_directory
from gnnstore.graph.store import open as open_store
from gnnstore.packing.estimate import estimate_packing
from gnnstore.packing.job import EpochPacker
from gnnstore.packing.sampling import PackSettings
from gnnstore.tools.batches import choose_seeds, config_of
from gnnstore.tools.describe import PACKED_TEXT, describe_packed
from gnnstore.tools.programs import program_of_packed
from gnnstore.tools.session import Session

if TYPE_CHECKING:
    from gnnstore.tools.options import BatchOptions


def pack_epochs(
    session: Session,
    path: str,
    *,
    name: str | None,
    output: str | None,
    batches: BatchOptions,
    seed: int,
    replace: bool,
    subgraph_type: Any,
    disjoint: bool,
    of_seeds: Mapping[str, Any],
    threads: int | None,
    spill_dir: str | None,
    estimate: bool,
    overwrite: bool,
    resume: bool,
    **settings: Any,
) -> None:
    """Estimate, check, pack, and print a summary."""
    if (name is None) == (output is None):
        raise UsageError("give the packed epochs a --name in the store, or an --output elsewhere")
    store = open_store(path)
    final = Path(output) if output is not None else unit_path(KIND, store.path, name or "")
    if not (overwrite or estimate):
        check_final(final, KIND.manifest, overwrite=False)
    config = config_of(
        store,
        batches,
        replace=replace,
        subgraph_type=subgraph_type,
        disjoint=disjoint,
        seed=seed,
    )
    _, seeds = choose_seeds(store, config, batches, **of_seeds)
    packer = EpochPacker(
        store,
        PackSettings(
            config=config,
            input_nodes=None,
            seeds=seeds,
            batch_size=batches.batch_size,
            spill_dir=None if spill_dir is None else Path(spill_dir),
            num_threads=threads or len(os.sched_getaffinity(0)),
            **settings,
        ),
    )
    with closing(packer), session.progress() as progress:
        with progress.phase("estimate"):
            profile = load_profile(store.path)
            expected = estimate_packing(packer, profile)
        disk_bytes = packer.settings.disk_bytes
        if disk_bytes is not None and not resume:
            expected.check_disk(disk_bytes)
        facts = asdict(expected)
        progress.note(f"packing takes {expected.describe()}", facts)
        if not resume:
            require_space(
                final,
                expected.total_bytes,
                "pack the epochs",
                "choose an --output on another file system",
                "pack fewer epochs",
                "have batches share rows with --disk; nothing has been written",
            )
        began = time.perf_counter()
        if not estimate:
            in_store = final.parent.parent == store.path
            with units_directory(KIND, store.path, is_needed=in_store):
                packer.pack(
                    final,
                    overwrite=overwrite,
                    resume=resume,
                    progress=progress,
                    on_event=session.say,
                )
    document: dict[str, Any] = {"store": str(store.path), "estimate": facts}
    if estimate:
        facts["text"] = expected.describe()
        session.emit(document, ["Packing would take {estimate.text}."])
        return
    document |= {
        "seconds": time.perf_counter() - began,
        **describe_packed(PackedReader.open(final)),
    }
    path = document["path"]
    session.emit(
        document,
        [*PACKED_TEXT, "Packed in {seconds}."],
        [("gnnstore", "inspect", path), ("gnnstore", "verify", path, "--level", "full")],
        program_of_packed(path),
    )
