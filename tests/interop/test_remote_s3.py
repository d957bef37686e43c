"""Stores in S3, as moto's server speaks it: copies there and back, once a machine."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gnnstore
from gnnstore.errors import NotFoundError, StoreExistsError
from gnnstore.remote import objects, staging
from gnnstore.remote.copying import copy
from gnnstore.strategies.registry import STRATEGIES
from gnnstore.tools import cli
from tests.support.batches import digests
from tests.support.effort import choose
from tests.support.graphs import graph_with_hubs
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


@pytest.mark.parametrize("has_types", [False, True])
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
    for name in NAMES:
        assert batches(store, name) == expected, name
    # The loaders read the copy; and each object was read twice: to verify, and to copy.
    assert bucket.of("GET") == once
    assert {once[f"/bucket/typed-{has_types}/g.gnn/{name}"] for name in files} == {2}


_OPEN = """
import sys
from gnnstore.remote import staging
from gnnstore.progress import NullProgress

class Notes(NullProgress):
    def note(self, text, facts=None):
        print("note", text, flush=True)

staging._IN_MEMORY = ()
print("ready", flush=True)
sys.stdin.readline()
print(staging.stage(sys.argv[1], sys.argv[2], progress=Notes()), flush=True)
"""


def test_two_processes_at_once_fetch_once(bucket: _Requests, tmp_path: Path) -> None:
    path = write(tmp_path / "g.gnn", False)
    url = "s3://bucket/twice/g.gnn"
    copy(path, url)
    bucket.lines.clear()
    rounds = choose(2, 20)
    files = [file for file in gnnstore.open(path).reader.files if file.size_bytes]
    for number in range(rounds):
        bucket.lines.clear()
        command = [sys.executable, "-c", _OPEN, url, str(tmp_path / f"cache{number}")]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        both = [subprocess.Popen(command, **pipes) for _ in range(2)]
        for process in both:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in both:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate()[0].split("\n") for process in both]
        assert said[0][-2] == said[1][-2]
        assert_same_files(path, Path(said[0][-2]))
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
    other = write_two_typed_store(tmp_path / "other.gnn").path
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
