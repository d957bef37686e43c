"""`gnnstore predict`: batches as a loader has them, caches compared, reads as they would be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore import EmbeddingTable
from gnnstore.budget.ledger import STAGING, largest_phase
from gnnstore.converters import quantize
from gnnstore.converters.stores.partition import partition
from gnnstore.disk import measure as first_measurement
from gnnstore.disk.profile import DeviceProfile, save_profile
from gnnstore.errors import StorageError
from gnnstore.strategies import auto as optimizer
from gnnstore.strategies.registry import auto
from gnnstore.testing.graphs import random_graph, write_store
from tests.support.disks import usual_profile
from tests.support.effort import choose
from tests.support.stores import write_example_store
from tests.support.twins.caches import run_lru
from tests.support.twins.reads import plan_reads

pytest.importorskip("torch_geometric")

QUICK = ("--num-neighbors", "3,2", "--batch-size", "20", "-q")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Find no measurements but those of the test, and make none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(first_measurement, "_kept", {})

    def refuse(*_: Any, **__: Any) -> None:
        raise StorageError("the test measures nothing")

    monkeypatch.setattr(first_measurement, "measure_disk", refuse)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plan")
    return write_example_store(directory / "g.gnn", num_nodes=400, num_edges=4000).path


def batches_of_a_loader(store: Path, num_batches: int, seed: int) -> list[list[int]]:
    loader = gnnstore.NeighborLoader(
        str(store), [3, 2], input_nodes="train", batch_size=20, shuffle=True, seed=seed
    )
    batches = iter(loader)
    return [next(batches).n_id.tolist() for _ in range(num_batches)]


def test_the_document(run: Any, store: Path) -> None:
    done = run("predict", store, *QUICK, "--batches", "5", "--cache-bytes", "0%,25%,4000", "--json")
    assert (done.status, done.stderr) == (0, "")
    document = done.document
    assert list(document)[:2] == ["schema_version", "command"]
    assert (document["schema_version"], document["command"]) == (3, "predict")
    assert document["store"] == str(store)
    assert (document["input_nodes"], document["num_neighbors"]) == ("train", [3, 2])
    assert document["num_batches"] == 5 < document["epoch_batches"]
    assert document["epoch_batches"] == -(-document["num_input_nodes"] // 20)
    assert document["arrays"] == ["nodes/node/x"]
    assert document["row_bytes"] == 100
    assert document["measured_at"] is document["drawn_to"] is None
    assert document["problems"] == []
    assert [cache["num_rows"] for cache in document["caches"]] == [0, 100, 40]
    for cache in document["caches"]:
        names = [policy["policy"] for policy in cache["policies"]]
        assert names == ["degree", "frequency", "lru", "belady"]
        for policy in cache["policies"]:
            assert policy["seconds_per_epoch"] is None
            if cache["num_rows"] == 0:
                assert policy["misses"] == document["rows_needed"]
                assert policy["filled_rows"] == policy["fill_reads"] == 0


def test_misses_are_those_of_a_loaders_batches(run: Any, store: Path) -> None:
    words = ("--batches", "4", "--cache-bytes", "20%", "--seed", "7", "--json")
    document = run("predict", store, *QUICK, *words).document
    batches = batches_of_a_loader(store, 4, seed=7)
    assert document["rows_needed"] == sum(len(set(batch)) for batch in batches)
    (cache,) = document["caches"]
    misses = {policy["policy"]: policy["misses"] for policy in cache["policies"]}
    assert misses["lru"] == sum(run_lru(batches, 80)[1])
    assert misses["belady"] < misses["lru"]


def test_reads_are_those_that_the_readers_make(run: Any, store: Path) -> None:
    words = ("--batches", "1000", "--cache-bytes", "0%", "--json")
    document = run("predict", store, *QUICK, *words).document
    assert document["num_batches"] == document["epoch_batches"]
    opened = gnnstore.open(store)
    array = opened.reader.paged(opened.schema.node.attributes["x"])
    batches = batches_of_a_loader(store, document["num_batches"], seed=0)
    reads = [
        read
        for batch in batches
        for read in plan_reads(
            np.array(batch),
            array.layout,
            document["alignment_bytes"],
            document["gap_bytes"],
            document["max_read_bytes"],
        )
    ]
    for policy in document["caches"][0]["policies"]:
        assert policy["reads_per_epoch"] == len(reads)
        assert policy["bytes_per_epoch"] == sum(size for _, size in reads)


def test_rows_that_a_device_holds_are_left_out(run: Any, store: Path) -> None:
    """With a tenth of the rows there, caches and copies are of the others."""
    words = ("--batches", "1000", "--cache-bytes", "0%", "--json")
    whole = run("predict", store, *QUICK, *words).document
    document = run("predict", store, *QUICK, *words, "--device-cache", "4kB").document
    assert (whole["device_rows"], document["device_rows"]) == (None, 40)
    assert 0 < document["rows_needed"] < whole["rows_needed"]
    assert document["bytes_to_device"] == 100 * document["rows_needed"]
    for policy in document["caches"][0]["policies"]:
        assert policy["misses"] == document["rows_needed"]
    assert (whole["device_cache"], document["device_cache"]) == (None, 4000)


def test_the_program_has_the_rows_of_a_device(run: Any, store: Path) -> None:
    words = (*QUICK[:-1], "--batches", "1", "--cache-bytes", "0%", "--strategies", "memory")
    shown = run("predict", store, *words, "--device-cache", "4kB").stdout.split()
    assert {'device="cuda",', "device_cache=4_000"} <= set(" ".join(shown).replace(")", "").split())
    assert "device" not in run("predict", store, *words).stdout


def test_it_names_int8_where_floats_are_read_from_disk(run: Any, tmp_path: Path) -> None:
    wide = random_graph(4000, 8000, feature_dim=256).write(tmp_path / "wide.gnn")
    narrow = quantize(wide, tmp_path / "int8.gnn", allow_error=True)
    words = ("--num-neighbors", "3,2", "--batch-size", "5", "--batches", "1", "--memory", "2MB")
    for path, is_named in ((wide, True), (narrow, False)):
        remarks = " ".join(
            run("predict", path, *words, "--strategies", "mmap", "--json").document["remarks"]
        )
        assert ("gnnstore quantize" in remarks) == is_named


def test_narrow_rows_that_do_not_fit(run: Any, tmp_path: Path) -> None:
    store = random_graph(400, 4000, feature_dim=8).write(tmp_path / "narrow.gnn")
    for memory, is_refused in (("10%", True), ("30MB", False)):
        shown = run("predict", store, *QUICK, "--batches", "1", "--memory", memory).stdout
        assert "rows are so narrow that loaders hold them in memory" in shown
        assert ("A loader refuses this budget: strategy 'mmap'" in shown) == is_refused
        assert ("gnnstore.NeighborLoader(" in shown) != is_refused


def test_the_table(run: Any, store: Path) -> None:
    done = run("predict", store, *QUICK, "--batches", "3", "--cache-bytes", "10%,50%")
    assert (done.status, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    shown = [(line[0], line[3]) for line in lines if line and line[0] in {"10.0%", "50.0%"}]
    policies = ("degree", "frequency", "lru", "belady")
    assert shown == [(size, name) for size in ("10.0%", "50.0%") for name in policies]
    assert "3 of an epoch's" in done.stdout
    assert "raise --batches" in done.stdout
    assert f"gnnstore bench disk {store}" in done.stdout
    assert "time an epoch" not in done.stdout
    assert "these times are a usual one's" in done.stdout
    assert "\x1b" not in done.stdout


def profile_of(place: Path, *, is_direct: bool = True) -> DeviceProfile:
    return usual_profile(
        place,
        is_direct=is_direct,
        random_reads_per_second={4096: {1: 100_000.0}, 65536: {1: 20_000.0}},
    )


def test_times_come_from_the_measurements(run: Any, store: Path) -> None:
    profile = profile_of(store)
    save_profile(profile)
    words = ("--batches", "1000", "--cache-bytes", "10%")
    document = run("predict", store, *QUICK, *words, "--json").document
    assert document["measured_at"] == profile.measured_at
    for policy in document["caches"][0]["policies"]:
        assert policy["seconds_per_epoch"] == pytest.approx(
            policy["reads_per_epoch"] * profile.seconds_per_read
            + policy["bytes_per_epoch"] * profile.seconds_per_byte
        )
    text = run("predict", store, *QUICK, *words).stdout
    assert "time an epoch" in text
    assert "as measured at 2026-01-02" in text
    assert "gnnstore bench disk" not in text
    assert "raise --batches" not in text


def test_caches_are_compared_where_they_are_asked_for(run: Any, store: Path) -> None:
    words = ("predict", store, *QUICK, "--batches", "3")
    plain, asked = run(*words).stdout, run(*words, "--caches").stdout
    assert "What caches read" in asked
    assert "Misses are fractions" in asked
    for text in ("What caches read", "Misses are fractions", "raise --batches"):
        assert text not in plain
    assert run(*words, "--json").document["caches"] == []


def test_other_seeds_and_all_nodes(run: Any, store: Path) -> None:
    words = (*QUICK, "--batches", "3", "--cache-bytes", "10%", "--json")
    everything = run("predict", store, *words, "--input-nodes", "all").document
    assert (everything["input_nodes"], everything["num_input_nodes"]) == ("all", 400)
    one, other = (run("predict", store, *words, "--seed", seed).document for seed in (1, 2))
    assert one["rows_needed"] != other["rows_needed"]
    again = run("predict", store, *words, "--seed", "1", "--threads", "1").document
    for field in ("rows_needed", "caches"):
        for document in (one, again):
            for cache in document["caches"]:
                for policy in cache["policies"]:
                    policy.pop("planning_seconds", None)
        assert again[field] == one[field]


# --- strategies ---------------------------------------------------------------------------------


def test_strategies_are_predicted(run: Any, store: Path) -> None:
    save_profile(profile_of(store))
    words = (*QUICK, "--batches", "3", "--cache-bytes", "10%")
    document = run("predict", store, *words, "--json").document
    predicted = document["predictions"]
    assert not predicted["disk_is_assumed"]
    assert predicted["curve"] == []
    found = {one["strategy"]: one for one in predicted["strategies"]}
    assert list(found) == [candidate.choice for candidate in auto().candidates]
    for one in found.values():
        assert one["problem"] is None
        assert one["seconds_per_epoch"] > 0
        assert one["bottleneck"] in one["stages"]
        assert one["seconds_per_epoch"] >= max(
            seconds
            for name, seconds in one["stages"].items()
            if name not in {"filling", "packing", "planning"}
        )
    # The caches have room for every row.
    assert found["belady"]["random_reads"] == found["static-degree"]["random_reads"] == 0
    assert found["direct"]["random_reads"] > 0
    assert [name for name, one in found.items() if one["is_chosen"]] == ["memory"]
    text = run("predict", store, *words).stdout
    assert "An epoch, predicted, with" in text
    assert "memory *" in text


@pytest.mark.usefixtures("small_budgets")
def test_budgets_of_predictions(run: Any, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "SMALLEST_BYTES", 1)
    save_profile(profile_of(store))
    size = gnnstore.open(store).schema.node.attributes["x"].num_bytes
    words = (*QUICK, "--batches", "3", "--cache-bytes", "10%", "--threads", "1")
    least = run("predict", store, *words, "--memory", "1kB", "--json").document["predictions"]
    problems = [one["problem"] for one in least["strategies"]]
    assert all("raise memory= by at least" in problem for problem in problems)
    assert not any(one["seconds_per_epoch"] for one in least["strategies"])
    shown = run("predict", store, *words, "--memory", "1kB").stdout
    assert "No strategy fits: raise --memory to what the table has, or choose a smaller" in shown
    assert "Train" not in shown
    assert " *" not in shown, "none is the choice"
    for one in least["strategies"]:
        assert f"needs {one['needed_memory_bytes']} bytes" in one["problem"]
        assert (one["needed_disk_bytes"], one["memory_bytes"]) == (None, None)
        (line,) = (line for line in shown.splitlines() if line.split()[:1] == [one["strategy"]])
        assert line.split()[1] == "needs"
    enough = ("--memory", str(one["needed_memory_bytes"]), "--strategies", one["strategy"])
    assert "fit:" not in run("predict", store, *words, *enough).stdout

    more = (
        *words,
        "--memory",
        "90MB",
        "--strategies",
        "static,static-degree,packed,belady,packed-epochs",
    )
    document = run("predict", store, *more, "--disk", "0", "--json").document
    predicted = document["predictions"]
    assert (predicted["memory_bytes"], predicted["disk_bytes"]) == (90 * 10**6, 0)
    found = {one["strategy"]: one for one in predicted["strategies"]}
    assert list(found) == ["static-degree", "static-frequency", "belady", "packed", "packed-epochs"]
    ids = "ids of edges: 16 kB in memory (none with edge_ids='store')"
    for name in ("static-degree", "static-frequency", "belady"):
        assert found[name]["problem"] is None
        assert found[name]["memory_bytes"] <= 90 * 10**6
        assert found[name]["cached_bytes"] == size
        assert found[name]["edge_ids"] == ids
    for name in ("packed", "packed-epochs"):
        assert "- has 0 bytes of disk space" in found[name]["problem"]
        assert f"needs {found[name]['needed_disk_bytes']} bytes" in found[name]["problem"]
        assert found[name]["needed_memory_bytes"] is None
    text = run("predict", store, *more, "--disk", "0").stdout
    assert f"static-degree, static-frequency, belady: {ids}" in text
    assert "packed, packed-epochs do not fit: raise --disk to what the table has." in text


def test_narrow_rows_are_not_predicted(run: Any, tmp_path: Path) -> None:
    narrow = write_example_store(tmp_path / "n.gnn", num_nodes=400, feature_shape=(4,)).path
    done = run("predict", narrow, *QUICK, "--batches", "2", "--cache-bytes", "10%")
    assert done.status == 0
    assert "No strategy is predicted: rows are so narrow" in done.stdout
    save_profile(usual_profile(narrow))
    done = run("predict", narrow, *QUICK, "--batches", "2", "--cache-bytes", "10%")
    assert "bench load" not in done.stdout, "which would refuse a limit that limits nothing"


@pytest.mark.parametrize("strategy", ["mmap", "direct", "static-degree", "belady", "packed"])
def test_predicted_memory_is_what_a_loader_reserves(
    run: Any, store: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    save_profile(usual_profile(store))
    given = ("--memory", "40MB", "--threads", "1", "--strategies", strategy)
    done = run("predict", store, *QUICK, *given, "--batches", "2", "--json")
    (predicted,) = done.document["predictions"]["strategies"]
    loader = gnnstore.NeighborLoader(
        store,
        [3, 2],
        "train",
        batch_size=20,
        shuffle=True,
        memory="40MB",
        num_threads=1,
        strategy=strategy,
    )
    *parts, _in_flight = loader.explain().parts
    phase = largest_phase(parts)
    reserved = sum(part.num_bytes for part in parts if part.phase in ("", phase))
    assert predicted["memory_bytes"] == pytest.approx(reserved, rel=0.02)


def test_measuring_the_disk_first(
    run: Any, store: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Path] = []

    def measure(path: Path, **_: Any) -> Any:
        measured.append(path)
        return SimpleNamespace(profile=profile_of(path))

    monkeypatch.setattr(first_measurement, "measure_disk", measure)
    words = (*QUICK, "--batches", "2", "--cache-bytes", "10%", "--json")
    documents = [run("predict", store, *words).document for _ in range(2)]
    assert measured == [store], "once"
    assert len(list(cache.rglob("*.json"))) == 1
    for document in documents:
        assert document["measured_at"] == profile_of(store).measured_at
        assert document["caches"][0]["policies"][0]["seconds_per_epoch"] is not None


# --- the picture --------------------------------------------------------------------------------


def test_the_picture_shows_the_numbers(
    run: Any, store: Path, tmp_path: Path, figures: list[Any]
) -> None:
    picture = tmp_path / "misses.png"
    few = ("--batches", "5", "--strategies", "direct,belady", "--json")
    document = run("predict", store, *QUICK, *few, "--plot", picture).document
    assert document["drawn_to"] == str(picture)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    axes = figures[0].axes[0]
    assert len(document["caches"]) == 7
    for place, line in enumerate(axes.lines):
        rates = [
            100 * (outcome["misses"] + outcome["filled_rows"]) / document["rows_needed"]
            for outcome in (cache["policies"][place] for cache in document["caches"])
        ]
        assert list(line.get_ydata()) == pytest.approx(rates)
        assert list(line.get_xdata()) == pytest.approx([1, 2, 5, 10, 20, 30, 50])
    by_name = {line.get_label().partition(":")[0]: line.get_ydata() for line in axes.lines}
    assert list(by_name) == ["static-degree", "static-frequency", "lru", "belady"]
    # Belady's is the best of those that fill themselves, and no worse than one filled before.
    for name, rates in by_name.items():
        assert (np.array(by_name["belady"]) <= np.array(rates) + 1e-9).all(), name


def test_pictures_that_cannot_be_written(run: Any, store: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run("predict", store, *QUICK, "--plot", tmp_path / "missing" / "a.png")
    assert done.status == 3
    assert "create it first" in done.stderr
    # One that fails at the end must not take the table with it.
    (tmp_path / "full.svg").symlink_to("/dev/full")
    few = ("--cache-bytes", "10%", "--strategies", "belady")
    done = run("predict", store, *QUICK, *few, "--plot", tmp_path / "full.svg")
    assert done.status == 5
    assert "belady" in done.stdout
    assert "write the picture" in done.stdout


# --- partitions ---------------------------------------------------------------------------------

PARTITIONS = ("--partitions", "edges", "-q")


@pytest.fixture
def coarse_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small store have partitions: its rows are smaller than what a disk reads at once."""
    monkeypatch.setattr("gnnstore.tools.partitions._LEAST_BLOCK_BYTES", 64)
    monkeypatch.setattr("gnnstore.tools.partitions._SHARE_OF_RATE", 1e-9)
    # Staging takes more than all that the store has.
    monkeypatch.setattr("gnnstore.tools.partitions._fixed_bytes", lambda *_: 0)


