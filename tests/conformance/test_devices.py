"""Batches on a device: those in the host's memory, in order, and with nothing copied twice.

Without a GPU the device is one of the tests' own that is as late as it may be. `--device cuda` runs
the same checks on a GPU.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import device_checks
from tests.support.device_checks import ALONE, CHECKS, FAULTS
from tests.support.effort import choose
from tests.support.forks import ForkServer

pytest.importorskip("torch._C._acc", reason="this torch takes no device that is made in Python")

PACKED = "rows for a device in packed epochs"
RUN = "from tests.support.device_checks import main; main(*given)"


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> str:
    chosen: str = request.config.getoption("--device")
    return chosen


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("devices")
    device_checks.write_inputs(found)
    return found


def failures(forks: ForkServer, *given: Any) -> dict[str, str]:
    """Run checks in a process of their own, whose accelerator the device becomes."""
    done = forks.run(RUN, given=given)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def found(forks: ForkServer, directory: Path, device: str) -> dict[str, str]:
    """Run all checks in one process."""
    return failures(forks, directory, device, [*CHECKS], None)


@pytest.mark.parametrize("name", CHECKS)
def test_batches(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]


@pytest.mark.parametrize("name", ALONE)
def test_nothing_is_called_early_or_on_another_device(
    forks: ForkServer, directory: Path, name: str
) -> None:
    found = failures(forks, directory, "late", [name], None)
    assert not found[name], found[name]


# Nothing is read or written without an order where a block is used too early: the device has one.
# What a user writes into kept rows shows in them, or has no order, whichever comes first.
DIFFERS = "differs|out of (range|bounds)"
FOUND = {"a block reused early": DIFFERS}
FOUND["kept rows that are the user's"] = f"{DIFFERS}|nothing orders them"
# In `make test` one of the order, and one of kept rows; without a fault all checks pass above.
SHORT = ["no wait", "kept rows that are the user's"]


@pytest.mark.parametrize(
    ("fault", "words"),
    # Of rows that stay, the block has numbers too.
    [(fault, FOUND.get(fault, "nothing orders them")) for fault in choose(SHORT, [*FAULTS])],
)
def test_faults_are_found(
    forks: ForkServer, directory: Path, device: str, fault: str, words: str
) -> None:
    if device != "late":
        pytest.skip("on a GPU a fault shows when luck has it")
    names = ["no threads, coo", "three threads, csr", "rows that stay, coo", PACKED]
    if "kept" in fault or fault == "none":
        kept = ["kept rows, coo", "kept rows, planned, csr", "windows of batches"]
        names = [*kept, "no threads, coo", PACKED] if fault == "none" else kept
    for name, failure in failures(forks, directory, device, names, fault).items():
        found = re.search(words, failure) if fault != "none" else not failure
        assert found, (name, failure)
