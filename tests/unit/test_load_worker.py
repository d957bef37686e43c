"""What `gnnstore bench load` runs in processes of their own, run in this one."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.errors import BudgetError, UsageError
from gnnstore.tools.bench import cgroup
from gnnstore.tools.bench.cgroup import MemoryGroup, _parents, _remove, memory_group
from gnnstore.tools.bench.harness import Task, measure_disk_of, run_task, split_tables
from gnnstore.tools.bench.load import WORKER
from gnnstore.tools.bench.stages import stages_of
from gnnstore.tools.bench.ways import ways
from gnnstore.tools.bench.worker import MAP_THREADS, Run, mapped, perform, work
from tests.support.stores import write_example_store

# As docs/cli.md lists them, but for the stages.
OUTCOME = {
    *("seconds", "nodes", "disk_bytes", "written_bytes", "reads", "rows_read", "major_faults"),
    *("seconds_sampling", "seconds_gathering", "seconds_reading", "seconds_planning"),
    *("seconds_waiting", "hit_rate", "cache_rows", "superbatch"),
    *("seconds_to_prepare", "seconds_warming_up", "limit_bytes", "group_peak_bytes"),
    *("peak_rss_bytes", "chosen", "reason"),
}


@pytest.fixture
def task(tmp_path: Path) -> Task:
    store = write_example_store(tmp_path / "a.gnn", num_nodes=600, num_edges=3000)
    np.save(tmp_path / "seeds.npy", np.arange(200))
    return Task(
        strategy="numpy-mmap",
        store=str(store.path),
        seeds=str(tmp_path / "seeds.npy"),
        group="",
        group_version=0,
        share=1.0,
        slack_bytes=300 * 10**6,
        warm_up=0,
        batches=5,
        round=0,
        fanouts=(4, 4),
        batch_size=40,
        trace=str(tmp_path / "trace.json"),
    )


@pytest.mark.parametrize("strategy", ways())
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
    if strategy == "direct":
        assert outcome["rows_read"] == pytest.approx(np.mean(nodes))
        assert outcome["reads"] > 0
    if strategy in ("numpy-mmap", "mmap", "memory"):
        assert outcome["reads"] == 0
    if strategy == "numpy-mmap":
        assert outcome["chosen"] == ""
    elif strategy != "auto":
        assert outcome["chosen"] == strategy
    seconds = outcome["seconds"] * 5
    reads_by_faults = ways()[strategy].reads_by_faults
    stages = stages_of(Path(task.trace), seconds, faults_are_reads=reads_by_faults)
    assert sum(stages.values()) == pytest.approx(seconds)
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


@pytest.mark.parametrize("feature_shape", [(25,), (128,), (1200,), (3, 7)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_rows_of_the_mapping_are_those_of_the_array(
    tmp_path: Path, feature_shape: tuple[int, ...], dtype: str
) -> None:
    path = write_example_store(
        tmp_path / "a.gnn", feature_shape=feature_shape, feature_dtype=dtype
    ).path
    store = gnnstore.open(path)
    array = store.reader.paged(store.schema.node.attributes["x"])
    ids = np.random.default_rng(0).integers(0, array.num_rows, 1000)
    with ThreadPoolExecutor(MAP_THREADS) as pool:
        rows = mapped(array, pool)(ids)
    expected = array.gather(ids)
    assert rows.dtype == expected.dtype
    assert np.array_equal(rows.view(np.uint8), expected.view(np.uint8))


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
    monkeypatch.setattr("gnnstore.tools.bench.worker.available_bytes", lambda: 1000)
    with pytest.raises(BudgetError, match=r"(?s)has 1000 bytes .*of memory.*of features"):
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
    assert Path(task.trace).exists()


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a module of some lines, to be run as a worker."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")

    def make(source: str) -> str:
        (tmp_path / "own_worker.py").write_text(source)
        return "own_worker"

    return make


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


def test_no_group_where_there_are_none(tmp_path: Path) -> None:
    with memory_group(tmp_path / "none", tmp_path / "nobody") as group:
        assert group is None


def test_a_directory_that_is_no_cgroup_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    with memory_group(tmp_path, tmp_path / "nobody") as group:
        assert group is None
    assert list((tmp_path / "memory").iterdir()) == []


def test_groups_are_tried_from_the_root_down_to_where_the_process_is(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("4:memory:/docker/abc\n3:cpu,cpuacct:/x\n0::/user.slice/me.scope\n")
    root = Path("/cg")
    assert list(_parents(root, own)) == [
        (root / "memory", 1),
        (root, 2),
        (root / "memory/docker/abc", 1),
        (root / "memory/docker", 1),
        (root / "user.slice/me.scope", 2),
        (root / "user.slice", 2),
    ]


def test_a_group_keeps_its_limit_and_is_removed() -> None:
    with memory_group() as group:
        if group is None:
            pytest.skip("memory cgroups need root")
        path = group.path
        group.limit(50 * 10**6)
        assert group.held_bytes() < 50 * 10**6
        assert group.peak_bytes() >= 0
    assert not path.exists()


def test_a_group_of_the_second_version(tmp_path: Path) -> None:
    """A directory with the files that such a group has."""
    group = MemoryGroup(tmp_path, 2)
    (tmp_path / "memory.stat").write_text("anon 4096\nfile 5000\nkernel 300\nkernel_stack 7\n")
    assert group.held_bytes() == 4396
    assert group.peak_bytes() == 0
    (tmp_path / "memory.peak").write_text("9000\n")
    assert group.peak_bytes() == 9000
    group.limit(10**6)
    assert not (tmp_path / "memory.swap.max").exists(), "where the kernel does not swap"
    (tmp_path / "memory.swap.max").write_text("max")
    group.limit(10**7)
    assert (tmp_path / "memory.max").read_text() == "10000000"
    assert (tmp_path / "memory.swap.max").read_text() == "0"


def test_a_group_is_removed_once_the_last_process_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "group"
    (group / "process").mkdir(parents=True)
    monkeypatch.setattr("time.sleep", lambda _: (group / "process").rmdir())
    _remove(group)
    assert not group.exists()
    (group / "process").mkdir(parents=True)
    monkeypatch.setattr(cgroup, "_LEAVING_SECONDS", -1)
    with pytest.raises(OSError, match="not empty"):
        _remove(group)


def test_the_disk_is_measured_on_the_store(task: Task) -> None:
    store = gnnstore.open(task.store)
    before = sorted(store.path.parent.rglob("*"))
    limits = measure_disk_of(store)
    assert limits.random_reads_per_second > 0
    assert limits.bytes_per_second > 0
    assert sorted(store.path.parent.rglob("*")) == before
