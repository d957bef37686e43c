"""Random changes by somebody hostile, sealed again, in processes that may crash or hang."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from tests.support.effort import choose
from tests.support.forks import ForkServer

pytest.importorskip("torch_geometric")

SCRIPT = Path(__file__).with_name("fuzz_targets.py")
TARGETS = {
    "store": choose(0.4, 240),
    "types": choose(0.4, 120),
    "packed": choose(0.3, 60),
    "shared": choose(0.3, 60),
    "partitions": choose(0.3, 60),
    "state": choose(0.3, 20),
    "cache": choose(0.4, 30),
}
HANGS_SECONDS = 60  # a check takes a tenth of a second, and what goes before it a second
FIRST_SEED = choose(0, random.SystemRandom().randrange(10**6, 10**9))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", TARGETS)
def test_it_is_refused_or_right(forks: ForkServer, tmp_path: Path, target: str) -> None:
    seconds = TARGETS[target]
    code = f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    log = tmp_path / "log"
    with (
        log.open("w") as output,
        forks.start(
            code,
            target,
            tmp_path,
            seconds,
            FIRST_SEED,
            environment=environment,
            stdout=output.fileno(),
            stderr=output.fileno(),
        ) as process,
    ):
        alarm = threading.Timer(seconds + HANGS_SECONDS, process.send_signal, [9])
        alarm.start()
        status = process.wait()
        alarm.cancel()
        alarm.join()
    latest = tmp_path / "latest"
    what = latest.read_text() if latest.exists() else "nothing was tried"
    assert status == 0, f"{status} with seed {FIRST_SEED}, at {what}:\n{log.read_text()[-6000:]}"
