"""Epochs packed in parts, and in one, by CPU seconds; and what ranks and choices of rows read.

Run `python -m benchmarks.packed_parts` for an R-MAT graph of 2^20 nodes (`--scale 22` for the
larger one) in 8 parts. Seconds of parts and of one run are without imports and the choice of the
cached rows, which is reported by itself. The parts are compared with one another at two budgets of
memory, two ranks with one process, and the fixed cache with Belady's. `--ray` packs them once more
by `gnnstore pack --ray`, as tasks of one thread, and compares files and elapsed time. `--workload W
--cache DIR` packs one epoch of that workload instead, with the fixed cache and with Belady's.
"""

from __future__ import annotations

import filecmp
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import gnnstore
from benchmarks.harness import directory_of, measure, parser, report
from benchmarks.parts.workloads import BATCH_SIZE, FANOUTS, SEED, WORKLOADS, Workload
from gnnstore.converters import from_rmat
from gnnstore.packing.job import EpochPacker
from gnnstore.packing.parts import PartPacker
from gnnstore.packing.sampling import PackSettings
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.tools import cli


def timed(store: gnnstore.GraphStore, settings: PackSettings, path: Path) -> tuple[float, float]:
    """Pack, and return the CPU seconds of the choice of cached rows, and of all else."""
    made: list[EpochPacker] = []

    def make() -> int:
        made.append(EpochPacker(store, settings))
        return 1

    sizing = measure(make).cpu_seconds
    (packer,) = made
    try:
        choosing = measure(lambda: len(packer.cached_nodes)).cpu_seconds
        packing = measure(lambda: len(str(packer.pack(path)))).cpu_seconds
    finally:
        packer.close()
    return choosing, sizing + packing


def bytes_read(path: Path, world_size: int) -> tuple[int, float]:
    """Return the bytes that the ranks of an epoch read in all, and the seconds of the slowest."""
    total, slowest = 0, 0.0
    for rank in range(world_size):
        ranks: dict[str, Any] = {"rank": rank, "world_size": world_size}
        loader = gnnstore.open_packed(path).loader(**(ranks if world_size > 1 else {}))
        turn = measure(partial(_count, loader))
        total += loader.stats().bytes_read
        slowest = max(slowest, turn.seconds)
    return total, slowest


def _count(batches: Iterable[Any]) -> int:
    return sum(1 for _ in batches)


def on_ray(path: Path, root: Path, given: dict[str, Any], num_parts: int) -> dict[str, float]:
    """Pack by the command line, as tasks and in one process, and return the elapsed seconds.

    The tasks' files must equal the files of the parts.
    """
    words = ["--num-neighbors", ",".join(map(str, given["config"].fanouts))]
    words += ["--batch-size", given["batch_size"], "--cache-by", "frequency", "--memory", "4GB"]
    words += ["--cache-bytes", given["cache_bytes"], "--input-nodes", "all"]
    ways = {
        "on Ray": ["--ray", num_parts, "--threads", 1],
        "in one process": ["--threads", given["num_threads"]],
    }
    seconds = {}
    for way, own in ways.items():
        command = ["pack", path, *words, "--output", root / "packed", *own]
        with redirect_stdout(StringIO()):
            seconds[way] = measure(partial(cli.main, [*map(str, command)])).seconds
        if way == "on Ray":
            equal_files(root / "parts", root / "packed")
        shutil.rmtree(root / "packed")
    return seconds


def on_workload(workload: Workload, directory: Path, *, as_json: bool) -> None:
    """Pack an epoch with a tenth of the rows cached, by each rule, and report what is read."""
    path = workload.store(directory)
    store = gnnstore.open(path)
    wide = sum(spec.num_bytes for spec in store.schema.node_attributes())
    given: dict[str, Any] = {
        "config": SamplingConfig(FANOUTS, seed=SEED),
        "input_nodes": workload.seeds(),
        "batch_size": BATCH_SIZE,
        "epochs": 1,
        "cache_bytes": wide // 10,
        "num_threads": 2,
    }
    found = {}
    with tempfile.TemporaryDirectory(dir=directory) as made:
        for cache in ("frequency", "belady"):
            settings = PackSettings(**given, cache=cache)
            choosing, packing = timed(store, settings, Path(made) / cache)
            total, seconds = bytes_read(Path(made) / cache, 1)
            found[cache] = {
                "bytes_read": total,
                "seconds": seconds,
                "cpu_seconds_of_packing": choosing + packing,
            }
            shutil.rmtree(Path(made) / cache)
    rows = []
    for cache, own in found.items():
        text = f"{own['bytes_read'] / 1e9:.3f} GB read in {own['seconds']:.1f} s, packed in "
        rows.append((cache, text + f"{own['cpu_seconds_of_packing']:.1f} s (CPU)"))
    report(f"a packed epoch of {workload.name}", rows, as_json=as_json, found=found)


