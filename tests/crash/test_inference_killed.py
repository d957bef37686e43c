"""Inference that is killed, or finds the disk full, goes on where it was with the same result."""

from __future__ import annotations

import errno
import itertools
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric")

from torch_geometric.nn import GCNConv, SAGEConv

import gnnstore
from gnnstore.errors import NoSpaceError, UsageError, storage_error
from gnnstore.formats.base.files import ChecksummedFile
from gnnstore.formats.container.workdir import find_leftovers
from gnnstore.testing.graphs import random_graph
from tests.support.effort import choose
from tests.support.forks import ForkServer

OPTIONS: dict[str, Any] = {"memory": "60MB", "shard_bytes": 1 << 16}
NUM_NODES, NUM_EDGES = 2000, 15_000
# After so many nodes of a run, of 2000 a layer, and as many whose out-degrees are counted first:
# then, twice in the first layer, twice in the second, while degrees are counted for the third, and
# in it; or some of these.
KILLS = choose((1000, 3500, 5250), (1000, 2350, 3500, 4250, 3750, 4250, 5250))

_SCRIPT = """
import os, signal, sys
from contextlib import contextmanager

store, output, kill_at, root = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
sys.path.insert(0, root)

import gnnstore
from gnnstore.layerwise.run import InferenceRun
from gnnstore.progress import NullProgress
from tests.crash.test_inference_killed import OPTIONS, layers

class Killer(NullProgress):
    done = 0

    @contextmanager
    def phase(self, name, total=None, unit="items"):
        yield self

    def advance(self, n=1):
        self.done += n
        if self.done >= kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

# What engines and writers take is not counted, so that blocks are small.
InferenceRun._reservations = lambda *_: ()
gnnstore.inference(
    layers(), store, output, resume=True, progress=Killer(), **OPTIONS | {"memory": "800kB"}
)
"""