@pytest.mark.usefixtures("coarse_blocks", "small_budgets")
def test_partitions_that_fit_are_compared(run: Any, store: Path) -> None:
    embeddings = ("--embedding-dim", "100", "--memory", "150kB")
    document = run("predict", store, *PARTITIONS, *embeddings, "--json").document
    rows = sum(spec.num_bytes for spec in gnnstore.open(store).schema.node.attributes.values())
    assert document["node_bytes"] >= 400 * 404
    assert document["node_bytes"] <= 400 * (404 + 4) + rows
    found = document["sizes"]
    assert {one["order"] for one in found} == {"even", "beta"}
    assert sum(one["is_best"] for one in found) == 1
    for one in found:
        assert one["memory_bytes"] <= 150_000
        assert one["num_partitions"] % one["logical"] == 0
        assert one["bytes_written"] > 0
    text = run("predict", store, *PARTITIONS, *embeddings).stdout
    assert "even" in text
    assert "embeddings of 100 columns" in text
    nodes = run("predict", store, "--partitions", "nodes", "--memory", "50kB", "-q", "--json")
    (dispersed,) = nodes.document["sizes"]
    assert (dispersed["order"], dispersed["bias"]) == ("dispersed", None)
    assert dispersed["bytes_written"] == 0


@pytest.mark.usefixtures("coarse_blocks")
@pytest.mark.parametrize(("dim", "memory"), [*choose([], [(None, "1MB")]), (2000, "30MB")])
def test_the_memory_of_partitions_is_that_of_a_loader(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dim: int | None, memory: str
) -> None:
    """But for buckets that are larger than others, and parts that do not go with partitions."""
    store = random_graph(6000, 60_000, feature_dim=60).write(tmp_path / "g.gnn")
    options = [*PARTITIONS, "--memory", memory]
    if dim is not None:  # whose slots are of 64 KiB
        monkeypatch.setattr("gnnstore.tools.partitions._LEAST_BLOCK_BYTES", 2000)
        options += ["--embedding-dim", str(dim)]
    plan = run("predict", store, *options, "--json").document
    for sizes in plan["sizes"]:
        name = f"{sizes['order']}-{sizes['num_partitions']}-{sizes['logical']}"
        partition(store, sizes["num_partitions"], name=name)
        policy = gnnstore.PartitionPolicy(
            capacity=sizes["capacity"], logical=sizes["logical"], order=sizes["order"], name=name
        )
        tables = []
        if dim is not None:
            path = tmp_path / f"{name}.emb"
            tables.append(EmbeddingTable.create(path, store, dim=dim, partitions=policy))
        loader = gnnstore.LinkNeighborLoader(
            str(store), [3], batch_size=100, partitions=policy, tables=tables
        )
        parts = {own.what: own.fixed for own in loader._sources.placement.ledger.reservations}
        for other in (STAGING, "seeds and their order", "compressed attributes", "ids of edges"):
            parts.pop(other, None)
        assert sizes["memory_bytes"] == pytest.approx(sum(parts.values()), rel=0.1)


