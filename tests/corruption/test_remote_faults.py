"""A bucket that drops, delays, truncates, refuses and damages answers: never a wrong byte."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnnstore.errors import CorruptStoreError, GnnstoreError, StorageError
from gnnstore.remote import objects
from gnnstore.remote.copying import copy
from gnnstore.remote.staging import stage
from tests.support.effort import choose, is_long
from tests.support.object_faults import FaultyStore, Plan, serve_faults
from tests.support.stores import assert_same_files, write_example_store

pytest.importorskip("obstore")

URL = "s3://bucket/graph.gnn"
# Of an answer that is not right: the error where it comes each time, and the words.
FAULTS: dict[str, tuple[type[GnnstoreError], str]] = {
    "drop": (StorageError, "cannot read"),
    "delay": (StorageError, "cannot read"),
    "cut": (StorageError, "cannot read"),
    "500": (StorageError, "500 Internal Server Error"),
    "503": (StorageError, r"503 Service Unavailable \(SlowDown\)"),
    "403": (StorageError, r"403 Forbidden.*check the credentials: set AWS_ACCESS_KEY_ID"),
    "404": (CorruptStoreError, "the file is missing, but the manifest lists it"),
    "416": (CorruptStoreError, r"ends at byte \d+, but the manifest says"),
    "short": (CorruptStoreError, "ends at byte"),
    "flip": (CorruptStoreError, "bytes .* are not those that were written"),
}
# Those that others are treated like, or that are in a test below.
ALIKE = {"500", "cut", "short", "delay"}
# Those that may not go away are not tried again.
LASTING = {"403", "404"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that no test changes, with a file of more than one part."""
    path = tmp_path_factory.mktemp("sound") / "a.gnn"
    return write_example_store(path, num_nodes=12_000, num_edges=100).path


@pytest.fixture
def bucket(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setattr(objects, "CONNECT_SECONDS", 2)
    monkeypatch.setattr(objects, "ANSWER_SECONDS", 0.6)
    monkeypatch.setattr(objects, "MAX_RETRIES", 1)
    monkeypatch.setattr(objects, "RETRY_SECONDS", 2)
    (tmp_path / "buckets" / "bucket").mkdir(parents=True)
    shutil.copytree(sound, tmp_path / "buckets/bucket/graph.gnn")
    with serve_faults(tmp_path / "buckets") as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.endpoint)
        found.delay_seconds = 0.8
        yield found


@pytest.mark.timeout(100)  # that it is asked for again comes to an end
@pytest.mark.parametrize("fault", [name for name in FAULTS if is_long() or name not in ALIKE])
def test_faults_are_survived_or_named(bucket: FaultyStore, tmp_path: Path, fault: str) -> None:
    source = bucket.directory / "bucket" / "graph.gnn"
    data = "/x/c.0.0"
    if fault not in LASTING:  # once: it is asked for again
        failed: list[str] = []

        def once(_number: int, name: str) -> str:
            if not name.endswith(data) or failed:
                return ""
            failed.append(name)
            return fault

        bucket.plan = once
        assert_same_files(source, stage(URL, tmp_path / "once"))
        assert len(failed) == 1
    kind, words = FAULTS[fault]
    bucket.plan = lambda _, name: fault if name.endswith(data) else ""
    with pytest.raises(kind, match=words) as info:
        stage(URL, tmp_path / "always")
    assert "s3://bucket/graph.gnn/nodes/node/x/c.0.0" in str(info.value)
    assert bucket.endpoint not in str(info.value)
    assert [path.name[-5:] for path in (tmp_path / "always").iterdir() if path.name[0] != "."] == []
    # What has arrived stays, and the next attempt has all the rest.
    bucket.plan, before = lambda *_: "", len(bucket.requests)
    assert_same_files(source, stage(URL, tmp_path / "always"))
    asked = [name for name, _ in bucket.requests[before:]]
    assert sum(name.endswith(data) for name in asked) == 1
    assert len(asked) <= before


def test_faults_at_every_request(bucket: FaultyStore, tmp_path: Path) -> None:
    """A fault at the k-th request, whatever is asked for then: right bytes, or an error."""
    source = bucket.directory / "bucket" / "graph.gnn"
    stage(URL, tmp_path / "count")
    num_requests = len(bucket.requests)
    assert num_requests > 20
    ends, named = {"right": 0, "error": 0}, 0
    for fault in ("flip", "503", *choose((), ("short",))):
        for k in range(0, num_requests, choose(17, 1)):
            bucket.requests.clear()
            bucket.plan = lambda number, _, k=k, fault=fault: fault if number == k else ""  # type: ignore[misc]
            try:
                path = stage(URL, tmp_path / f"{fault}-{k}")
            except GnnstoreError as error:
                named += URL in str(error)
                ends["error"] += 1
            else:
                assert_same_files(source, path)
                ends["right"] += 1
                shutil.rmtree(path)
    # Of the manifest's own bytes, damage is an error at once.
    assert ends["right"] > choose(2, 4) * ends["error"]
    assert ends["error"] == named


