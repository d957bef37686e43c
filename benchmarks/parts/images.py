"""Makes the pictures of the docs anew: `make docs-images`, about a minute.

Pictures of measurements are drawn from the numbers in docs/benchmarks.md, so that they cannot show
others. Examples are drawn from stores that are made here. The rest is not made here: `MEASURED`
shows what the machine can do, and is drawn by the commands that stand next to it in the guides;
`BY_HAND` is drawn in an editor.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gnnstore
from benchmarks.parts import headline
from benchmarks.parts.epoch_plot import draw_epochs
from gnnstore.tools.cli import main as run

IMAGES = headline.PICTURE.parent
MEASURED = {"bench-disk.png", "bench-load.png", "predict.png"}
BY_HAND = {
    "strategy-belady.svg", "strategy-packed.svg", "strategy-static.svg", "which-strategy.svg",
}  # fmt: skip

_SECTION = "### Training, end to end"
_ROW = re.compile(
    r"^\| `(\w+)`(?:, ([a-z ]+))? \| ([\d.]+).*? \| ([\d.]+) % \|.*\| ([\d.]+) s \|$", re.MULTILINE
)
_NAMES = {"static": "static-degree"}  # as it is run there


def read_epochs(text: str) -> dict[str, Any]:
    """Return the table of trained epochs as the script that measured it prints it with `--json`."""
    section = text.split(_SECTION)[1].split("\n### ", maxsplit=1)[0]
    (base,) = map(float, re.findall(r"\(([\d.]+) s an epoch\)", section))
    cases = []
    for strategy, share, times, waiting, alone in _ROW.findall(section):
        seconds = float(times) * base
        epoch = {"seconds": seconds, "waiting": float(waiting) / 100 * seconds}
        rounds = 3 * [{"epochs": [epoch], "alone": {"seconds": float(alone)}}]
        held = 0.1 if "tenth" in share else 1.0
        cases.append({"strategy": _NAMES.get(strategy, strategy), "share": held, "rounds": rounds})
    return {
        "in_memory": cases[0]["rounds"],
        "outcomes": cases[1:],
        "num_batches": 64,
        "batch_size": 1024,
        "num_nodes": 1 << 24,
        "feature_bytes": 512 << 24,
        "is_limited": True,
        "machine": {"cpu": "AMD EPYC", "cores": 2},
        "device": {"random_reads_per_second": 89e3, "bytes_per_second": 1.23e9},
        "date": "2026-11-23",
    }


def _headline(_: Path, image: Path) -> None:
    image.write_text(headline.draw(headline.read_points(headline.SOURCE.read_text())))


def _epoch(_: Path, image: Path) -> None:
    draw_epochs(read_epochs(headline.SOURCE.read_text()), image)


def _types(directory: Path, image: Path) -> None:
    store = directory / "mag.gnn"
    _run("convert", "planted-types", store, "--papers", 2000, "--reverse", "all", "-q")
    _run("inspect", store, "--plot", image)


def _degrees(directory: Path, image: Path) -> None:
    _run("inspect", _skewed(directory), "--stats", "--plot", image)


def _packed_rows(directory: Path, image: Path) -> None:
    store = _skewed(directory)
    options = ("--epochs", 2, "--cache-bytes", 11_000 * 256, "--memory", "500MB", "-q")
    _run("pack", store, "--name", "base", *options)
    _run("inspect", store, "--packed", "base", "--plot", image)


def _budget(directory: Path, image: Path) -> None:
    _loader(_small(directory)).explain(plot=image)


def _trace(directory: Path, image: Path) -> None:
    loader = _loader(_small(directory), superbatch=12)
    with loader.trace(image):
        for _ in loader:
            time.sleep(0.02)  # a step of training


MADE: dict[str, Callable[[Path, Path], None]] = {
    "headline.svg": _headline,
    "epoch.svg": _epoch,
    "types.png": _types,
    "degrees.png": _degrees,
    "packed-rows.png": _packed_rows,
    "budget.png": _budget,
    "trace.png": _trace,
}


def _run(*words: object) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        status = run([str(word) for word in words])
    if status:
        raise SystemExit(status)


def _skewed(directory: Path) -> Path:
    path = directory / "rmat17.gnn"
    if not path.exists():
        _run("convert", "rmat", path, "--scale", 17, "--edge-factor", 15, "--plain", "-q")
    return path


def _small(directory: Path) -> Path:
    path = directory / "tutorial.gnn"
    if not path.exists():
        options = ("--edge-factor", 8, "--undirected", "-q")
        _run("convert", "rmat", path, "--scale", 15, *options)
    return path


def _loader(store: Path, **options: Any) -> gnnstore.NeighborLoader:
    options |= {"strategy": "packed", "memory": "80MB", "num_threads": 2}
    options |= {"batch_size": 512, "shuffle": True, "seed": 0}
    return gnnstore.NeighborLoader(store, [10, 10], "train", **options)


def main() -> None:
    """Make all pictures."""
    with tempfile.TemporaryDirectory() as directory:
        for name, make in MADE.items():
            make(Path(directory), IMAGES / name)
            print(IMAGES / name)


if __name__ == "__main__":
    main()
