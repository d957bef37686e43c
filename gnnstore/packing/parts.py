"""Packs a part of the batches of some epochs: a task that may run twice, and anywhere.

A part is a separate sealed directory, `part-00003-of-00064`. Its bytes follow from the store, the
settings and its number alone, so that all attempts make the same part; a part that exists is not
packed again.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnstore import _core
from gnnstore.errors import (
    CorruptStoreError,
    NotFoundError,
    StoreExistsError,
    UsageError,
    storage_errors,
)
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE
from gnnstore.formats.container.manifest import MAX_MANIFEST_BYTES
from gnnstore.formats.container.workdir import PUT_PREFIX
from gnnstore.formats.packed import (
    DeviceLevel,
    PackedManifest,
    PackedPart,
    PackedReader,
    other_run,
    part_name,
    parts_in,
)
from gnnstore.packing.job import EpochPacker
from gnnstore.progress import NullProgress, Progress
from gnnstore.remote.copying import copy
from gnnstore.remote.objects import Files, FilesBelow, ObjectFiles, files_at
from gnnstore.remote.staging import alone

if TYPE_CHECKING:
    from gnnstore.graph.store import GraphStore
    from gnnstore.packing.sampling import PackSettings


@dataclass(frozen=True, eq=False)
class PartPacker:
    """Packs a part, unless it exists."""

    store: GraphStore
    settings: PackSettings  # with a part

    @property
    def name(self) -> str:
        """The name of the part's directory."""
        assert self.settings.part is not None  # noqa: S101 - its maker checks
        return part_name(*self.settings.part)

    def pack(
        self,
        directory: Path,
        *,
        overwrite: bool = False,
        resume: bool = False,
        progress: Progress | None = None,
        on_event: Callable[[str], None] = lambda _: None,
        before: Callable[[], None] = lambda: None,
    ) -> Path:
        """Return the part in a directory, which is made if there is none.

        `before` is called before anything is sampled, if anything is.
        """
        progress, final = progress or NullProgress(), directory / self.name
        self.settings.order_of(self.store, self.settings.seeds_in(self.store))  # has the part
        is_made = not directory.exists()
        with storage_errors("make the directory of parts", directory):
            directory.mkdir(parents=True, exist_ok=True)
        lock = directory / f".{self.name}.lock"
        with (
            alone(lock, final, progress, f"pack {self.name}") as is_alone,
            _removing(lock, is_made=is_made),
        ):
            self._check_others(
                str(directory),
                os.listdir(directory),  # noqa: PTH208
                lambda name: PackedReader.open(directory / name).manifest,
            )
            if not overwrite and self._is_done(final):
                on_event(f"{final} is there already")
                return final
            if resume and not is_alone:
                on_event(
                    f"--resume: {directory} may be shared with machines whose locks are not seen "
                    "here, and what was begun there may be in use; starting from the beginning"
                )
            before()
            with closing(EpochPacker(self.store, self.settings)) as packer:
                try:
                    # Where other machines' locks are not seen, leftovers may be in use.
                    return packer.pack(
                        final,
                        overwrite=overwrite,
                        resume=resume and is_alone,
                        sweeps=is_alone,
                        progress=progress,
                        on_event=on_event,
                    )
                except StoreExistsError:  # another machine was faster
                    if not self._is_done(final):
                        raise
                    return final

    def pack_elsewhere(
        self,
        place: str,
        spill: Path,
        *,
        overwrite: bool = False,
        progress: Progress | None = None,
        on_event: Callable[[str], None] = lambda _: None,
        **options: Any,
    ) -> PackedManifest:
        """Pack the part on this machine, below `spill`, and copy it to a bucket unless it exists.

        Returns its manifest.
        """
        directory = files_at(place)
        names = directory.names_below("") if isinstance(directory, ObjectFiles) else []
        self._check_others(
            directory.label, names, lambda name: manifest_at(FilesBelow(directory, name))
        )
        target = f"{place.rstrip('/')}/{self.name}"

        def existing_part() -> PackedManifest | None:
            part = None if overwrite else manifest_at(FilesBelow(directory, self.name))
            if part is not None:
                self.check(part, target)
                on_event(f"{target} is there already")
            return part

        if (part := existing_part()) is not None:
            return part
        with waiting_for(target, spill, progress or NullProgress()) as local:
            if (part := existing_part()) is not None:  # made by the task that was waited for
                return part
            made = self.pack(
                local, overwrite=overwrite, progress=progress, on_event=on_event, **options
            )
            copy(made, target, overwrite=overwrite, progress=progress)
            return PackedReader.open(made).manifest

    def _check_others(
        self, label: str, names: Sequence[str], manifest: Callable[[str], PackedManifest | None]
    ) -> None:
        """Refuse to add a part to another run's."""
        assert self.settings.part is not None  # noqa: S101 - its maker checks
        for number, of, name in parts_in(names):
            if of != self.settings.part[1]:
                raise UsageError(
                    f"{label}: has part {number} of {of}, and this is one of "
                    f"{self.settings.part[1]}; give another output, or remove the others",
                    path=label,
                )
            if name == self.name:
                continue
            with suppress(NotFoundError, CorruptStoreError):  # a damaged part is passed over
                if (other := manifest(name)) is not None:
                    self.check(other, f"{label}/{name}")
                    return

    def _is_done(self, final: Path) -> bool:
        """Whether the part exists; refuse another run's part of this name."""
        if not os.path.lexists(final):
            return False
        self.check(PackedReader.open(final).manifest, final)
        return True

    def check(self, found: PackedManifest, path: Path | str) -> None:
        """Refuse a part of another run."""
        store, settings = self.store, self.settings
        cached, seeds = settings.cached_in(store), settings.seeds_in(store)
        assert cached is not None  # noqa: S101 - settings have a part
        order, part = settings.order_of(store, seeds), found.part
        total = settings.epochs * order.num_batches
        number, of = (0, 1) if part is None else (part.number, part.of)
        # The choice of cached rows follows from the rest.
        wanted = {
            "fingerprint": json.loads(json.dumps(settings.fingerprint(store, seeds))),
            "seed": settings.config.seed,
            "epochs": settings.epochs,
            "batches_per_epoch": order.num_batches,
            "cached_by": settings.cached_by,
            "num_slots": settings.slots_of(cached),
            "cached": tuple(spec.path for spec in cached.specs),
            "device": _device_of(found, settings),
            "part": PackedPart.divided(number, of, total, part.cached_crc32c if part else 0),
        }
        if different := other_run(replace(found, **wanted), found):
            raise UsageError(
                f"{path}: is there, and was packed otherwise: {'; '.join(different)}; give another "
                "output, or remove it",
                path=path,
            )