def test_a_store_that_is_replaced_meanwhile_is_refused(bucket: FaultyStore, tmp_path: Path) -> None:
    source = bucket.directory / "bucket" / "graph.gnn"
    replaced: list[int] = []

    def replace(number: int, name: str) -> str:
        if not replaced and name.endswith("indptr/c.0"):
            replaced.append(number)
            other = write_example_store(tmp_path / "other.gnn", num_nodes=12_000, seed=2).path
            shutil.copytree(other, source, dirs_exist_ok=True)
        return ""

    bucket.plan = replace
    with pytest.raises(CorruptStoreError, match="it was replaced or damaged: put the store there"):
        stage(URL, tmp_path / "cache")
    assert replaced
    assert_same_files(source, stage(URL, tmp_path / "cache"))


def test_no_bytes_of_a_hung_server(
    bucket: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.plan = lambda *_: "delay"
    with pytest.raises(StorageError, match=re.escape(f"cannot read {URL}/zarr.json")):
        stage(URL, tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody is there
    with pytest.raises(StorageError, match="check that the place can be reached"):
        copy(URL, tmp_path / "x")


def test_a_slow_link_is_waited_for(
    bucket: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "MAX_RETRIES", 0)
    monkeypatch.setattr(objects, "ANSWER_SECONDS", 1.0)  # ten times what a part takes
    bucket.delay_seconds = 1.2
    bucket.plan = lambda _, name: "trickle" if name.endswith("/x/c.0.0") else ""
    assert_same_files(bucket.directory / "bucket" / "graph.gnn", stage(URL, tmp_path / "cache"))
    assert sum(name.endswith("/x/c.0.0") for name, _ in bucket.requests) == 1


def test_a_server_without_ranges_is_refused(bucket: FaultyStore, tmp_path: Path) -> None:
    bucket.ignores_ranges = True
    for place in (URL, web_store(bucket)):
        with pytest.raises(StorageError, match="this server does not answer ranges"):
            stage(place, tmp_path / "cache")


def web_store(bucket: FaultyStore) -> Any:
    from obstore.store import HTTPStore  # noqa: PLC0415 - an extra

    url = f"{bucket.endpoint}/bucket/graph.gnn"
    return HTTPStore.from_url(url, client_options={"allow_http": True})


def test_a_web_server_is_read(bucket: FaultyStore, tmp_path: Path) -> None:
    web = web_store(bucket)
    assert_same_files(bucket.directory / "bucket" / "graph.gnn", stage(web, tmp_path / "cache"))


def at_first(fault: str, ending: str, times: int) -> Plan:
    """Return a plan by which so many requests for an object fail; -1: all."""
    left = [times]

    def plan(_number: int, name: str) -> str:
        if not left[0] or not name.endswith(ending):
            return ""
        left[0] -= 1
        return fault

    return plan


def test_streamed_batches_are_right_or_refused(bucket: FaultyStore, tmp_path: Path) -> None:
    """Each request brings a record or a chunk, of no more bytes than a batch has."""
    pytest.importorskip("torch_geometric")
    import gnnstore  # noqa: PLC0415
    from tests.support.batches import digests  # noqa: PLC0415
    from tests.support.graphs import graph_with_hubs  # noqa: PLC0415
    from tests.support.packing import pack  # noqa: PLC0415

    path = graph_with_hubs().write(tmp_path / "g.gnn")
    local = pack(path, [4], epochs=1, output=bucket.directory / "bucket/p", cache="degree")
    expected = digests(gnnstore.open_packed(local).loader())
    packed = gnnstore.open_packed("s3://bucket/p", cache_dir=tmp_path / "cache")
    bucket.requests.clear()
    assert digests(packed.loader(num_threads=2)) == expected
    most = packed.reader.manifest.largest_batch_bytes
    spans = [re.fullmatch(r"bytes=(\d+)-(\d+)", wanted) for _, wanted in bucket.requests]
    assert len(spans) == 2 * len(expected)
    assert all(span is not None and int(span[2]) - int(span[1]) < most for span in spans)

    for fault, kind, words in (
        ("flip", CorruptStoreError, "the crc32c (is|of its bytes)"),
        ("404", CorruptStoreError, "the file is missing, but the manifest lists it"),
        ("503", StorageError, "503 Service Unavailable"),
        ("short", CorruptStoreError, "ends at byte"),
    )[: choose(2, 4)]:
        for data in ("/batches/c.0", "/rows/x/c.0"):
            bucket.plan = at_first(fault, data, 1)
            if fault in LASTING:
                with pytest.raises(kind, match=words) as info:
                    digests(packed.loader(num_threads=0))
            else:
                assert digests(packed.loader(num_threads=1)) == expected
                bucket.plan = at_first(fault, data, -1)
                with pytest.raises(kind, match=words) as info:
                    digests(packed.loader(num_threads=0))
            assert "s3://bucket/p/" in str(info.value)
    bucket.plan = at_first("", "", 0)
    # Another plan that was put there meanwhile is damage, too.
    shutil.rmtree(local)
    pack(path, [4], epochs=1, output=local, cache="degree", seed=4)
    with pytest.raises(CorruptStoreError, match="s3://bucket/p/batches"):
        digests(packed.loader(num_threads=0))
