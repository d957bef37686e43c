"""Two processes that torch.distributed knows, as forks."""

from __future__ import annotations

from pathlib import Path

from tests.support.forks import RUN_SCRIPT, ForkServer

# With the variables that torchrun sets, but without the processors' time to import torch.
_RANKS = """
import os, socket
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
child = os.fork()
rank = "1" if child == 0 else "0"
os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
"""
_BOTH = "if child: sys.exit(os.waitpid(child, 0)[1])"


def two_forks(forks: ForkServer, script: Path, *arguments: object) -> str:
    """Run a script as two processes of torchrun's do, and return what they print."""
    done = forks.run(_RANKS + RUN_SCRIPT + _BOTH, script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
