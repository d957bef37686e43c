"""What `gnnstore bench load` runs in processes of their own, run in this one."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.errors import BudgetError, UsageError
from gnnstore.timeline import Recording
from gnnstore.tools.bench.harness import (
    STAGES,
    Task,
    measure_disk_of,
    memory_group,
    run_task,
    split_tables,
    ways,
)
from gnnstore.tools.bench.load import WORKER
from gnnstore.tools.bench.worker import Run, perform, stages_of, work
from tests.support.effort import choose, is_long
from tests.support.stores import write_example_store

# As docs/cli.md lists them.
OUTCOME = {
    *("seconds", "nodes", "disk_bytes", "reads", "stages", "hit_rate", "cache_rows", "superbatch"),
    *("seconds_to_prepare", "seconds_warming_up", "limit_bytes", "group_peak_bytes"),
    *("peak_rss_bytes", "chosen", "reason"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "a.gnn"
    return write_example_store(path, num_nodes=600, num_edges=3000).path


@pytest.fixture
def task(made: Path, tmp_path: Path) -> Task:
    np.save(tmp_path / "seeds.npy", np.arange(200))
    return Task(
        strategy="numpy-mmap",
        store=str(shutil.copytree(made, tmp_path / "a.gnn")),
        seeds=str(tmp_path / "seeds.npy"),
        group="",
        share=1.0,
        slack_bytes=300 * 10**6,
        warm_up=0,
        batches=5,
        round=0,
        fanouts=(4, 4),
        batch_size=40,
    )


@pytest.mark.parametrize(
    "strategy",
    [way for way in ways() if is_long() or way in {"numpy-mmap", "mmap", "memory", "packed"}],
)
def test_every_way_loads_the_same_batches(
    task: Task, strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = gnnstore.NeighborLoader(
        task.store,
        [4, 4],
        np.arange(200),
        batch_size=40,
        seed=0,
        shuffle=True,
        strategy="memory",
    )
    nodes = [batch.num_nodes for batch in loader]
    outcome = perform(replace(task, strategy=strategy))
    assert outcome["nodes"] == pytest.approx(np.mean(nodes))
    assert capsys.readouterr().out.split() == ["."] * 5
    assert outcome["seconds"] > 0
    if strategy in ("numpy-mmap", "mmap", "memory"):
        assert outcome["reads"] == 0
    if strategy == "numpy-mmap":
        assert outcome["chosen"] == ""
    elif strategy != "auto":
        assert outcome["chosen"] == strategy
    reads_by_faults, stages = ways()[strategy].reads_by_faults, outcome["stages"]
    assert sum(stages.values()) == pytest.approx(outcome["seconds"])
    assert stages["sampling"] > 0
    assert stages["assembling"] + stages["reading"] > 0
    assert (stages["assembling"] == 0) == reads_by_faults
    assert set(outcome) == OUTCOME


def test_rounds_are_different_epochs(task: Task) -> None:
    task = replace(task, batches=1)
    nodes = {perform(replace(task, round=number))["nodes"] for number in range(4)}
    assert len(nodes) > 1
    assert perform(replace(task, round=1, strategy="direct"))["nodes"] in nodes


def test_warm_up_comes_before_what_is_counted(
    task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    every = perform(replace(task, batches=5))
    last = perform(replace(task, warm_up=3, batches=2))
    assert last["nodes"] != every["nodes"]
    assert last["seconds_warming_up"] > 0
    assert capsys.readouterr().out.split() == ["."] * (5 + 3 + 2)  # whoever waits sees them all


def test_the_limit_is_a_share_of_wide_rows_and_slack(task: Task) -> None:
    run = Run(replace(task, share=0.5, slack_bytes=1000))
    wide, narrow = split_tables(run.store.schema)
    assert [spec.name for spec in wide] == ["x"]
    assert {spec.name for spec in narrow} >= {"y", "edge_attr"}
    assert run.room_bytes == wide[0].num_bytes // 2 + 1000
    assert set(run.held) == {spec.path for spec in narrow}


def test_a_store_without_paged_attributes_has_nothing_to_compare(task: Task) -> None:
    schema = gnnstore.open(task.store).schema
    node, edge = schema.node, schema.edge
    bare = replace(
        schema,
        node_types=(replace(node, attributes={}),),
        edge_types=(replace(edge, attributes={}),),
    )
    with pytest.raises(UsageError, match="there is nothing to compare"):
        split_tables(bare)


def test_features_that_the_machine_cannot_hold(task: Task, monkeypatch: Any) -> None:
    monkeypatch.setattr("gnnstore.budget.limits.available_bytes", lambda: 1000)
    with pytest.raises(BudgetError, match=r"(?s)strategy .memory. does not fit.*attributes"):
        perform(replace(task, strategy="memory"))


# --- the process --------------------------------------------------------------------------------


def test_a_budget_that_is_too_small_is_a_reason(
    task: Task, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process; `test_the_task_is_plain_json` has one that says what the problem is."""
    task = replace(task, strategy="direct", share=0.0, slack_bytes=64 * 10**6)
    monkeypatch.setattr(sys, "argv", ["worker", json.dumps(asdict(task))])
    assert work() == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "bytes too few" in answer["problem"]


