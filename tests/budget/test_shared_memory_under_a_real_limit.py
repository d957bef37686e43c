"""Memory that ranks share, in a container with less: an error with sizes, and never a signal."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.forks import ForkServer
from tests.support.limits import run_limited

SHARE = """
from gnnstore.errors import BudgetError
from gnnstore.machine import SharedMachine

begin(sys.argv[-1])
machine, said = SharedMachine(2), ""
try:
    machine.share("limited/large", 96 << 20, lambda array: array.fill(1))
except BudgetError as error:
    said = str(error)
array = machine.share("limited/small", 16 << 20, lambda array: array.fill(1))
finish(said=said, sum=int(array[:100].sum()))
"""


def test_less_than_is_to_be_shared(forks: ForkServer, limited: tuple[Path, Path]) -> None:
    found = run_limited(forks, SHARE, limited=limited, most=64 << 20)
    assert re.match(
        r"there is no memory for limited/large, 101 MB .*: [\d.]+ MB are available; choose",
        found["said"],
    )
    assert found["sum"] == 100
