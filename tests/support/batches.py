"""Batches compared: tensor by tensor, or by digests across processes and with what was recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnnstore.testing import assert_resumes, assert_same_batches
from tests.support.effort import is_long
from tests.support.forks import RUN_SCRIPT, ForkServer

__all__ = [
    "Batches",
    "assert_goes_on",
    "assert_same_batches",
    "batches_of",
    "digest_of",
    "digests",
]

# Of one epoch, or of several.
Batches = list[dict[str, Any]]


def digest_of(batch: Any) -> str:
    """Return a digest of all that a batch holds, in its order, with types and shapes.

    Those in `tests/data/frozen` were made by it.
    """
    digest = hashlib.blake2b(digest_size=8)
    values: dict[str, Any] = {}
    for key, value in batch.to_dict().items():
        is_type = isinstance(value, dict)
        values |= {f"{key}.{n}": v for n, v in value.items()} if is_type else {key: value}
    for name, value in values.items():
        digest.update(f"{name}\0".encode())
        if isinstance(value, Tensor):
            digest.update(f"{value.dtype}{tuple(value.shape)}\0".encode())
            # NumPy has no bfloat16.
            bits = value.view(torch.int16) if value.dtype is torch.bfloat16 else value
            digest.update(bits.numpy().tobytes())
        else:
            digest.update(f"{value!r}\0".encode())
    return digest.hexdigest()


def digests(loader: Iterable[Any], num_epochs: int = 1) -> list[str]:
    """Return the digests of the batches of some epochs, the first of which may have begun."""
    return [digest_of(batch) for _ in range(num_epochs) for batch in loader]


def batches_of(loader: Iterable[Any], num_epochs: int = 1) -> Batches:
    """Return the batches of some epochs, as dicts."""
    return [batch.to_dict() for _ in range(num_epochs) for batch in loader]


def assert_goes_on(make_loader: Callable[[], Any], num_epochs: int = 2) -> None:
    """Check that loaders resume: in `make test` in the middle of an epoch, else everywhere."""
    if is_long():
        assert_resumes(make_loader, num_epochs=num_epochs)
        return
    whole, resumed = make_loader(), make_loader()
    batches = iter(whole)
    taken = batches_of(islice(batches, (len(whole) + 1) // 2))
    state = json.loads(json.dumps(whole.state_dict()))
    rest = batches_of(batches)
    assert taken
    assert rest
    resumed.load_state_dict(state)
    assert_same_batches(batches_of(resumed), rest)
    assert_same_batches(batches_of(resumed), batches_of(whole), "in the epoch after that")


# With the variables that torchrun sets, but without the processors' time to import torch.
_RANKS = """
import os, socket
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
children, rank, size = [], 0, "{size}"
for number in range(1, int(size)):
    if (child := os.fork()) == 0:
        children, rank = [], number
        break
    children.append(child)
os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size}
os.environ |= {"LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
"""
_ALL = "sys.exit(max([os.waitpid(child, 0)[1] for child in children], default=0))"


def ranks_in_forks(
    forks: ForkServer, num_ranks: int, script: Path, *arguments: object, status: int = 0
) -> str:
    """Run a script as processes of torchrun's do, and return what they print."""
    begin = _RANKS.replace("{size}", str(num_ranks))
    done = forks.run(begin + RUN_SCRIPT + _ALL, script, *arguments)
    assert done.returncode == status, done.stderr
    return done.stdout


def two_forks(forks: ForkServer, script: Path, *arguments: object) -> str:
    """Run a script as two processes of torchrun's do, and return what they print."""
    return ranks_in_forks(forks, 2, script, *arguments)