def layers(seed: int = 0) -> list[Any]:
    torch.manual_seed(seed)
    return [SAGEConv(32, 48), torch.relu, SAGEConv(48, 40), torch.relu, GCNConv(40, 24)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that no test changes."""
    graph = random_graph(NUM_NODES, NUM_EDGES, seed=5, feature_dim=32)
    return graph.write(tmp_path_factory.mktemp("store") / "s.gnn")


@pytest.fixture(scope="module")
def whole(store: Path) -> torch.Tensor:
    """Return what a run gives that nothing stops."""
    found = gnnstore.inference(layers(), store)
    assert isinstance(found, torch.Tensor)
    return found


def run_and_kill(forks: ForkServer, store: Path, output: Path, kill_at: int) -> int:
    done = forks.run(
        _SCRIPT,
        store,
        output,
        kill_at,
        Path(__file__).parents[2],
        environment={"PATH": "", "GNNSTORE_IO_ENGINE": "pread"},
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.timeout(600)
def test_killed_again_and_again(
    store: Path, whole: torch.Tensor, tmp_path: Path, forks: ForkServer
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    killed = 0
    for kill_at in KILLS:
        killed += run_and_kill(forks, store, folder / "e", kill_at) != 0
        assert not (folder / "e").exists()
        states = [found.state for found in find_leftovers(folder)]
        assert states in (["resumable"], ["unfinished"])
    assert killed == len(KILLS)
    assert states == ["resumable"]
    events: list[str] = []
    found = resumed(store, folder / "e", events)
    torch.testing.assert_close(found.tensor(), whole, atol=1e-5, rtol=1e-5)
    assert any("resuming with the" in event for event in events)
    # The first layers were not run again.
    assert not any(event.startswith("layer 1") for event in events)
    assert [item.name for item in folder.iterdir()] == ["e"]
    assert gnnstore.verify(folder / "e").ok


def resumed(store: Path, output: Path, events: list[str], **options: Any) -> Any:
    from gnnstore.progress import NullProgress  # noqa: PLC0415

    class Notes(NullProgress):
        def note(self, text: str, facts: Any = None) -> None:  # noqa: ARG002
            events.append(text)

    return gnnstore.inference(
        layers(), store, output, resume=True, progress=Notes(), **OPTIONS | options
    )


def test_a_full_disk(
    store: Path, whole: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    write, calls = ChecksummedFile.write, itertools.count()

    def full(file: ChecksummedFile, data: Any) -> None:
        if next(calls) >= 30:
            file.abort()
            raise storage_error(OSError(errno.ENOSPC, "no space"), "write", file.path)
        write(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(ChecksummedFile, "write", full)
        with pytest.raises(NoSpaceError, match=r"no space left.*resume=True"):
            gnnstore.inference(layers(), store, folder / "e", **OPTIONS)
    assert [found.state for found in find_leftovers(folder)] == ["resumable"]
    found = resumed(store, folder / "e", [])
    torch.testing.assert_close(found.tensor(), whole, atol=1e-5, rtol=1e-5)


def test_other_runs_are_not_continued(
    store: Path, whole: torch.Tensor, tmp_path: Path, forks: ForkServer
) -> None:
    killed_at(forks, store, tmp_path / "e")
    other = random_graph(NUM_NODES, NUM_EDGES, seed=6, feature_dim=32).write(tmp_path / "o.gnn")
    for graph, model, options, difference in (
        (store, layers(1), {}, r"weights\.lin_l\.bias was '[^']+' and is '[^']+' now"),
        (store, layers()[:-1], {}, r"layers\.\d.* is None now"),
        (store, layers(), {"dtype": "float16"}, "dtypes"),
        (other, layers(), {}, "store was"),
    ):
        with pytest.raises(UsageError, match=f"cannot be continued.*{difference}"):
            gnnstore.inference(model, graph, tmp_path / "e", resume=True, **{**OPTIONS, **options})
    # Another budget and engine will do.
    found = resumed(store, tmp_path / "e", [], memory="200MB")
    torch.testing.assert_close(found.tensor(), whole, atol=1e-5, rtol=1e-5)


def killed_at(forks: ForkServer, store: Path, output: Path) -> None:
    assert run_and_kill(forks, store, output, 4650) == -signal.SIGKILL
    assert [found.state for found in find_leftovers(output.parent)] == ["resumable"]


def test_what_was_damaged_meanwhile_is_computed_again(
    store: Path, whole: torch.Tensor, tmp_path: Path, forks: ForkServer
) -> None:
    killed_at(forks, store, tmp_path / "e")
    (left,) = tmp_path.glob(".e.tmp-*")
    shard = left / "nodes" / "layer-1" / "c.0.0"
    with shard.open("r+b") as file:
        file.seek(1000)
        file.write(b"damage")
    found = resumed(store, tmp_path / "e", [])
    torch.testing.assert_close(found.tensor(), whole, atol=1e-5, rtol=1e-5)


def test_a_run_that_is_not_resumed_starts_anew(
    store: Path, tmp_path: Path, forks: ForkServer
) -> None:
    killed_at(forks, store, tmp_path / "e")
    found = gnnstore.inference(layers(1), store, tmp_path / "e", **OPTIONS)
    assert found.shape == (NUM_NODES, 24)
    assert list(tmp_path.glob(".e.*")) == []


def test_a_npy_file_is_resumed(
    store: Path, whole: torch.Tensor, tmp_path: Path, forks: ForkServer
) -> None:
    assert run_and_kill(forks, store, tmp_path / "e.npy", 6500) == -signal.SIGKILL
    assert not (tmp_path / "e.npy").exists()
    events: list[str] = []
    found = resumed(store, tmp_path / "e.npy", events)
    np.testing.assert_allclose(found, whole.numpy(), atol=1e-5)
    assert not any(event.startswith("layer 1") for event in events)
    assert [item.name for item in tmp_path.iterdir()] == ["e.npy"]
