"""Stores in S3, as moto's server speaks it: copies there and back, once a machine."""

from __future__ import annotations

import errno
import json
import logging
import os
import pickle
import re
import shutil
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import gnnstore
from gnnstore.errors import NotFoundError, StoreExistsError, UsageError
from gnnstore.formats.container.workdir import find_leftovers
from gnnstore.packing.parts import PartPacker, waiting_for
from gnnstore.packing.sampling import PackSettings
from gnnstore.progress import NullProgress
from gnnstore.remote import objects, staging
from gnnstore.remote.copying import copy
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.strategies.registry import STRATEGIES
from gnnstore.tools import cli
from tests.support.batches import digests
from tests.support.effort import choose
from tests.support.faults import inject
from tests.support.forks import ForkServer
from tests.support.graphs import graph_with_hubs
from tests.support.packing import pack, pack_part
from tests.support.stores import assert_same_files, write_example_store, write_two_typed_store

pytest.importorskip("obstore")
ThreadedMotoServer = pytest.importorskip("moto.server").ThreadedMotoServer

KEYS = {"AWS_ACCESS_KEY_ID": "the-key", "AWS_SECRET_ACCESS_KEY": "the-secret"}
NAMES = [strategy.name for strategy in STRATEGIES]


class _Requests(logging.Handler):
    """What moto's log says was asked for: "GET /bucket/name"."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        match = re.search(r"([A-Z]{3,4} /\S+) HTTP", record.getMessage())
        if match is not None:
            self.lines.append(match[1])

    def of(self, verb: str) -> Counter[str]:
        """Return how often each object was asked for."""
        words = (line.split(" ") for line in self.lines)
        return Counter(name.partition("?")[0] for found, name in words if found == verb)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT"))  # noqa: S310
    yield url
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Requests]:
    """Let obstore find moto; return what it is asked for."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**KEYS, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    requests, log = _Requests(), logging.getLogger("werkzeug")
    before = log.level, log.propagate
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(requests)
    yield requests
    log.removeHandler(requests)
    log.level, log.propagate = before


def write(path: Path, has_types: bool) -> Path:
    return write_two_typed_store(path).path if has_types else graph_with_hubs().write(path)


@pytest.mark.parametrize("has_types", choose([True], [False, True]))
def test_every_strategy_on_a_copy_equals_local(
    bucket: _Requests, tmp_path: Path, has_types: bool
) -> None:
    path = write(tmp_path / "g.gnn", has_types)
    url = f"s3://bucket/typed-{has_types}/g.gnn"
    copy(path, url, verify=True)
    store = gnnstore.open(url, cache_dir=tmp_path / "cache")
    assert_same_files(path, store.path)
    files = [file.path for file in store.reader.files if file.size_bytes]
    once = bucket.of("GET")
    seeds: Any = ("paper", range(90)) if has_types else range(300)

    def batches(of: Any, strategy: str) -> list[str]:
        return digests(
            gnnstore.NeighborLoader(
                of, [4, 4], seeds, batch_size=30, shuffle=True, seed=1, strategy=strategy
            )
        )

    expected = batches(path, "memory")
    assert len(expected) > 2
    for name in choose(("mmap", "packed"), NAMES):
        assert batches(store, name) == expected, name
    # The loaders read the copy; and each object was read twice: to verify, and to copy.
    assert bucket.of("GET") == once
    assert {once[f"/bucket/typed-{has_types}/g.gnn/{name}"] for name in files} == {2}


