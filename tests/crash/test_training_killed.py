"""Training that is killed in the middle of an epoch goes on with the same losses, bit for bit."""

from __future__ import annotations

import re
import signal
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnstore.converters import from_rmat
from gnnstore.strategies.registry import STRATEGIES
from tests.support.forks import RUN_SCRIPT, ForkServer

pytest.importorskip("torch_geometric")

SCRIPT = Path(__file__).parents[2] / "examples" / "train_with_checkpoints.py"
NUM_EPOCHS = 2
EVERY = 3
# Lines of output after which a run is killed: between two checkpoints, at one, soon after
# resuming, and in the second epoch.
KILLS = (5, 4, 2, 9)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return from_rmat(tmp_path / "s.gnn", scale=10, feature_dim=8, seed=1)


def command(store: Path, checkpoint: Path, *options: str) -> list[str]:
    words = f"--epochs {NUM_EPOCHS} --every {EVERY} --fanouts 4,4 --hidden 8 --batch-size 40"
    arguments = [str(store), "--checkpoint", str(checkpoint), *words.split(), *options]
    return [str(SCRIPT), *arguments]


def results_of(lines: list[str]) -> dict[str, str]:
    """Return each loss and accuracy, as printed, by the batch or epoch it is of."""
    found = [re.fullmatch(r"(epoch \d+(?: batch \d+)?): (.*)\n", line) for line in lines]
    return {match[1]: match[2] for match in found if match}


def assert_equal_tensors(one: Any, other: Any) -> None:
    """Check that two state dicts have the same keys and the same values."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal_tensors(one[key], other[key])
    else:
        assert one == other


@pytest.mark.timeout(400)
def test_killed_and_resumed(store: Path, tmp_path: Path, forks: ForkServer) -> None:
    uninterrupted = forks.run(RUN_SCRIPT, *command(store, tmp_path / "whole.pt"))
    assert uninterrupted.returncode == 0, uninterrupted.stderr
    whole = results_of(uninterrupted.stdout.splitlines(keepends=True))
    batches = [name for name in whole if "batch" in name]
    assert len(batches) > 6 * NUM_EPOCHS
    assert len(whole) == len(batches) + NUM_EPOCHS

    checkpoint = tmp_path / "killed.pt"
    strategies = cycle(each.name for each in STRATEGIES if not each.plans)
    seen: set[str] = set()
    starts: list[str] = []
    for num_lines, strategy in zip((*KILLS, None), strategies, strict=False):
        threads = "0" if STRATEGIES[strategy].mode == "mmap" else "2"
        options = ("--strategy", strategy, "--threads", threads)
        with forks.start(RUN_SCRIPT, *command(store, checkpoint, *options)) as process:
            lines: list[str] = []
            for line in process.stdout:
                if line.startswith("epoch"):
                    lines.append(line)
                if len(lines) == num_lines:
                    process.send_signal(signal.SIGKILL)
                    break
            process.stdout.read()
        assert process.returncode == (0 if num_lines is None else -signal.SIGKILL)
        results = results_of(lines)
        starts.append(next(iter(results)))
        assert results == {name: whole[name] for name in results}
        seen |= results.keys()
        # What is there is a whole checkpoint, whenever the kill came.
        torch.load(checkpoint, weights_only=True)
    assert seen == whole.keys()
    # Printed losses have four digits; weights and moments are the same bit by bit.
    ends = [torch.load(tmp_path / name, weights_only=True) for name in ("whole.pt", "killed.pt")]
    for part in ("model", "optimizer"):
        assert_equal_tensors(*(end[part] for end in ends))
    middle = [name for name in starts if "batch" in name and not name.endswith("batch 1")]
    assert len(middle) >= 2, f"runs began at {starts}; some in the middle of an epoch"
