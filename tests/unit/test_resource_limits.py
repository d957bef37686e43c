"""Too few files, threads or bytes are an error that names the limit, never a damaged store."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.converters import from_numpy
from gnnstore.errors import (
    CorruptStoreError,
    ResourceError,
    StorageError,
    limits_named,
    resource_error,
    storage_error,
)
from gnnstore.tools.session import STORAGE, Session, report
from tests.support.forks import ForkServer
from tests.support.packing import pack

# Forks a process for each limit, so that everything is imported once. Prints what each met.
SCRIPT = """
import json, os, re, resource, signal, sys
from pathlib import Path
import numpy as np
import torch, gnnstore
from gnnstore.converters import from_numpy
source, output, packed, kind = sys.argv[1:5]

def convert(): from_numpy(source, output + str(os.getpid()))
def load():
    loader = gnnstore.NeighborLoader(
        gnnstore.open(output), [3, 3], "train", batch_size=16, strategy=STRATEGY, seed=0,
        num_threads=2, cache_bytes=None if STRATEGY == "memory" else 4096,
    )
    for batch in loader:
        pass
def read():
    features = gnnstore.open(output).features
    features[np.arange(0, 3000, 7)], np.asarray(features), features.tensor(), list(features)
def follow():
    for batch in gnnstore.open_packed(packed).loader(num_threads=2, prefetch_batches=2):
        pass
def verify():
    report = gnnstore.verify(output, "full")
    assert report.ok, report.problems

STRATEGY = "memory"
ACTIONS = (load, convert, verify, read, follow)
for action in (convert, load, verify, read, follow):  # imports what it needs
    action()
found = []
for strategy in ("memory", "static"):
    STRATEGY = strategy
    for action in ACTIONS if strategy == "memory" else (load,):
        for more in map(int, sys.argv[5:]):
            read, write = os.pipe()
            if os.fork() == 0:
                signal.alarm(60)
                try:
                    if kind == "NOFILE":
                        limit = len(os.listdir("/proc/self/fd")) - 1 + more
                    else:
                        status = Path("/proc/self/status").read_text()
                        limit = 1024 * int(re.search(r"VmSize:\\s+(\\d+)", status)[1]) + more
                    which = getattr(resource, "RLIMIT_" + kind)
                    resource.setrlimit(which, (limit, limit))
                    try:
                        action()
                        said = ["", ""]
                    except BaseException as error:
                        said = [type(error).__name__, str(error)]
                    os.write(write, json.dumps(said).encode())
                finally:
                    os._exit(0)
            os.close(write)
            said = os.read(read, 2**16).decode()
            os.close(read)
            os.wait()
            found.append([action.__name__, strategy, more, *json.loads(said or '["nothing", ""]')])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("limits")
    rng = np.random.default_rng(0)
    num_nodes = 3000
    np.savez(
        directory / "a.npz",
        edge_index=rng.integers(0, num_nodes, (2, 20_000)),
        x=rng.random((num_nodes, 64), dtype=np.float32),
        train=np.arange(64),
    )
    return directory / "a.npz"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "amounts", "met"),
    [
        ("NOFILE", (0, 1, 2, 4), "open files"),
        # With nothing left, CPython's Thread.start waits for ever for a thread that cannot begin.
        ("AS", (2**23, 2**24, 2**26), "bytes of address space"),
    ],
)
def test_a_limit_of_the_process_is_named(
    source: Path, forks: ForkServer, kind: str, amounts: tuple[int, ...], met: str
) -> None:
    output = source.with_name(f"{kind}.gnn")
    packed = pack(
        from_numpy(source, output), [3, 3], output=source.with_name(f"{kind}.plan"), epochs=1
    )
    done = forks.run(SCRIPT, source, output, packed, kind, *amounts, own_memory=True)
    assert done.returncode == 0, done.stderr
    found: list[list[Any]] = json.loads(done.stdout)
    unforeseen = [case for case in found if case[3] not in ("", "ResourceError", "StorageError")]
    assert not unforeseen
    assert {"load", "read", "follow"} <= {case[0] for case in found if case[3]}
    named = [case for case in found if case[3] == "ResourceError" and met in case[4]]
    assert len(named) >= 3


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "not enough open files"),
        (OSError(errno.ENFILE, "Too many open files in system"), "fs.file-max"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "not enough memory"),
        (OSError(errno.EAGAIN, "cannot start a thread"), "not enough threads"),
        (MemoryError("Unable to allocate 9 TiB"), "not enough memory .Unable to allocate 9 TiB"),
        (RuntimeError("can't start new thread"), "not enough threads"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "not enough memory"),
    ],
)
def test_what_an_error_says_of_a_limit(error: Exception, said: str) -> None:
    error.add_note("while preparing batch 3")
    expected = pytest.raises(ResourceError, match=f"cannot do it: .*{said}")
    with expected as caught, limits_named("do it"):
        raise error
    assert caught.value.__cause__ is error
    assert caught.value.__notes__ == ["while preparing batch 3"]
    assert report(error, Session()) == STORAGE
    if isinstance(error, OSError):
        assert isinstance(storage_error(error, "do it", "a/file"), ResourceError)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "I/O error"),
        OSError(errno.EAGAIN, "would block"),
        RuntimeError("something else"),
        CorruptStoreError("not enough memory"),
    ],
)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    assert resource_error(error, "do it") is None
    if isinstance(error, OSError):
        found = storage_error(error, "do it", "a/file")
        assert type(found) is StorageError