def _device_of(found: PackedManifest, settings: PackSettings) -> DeviceLevel | None:
    """Return what a part of this run would state of the rows for a device."""
    asked = settings.device_cache or 0
    if found.device is None:
        return DeviceLevel(asked, 0, 0) if asked else None
    return replace(found.device, asked_bytes=asked) if asked else None


def manifest_at(files: Files) -> PackedManifest | None:
    """Return the manifest of packed epochs in a bucket; None if there are none."""
    try:
        root = files.read_small(METADATA_FILE, MAX_MANIFEST_BYTES)
    except NotFoundError:
        return None
    return PackedManifest.decode(root, files.name(METADATA_FILE))


@contextmanager
def waiting_for(target: str, spill: Path, progress: Progress) -> Iterator[Path]:
    """Yield a directory for what will be put to a place: the same one until it is there.

    Its lock is held, so that one process of this machine makes it, and the others wait.
    """
    # Other machines, whose locks may not be seen, have directories of their own.
    key = f"{socket.gethostname()} {target}".encode()
    local = spill / f"{PUT_PREFIX}{_core.crc32c(np.frombuffer(key, np.uint8)):08x}"
    with storage_errors("make a directory for what is put elsewhere", spill):
        spill.mkdir(parents=True, exist_ok=True)
    lock = spill / f"{local.name}.lock"
    with alone(lock, local, progress, f"pack {target}"), _removing(lock):
        with storage_errors("make a directory for what is put elsewhere", local):
            local.mkdir(exist_ok=True)
        try:
            yield local
            _core.remove_tree(local)
        finally:
            with suppress(OSError):  # what an error has left there is gone on with
                local.rmdir()


@contextmanager
def _removing(lock: Path, *, is_made: bool = False) -> Iterator[None]:
    """Remove a lock's file at the end, and its directory if it was made and has nothing else."""
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
            if is_made:
                lock.parent.rmdir()
