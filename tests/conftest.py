"""What tests get: a check that they leave no thread behind, no waits, the real graphs."""

from __future__ import annotations

import gc
import hashlib
import inspect
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from gnnstore.disk.engines import ENGINES, ENVIRONMENT_VARIABLE, probe_engines
from gnnstore.remote import staging
from gnnstore.strategies import placement
from gnnstore.strategies.registry import STRATEGIES

if TYPE_CHECKING:
    from tests.support.forks import ForkServer

# Asserts of what tests share explain themselves as those of tests do.
pytest.register_assert_rewrite("tests.support")

# Real graphs are not part of the project; they lie beside it where somebody put them there.
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list that figures of matplotlib get into as they are made."""
    module = pytest.importorskip("matplotlib.figure")
    made: list[Any] = []
    real = module.Figure

    def remember(*arguments: Any, **options: Any) -> Any:
        made.append(real(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(module, "Figure", remember)
    return made


# Threads that libraries start once and keep: zarr's event loop, and its executor.
_KEPT_BY_LIBRARIES = ("zarr_io", "asyncio_")
_GRACE_SECONDS = 5.0


def _alive() -> set[threading.Thread]:
    return {
        thread
        for thread in threading.enumerate()
        if thread.is_alive() and not thread.name.startswith(_KEPT_BY_LIBRARIES)
    }


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    """Fail a test that ends with a thread alive which it did not find."""
    before = _alive()
    yield
    deadline = time.monotonic() + _GRACE_SECONDS
    left = _alive() - before
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left = _alive() - before
    assert not left, f"the test left threads behind: {sorted(thread.name for thread in left)}"


@pytest.fixture(scope="module", autouse=True)
def _only_new_objects_are_collected() -> None:
    """Keep collections short: to look at all that torch and tests are takes a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """Leave what is written in the page cache, which outlives a process that is killed."""

    def check(file: int) -> None:
        os.fstat(file)  # one that is closed is an error still

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", check)
        yield


@pytest.fixture(scope="session", autouse=True)
def _disks_are_measured_in_no_time() -> None:
    """Measure a disk for a moment at its first use, which is one in each test that needs it."""
    from tests.support.disks import measure_in_no_time  # noqa: PLC0415 - asserts are rewritten first

    measure_in_no_time()


@pytest.fixture(scope="session", autouse=True)
def _temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what libraries leave in the temporary directory, as PyG does, with tests' own files."""
    directory = str(tmp_path_factory.mktemp("tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", directory)
        patch.setattr(tempfile, "tempdir", directory)
        yield


@pytest.fixture(scope="session", autouse=True)
def _copies_lie_anywhere() -> Iterator[None]:
    """Let stores be copied to the tests' directory, which may be in memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "_IN_MEMORY", ())
        yield


@dataclass(frozen=True)
class WayOfReading:
    """How loaders read that do not say how."""

    strategy: str
    engine: str = ""

    @property
    def reads_disk(self) -> bool:
        """Whether an engine reads rows."""
        return STRATEGIES[self.strategy].reads_disk


WAYS = {
    **{s.name: WayOfReading(s.name) for s in STRATEGIES if not (s.alias_of or s.packs)},
    **{f"direct-{engine}": WayOfReading("direct", engine) for engine in ENGINES},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processes", type=int, default=1, help="how many processes run the files of tests"
    )
    parser.addoption("--device", default="late", help="of tests/conformance/test_devices.py: cuda")


def pytest_configure(config: pytest.Config) -> None:
    from tests.support.effort import examples  # noqa: PLC0415 - asserts are rewritten first

    # An example that waits for a busy disk is not a failure; what hangs has the time limit
    # of its test.
    settings.register_profile("gnnstore", deadline=None, max_examples=examples(100))
    settings.load_profile("gnnstore")
    # Jobs that a script or nohup starts in the background ignore SIGINT, and their children do:
    # tests that send it would wait for an interrupt that never comes.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.processes > 1:
        from tests.support.processes import Processes  # noqa: PLC0415

        config.pluginmanager.register(Processes(config.option.processes))
    config.addinivalue_line(
        "markers", "ways(*names): the ways of reading that a costly test is run on"
    )
    config.addinivalue_line("markers", "long(why): left out of the short form, and for what reason")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among modules and tests that are all kept."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out long tests; let one that parametrisations multiply run on few of its cases."""
    from tests.support.effort import cover, is_long  # noqa: PLC0415 - asserts are rewritten first

    if is_long():
        return
    dropped = {item for item in items if item.get_closest_marker("long")}
    tests: dict[Any, list[pytest.Function]] = {}
    for item in items:
        if item in dropped:
            continue
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            test = (item.parent, item.originalname, _lacks_its_engine(item))
            tests.setdefault(test, []).append(item)
    for cases in tests.values():
        dropped.update(cases)
        dropped.difference_update(cases[number] for number in cover([*map(_columns, cases)]))
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]


def _lacks_its_engine(item: pytest.Function) -> bool:
    """Return whether a test is skipped for its engine, and tries none of its other values."""
    values = (item.callspec.params.get(name) for name in ("engine", "way_of_reading"))
    return any(str(value).removeprefix("direct-") in _unavailable() for value in values)