def equal_files(one: Path, other: Path) -> int:
    """Return the number of files of a directory, which must all be in another, byte for byte."""
    files = [str(file.relative_to(one)) for file in one.rglob("*") if file.is_file()]
    same, *different = filecmp.cmpfiles(one, other, files, shallow=False)
    assert len(same) == len(files), different
    return len(files)


def main() -> None:
    """Pack in parts and in one, and print the ratios."""
    options = parser(__doc__)
    options.add_argument("--scale", type=int, help="of the graph, 2^SCALE nodes (20)")
    options.add_argument("--parts", type=int, default=8, help="(8)")
    options.add_argument("--ray", action="store_true", help="also pack as tasks on Ray")
    options.add_argument("--dir", type=Path, help="where to write (a temporary directory)")
    options.add_argument(
        "--workload", choices=sorted(WORKLOADS), help="pack an epoch of this workload instead"
    )
    options.add_argument("--cache", type=Path, help="directory that keeps the workload's store")
    args = options.parse_args()
    if args.workload is not None:
        with directory_of(args) as directory:
            on_workload(WORKLOADS[args.workload], directory, as_json=args.json)
        return
    scale = args.scale or (14 if args.quick else 20)
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        root = Path(directory)
        path = from_rmat(root / "g.gnn", scale=scale, edge_factor=15, feature_dim=128)
        store = gnnstore.open(path)
        wide = sum(spec.num_bytes for spec in store.schema.node_attributes())
        given: dict[str, Any] = {
            "config": SamplingConfig((10, 10), False, "directional", False, 0),
            "input_nodes": None,
            "batch_size": 2**scale // (args.parts * 128),  # 128 batches in a part
            "epochs": 1,
            "cache_bytes": wide // 10,
            "num_threads": 2,
        }

        choices, seconds = [], []
        for number in range(args.parts):
            settings = PackSettings(**given, cache="frequency", part=(number, args.parts))
            name = PartPacker(store, settings).name
            (root / "parts").mkdir(exist_ok=True)
            choosing, packing = timed(store, settings, root / "parts" / name)
            choices.append(choosing)
            seconds.append(packing)
        whole = PackSettings(**given, cache="frequency", superbatch=128)
        _, in_one = timed(store, whole, root / "whole")
        again = PackSettings(**given, cache="frequency", part=(1, args.parts), memory="8GB")
        timed(store, again, root / "again")
        first = root / "parts" / PartPacker(store, again).name
        num_files = equal_files(first, root / "again")
        shutil.rmtree(root / "again")

        # What has been read goes at once: an epoch of a large graph takes eight times its tables.
        read = {"parts": bytes_read(root / "parts", 1), "whole": bytes_read(root / "whole", 1)}
        shutil.rmtree(root / "whole")
        two, _ = bytes_read(root / "parts", 2)
        timed(store, PackSettings(**given, superbatch=128), root / "belady")
        read["belady"] = bytes_read(root / "belady", 1)
        shutil.rmtree(root / "belady")
        ray = on_ray(path, root, given, args.parts) if args.ray else {}
    ratio = sum(seconds) / in_one
    rows = [
        ("parts / in one, CPU", f"{ratio:.2f}"),
        ("parts, CPU", f"{sum(seconds):.1f} s, and {sum(choices):.1f} s for choices"),
        ("in one, CPU", f"{in_one:.1f} s"),
        ("a part at two budgets", f"{num_files} files, all equal"),
        ("two ranks / one process, bytes read", f"{two / read['parts'][0]:.3f}"),
        *(
            (f"epoch from {name}", f"{total / 1e9:.3f} GB read, {took:.1f} s")
            for name, (total, took) in read.items()
        ),
        *((f"gnnstore pack {way}", f"{took:.1f} s") for way, took in ray.items()),
    ]
    report(
        f"an epoch of 2^{scale} nodes in {args.parts} parts of 128 batches",
        rows,
        as_json=args.json,
        cpu_seconds={"parts": seconds, "choices": choices, "in one": in_one},
        ratio=ratio,
        elapsed_seconds=ray,
        bytes_read={name: total for name, (total, _) in read.items()} | {"two ranks": two},
    )


if __name__ == "__main__":
    main()
