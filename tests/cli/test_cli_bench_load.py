"""`gnnstore bench load`: a table, a picture, a document; a limit that is kept, and reasons."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import gnnstore
from gnnstore.converters import from_rmat
from gnnstore.errors import NoSpaceError
from gnnstore.formats.container.workdir import find_leftovers
from gnnstore.pictures import PARTS
from gnnstore.tools.bench import harness
from gnnstore.tools.bench import load as bench_load
from gnnstore.tools.bench.harness import STAGES, DeviceLimits, MemoryGroup, Task, memory_group
from tests.support.effort import choose
from tests.support.forks import ForkServer

SHAPE = ("--num-neighbors", "5,5", "--batch-size", "64", "-q")
CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("load") / "a.gnn"
    from_rmat(path, scale=11, feature_dim=32)
    return path


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store whose 134 MB of features do not fit a limit with a slack of 100 MB."""
    path = tmp_path_factory.mktemp("wide") / "b.gnn"
    from_rmat(path, scale=13, feature_dim=4096)
    return path


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Answer tasks without a process, and return the list of those that come.

    The disk is not measured either; `test_under_a_real_limit` is of both.
    """
    tasks: list[Task] = []
    seconds = {"numpy-mmap": 0.4, "direct": 0.2, "memory": 0.01}

    def ask(words: Sequence[str], group: Any, *, on_mark: Any) -> dict[str, Any] | str:
        task = Task.of_json(words[2])
        assert task.memory_group == group
        tasks.append(task)
        for _ in range(task.batches):
            on_mark()
        if task.strategy not in seconds:
            return f"{task.strategy} does not fit"
        each = seconds[task.strategy]
        all_of_it = each * (1 + 0.1 * task.round)
        stages = dict.fromkeys(STAGES, 0.0)
        return {
            "seconds": all_of_it,
            "stages": stages | {"sampling": all_of_it / 4, "other": 3 * all_of_it / 4},
            "disk_bytes": 5e6,
            "seconds_to_prepare": 1.5,
            "seconds_warming_up": 0.0,
            "group_peak_bytes": 8 * 10**8 if group else 0,
            "peak_rss_bytes": 6 * 10**8,
            "reads": 1234.0 if task.strategy == "direct" else 0.0,
            "hit_rate": 0.0,
            "chosen": "" if task.strategy == "numpy-mmap" else task.strategy,
        }

    def measured(_: object) -> DeviceLimits:
        return DeviceLimits(80_000.0, 1e9, "pread", is_direct=True)

    monkeypatch.setattr(harness, "ask_process", ask)
    monkeypatch.setattr(harness, "measure_disk_of", measured)
    return tasks


def bench(run: Any, store: Path, *words: object) -> Any:
    return run("bench", "load", store, *SHAPE, *words)


# --- what is run --------------------------------------------------------------------------------


def test_the_tasks(run: Any, store: Path, answers: list[Task]) -> None:
    words = (
        "--strategies",
        "numpy-mmap,direct,packed,memory",
        "--loader-memory",
        "20%",
        "--slack",
        "90MB",
    )
    done = bench(
        run, store, *words, "--disk", "1GB", "--threads", 3, "--seed", 7, "--no-limit", "--json"
    )
    assert done.status == 0
    document = done.document
    batches, whole = document["epoch_batches"], gnnstore.open(store).schema.bytes_in_memory
    assert batches == document["num_input_nodes"] // 64
    assert [task.strategy for task in answers] == ["numpy-mmap", "direct", "packed", "memory"]
    for task in answers:
        assert (task.fanouts, task.batch_size, task.seed) == ((5, 5), 64, 7)
        assert round(task.share * document["feature_bytes"]) == round(0.2 * whole)
        assert (task.slack_bytes, task.disk_bytes) == (90 * 10**6, 10**9)
        assert (task.num_threads, task.group) == (3, "")
    # Whole epochs, but for those whose batches all take the same; the second where the first one
    # makes it.
    assert batches < 24
    assert {task.batches for task in answers} == {batches}
    assert [task.warm_up for task in answers] == [0, 0, batches, 0]
    answers.clear()
    document = bench(
        run,
        store,
        "--strategies",
        "numpy-mmap,packed",
        "--input-nodes",
        "all",
        "--no-limit",
        "--json",
    ).document
    assert document["epoch_batches"] == 2**11 // 64
    of_map, of_packed = ((task.warm_up, task.batches) for task in answers)
    assert (of_map, of_packed) == ((6, 24), (2**11 // 64, 2**11 // 64))


def test_whole_epochs_and_short_ones(run: Any, store: Path, answers: list[Task]) -> None:
    bench(
        run,
        store,
        "--strategies",
        "numpy-mmap,memory",
        "--no-limit",
        "--input-nodes",
        "all",
    )
    assert {(task.warm_up, task.batches) for task in answers} == {(6, 24), (0, 2**11 // 64)}
    answers.clear()
    done = bench(
        run, store, "--strategies", "numpy-mmap,memory", "--no-limit", "--batches", 3, "--json"
    )
    assert {(task.warm_up, task.batches) for task in answers} == {(0, 3)}
    assert done.document["epoch_batches"] == 3


def test_rounds_in_turns(run: Any, store: Path, answers: list[Task]) -> None:
    words = ("--strategies", "numpy-mmap,packed,direct", "--repeats", 3, "--no-limit", "--json")
    document = bench(run, store, *words).document
    played = [(task.strategy, task.round) for task in answers]
    # One that fails is not tried again.
    assert played == [
        *(("numpy-mmap", 0), ("packed", 0), ("direct", 0)),
        *(("numpy-mmap", 1), ("direct", 1), ("numpy-mmap", 2), ("direct", 2)),
    ]
    by_name = {item["strategy"]: item for item in document["strategies"]}
    assert by_name["packed"]["problem"] == "packed does not fit"
    assert by_name["packed"]["rounds"] == []
    direct = by_name["direct"]
    assert direct["seconds_per_batch"] == pytest.approx(0.22)
    assert direct["seconds_per_epoch"] == pytest.approx(0.22 * document["epoch_batches"])
    assert direct["times_baseline"] == pytest.approx(2.0)
    assert len(direct["rounds"]) == 3
    assert list(direct["stages"]) == list(STAGES)
    assert sum(direct["stages"].values()) == pytest.approx(direct["seconds_per_epoch"])
    assert len(document["device"]["random_reads_per_second"]) == 7
    assert document["baseline"] == "numpy-mmap"


def test_the_table(run: Any, store: Path, answers: list[Task]) -> None:
    words = ("--strategies", "numpy-mmap,direct,packed,memory", "--batches", 10, "--no-limit")
    done = bench(run, store, *words)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "direct 2 s 2.0 600 MB 1.5 s 0.2 s 5 MB 1,234" in lines
    assert "memory 0.1 s 40.0 600 MB 1.5 s 0.01 s 5 MB -" in lines
    assert "direct 0.5 s 1.5 s" in lines  # a quarter of it sampling
    assert "packed: packed does not fit" in lines
    assert (
        "without a limit: the page cache serves every strategy that reads through it" in done.stdout
    )


def test_nothing_that_could_be_timed(run: Any, store: Path, answers: list[Task]) -> None:
    done = bench(run, store, "--strategies", "packed", "--no-limit", "--json")
    assert done.status == 2
    assert done.document["strategies"][0]["problem"] == "packed does not fit"
    assert done.document["baseline"] is None


# --- the limit ----------------------------------------------------------------------------------


def test_a_group_for_all_but_memory(
    run: Any, wide: Path, answers: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    @contextmanager
    def group() -> Iterator[MemoryGroup]:
        made.append(tmp_path / f"group-{len(made)}")
        yield MemoryGroup(made[-1])

    monkeypatch.setattr(harness, "memory_group", group)
    words = ("--strategies", "numpy-mmap,memory,direct", "--slack", "100MB", "--json")
    document = bench(run, wide, *words).document
    assert [task.group for task in answers] == [str(made[1]), "", str(made[2])]
    share = gnnstore.open(wide).schema.bytes_in_memory / document["feature_bytes"] / 10
    limit = {"cgroup": 2, "share": pytest.approx(share), "slack_bytes": 100 * 10**6}
    assert document["limit"] == limit
    assert document["remarks"] == []


def test_without_a_cgroup_it_says_so_and_stops(
    run: Any, store: Path, answers: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def none() -> Iterator[None]:
        yield None

    monkeypatch.setattr(harness, "memory_group", none)
    done = bench(run, store)
    assert done.status == 2
    assert "no memory cgroup can be made here" in done.stderr
    assert "--no-limit compares without a limit" in done.stderr
    assert answers == []


@pytest.mark.usefixtures("small_budgets")
def test_a_limit_in_bytes_is_a_share(run: Any, store: Path, answers: list[Task]) -> None:
    words = ("--strategies", "direct", "--no-limit", "--loader-memory", "65536", "--json")
    document = bench(run, store, *words).document
    assert document["feature_bytes"] == 2**11 * 32 * 4
    assert answers[0].share == 65536 / document["feature_bytes"] == 0.25


def test_a_limit_that_holds_all_features_limits_nothing(
    run: Any, store: Path, answers: list[Task]
) -> None:
    with memory_group() as group:
        if group is None:
            pytest.skip("memory cgroups need root")
    done = bench(run, store, "--strategies", "direct")
    assert done.status == 2
    assert "leave 200 MB to features of 262 kB, so the limit would limit nothing" in done.stderr
    assert "lower them (--slack is now 200 MB)" in done.stderr
    assert answers == []


# In `make long` each process imports what it needs by itself.
@pytest.mark.usefixtures(choose("timed_in_forks", "wide"))
def test_under_a_real_limit(run: Any, wide: Path, tmp_path: Path) -> None:
    with memory_group() as group:
        if group is None:
            pytest.skip("memory cgroups need root")
    pytest.importorskip("matplotlib")
    picture = tmp_path / "epochs.png"
    words = ("--strategies", "numpy-mmap,static-degree", "--batches", 4, "--plot", picture)
    done = bench(run, wide, *words, "--slack", "100MB", "--json")
    assert (done.status, done.stderr) == (0, "")
    document = done.document
    assert document["limit"]["cgroup"] in (1, 2)
    by_name = {item["strategy"]: item for item in document["strategies"]}
    for name, item in by_name.items():
        assert item["problem"] is None, (name, item["problem"])
        (outcome,) = item["rounds"]
        assert outcome["nodes"] == by_name["numpy-mmap"]["rounds"][0]["nodes"]
        assert 0 < outcome["group_peak_bytes"] <= outcome["limit_bytes"]
    assert by_name["static-degree"]["rounds"][0]["cache_rows"] > 0
    assert document["drawn_to"] == str(picture)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert _groups_of(os.getpid()) == []


def _groups_of(pid: int) -> list[Path]:
    name = f"gnnstore-benchmark-{pid}-*"
    return [*CGROUPS.glob(name), *CGROUPS.glob(f"memory/{name}")]


@pytest.mark.long("imports torch anew; test_load_worker is in both")
@pytest.mark.timeout(400)
def test_an_interrupt_leaves_nothing(store: Path, tmp_path: Path, forks: ForkServer) -> None:
    words = [
        "bench",
        "load",
        str(store),
        "--strategies",
        "packed",
        "--num-neighbors",
        "9,9,9",
    ]
    words += ["--batch-size", "2", "--repeats", "1000"]
    words += ["--no-limit"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        # Torch makes the directory where it is imported, unless it is given.
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled"),
    }
    children: list[str] = []
    code = """if True:
        import sys, tempfile
        from gnnstore.tools.cli import main
        tempfile.tempdir = None  # found anew, in this environment
        sys.exit(main(sys.argv[1:]))
    """
    with (
        (tmp_path / "stderr").open("w+") as errors,
        forks.start(code, *words, environment=environment, stderr=errors.fileno()) as process,
    ):
        deadline = time.monotonic() + 180  # of a busy machine, for its child imports torch
        while not list(find_leftovers(store.parent)):  # in the middle of it: rows are being packed
            assert time.monotonic() < deadline, "it never began to pack anything"
            time.sleep(0.01)
        children = _children(process.pid)
        assert children
        assert list(temporary.iterdir())
        process.send_signal(signal.SIGINT)
        stdout = process.stdout.read()
        status = process.wait()  # it has 60 s to clean up itself
    assert (status, stdout) == (130, "")
    assert "interrupted" in (tmp_path / "stderr").read_text()
    assert list(temporary.iterdir()) == []
    assert list(find_leftovers(store.parent)) == []
    assert _groups_of(process.pid) == []
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def _children(pid: int) -> list[str]:
    found: list[str] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += task.read_text().split()
        except OSError:  # the thread has ended
            continue
    return found


# --- the picture --------------------------------------------------------------------------------


def test_the_picture_shows_the_numbers(
    run: Any, store: Path, answers: list[Task], tmp_path: Path, figures: list[Any]
) -> None:
    words = ("--strategies", "numpy-mmap,direct,packed", "--batches", 10, "--no-limit")
    assert bench(run, store, *words, "--plot", tmp_path / "a.png").status == 0
    to_hex = pytest.importorskip("matplotlib.colors").to_hex
    (axes,) = figures[0].axes  # bars are drawn once
    assert [text.get_text() for text in axes.get_yticklabels()] == ["numpy-mmap", "direct"]
    # A quarter is sampling, and nothing is said of the rest.
    widths = [[bar.get_width() for bar in container] for container in axes.containers]
    assert widths == [pytest.approx([1.0, 0.5]), pytest.approx([3.0, 1.5])]
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["4 s, 25% sampling", "2 s, 2.0 x as fast as numpy-mmap, 25% sampling"]
    (legend,) = figures[0].legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["sampling", "other"]
    colours = [to_hex(container[0].get_facecolor()) for container in axes.containers]
    assert colours == [PARTS["sampling"].colour, PARTS["other"].colour]
    assert "no memory limit" in figures[0].get_suptitle()


def test_a_picture_that_cannot_be_written_costs_no_result(
    run: Any, store: Path, answers: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")

    def refuse(*_: Any) -> Path:
        raise NoSpaceError("cannot write the picture: no space left")

    monkeypatch.setattr(bench_load, "draw_load", refuse)
    words = ("--strategies", "numpy-mmap", "--no-limit", "--plot", tmp_path / "a.png", "--json")
    done = bench(run, store, *words)
    assert done.status == 5
    assert done.document["drawn_to"] is None
    assert "cannot write the picture" in done.document["problems"][0]
    assert done.document["strategies"][0]["rounds"]


# --- what goes wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--strategies", "numpy-mmap,fast"), "'fast' is none of numpy-mmap, mmap"),
        (("--loader-memory", "0%"), "--loader-memory '0%' is nothing"),
        (("--loader-memory", "much"), "'much' is not a size"),
        (("--repeats", "0"), "0 is not in the range"),
        (("--num-neighbors", "x"), "not a list of fan-outs"),
    ],
)
def test_options_that_make_no_sense(
    run: Any, store: Path, words: tuple[str, str], message: str
) -> None:
    done = run("bench", "load", store, *words)
    assert done.status == 2
    assert message in " ".join(done.stderr.split())