def _columns(item: pytest.Function) -> list[tuple[int, ...]]:
    """Return what identifies a test's values, a column for each parametrisation."""
    values = {name: id(value) for name, value in item.callspec.params.items()}
    together: list[list[str]] = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        names = names.split(",") if isinstance(names, str) else names
        together.append([name.strip() for name in names])
    own = set(values) - {name for names in together for name in names}
    together += [[name] for name in sorted(own)]
    return [tuple(values[name] for name in names) for names in together]


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or what the core has made counts as leaked


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "way_of_reading" in metafunc.fixturenames:
        from tests.support.effort import choose  # noqa: PLC0415 - asserts are rewritten first

        chosen = metafunc.definition.get_closest_marker("ways")
        names = chosen.args if chosen else tuple(WAYS)
        # In `make test` one of them in turn: others of a file's tests run on the rest.
        first = zlib.crc32(metafunc.function.__name__.encode())
        count = min(len(names), choose(1, len(names)))
        taken = [names[(first + k * len(names) // count) % len(names)] for k in range(count)]
        metafunc.parametrize("way_of_reading", taken, indirect=True)


@cache
def _unavailable() -> dict[str, str]:
    """Return why engines do not work here, by name."""
    probes = probe_engines(Path(__file__))
    return {probe.name: probe.detail for probe in probes if not probe.is_available}


@pytest.fixture
def way_of_reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> WayOfReading:
    """Let loaders that do not say how to read do so in one way; parametrised over all."""
    pytest.importorskip("torch_geometric")
    from gnnstore import NeighborLoader  # noqa: PLC0415

    way = WAYS[request.param]
    if way.engine in _unavailable():
        pytest.skip(_unavailable()[way.engine])
    if way.engine:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, way.engine)
    # Behind the decorator that names the limits of the process.
    defaults = inspect.unwrap(NeighborLoader.__init__).__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "strategy", way.strategy)
    # The rows of small graphs are narrow, and would be held in memory instead of read; and the ids
    # of their edges are few.
    monkeypatch.setattr(placement, "HELD_ROW_BYTES", 0)
    monkeypatch.setattr(placement, "IDS_SHARE", 2**60)
    return way


@pytest.fixture(scope="session", autouse=True)
def _no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep measurements of this machine's disks out: they decide which reads are merged."""
    directory = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory / "shared"))
        yield directory


@pytest.fixture(autouse=True)
def no_device_profiles(
    _no_cache_of_the_user: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Keep out what other tests measured, and what their loaders remember of a store."""
    own = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    monkeypatch.setenv("XDG_CACHE_HOME", str(_no_cache_of_the_user / own))


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the name of an engine; parametrised over all, skipped for one that does not work."""
    from tests.support.twins.reads import available  # noqa: PLC0415

    return available(request.param, tmp_path_factory.mktemp("probe"))


@pytest.fixture
def tiny_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Mount a file system of 256 KiB, or of the size that is the fixture's parameter."""
    folder = tmp_path / "disk"
    folder.mkdir()
    size = f"size={getattr(request, 'param', '256k')}"
    try:
        mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount(8) here")
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="session")
def forks(pytestconfig: pytest.Config) -> Iterator[ForkServer]:
    """Start processes that have imported torch and our loaders before."""
    from tests.support import forks, processes  # noqa: PLC0415 - asserts are rewritten first

    pytest.importorskip("torch_geometric")
    channel = pytestconfig.stash.get(processes.FORKS, None)
    if channel is not None:
        yield forks.wait_for_server(channel)
        return
    process, (channel,) = forks.start_servers(1)
    with process, channel:
        yield forks.wait_for_server(channel)


@pytest.fixture
def timed_in_forks(forks: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each process of `gnnstore bench load` have imported torch when it begins."""
    from gnnstore.tools.bench import harness  # noqa: PLC0415

    code = """if True:
        import os, runpy, sys
        if group := sys.argv.pop(1):
            with open(group, "w") as processes:
                processes.write(str(os.getpid()))
            sys.modules["__main__"].own_memory()
        runpy.run_module(sys.argv.pop(1), run_name="__main__")
    """

    def ask(
        words: Sequence[str],
        group: harness.MemoryGroup | None,
        *,
        on_mark: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        entered = "" if group is None else group.path / "cgroup.procs"
        done = forks.run(code, entered, *words[1:])
        assert (words[0], done.returncode) == ("-m", 0), done.stderr
        lines = [line for line in done.stdout.splitlines() if line]
        for _line in lines[:-1]:
            on_mark()
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer

    monkeypatch.setattr(harness, "ask_process", ask)


@pytest.fixture
def shares_all(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let ranks of one machine, in this process, share arrays of any size, and find one another."""
    from gnnstore import machine, shared_memory  # noqa: PLC0415

    monkeypatch.setattr(shared_memory, "LEAST_BYTES", 1)
    monkeypatch.setattr(shared_memory.server, "num_handed_on", 0)
    monkeypatch.setattr(machine, "_agreed", {})
    monkeypatch.setenv("MASTER_ADDR", request.node.nodeid)
    monkeypatch.setenv("MASTER_PORT", "1")
    yield
    machine._agreed.clear()
    deadline = time.monotonic() + _GRACE_SECONDS
    # Loaders are in reference cycles, some of which their threads leave only as they end.
    while shared_memory.server._served and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)


def _real(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is absent: this test needs a real graph that is not in the project")
    return path


@pytest.fixture(scope="session")
def cora_directory() -> Path:
    """Cora in the layout of OGB's node-property data sets."""
    return _real("cora")


@pytest.fixture(scope="session")
def facebook_npz() -> Path:
    """Facebook page-page: edge_index, x, y and splits in one npz."""
    return _real("facebook/facebook.npz")


@pytest.fixture(scope="session")
def twitch_edges() -> Path:
    """Twitch users in German: a SNAP text edge list, compressed."""
    return _real("twitch-de/musae-twitch-DE.txt.gz")
