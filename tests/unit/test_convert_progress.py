"""What converters tell of their progress: every phase reaches its total, in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gnnstore.converters import from_numpy, from_ogb, from_rmat, from_snap
from gnnstore.progress import NullProgress, Progress
from tests.support.traces import Recorder


def ogb(folder: Path, progress: Progress, request: pytest.FixtureRequest) -> None:
    from_ogb(request.getfixturevalue("cora_directory"), folder / "g.gnn", progress=progress)


def snap(folder: Path, progress: Progress, request: pytest.FixtureRequest) -> None:
    (folder / "e.txt").write_text("# head\n" + "0 7\n7 9\n" * 100)
    np.save(folder / "x.npy", np.ones((3, 5)))
    from_snap(folder / "e.txt", folder / "g.gnn", features=folder / "x.npy", progress=progress)


def numpy(folder: Path, progress: Progress, request: pytest.FixtureRequest) -> None:
    np.savez(folder / "g.npz", edge_index=np.zeros((2, 50), int), x=np.ones((9, 3)))
    from_numpy(folder / "g.npz", folder / "g.gnn", progress=progress)


def rmat(folder: Path, progress: Progress, request: pytest.FixtureRequest) -> None:
    from_rmat(folder / "g.gnn", scale=8, progress=progress)


@pytest.mark.parametrize(
    ("convert", "names"),
    [
        (ogb, ["read edges", "sort edges", "write edges", "write x", "commit"]),
        (snap, ["read ids", "write x", "read edges", "sort edges", "write edges", "commit"]),
        (numpy, ["write x", "read edges", "sort edges", "write edges", "commit"]),
        (rmat, ["read edges", "sort edges", "write edges", "write x", "commit"]),
    ],
)
def test_phases_reach_their_totals(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    convert: Callable[[Path, Progress, pytest.FixtureRequest], None],
    names: list[str],
) -> None:
    recorder = Recorder()
    convert(tmp_path, recorder, request)
    assert [name for name, _, _, _ in recorder.phases] == names
    for name, _, total, done in recorder.phases:
        if name not in ("sort edges", "commit"):
            assert done == total


def test_nobody_need_watch() -> None:
    with NullProgress().phase("read", 3, "rows") as phase:
        phase.advance(2)
        phase.advance()
