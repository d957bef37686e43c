"""A timeline says what ran when and where, however much it is, and whatever ends it."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnstore.errors import NoSpaceError, NotFoundError, StorageError, UsageError
from gnnstore.pipeline.batch import Batch
from gnnstore.timeline import Timeline, recorded

pytest.importorskip("torch_geometric")

from gnnstore import NeighborLoader
from tests.support.stores import write_example_store

STAGES = {"sampling", "gathering", "wait", "training"}


def written(timeline: Timeline, path: Path) -> dict[str, Any]:
    timeline.write(path)
    document: dict[str, Any] = json.loads(path.read_text(), parse_constant=pytest.fail)
    return document


def events_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def thread_names(document: dict[str, Any]) -> dict[int, str]:
    return {
        event["tid"]: event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "thread_name"
    }


def test_what_is_recorded_is_written(tmp_path: Path) -> None:
    timeline = Timeline()
    start = time.perf_counter_ns()
    with timeline.span("read", batch=3) as args:
        args["rows"] = 17
        time.sleep(0.005)
    timeline.add("plan", start - 2000, start + 1500, name="any", start_ns=1)
    document = written(timeline, tmp_path / "t.json")
    plan, read = events_of(document)
    assert (plan["name"], plan["dur"]) == ("plan", 3.5)
    assert plan["args"] == {"name": "any", "start_ns": 1}
    assert (read["name"], read["args"]) == ("read", {"batch": 3, "rows": 17})
    assert 5000 <= read["dur"] < 1e6
    assert read["ts"] - plan["ts"] >= 2
    assert {plan["pid"], read["pid"]} == {os.getpid()}
    assert thread_names(document) == {threading.get_native_id(): "MainThread"}
    assert document["otherData"] == {"dropped_events": 0}


def test_spans_lie_within_each_other(tmp_path: Path) -> None:
    timeline = Timeline()
    with timeline.span("outer"), timeline.span("inner"):
        pass
    timeline.add("long", 100, 300)
    timeline.add("short", 100, 200)
    names = [event["name"] for event in events_of(written(timeline, tmp_path / "t.json"))]
    assert names == ["long", "short", "outer", "inner"]


def test_an_error_ends_a_span_and_is_named(tmp_path: Path) -> None:
    timeline = Timeline()
    with pytest.raises(KeyError), timeline.span("read", batch=1):
        raise KeyError
    (event,) = events_of(written(timeline, tmp_path / "t.json"))
    assert event["args"] == {"batch": 1, "error": "KeyError"}


def test_memory_is_bounded_and_what_is_dropped_is_said(tmp_path: Path) -> None:
    timeline = Timeline(max_events=10)
    now_ns = time.perf_counter_ns()
    for i in range(25):
        timeline.add("step", now_ns + i, now_ns + i + 1, i=i)
    document = written(timeline, tmp_path / "t.json")
    assert [event["args"]["i"] for event in events_of(document)] == list(range(10))
    assert document["otherData"] == {"dropped_events": 15}
    with pytest.raises(UsageError, match="at least 1 event"):
        Timeline(0)


def test_a_file_is_replaced_at_once_and_others_may_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "t.json"
    file.write_text("before")
    timeline = Timeline()
    timeline.add("step", 0, 1)

    def fail(*_: object) -> None:
        assert file.read_text() == "before"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Timeline, "_write", fail)
        with pytest.raises(NoSpaceError, match=rf"cannot write the timeline: .*{file}"):
            timeline.write(file)
        patch.setattr(Timeline, "_write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            timeline.write(file)
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    assert file.read_text() == "before"
    umask = os.umask(0o022)
    os.umask(umask)
    timeline.write(str(file))
    assert len(events_of(json.loads(file.read_text()))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~umask


def test_what_cannot_be_written_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(NotFoundError, match=r"none/t.json: the directory .* does not exist"),
        recorded(tmp_path / "none" / "t.json"),
    ):
        pytest.fail("the work has begun")
    with (
        pytest.raises(StorageError, match=rf"write the timeline: {tmp_path}: Is a directory"),
        recorded(tmp_path),
    ):
        pytest.fail("the work has begun")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with (
        pytest.raises(StorageError, match=r"write the timeline: .*t.json: Permission denied"),
        recorded(tmp_path / "t.json"),
    ):
        pytest.fail("the work has begun")


def test_an_error_in_the_work_is_not_hidden(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    file = directory / "t.json"

    def work(*, remove: bool) -> None:
        with recorded(file) as timeline:
            timeline.add("step", 0, 1)
            if remove:
                file.unlink()
                directory.rmdir()
            raise KeyError("work")

    with pytest.raises(KeyError, match="work"):
        work(remove=False)
    assert len(events_of(json.loads(file.read_text()))) == 1
    with pytest.raises(KeyError, match="work") as caught:
        work(remove=True)
    assert "and no timeline has been written: cannot write" in caught.value.__notes__[0]


# ---- of a loader


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("timeline")
    return write_example_store(directory / "s.gnn", num_nodes=500, num_edges=5000).path


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("strategy", ["memory", "direct"])
def test_every_stage_of_every_batch(
    store: Path, tmp_path: Path, num_threads: int, strategy: str
) -> None:
    loader = NeighborLoader(
        store, [5, 5], batch_size=50, num_threads=num_threads, strategy=strategy, seed=0
    )
    with loader.trace(tmp_path / "epoch.json"):
        batches = list(loader)
    stats = loader.stats()
    document = read(tmp_path / "epoch.json")
    events = events_of(document)
    found = Counter((event["name"], event["args"]["batch"]) for event in events)
    assert found == {(stage, k): 1 for stage in STAGES for k in range(10)}
    assert {event["args"]["epoch"] for event in events} == {0}

    names = thread_names(document)
    for event in events:
        is_prepared = event["name"] in {"sampling", "gathering"} and num_threads > 0
        expected = "gnnstore-loader" if is_prepared else "MainThread"
        assert names[event["tid"]].startswith(expected)

    by = {(event["name"], event["args"]["batch"]): event for event in events}
    for k, batch in enumerate(batches):
        sampling = by["sampling", k]["args"]
        assert (sampling["nodes"], sampling["edges"]) == (batch.num_nodes, batch.num_edges)
    gathered = [by["gathering", k]["args"] for k in range(10)]
    for name, total in (
        ("bytes", stats.bytes_gathered),
        ("rows_read", stats.rows_read),
        ("reads", stats.reads),
        ("bytes_read", stats.bytes_read),
    ):
        assert sum(args[name] for args in gathered) == total
    assert (stats.rows_read > 0) == (strategy == "direct")

    # In the consumer's thread, times follow one another; a batch is handed out when it is ready.
    for k in range(10):
        wait, training = by["wait", k], by["training", k]
        assert wait["ts"] + wait["dur"] <= training["ts"] + 1e-3
        gathering = by["gathering", k]
        assert gathering["ts"] + gathering["dur"] <= wait["ts"] + wait["dur"] + 1e-3
        if k:
            before = by["training", k - 1]
            assert wait["ts"] == pytest.approx(before["ts"] + before["dur"], abs=1e-3)
    seconds = sum(by["wait", k]["dur"] for k in range(10)) * 1e-6
    assert seconds == pytest.approx(stats.seconds_waiting, rel=1e-3)


def test_transforms_and_pinning_are_stages(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("gnnstore.loaders.pinning.pin_memory", lambda output, _: output)
    loader = NeighborLoader(
        store,
        [5],
        batch_size=250,
        num_threads=1,
        pin_memory=True,
        transform=lambda data: data,
        transform_sampler_output=lambda output: output,
    )
    with loader.trace(tmp_path / "t.json"):
        assert len(list(loader)) == 2
    document = read(tmp_path / "t.json")
    names = thread_names(document)
    events = [event for event in events_of(document) if names[event["tid"]] == "MainThread"]
    expected = ["wait", "transform_sampler_output", "gathering", "transform", "pinning", "training"]
    assert [event["name"] for event in events] == expected * 2


def test_an_error_while_preparing_is_in_the_trace(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = NeighborLoader(store, [5], batch_size=50, num_threads=2, seed=0)
    assemble = loader._assembler.assemble

    def fail(batch: Batch, *rest: Any) -> None:
        if batch.key.batch == 2:
            raise StorageError("no more")
        assemble(batch, *rest)

    monkeypatch.setattr(loader._assembler, "assemble", fail)
    with pytest.raises(StorageError, match="no more"), loader.trace(tmp_path / "t.json"):
        list(loader)
    events = events_of(read(tmp_path / "t.json"))
    (failed,) = [event for event in events if "error" in event["args"]]
    assert failed["name"] == "gathering"
    assert failed["args"] == {"epoch": 0, "batch": 2, "error": "StorageError"}
    list(NeighborLoader(store, [5], batch_size=50))
