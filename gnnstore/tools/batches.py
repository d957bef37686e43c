"""Batches that the command line names: their seeds, samples of them, and packed epochs."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from gnnstore.budget.limits import MemoryBudget, memory_of, parse_memory
from gnnstore.caching.plan import Trace, TraceBuilder
from gnnstore.caching.scores import Score
from gnnstore.converters.inputs.files import open_npy
from gnnstore.converters.stores.graph import StoreInput
from gnnstore.converters.stores.reorder import out_degrees
from gnnstore.disk.profile import load_profile, tune_reads
from gnnstore.disk.spool import default_parent
from gnnstore.errors import NotFoundError, StoreExistsError, UsageError
from gnnstore.features.held import HeldRows
from gnnstore.formats.base.files import require_space
from gnnstore.formats.container.workdir import check_final
from gnnstore.formats.packed import PACKED as KIND
from gnnstore.formats.packed import PackedManifest, PackedReader, part_name
from gnnstore.formats.store.store import StoreReader
from gnnstore.formats.store.units import unit_path, units_directory
from gnnstore.graph.sizes import StoreSizes
from gnnstore.graph.store import open as open_store
from gnnstore.graph.topology import Topology
from gnnstore.loaders.link import resolve_links
from gnnstore.loaders.options import fanouts_of
from gnnstore.packing.estimate import estimate_packing
from gnnstore.packing.job import EpochPacker
from gnnstore.packing.parts import PartPacker, manifest_at, waiting_for
from gnnstore.packing.sampling import PackSettings
from gnnstore.pipeline.batch import Batch
from gnnstore.pipeline.lookahead.presample import Presampler
from gnnstore.pipeline.lookahead.producer import sample_batches
from gnnstore.pipeline.order import Position
from gnnstore.pipeline.ranks import KeyedOrder
from gnnstore.remote.copying import copy
from gnnstore.remote.objects import FilesBelow, files_at, is_elsewhere
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.sampling.row_space import RowSpace
from gnnstore.sampling.sampled_graph import columns_needed
from gnnstore.seeds.base import BatchKey, SeedSource
from gnnstore.seeds.nodes import InputNodes, in_unit_of_store, resolve_input_nodes
from gnnstore.strategies.device_rows import row_degrees
from gnnstore.strategies.placement import place
from gnnstore.strategies.registry import MMAP
from gnnstore.tools.describe import PACKED_TEXT, describe_manifests, describe_packed
from gnnstore.tools.layout import Block, program_of_packed
from gnnstore.tools.session import Session
from gnnstore.units import parse_share, parse_size

if TYPE_CHECKING:
    from gnnstore.graph.store import GraphStore
    from gnnstore.progress import Progress
    from gnnstore.seeds.links import Links
    from gnnstore.tools.options import BatchOptions


_ALL = "all"


def config_of(store: GraphStore, asked: BatchOptions, **more: Any) -> SamplingConfig:
    """Return the configuration of sampling, checked against a store."""
    schema = store.schema
    known = ["__".join(edge.type) for edge in schema.edge_types]
    for name in asked.fanouts if isinstance(asked.fanouts, Mapping) else ():
        if name not in known:
            raise UsageError(
                f"--num-neighbors {name}: there is no such edge type; there are {', '.join(known)}"
            )
    config = SamplingConfig(fanouts_of(asked.fanouts, schema), **more, **asked.of_sampling)
    columns_needed(schema, store.path, config.time_attr, config.weight_attr)
    return config


def choose_seeds(
    store: GraphStore, config: SamplingConfig, asked: BatchOptions, **more: Any
) -> tuple[dict[str, str | None], InputNodes | Links]:
    """Return the seeds of batches: by name, as "input_nodes" or "links", and as a source."""
    named_times = more.pop("input_time", None)
    more = {option: _read_if_file(value) for option, value in more.items() if value}
    if asked.links is not None:
        edges = _edges_of(store, asked.links)
        weights = {side: more.pop(side) for side in ("src_weight", "dst_weight") if side in more}
        given = {**asked.of_links, **more}
        if weights and "neg_sampling" not in given:
            raise UsageError("weights are for --negatives, which are not given")
        if weights:
            tensors = {side: torch.from_numpy(values) for side, values in weights.items()}
            given["neg_sampling"] = {**given["neg_sampling"], **tensors}
        names = {"input_nodes": None, "links": asked.links}
        return names, resolve_links(store, config, edges, **given)
    if more:
        raise UsageError(
            f"{' and '.join(more)}: only of use with links; give these with --links, or leave the "
            "option out"
        )
    name, given = named_nodes(store, asked.input_nodes)
    input_time = _times_of(named_times, given) if named_times else None
    input_time = in_unit_of_store(store.schema, config.time_attr, input_time, "--input-time")
    nodes = resolve_input_nodes(store, given, input_time=input_time)
    if config.time_attr is not None and input_time is None:
        timed, _ = columns_needed(store.schema, store.path, config.time_attr, None)
        if missing := [node_type for node_type in nodes.parts if node_type not in timed]:
            raise UsageError(
                f"--time-attr {config.time_attr}: seeds of {', '.join(missing)} have no times of "
                "their own; only 'gnnstore pack' takes the times of --input-time"
            )
    if len(nodes) == 0:
        raise UsageError(
            f"{store.path}: the input nodes {name!r} are empty, so there are no batches; choose "
            "others with --input-nodes"
        )
    return {"input_nodes": name, "links": None}, nodes


def named_nodes(
    store: GraphStore, named: str | None, option: str = "--input-nodes"
) -> tuple[str, Any]:
    """Return the name of the seed nodes, and what a loader would be given."""
    if store.schema.is_homogeneous:
        name = named or ("train" if "train" in store.splits else _ALL)
        return name, None if name == _ALL else name
    if named is None:
        trained = [node.name for node in store.schema.node_types if "train" in node.splits]
        if len(trained) != 1:
            types = ", ".join(node.name for node in store.schema.node_types)
            raise UsageError(
                f"{store.path}: {len(trained)} node types have a split 'train'; name the seeds: "
                f"{option} TYPE:SPLIT, of the types {types}"
            )
        named = f"{trained[0]}:train"
    given = {}
    known = [node.name for node in store.schema.node_types]
    for part in named.split(","):
        node_type, _, split = part.partition(":")
        if node_type not in known:
            raise UsageError(
                f"{option} {part}: there is no node type {node_type!r}; write TYPE:SPLIT, of the "
                f"types {', '.join(known)}"
            )
        given[node_type] = None if split in ("", _ALL) else split
    return named, given


def _times_of(named: str, given: Any) -> Any:
    """Return the times of seed nodes, by type if these have types: of a file, or TYPE=FILE,..."""
    if not isinstance(given, dict):
        return _array_of(named)
    if named.partition("=")[0] in given:
        pairs = (part.partition("=") for part in named.split(","))
        return {node_type: _array_of(file) for node_type, _, file in pairs}
    if len(given) > 1:
        example = ",".join(f"{node_type}=FILE.npy" for node_type in given)
        raise UsageError(
            f"--input-time {named}: the seeds have the types {', '.join(given)}; name a file for "
            f"each: --input-time {example}"
        )
    return dict.fromkeys(given, _array_of(named))


def _edges_of(store: GraphStore, named: str) -> Any:
    """Return what a link loader would be given as its edges."""
    if store.schema.is_homogeneous:
        return None if named == _ALL else _read_if_file(named)
    edge_type, _, which = named.partition(":")
    types = {"__".join(edge.type): edge.type for edge in store.schema.edge_types}
    if edge_type not in types:
        raise UsageError(
            f"--links {named}: expected SOURCE__RELATION__TARGET, and :all or :FILE.npy after it; "
            f"there are the edge types {', '.join(types)}"
        )
    return types[edge_type], None if which in ("", _ALL) else _read_if_file(which)


def _read_if_file(value: Any) -> Any:
    """Return the array of a `.npy` file, and anything else as it is."""
    return _array_of(value) if str(value).endswith(".npy") else value


def _array_of(path: str) -> npt.NDArray[Any]:
    return open_npy(Path(path)).read()


@dataclass(frozen=True, eq=False)
class TracedEpoch:
    """The first batches of an epoch."""

    epoch_batches: int  # batches of the whole epoch
    trace: Trace  # nodes of the sampled batches
    # By score name, uint8 or uint32 [N]: scores of nodes for static caches; "frequency" comes from
    # other batches than these.
    scores: dict[Score, npt.NDArray[Any]]
    seconds: float  # duration of sampling


def load_topology(
    store: GraphStore, progress: Progress, memory: int | None = None, held_bytes: int = 0
) -> Topology:
    """Read the topology; map it if the budget, without the bytes in use, is too small."""
    sizes, budget = StoreSizes.from_schema(store.schema), MemoryBudget.of(memory)
    with progress.phase("read the topology"):
        placement = place(sizes, budget, strategy=MMAP, seeds_bytes=held_bytes)
        return store.topology(placement.topology)


def sample_epoch(
    store: GraphStore,
    config: SamplingConfig,
    seeds: SeedSource,
    space: RowSpace,
    *,
    batch_size: int,
    num_batches: int,
    num_threads: int,
    progress: Progress,
    held: HeldRows | None = None,
) -> TracedEpoch:
    """Sample the first batches of the first epoch of a loader with `shuffle=True`.

    The trace is without the rows that a device holds.
    """
    order = KeyedOrder(len(seeds), batch_size, shuffles=True, drop_last=False)
    num_batches = min(num_batches, order.num_batches)
    topology = load_topology(store, progress)
    began = time.perf_counter()
    trace = TraceBuilder(num_batches, space.num_rows)

    def keep(place: int, batch: Batch) -> None:
        if batch.sample is not None:
            nodes = batch.sample.nodes
            trace.put(place, space.rows(nodes if held is None else held.missed(nodes)))

    with progress.phase("sample", num_batches, "batches") as phase:
        sampler = topology.sampler(config, store.schema.index_dtype)
        batches = islice(order.batches(Position(0), config.seed), num_batches)
        sampled = sample_batches(
            seeds.over(topology),
            sampler,
            (Batch(BatchKey(config.seed, 0, number), index) for number, index, _ in batches),
            keep,
            num_threads=num_threads,
            lookahead=lambda: 2 * num_threads,
            describe=lambda k: f"while sampling batch {k}",
        )
        with closing(sampled):
            for _ in sampled:
                phase.advance()
    seconds = time.perf_counter() - began

    scores: dict[Score, npt.NDArray[Any]] = {}
    with progress.phase("score nodes"):
        scores["degree"] = row_degrees(topology, space)
        scores["frequency"] = np.zeros(space.num_rows, np.uint8)
        presampler = Presampler.from_store(store, config, seeds, batch_size, False).over(space)
        presampler.run(topology, num_threads, scores["frequency"])
        if held is not None:
            for of_nodes in scores.values():
                of_nodes[held.rows_in(space)] = 0
    return TracedEpoch(order.num_batches, trace.build(), scores, seconds)


def count_batches(
    session: Session,
    path: str,
    batches: BatchOptions,
    *,
    memory_bytes: int | None,
) -> npt.NDArray[np.uint8]:
    """Sample batches and count for each node those that need it: 1 for seeds, 255 at most."""
    store = open_store(path)
    store.schema.refuse_types(store.path, "gnnstore reorder")
    config = config_of(store, batches)
    _, seeds = choose_seeds(store, config, batches)
    counts = np.zeros(store.num_nodes, np.uint8)
    with session.progress() as progress:
        topology = load_topology(store, progress, memory_bytes, counts.nbytes)
        with progress.phase("sample", unit="batches"):
            presampler = Presampler.from_store(store, config, seeds, batches.batch_size, False)
            presampler.run(topology, len(os.sched_getaffinity(0)), counts)
    if isinstance(seeds, InputNodes):  # an epoch has every seed, even if these batches did not
        nodes = slice(None) if seeds.nodes is None else seeds.nodes
        counts[nodes] = np.maximum(counts[nodes], 1)
    return counts


def estimate_order(
    session: Session,
    path: str,
    order: str,
    scores: npt.NDArray[np.uint8] | None,
    edge_ids: bool,
) -> None:
    """Print the savings of an order, and the size of the new store."""
    reader = StoreReader.open(path)
    needed: npt.NDArray[Any] | None = scores
    if needed is None:
        with session.progress() as progress:
            needed = out_degrees(StoreInput(path, "gnnstore reorder"), progress)
    schema = reader.schema
    added = schema.edge.indices.num_bytes if edge_ids and schema.edge.ids_in_input is None else 0
    widest = max((spec.num_bytes for spec in schema.node.attributes.values()), default=0)
    document: dict[str, Any] = {
        "store": str(reader.path),
        "order": order,
        "node_order": _savings(reader, needed > 0),
        "result_bytes": reader.total_bytes + added + 8 * schema.node.num_nodes,
        "spill_bytes": widest + 8 * schema.node.num_nodes,
    }
    saves = "no attribute of nodes lies in pages, so that their order makes no difference"
    if document["node_order"] is not None:
        saves = (
            "{node_order.needed_share} of the rows are needed; a pass over {node_order.table} reads"
            " {node_order.read_bytes}; for the rows that are needed, side by side, it would read "
            "{node_order.ordered_bytes}: {node_order.saved_share:.0%} less"
        )
    facts = {
        "order": "by {order}",
        "saves": saves,
        "takes": "{result_bytes} for the store, and up to {spill_bytes} meanwhile",
    }
    stem = str(reader.path).removesuffix(".gnn")
    command = session.without_estimate(f"{stem}-{order}.gnn")
    session.emit(document, ["{store}", Block("", facts)], [command])


def _savings(reader: StoreReader, needed: npt.NDArray[np.bool_]) -> dict[str, Any] | None:
    """Return what a pass over the widest table reads for the rows that batches need."""
    attributes = reader.schema.node.attributes.values()
    paged = [spec for spec in attributes if spec.layout == "paged"]
    if not paged or not len(needed):
        return None
    spec = max(paged, key=lambda spec: spec.num_bytes)
    geometry = reader.paged(spec).geometry
    stride, per_run = geometry.page_stride_bytes, geometry.rows_per_page
    begins = np.arange(0, len(needed), per_run)
    runs = np.flatnonzero(np.logical_or.reduceat(needed, begins))
    # Gaps that cost less than a read of their own are read, too.
    gaps = np.diff(runs) - 1
    gap_runs = tune_reads(load_profile(reader.path)).gap_bytes // stride
    read_bytes = (len(runs) + int(gaps[gaps <= gap_runs].sum())) * stride
    num_needed = int(np.count_nonzero(needed))
    ordered_bytes = geometry.num_runs(num_needed) * stride
    return {
        "table": spec.path,
        "table_bytes": geometry.num_runs(spec.num_rows) * stride,
        "read_bytes": read_bytes,
        "ordered_bytes": ordered_bytes,
        "saved_share": 1 - ordered_bytes / read_bytes if read_bytes else 0.0,
        "needed_share": num_needed / len(needed),
    }


@dataclass(frozen=True)
class PackRequest:
    """What the command line asks to be packed, and where to."""

    output: str  # a directory or a URL; empty: a name in the store
    options: dict[str, Any]
    overwrite: bool
    resume: bool

    @property
    def again(self) -> dict[str, bool]:
        """The options for what is there."""
        return {"overwrite": self.overwrite, "resume": self.resume}


def pack_epochs(
    session: Session,
    path: str,
    *,
    name: str | None,
    output: str | None,
    part: tuple[int, int] | None,
    ray: int | None,
    estimate: bool,
    overwrite: bool,
    resume: bool,
    **options: Any,
) -> None:
    """Estimate, check, pack, and print a summary."""
    if (memory := options["memory"]) is not None:
        if parse_share(memory, name="--memory") is not None:
            memory = memory_of(memory, open_store(path).schema.bytes_in_memory)
        parse = parse_memory if ray is None else parse_size  # of nodes, which may allow more
        options["memory"] = parse(memory, name="--memory")
    if (name is None) == (output is None):
        raise UsageError("give the packed epochs a --name in the store, or an --output elsewhere")
    for option, value in (("--part", part), ("--ray", ray)):
        if value is not None and (output is None or estimate):
            raise UsageError(
                f"{option} packs into the directory of all parts: give --output DIR or URL, and "
                f"estimate the whole without {option}"
            )
    began = time.perf_counter()
    document: dict[str, Any]
    request = PackRequest(output or "", options, overwrite, resume)
    if ray is not None:
        if part is not None:
            raise UsageError("--ray packs all parts, and --part one of them; leave out one")
        document = _pack_on_ray(session, path, ray, request)
    elif part is not None:
        document = _pack_part(session, open_store(path), part, request)
    else:
        store = open_store(path)
        final = output or unit_path(KIND, store.path, name or "")
        facts, text, document = _pack_all(session, store, final, request, estimate=estimate)
        if estimate:
            document = {"store": str(store.path), "estimate": facts | {"text": text}}
            session.emit(
                document, ["Packing would take {estimate.text}."], [session.without_estimate()]
            )
            return
        document = {"store": str(store.path), "estimate": facts} | document
    document["seconds"] = time.perf_counter() - began
    found, commands = document["path"], []
    if not is_elsewhere(found):
        commands = [
            ("gnnstore", "inspect", found),
            ("gnnstore", "verify", found, "--level", "full"),
        ]
    whole = found if part is None else found.rpartition("/")[0]
    session.emit(
        document, [*PACKED_TEXT, "Packed in {seconds}."], commands, program_of_packed(whole)
    )


def _pack_part(
    session: Session, store: GraphStore, part: tuple[int, int], request: PackRequest
) -> dict[str, Any]:
    """Pack a part, unless it is there, and describe it."""
    settings, output = _settings(store, request.options, part), request.output
    packer = PartPacker(store, settings)
    document = {"store": str(store.path), "estimate": None}
    with session.progress() as progress:
        more: dict[str, Any] = {
            **request.again,
            "progress": progress,
            "on_event": session.say,
            "before": partial(_compare_checksums, store, progress),
        }
        if not is_elsewhere(output):
            reader = PackedReader.open(packer.pack(Path(output), **more))
            return document | describe_packed([reader])
        spill = settings.spill_dir or default_parent(store.path)
        manifest = packer.pack_elsewhere(output, spill, **more)
    return document | describe_manifests([manifest], f"{output.rstrip('/')}/{packer.name}")


@dataclass(frozen=True)
class _PartTask:
    """Packs a part wherever it is called, by a number."""

    place: str  # of the store
    cache_dir: str | None
    num_parts: int
    request: PackRequest
    directory: str  # relative paths of options lead from here

    def __call__(self, number: int) -> str:
        """Pack a part, and return the name of the machine."""
        host = socket.gethostname()
        if Path(self.directory).is_dir():
            os.chdir(self.directory)
        if not is_elsewhere(self.place) and not Path(self.place).is_dir():
            raise NotFoundError(
                f"{self.place}: the store is not visible on {host}; use a directory that all "
                "nodes share, or a URL",
                path=self.place,
            )
        store = open_store(self.place, cache_dir=self.cache_dir)
        _pack_part(Session(quiet=True), store, (number, self.num_parts), self.request)
        return host


def _pack_on_ray(
    session: Session, path: str, num_parts: int, request: PackRequest
) -> dict[str, Any]:
    """Pack all parts as tasks on a Ray cluster, and describe them together."""
    from gnnstore.packing.on_ray import run_on_ray  # noqa: PLC0415 - an extra

    options, output = dict(request.options), _absolute(request.output)
    if options["memory"] is None:
        raise UsageError("--ray needs --memory SIZE, which is a task's, for Ray to place it by")
    place, cache_dir = session.place or (path, None)
    options["threads"] = options["threads"] or len(os.sched_getaffinity(0))
    options["spill_dir"] = options["spill_dir"] and _absolute(options["spill_dir"])
    request = replace(request, output=output, options=options)
    store = open_store(path)
    # Now, and not by every task.
    settings = _settings(store, options, (0, num_parts))
    settings.order_of(store, settings.seeds_in(store))
    manifests: dict[int, PackedManifest] = {}
    with session.progress() as progress, progress.phase("pack", num_parts, "parts") as phase:

        def done(number: int, host: str) -> None:
            name = part_name(number, num_parts)
            found = manifest_at(FilesBelow(files_at(output), name))
            if found is None:
                raise NotFoundError(
                    f"{output}/{name}: part {number} was written on {host}, and is not visible "
                    "here; use a directory that all nodes share, or a URL",
                    path=f"{output}/{name}",
                )
            manifests[number] = found
            phase.advance(1)

        run_on_ray(
            _PartTask(_absolute(place), cache_dir, num_parts, request, str(Path.cwd())),
            num_parts,
            num_cpus=options["threads"],
            memory_bytes=options["memory"],
            on_done=done,
        )
    document = {"store": str(store.path), "estimate": None}
    return document | describe_manifests([manifests[k] for k in range(num_parts)], output)


def _absolute(place: str) -> str:
    """Return a path that leads to the same place from anywhere; a URL as it is."""
    # resolve() would hide links
    return place if is_elsewhere(place) else os.path.abspath(place)  # noqa: PTH100


def _settings(
    store: GraphStore, options: Mapping[str, Any], part: tuple[int, int] | None = None
) -> PackSettings:
    """Return the settings of packing that the command line gives."""
    given = dict(options)
    batches: BatchOptions = given.pop("batches")
    names = ("replace", "subgraph_type", "disjoint", "seed")
    config = config_of(store, batches, **{name: given.pop(name) for name in names})
    _, seeds = choose_seeds(store, config, batches, **given.pop("of_seeds"))
    spill_dir, threads = given.pop("spill_dir"), given.pop("threads")
    return PackSettings(
        config=config,
        input_nodes=None,
        seeds=seeds,
        batch_size=batches.batch_size,
        spill_dir=None if spill_dir is None else Path(spill_dir),
        num_threads=threads or len(os.sched_getaffinity(0)),
        part=part,
        **given,
    )


def _compare_checksums(store: GraphStore, progress: Progress) -> None:
    """Compare a store with its checksums, before any sampling, which damage would mislead.

    Records have checksums of their own.
    """
    with progress.phase("compare checksums"):
        paths = [spec.path for spec in store.reader.manifest.arrays()]
        store.reader.check_arrays(*(path for path in paths if path.split("/")[0] != "maps"))


def _check_free(place: str, overwrite: bool) -> None:
    """Refuse to replace what is in a bucket unless asked to."""
    if not overwrite and manifest_at(files_at(place)) is not None:
        raise StoreExistsError(
            f"{place} exists; choose another output, or pass overwrite=True to replace it once the "
            "new one is complete",
            path=place,
        )


def _pack_all(
    session: Session,
    store: GraphStore,
    final: Path | str,
    request: PackRequest,
    *,
    estimate: bool,
) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Estimate, and pack unless that is all.

    Returns the estimate, also in words, and the description of what was packed.
    """
    overwrite, resume = request.overwrite, request.resume
    with session.progress() as progress, ExitStack() as closing_packer:
        there: str | None = None
        if isinstance(final, str) and is_elsewhere(final):
            there, spill_dir = final, request.options["spill_dir"]
            spill = default_parent(store.path) if spill_dir is None else Path(spill_dir)
            if not estimate:
                _check_free(there, overwrite)
                spill = closing_packer.enter_context(waiting_for(there, spill, progress))
                _check_free(there, overwrite)  # who was waited for may have put it there
            final = spill / "packed"
        final = Path(final)
        if not (overwrite or estimate) and there is None:
            check_final(final, KIND.manifest, overwrite=False)
        if not estimate:
            _compare_checksums(store, progress)
        packer = EpochPacker(store, _settings(store, request.options))
        closing_packer.callback(packer.close)
        with progress.phase("estimate"):
            profile = load_profile(store.path)
            expected = estimate_packing(packer, profile)
        disk_bytes = packer.settings.disk_bytes
        if disk_bytes is not None and not resume:
            expected.check_disk(disk_bytes)
        facts = asdict(expected)
        if not estimate:
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
        if estimate:
            return facts, expected.describe(), {}
        in_store = final.parent.parent == store.path
        with units_directory(KIND, store.path, is_needed=in_store):
            packer.pack(
                final,
                overwrite=overwrite or there is not None,
                resume=resume,
                progress=progress,
                on_event=session.say,
            )
        document = describe_packed([PackedReader.open(final)])
        if there is not None:
            copy(final, there, overwrite=overwrite, progress=progress)
            document |= {"path": there, "name": there.rstrip("/").rpartition("/")[2]}
    return facts, expected.describe(), document
