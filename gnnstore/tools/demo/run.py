"""Runs the stages of the demonstration, times each, and prints the results."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from gnnstore.converters import ConvertOptions, from_rmat
from gnnstore.errors import storage_errors
from gnnstore.formats.store.reader import StoreReader
from gnnstore.graph.store import GraphStore
from gnnstore.progress import peak_rss_bytes
from gnnstore.tools.demo.training import Outcome, shuffled_features, train_mlp, train_sage
from gnnstore.tools.inspect.describe_store import describe_store
from gnnstore.tools.inspect.render_store import next_commands, render_summary
from gnnstore.tools.ui.session import Session, render_to_stdout
from gnnstore.tools.ui.tables import print_facts, print_next, print_table, print_title, share_bar
from gnnstore.units import format_size

_STORE_NAME = "demo.gnn"
_FEATURES = 128
# Few labelled nodes, as in real data sets.
_SPLITS = (0.025, 0.025, 0.05)
_SECONDS_BETWEEN_READINGS = 0.02


@dataclass(frozen=True)
class Trained:
    """The three models' outcomes, and the memory that training the first took."""

    sage: Outcome
    mlp: Outcome
    shuffled: Outcome
    before_training_bytes: int
    training_added_bytes: int

    def results(self) -> list[dict[str, Any]]:
        """Return the accuracies, and what each model was allowed to see."""
        rows = (
            (self.sage, "graph and features"),
            (self.mlp, "features only"),
            (self.shuffled, "graph, and the features of other nodes"),
        )
        return [
            {
                "model": outcome.model,
                "sees": sees,
                "test_accuracy": outcome.test_accuracy,
                "seconds": outcome.seconds,
            }
            for outcome, sees in rows
        ]


def run_demo(session: Session, directory: str, *, scale: int, epochs: int, seed: int) -> None:
    """Convert, inspect, train, and print the report."""
    seconds: dict[str, float] = {}
    path = _output(directory)
    session.say(f"Making a graph of 2^{scale} nodes and converting it into {path} ...")
    with _timed(seconds, "convert"):
        _convert(session, path, scale, seed)
    with _timed(seconds, "inspect"):
        described = describe_store(StoreReader.open(path))
    if not session.as_json:
        render_to_stdout(lambda console: render_summary(console, described))
    session.say("Training three models ...")
    with _timed(seconds, "train and test"):
        trained = _train(session, path, epochs, seed)
    document = _document(described, trained, seconds)
    session.emit(document, lambda console: _render(console, document))


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - started


def _output(directory: str) -> Path:
    place = Path(directory)
    with storage_errors("make the demo's directory", place):
        place.mkdir(parents=True, exist_ok=True)
    return place / _STORE_NAME


def _convert(session: Session, path: Path, scale: int, seed: int) -> None:
    with session.progress() as progress:
        from_rmat(
            path,
            scale=scale,
            feature_dim=_FEATURES,
            split_fractions=_SPLITS,
            seed=seed,
            options=ConvertOptions(undirected=True, overwrite=True),
            progress=progress,
        )


def _train(session: Session, path: Path, epochs: int, seed: int) -> Trained:
    store = GraphStore(path)
    shuffle = shuffled_features(store, seed)
    before = _anonymous_bytes()
    with session.progress() as progress:
        common: dict[str, Any] = {"epochs": epochs, "seed": seed, "progress": progress}
        with _peak_anonymous_bytes() as peak:
            sage = train_sage(store, name="GraphSAGE", **common)
        mlp = train_mlp(store, name="MLP", **common)
        shuffled = train_sage(store, name="GraphSAGE, shuffled", transform=shuffle, **common)
    return Trained(sage, mlp, shuffled, before, max(peak) - peak[0])


def _document(
    described: dict[str, Any], trained: Trained, seconds: dict[str, float]
) -> dict[str, Any]:
    stats = trained.sage.stats
    features = next(array for array in described["arrays"] if array["name"] == "x")
    return {
        "store": {
            "path": described["path"],
            "num_nodes": described["graph"]["num_nodes"],
            "num_edges": described["graph"]["num_edges"],
            "disk_bytes": described["state"]["disk_bytes"],
            "feature_bytes": features["value_bytes"],
        },
        "results": trained.results(),
        "memory": {
            "before_training_bytes": trained.before_training_bytes,
            "training_added_bytes": trained.training_added_bytes,
            "peak_resident_bytes": peak_rss_bytes(),
        },
        "loader": None if stats is None else asdict(stats),
        "seconds": seconds,
    }


def _anonymous_bytes() -> int:
    """Return the resident memory of this process that belongs to no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


@contextmanager
def _peak_anonymous_bytes() -> Iterator[list[int]]:
    """Sample anonymous memory from a thread while the context lasts: at first, and higher peaks."""
    stop, peaks = threading.Event(), [_anonymous_bytes()]

    def watch() -> None:
        while not stop.wait(_SECONDS_BETWEEN_READINGS):
            peaks[1:] = [max(*peaks, _anonymous_bytes())]

    thread = threading.Thread(target=watch, name="gnnstore-demo-memory")
    thread.start()
    try:
        yield peaks
    finally:
        stop.set()
        thread.join()
        peaks[1:] = [max(*peaks, _anonymous_bytes())]


def _render(console: Console, document: Mapping[str, Any]) -> None:
    """Print accuracies side by side, sizes beside memory, seconds by stage, next commands."""
    store, memory = document["store"], document["memory"]
    print_title(console, "Accuracy on test nodes")
    rows = [
        (
            result["model"],
            f"{result['test_accuracy']:.1%}",
            share_bar(console, result["test_accuracy"]),
            f"{result['seconds']:.1f}",
            result["sees"],
        )
        for result in document["results"]
    ]
    columns = ("model", "accuracy", "", "seconds", "sees")
    print_table(console, columns, rows, right=("accuracy", "seconds"))

    print_title(console, "Disk and memory")
    print_facts(
        console,
        {
            "store on disk": format_size(store["disk_bytes"]),
            "features": f"{format_size(store['feature_bytes'])}, left on disk",
            "memory for training": f"{format_size(memory['training_added_bytes'])}: "
            "topology, batches and model",
            "memory before that": f"{format_size(memory['before_training_bytes'])}: Python, torch",
        },
    )

    print_title(console, "Seconds")
    loader = document["loader"]
    print_facts(
        console,
        {
            **{stage: f"{seconds:.2f}" for stage, seconds in document["seconds"].items()},
            "GraphSAGE's batches": f"{loader['seconds_sampling']:.2f} sampling, "
            f"{loader['seconds_gathering']:.2f} gathering, for {loader['batches']:,} batches, in "
            f"{loader['num_threads']} threads beside the model",
            "the model waited": f"{loader['seconds_waiting']:.2f}",
        },
    )
    print_next(console, [*next_commands(store["path"]), ("gnnstore", "convert", "--help")])
