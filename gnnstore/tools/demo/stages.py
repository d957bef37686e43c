"""The stages of the demonstration, one after the other, each timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gnnstore.converters import ConvertOptions, from_rmat
from gnnstore.errors import storage_error
from gnnstore.formats.store.reader import StoreReader
from gnnstore.graph.store import GraphStore
from gnnstore.tools.demo.memory import PeakMemory, anonymous_bytes, peak_resident_bytes
from gnnstore.tools.demo.report import render_demo
from gnnstore.tools.demo.training import Outcome, shuffled_features, train_mlp, train_sage
from gnnstore.tools.inspect.describe_store import describe_store
from gnnstore.tools.inspect.render_store import render_summary
from gnnstore.tools.ui.session import Session, render_to_stdout

_STORE_NAME = "demo.gnn"
_FEATURES = 128
# Few labelled nodes, as in the data sets people have.
_SPLITS = (0.025, 0.025, 0.05)


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
    """Convert, inspect, train, and print the report.

    Parameters
    ----------
    directory : str
        Where the store is made; created if need be.
    scale : int
        The graph has 2^scale nodes.
    """
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
    session.emit(document, lambda console: render_demo(console, document))


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - started


def _output(directory: str) -> Path:
    place = Path(directory)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, "make the demo's directory", place) from error
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
    before = anonymous_bytes()
    with session.progress() as progress:
        common: dict[str, Any] = {"epochs": epochs, "seed": seed, "progress": progress}
        with PeakMemory() as peak:
            sage = train_sage(store, name="GraphSAGE", **common)
        mlp = train_mlp(store, name="MLP", **common)
        shuffled = train_sage(store, name="GraphSAGE, shuffled", transform=shuffle, **common)
    return Trained(sage, mlp, shuffled, before, peak.added_bytes)


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
            "peak_resident_bytes": peak_resident_bytes(),
        },
        "loader": None if stats is None else asdict(stats),
        "seconds": seconds,
    }