@pytest.mark.usefixtures("small_budgets")
def test_partitions_that_do_not_fit_are_refused(run: Any, store: Path) -> None:
    done = run("predict", store, *PARTITIONS, "--memory", "4kB")
    assert done.status == 2
    assert "raise --memory by at least" in done.stderr
    done = run("predict", store, "--embedding-dim", "8", "-q")
    assert done.status == 2
    assert "--partitions" in done.stderr
    bare = write_store(store.parent / "bare.gnn", [[0, 1], [1, 0]])
    done = run("predict", bare, *PARTITIONS)
    assert done.status == 2
    assert "2 nodes with 0 B of rows and 2 edges: nothing to divide" in done.stderr
    assert "give --embedding-dim" in done.stderr


# --- what goes wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--num-neighbors", "10,x"), "not a list of fan-outs"),
        (("--num-neighbors", "-2"), "not a list of fan-outs"),
        (("--cache-bytes", "101%"), "'101%' is more than all rows; write a share up to 100%"),
        (("--cache-bytes", "much"), "--cache-bytes='much' is not a size"),
        (("--cache-bytes", "5%,,"), "--cache-bytes='' is not a size"),
        (("--cache-bytes", "nan%"), "--cache-bytes='nan%' is not a share"),
        (("--batch-size", "0"), "0 is not in the range"),
        (("--strategies", "fast,belady"), "'fast' is not a strategy that can be predicted"),
        (("--strategies", ""), "'' is not a strategy that can be predicted"),
        (("--partitions", "nodes", "--links", "all"), "--links: has no meaning with --partitions"),
        (
            ("--batches", "3", "--partitions", "edges"),
            "--batches: has no meaning with",
        ),
        (("--memory", "much"), "is not a size"),
    ],
)
def test_options_that_mean_nothing(
    run: Any, store: Path, words: tuple[str, ...], message: str
) -> None:
    done = run("predict", store, *words)
    assert done.status == 2
    assert message in done.stderr


def test_what_is_not_there(run: Any, store: Path, tmp_path: Path) -> None:
    assert run("predict", tmp_path / "none.gnn").status == 3
    done = run("predict", store, *QUICK, "--input-nodes", "nothing")
    assert done.status == 3
    assert "there is no split 'nothing'" in done.stderr
    graph = random_graph(9, 30, feature_dim=200)
    graph.splits["nobody"] = np.empty(0, np.int64)
    done = run("predict", graph.write(tmp_path / "a.gnn"), *QUICK, "--input-nodes", "nobody")
    assert done.status == 2
    assert "are empty, so there are no batches; choose others with --input-nodes" in done.stderr


def test_a_store_with_nothing_to_cache(run: Any, tmp_path: Path) -> None:
    empty = write_example_store(tmp_path / "e.gnn", num_nodes=0, num_edges=0).path
    done = run("predict", empty, *QUICK)
    assert done.status == 2
    assert "nothing to cache" in done.stderr