@pytest.mark.usefixtures(choose("timed_in_forks", "tmp_path"))
def test_an_outcome_comes_back_whole(task: Task) -> None:
    marks: list[None] = []
    found = run_task(
        replace(task, strategy="memory"),
        worker=WORKER,
        is_limited=False,
        on_batch=lambda: marks.append(None),
    )
    assert isinstance(found, dict)
    assert len(marks) == 5
    assert (found["chosen"], found["limit_bytes"]) == ("memory", 0)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a module of some lines, to be run as a worker."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")

    def make(source: str) -> str:
        (tmp_path / "own_worker.py").write_text(source)
        return "own_worker"

    return make


def test_marks_and_the_last_line_come_back(task: Task, worker: Any) -> None:
    module = worker("import sys\nprint('.\\n.')\nprint('{\"words\": %d}' % len(sys.argv))\n")
    marks: list[None] = []
    found = run_task(
        task, "more", worker=module, is_limited=False, on_batch=lambda: marks.append(None)
    )
    assert (found, len(marks)) == ({"words": 3}, 2)


def test_a_process_that_is_killed(task: Task, worker: Any) -> None:
    module = worker("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    found = run_task(task, worker=module, is_limited=False)
    assert found == "killed by the kernel: it took more than the limit"


def test_a_process_that_fails_says_why_in_its_last_line(task: Task, worker: Any) -> None:
    module = worker("raise RuntimeError('the reason')\n")
    assert run_task(task, worker=module, is_limited=False) == "RuntimeError: the reason"
    module = worker("import sys\nsys.exit(7)\n")
    assert run_task(task, worker=module, is_limited=False) == "it ended with status 7"


def test_an_interrupt_lets_the_process_clean_up(task: Task, worker: Any, tmp_path: Path) -> None:
    module = worker(
        "import sys, time\n"
        "try:\n"
        "    print('.', flush=True)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        f"    open({str(tmp_path / 'cleaned')!r}, 'w').close()\n"
    )

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_task(task, worker=module, is_limited=False, on_batch=interrupt)
    assert (tmp_path / "cleaned").exists()


def test_the_task_is_plain_json(task: Task, worker: Any) -> None:
    module = worker(
        "import json, sys\nprint(json.dumps({'problem': sorted(json.loads(sys.argv[1]))[0]}))\n"
    )
    assert run_task(task, worker=module, is_limited=False) == "batch_size"
    assert Task(**json.loads(json.dumps(vars(task)))).seeds == task.seeds


# --- the group, and the disk --------------------------------------------------------------------


def test_a_group_keeps_its_limit_and_is_removed() -> None:
    with memory_group() as group:
        if group is None:
            pytest.skip("memory cgroups need root")
        path = group.path
        group.limit(50 * 10**6)
        assert group.held_bytes() < 50 * 10**6
        assert group.peak_bytes() >= 0
    assert not path.exists()


def test_the_disk_is_measured_on_the_store(task: Task) -> None:
    store = gnnstore.open(task.store)
    before = sorted(store.path.parent.rglob("*"))
    limits = measure_disk_of(store)
    assert limits.random_reads_per_second > 0
    assert limits.bytes_per_second > 0
    assert sorted(store.path.parent.rglob("*")) == before


# --- the stages of an epoch ---------------------------------------------------------------------


def stages(
    *spans: tuple[str, float, float], of: float, ms_reading: float = 0.0
) -> dict[str, float]:
    """Divide the seconds of spans (name, begin, end)."""
    events = [
        (10**9 + int(begin * 1e9), 10**9 + int(end * 1e9), 1, name, {"ms_reading": ms_reading})
        for name, begin, end in spans
    ]
    return stages_of(Recording(10**9, events, {}, 0), of, faults_are_reads=False)


def test_a_moment_is_divided_among_what_runs_in_it() -> None:
    spans = [("sampling", 0, 4), ("packing", 2, 6), ("planning", 2, 4), ("wait", 0, 10)]
    found = stages(*spans, of=10.0)
    assert found["sampling"] == pytest.approx(2 + 2 / 3)
    assert found["planning"] == pytest.approx(2 / 3)
    assert found["packing"] == pytest.approx(2 / 3 + 2)
    assert found["other"] == pytest.approx(4)
    # What began before or ends after is cut; gathering is reading as far as it waited for reads.
    found = stages(("sampling", -3, 1), ("packing", 3, 9), of=4.0)
    assert (found["sampling"], found["packing"], found["other"]) == pytest.approx((1, 1, 2))
    found = stages(("gathering", 0, 2), of=2.0, ms_reading=500.0)
    assert (found["reading"], found["assembling"]) == pytest.approx((0.5, 1.5))
    assert stages(of=3.0) == {**dict.fromkeys(STAGES, 0.0), "other": 3.0}


@pytest.mark.parametrize("seed", range(3))
def test_random_spans_equal_a_count_of_every_moment(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ["sampling", "planning", "filling", "packing"]
    spans: list[tuple[str, float, float]] = []
    for _ in range(30):
        begin, end = sorted(rng.integers(0, 50, 2).tolist())
        spans.append((str(rng.choice(names)), float(begin), float(end)))
    expected = dict.fromkeys(STAGES, 0.0)
    for moment in range(50):
        running = [name for name, begin, end in spans if begin <= moment < end]
        for name in running or ["other"]:
            expected[name] += 1 / max(1, len(running))
    assert stages(*spans, of=50.0) == pytest.approx(expected)