_OPEN = """
import os, sys
from gnnstore.remote import staging

staging._IN_MEMORY = ()
child = os.fork()
print(staging.stage(sys.argv[1], sys.argv[2]), flush=True)
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_two_processes_at_once_fetch_once(
    bucket: _Requests, tmp_path: Path, forks: ForkServer
) -> None:
    path = write(tmp_path / "g.gnn", False)
    url = "s3://bucket/twice/g.gnn"
    copy(path, url)
    bucket.lines.clear()
    rounds = choose(1, 20)
    files = [file for file in gnnstore.open(path).reader.files if file.size_bytes]
    for number in range(rounds):
        bucket.lines.clear()
        done = forks.run(_OPEN, url, tmp_path / f"cache{number}")
        assert done.returncode == 0, done.stderr
        first, second = done.stdout.splitlines()
        assert first == second
        assert_same_files(path, Path(first))
        asked = bucket.of("GET")
        assert {asked[f"/bucket/twice/g.gnn/{file.path}"] for file in files} == {1}
        assert asked["/bucket/twice/g.gnn/zarr.json"] == 2


def test_the_commands_take_urls(
    bucket: _Requests, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "g.gnn", False)
    cache = ["--cache-dir", str(tmp_path / "cache")]

    def run(*words: object, status: int = 0) -> Any:
        assert cli.main([*map(str, words), "--json"]) == status
        out = capsys.readouterr().out
        assert "the-key" not in out
        assert "the-secret" not in out
        return json.loads(out)

    url = "s3://bucket/commands/g.gnn"
    assert run("copy", path, url, "--verify")["destination"] == url
    assert run("copy", path, url)["copied_bytes"] == 0
    assert run("inspect", url, *cache)["path"] == str(
        tmp_path / "cache" / run("inspect", path)["uuid"]
    )
    assert run("verify", url, *cache, "--level", "full")["ok"]
    run("pack", url, *cache, "--output", tmp_path / "packed", "--memory", "1GB")
    assert run("copy", tmp_path / "packed", f"{url}-packed")["kind"] == "directory of packed epochs"
    assert run("copy", f"{url}-packed", tmp_path / "again")["source"] == f"{url}-packed"
    assert_same_files(tmp_path / "packed", tmp_path / "again")
    other = write_example_store(tmp_path / "other.gnn").path
    assert "another store" in run("copy", other, url, status=2)["error"]["message"]
    run("copy", other, url, "--overwrite", "--verify")
    with pytest.raises(StoreExistsError):
        copy(path, url)
    # From bucket to bucket.
    assert run("copy", url, "s3://bucket/commands/c.gnn", "--verify")["is_verified"]
    del bucket


def test_large_files_are_put_in_parts(
    bucket: _Requests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_example_store(tmp_path / "g.gnn", num_nodes=60_000, num_edges=10).path
    monkeypatch.setattr(objects, "PART_BYTES", 5 * 2**20)  # the least that S3 takes
    copy(path, "s3://bucket/parts/g.gnn", verify=True)
    assert bucket.of("PUT")["/bucket/parts/g.gnn/nodes/node/x/c.0.0"] == 2
    assert_same_files(path, staging.stage("s3://bucket/parts/g.gnn", tmp_path / "cache"))


def test_what_is_not_there_is_said_without_secrets(
    bucket: _Requests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del bucket
    for url in ("s3://bucket/nothing", "s3://no-such-bucket/g.gnn", "s3://bucket"):
        with pytest.raises(
            NotFoundError, match="no gnnstore store here, or no such bucket"
        ) as info:
            gnnstore.open(url, cache_dir=tmp_path)
        assert url in str(info.value)
    path = write(tmp_path / "g.gnn", False)
    copy(path, "s3://bucket/secrets/g.gnn")
    store = gnnstore.open("s3://bucket/secrets/g.gnn", cache_dir=tmp_path / "cache")
    data = pickle.dumps(store)
    assert b"the-" not in data
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody asks for anything
    assert pickle.loads(data).path == store.path  # noqa: S301 - our own


# --- packed epochs ---------------------------------------------------------------------------


def options_of(has_types: bool) -> dict[str, Any]:
    seeds: Any = ("paper", "train") if has_types else "train"
    return {"input_nodes": seeds, "batch_size": 45 if has_types else 150, "cache_bytes": "8kB"}


@pytest.mark.parametrize("has_types", choose([True], [False, True]))
def test_packed_epochs_are_read_where_they_are(
    bucket: _Requests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_types: bool
) -> None:
    path, url = write(tmp_path / "g.gnn", has_types), f"s3://bucket/streamed-{has_types}"
    seeds, batch_size = (options_of(has_types)[name] for name in ("input_nodes", "batch_size"))
    for number in (1, 0):
        made = pack_part(path, tmp_path / "parts", number, 2, **options_of(has_types))
        copy(made, f"{url}/{made.name}")
    expected = digests(gnnstore.open_packed(tmp_path / "parts").loader(), 2)
    packed = gnnstore.open_packed(url, cache_dir=tmp_path / "cache")
    tables = packed.reader.manifest.cached
    bucket.lines.clear()
    loader = packed.loader(memory="50MB", num_threads=2)
    assert digests(loader, 2) == expected
    assert loader.stats().bytes_read > 0
    asked = bucket.of("GET")
    assert sum(n for name, n in asked.items() if "/batches/" in name) == len(expected)
    assert sum(asked.values()) <= len(expected) * (1 + len(tables))
    assert all("/batches/" in name or "/rows/" in name for name in asked)
    # By ranks, from the middle on, and with the store.
    half = len(loader) // 2
    state = {**loader.state_dict(), "epoch": 0, "batches": half}
    found: dict[int, str] = {}
    for rank in range(2):
        own = packed.loader(rank=rank, world_size=2)
        own.load_state_dict(state)
        found |= dict(zip(range(half + rank, len(loader), 2), digests(own), strict=False))
    assert [found[k] for k in sorted(found)] == expected[half : len(loader)]
    given: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "seed": 3}
    again = pickle.loads(pickle.dumps(packed))  # noqa: S301 - our own
    files: Any = [part.files_there._files for part in again.reader.parts]
    assert files[0] is files[1]
    assert again.reader.parts[0].path == packed.reader.parts[0].path
    monkeypatch.setattr(staging, "default_cache_directory", lambda: tmp_path / "default")
    elsewhere = pickle.dumps(gnnstore.open_packed(url))
    shutil.rmtree(tmp_path / "default")
    pickle.loads(elsewhere)  # noqa: S301 - our own
    assert (tmp_path / "default").stat().st_mode & 0o777 == 0o700
    assert digests(gnnstore.NeighborLoader(path, [4, 4], seeds, packed=again, **given), 2) == (
        expected
    )


def test_epochs_are_packed_to_a_bucket(
    bucket: _Requests, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, url = write(tmp_path / "g.gnn", False), "s3://bucket/packed/parts"
    words = ["pack", path, "--spill-dir", tmp_path, "--num-neighbors", "4,4", "--json"]
    words += ["--batch-size", "200", "--cache-by", "degree", "--cache-bytes", "20kB"]

    def run(*more: object, status: int = 0) -> Any:
        assert cli.main([*map(str, (*words, *more))]) == status
        return json.loads(capsys.readouterr().out)

    (tmp_path / "there").mkdir()
    for number in range(2):
        run("--part", f"{number}/2", "--output", tmp_path / "here")
        found = run("--part", f"{number}/2", "--output", url)
        assert (found["path"], found["num_parts"]) == (f"{url}/part-{number:05d}-of-00002", 2)
        copy(found["path"], tmp_path / "there" / f"part-{number:05d}-of-00002")
    assert_same_files(tmp_path / "here", tmp_path / "there")
    assert not list(tmp_path.glob(".gnnstore-*"))
    bucket.lines.clear()
    run("--part", "1/2", "--output", url)
    assert not bucket.of("PUT")
    message = run("--part", "1/2", "--output", url, "--seed", "1", status=2)["error"]["message"]
    assert f"{url}/part-00000-of-00002: is there, and was packed otherwise: seed is 0" in message
    message = run("--part", "1/3", "--output", url, status=2)["error"]["message"]
    assert "has part 0 of 2, and this is one of 3" in message
    # In one, which an estimate and the removal of what is left leave alone while it is made.
    whole = "s3://bucket/packed/whole"
    with inject("fallocate", errno=errno.ENOSPC, skip=2, times=-1):
        run("--output", whole, "--superbatch", "1", status=5)
    (left,) = tmp_path.glob(".gnnstore-put-*")
    assert run("--output", whole, "--estimate")["estimate"]
    assert [(item.path, item.state) for item in find_leftovers(tmp_path)] == [(left, "resumable")]
    with waiting_for(whole, tmp_path, NullProgress()) as held:
        assert held == left
        assert [item.state for item in find_leftovers(tmp_path)] == ["running"]
        run("--output", whole, "--estimate")
        assert list(left.iterdir())
    assert run("--output", whole)["path"] == whole
    expected = digests(gnnstore.open_packed(tmp_path / "here").loader())
    assert digests(gnnstore.open_packed(whole, cache_dir=tmp_path / "c").loader()) == expected
    assert f"{whole} exists" in run("--output", whole, status=2)["error"]["message"]


def test_two_attempts_at_once_with_a_common_directory(bucket: _Requests, tmp_path: Path) -> None:
    path, url = write(tmp_path / "g.gnn", False), "s3://bucket/twice"
    config = SamplingConfig((4, 4), seed=3)
    fixed: dict[str, Any] = {"cache": "degree", "cache_bytes": "20kB"}
    settings = PackSettings(config, "train", 100, 1, part=(0, 2), **fixed)
    bucket.lines.clear()
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(PartPacker(gnnstore.open(path), settings).pack_elsewhere, url, tmp_path)
            for _ in range(2)
        ]
        first, second = (job.result() for job in jobs)
    assert first.part == second.part
    assert not [name for name, count in bucket.of("PUT").items() if count > 1]
    assert [each.name for each in tmp_path.iterdir()] == ["g.gnn"]


def test_epochs_that_are_not_streamed(bucket: _Requests, tmp_path: Path) -> None:
    path = write(tmp_path / "g.gnn", False)
    shared = pack(path, [4, 4], output=tmp_path / "shared", segment=3)
    copy(shared, "s3://bucket/shared")
    with pytest.raises(UsageError, match=r"3 batches at a time share rows.*gnnstore copy URL PATH"):
        gnnstore.open_packed("s3://bucket/shared", cache_dir=tmp_path / "c")
    made = pack_part(path, tmp_path / "parts", 1, 2)
    copy(made, f"s3://bucket/one/{made.name}")
    with pytest.raises(NotFoundError, match="1 part of 2 not there: 0; make each"):
        gnnstore.open_packed("s3://bucket/one", cache_dir=tmp_path / "c")
    with pytest.raises(
        UsageError, match=r"is part 1 of 2; open the directory .*: s3://bucket/one$"
    ):
        gnnstore.open_packed(f"s3://bucket/one/{made.name}", cache_dir=tmp_path / "c")
    with pytest.raises(NotFoundError, match="no gnnstore store here"):
        gnnstore.open_packed("s3://bucket/nowhere", cache_dir=tmp_path / "c")
    # On a path, with a directory of copies, all is copied.
    moved = gnnstore.open_packed(shared, cache_dir=tmp_path / "c")
    assert_same_files(moved.reader.parts[0].path, shared)
    del bucket
