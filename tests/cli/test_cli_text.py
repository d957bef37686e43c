"""What is printed at 80 and at 120 columns: each command's help, each table, suggestions.

The text is compared with the files in `expected`, which GNNSTORE_UPDATE_EXPECTED=1 rewrites. Tables
are drawn from documents that `--json` printed, in `expected/documents`.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console

import gnnstore
from gnnstore.tools import cli, describe, partitions
from gnnstore.tools.bench import disk
from gnnstore.tools.bench.load import LOAD
from gnnstore.tools.commands import stores, upkeep
from gnnstore.tools.layout import (
    Block,
    Layout,
    fill,
    print_document,
    program,
    program_of,
    program_of_packed,
    program_of_partitions,
    rows_at,
)
from gnnstore.tools.predict import PREDICTIONS

EXPECTED = Path(__file__).parent / "expected"
WIDTHS = (80, 120)


def compare(name: str, text: str) -> None:
    """Compare text with a file of `expected`, or write it there."""
    file = EXPECTED / f"{name}.txt"
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    if os.environ.get("GNNSTORE_UPDATE_EXPECTED") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), f"{file}: GNNSTORE_UPDATE_EXPECTED=1 rewrites it"


def commands(
    words: tuple[str, ...] = (), command: click.Command = cli.root
) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command and kind that help lists."""
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from commands((*words, name), found)


# --- help ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_help(run: Any, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for words in commands():
        text = run(*words, "--help").stdout
        compare(f"help-{width}/{'-'.join(words) or 'gnnstore'}", text)
        assert max(map(len, text.splitlines())) <= width
        assert "INTEGER" not in text
        assert "FLOAT" not in text


def test_options_stand_in_sections(run: Any) -> None:
    text = run("pack", "--help").stdout
    places = [
        text.index(f"\n{line}")
        for line in (
            *("Options:", "  --name NAME", "Batches:", "  --batch-size N", "  --seed N"),
            *("Links to start from:", "  --negatives", "  --edge-label ", "Budgets:"),
            *("  --memory SIZE", "  --threads N", "General:", "  --json", "  -h, --help"),
        )
    ]
    assert places == sorted(places)
    assert "[default: 1024; x>=1]" in text


# --- suggestions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("inspct",), "No such command 'inspct'. Did you mean inspect?"),
        (("Verify",), "Did you mean verify?"),
        (("snap", "e.txt"), "It is a kind of input: gnnstore convert snap."),
        (("convert", "snp", "a", "b"), "No such kind 'snp'. Did you mean snap?"),
        (("convert", "OGB", "a", "b"), "Did you mean ogb"),
        (("convert", "graph.thing", "a.gnn"), "Choose graphbolt, igb, igbh, kronecker, "),
        (("bench", "disc"), "No such command 'disc'. Did you mean disk?"),
        (("inspect", "a.gnn", "--stat"), "--stats"),
        (("predict", "a.gnn", "--memory", "8"), "--memory='8' is 8 bytes"),
        (("predict", "a.gnn", "--memory", "8"), "did you mean 8GB?"),
        (("pack", "a.gnn", "--memory", "999999"), "at least 1 MB; did you mean 8GB?"),
        (("bench", "load", "a.gnn", "--loader-memory", "2"), "did you mean 2GB?"),
    ],
)
def test_suggestions(run: Any, words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert done.status == 2
    assert said in done.stderr
    assert "planted-kg" not in done.stderr  # which help does not list


# --- tables -------------------------------------------------------------------------------------

DISK = {
    "path": "/data",
    "engine_reason": "io_uring, because reads of it bypass the page cache here",
    "file_bytes": 2**30,
    "seconds": 15.2,
    "remarks": ["the disk was busy: other programs read 12 MB/s from it"],
    "problems": [],
    "profile": {
        "mount_point": "/data",
        "filesystem_type": "ext4",
        "device": "/dev/nvme0n1",
        "is_direct": True,
        "sequential_read_bytes_per_second": 3.2e9,
        "sequential_write_bytes_per_second": 1.1e9,
    },
    "random_reads": [
        {"block_bytes": 512, "1": 12_345.0, "32": 412_345.0},
        {"block_bytes": 4096, "1": 11_222.0, "32": 398_765.0, "256": 401_234.0},
    ],
    "tuning": {"gap_bytes": 8192, "queue_depth": 32, "max_read_bytes": 262144, "source": "it"},
    "saved_to": "/home/me/.cache/gnnstore/disks.json",
    "drawn_to": None,
}
LEFTOVERS = [
    {
        "path": f"/data/graphs/of/a/long/path/.papers100M-{name}.gnn.tmp-0a1b2c3d",
        "state": state,
        "num_bytes": 123_456_789_012,
        "age_seconds": 100_000,
        "action": "removed",
    }
    for name, state in (("undirected", "resumable"), ("b", "running"))
]
DEGREES = {
    side: {
        "num_nodes": 10**6 * factor,
        "num_edges": 10**8 * factor,
        "mean": 100.0,
        "max": 123_456,
        "zero_share": 0.0123,
        "tail_exponent": None if side == "before" else 2.34,
    }
    for side, factor in (("before", 1), ("after", 4))
} | {"node_factor": 4, "edge_factor": 4.0, "ks_distance": 0.0123}


def document(name: str) -> dict[str, Any]:
    """Return a document that --json has printed."""
    found: dict[str, Any] = json.loads((EXPECTED / "documents" / f"{name}.json").read_text())
    return found


def tight() -> dict[str, Any]:
    """Return predictions of which some do not fit."""
    found = document("predict")
    for one, needed in zip(
        found["predictions"]["strategies"][-2:], ("memory", "disk"), strict=True
    ):
        one.update(dict.fromkeys(one.keys() - {"strategy"}))
        one.update({"problem": "does not fit", f"needed_{needed}_bytes": 4_949_999})
    found["caches"] = []
    return found


TABLES: dict[str, tuple[Any, Any]] = {
    "inspect": (document("inspect"), describe.whole(document("inspect"))),
    "inspect-types": (document("inspect-types"), describe.whole(document("inspect-types"))),
    "inspect-array": (document("inspect-array"), describe.ARRAY_TEXT),
    "predict": (document("predict"), PREDICTIONS),
    "predict-tight": (tight(), PREDICTIONS),
    "predict-partitions": (document("predict-partitions"), partitions.PARTITIONS),
    "bench-load": (document("bench-load"), LOAD),
    "bench-disk": (DISK, disk._disk_layout([1, 32, 256])),
    "gc": ({"leftovers": LEFTOVERS}, [upkeep._LEFTOVERS]),
    "degrees": ({"degrees": DEGREES}, stores.DEGREES),
}


def drawn(
    render: Callable[[Console], None], width: int, *, is_terminal: bool = True, encoding: str = ""
) -> str:
    """Return what is rendered on a terminal, or in a pipe."""
    bytes_of = io.BytesIO()
    file = io.TextIOWrapper(bytes_of, encoding=encoding or "utf-8")
    render(
        Console(
            file=file,
            width=width,
            force_terminal=is_terminal,
            color_system=None,
            highlight=False,
            markup=False,
            emoji=False,
        )
    )
    file.flush()
    return bytes_of.getvalue().decode()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str, width: int) -> None:
    text = drawn(lambda console: print_document(console, *TABLES[name]), width)
    compare(f"tables-{width}/{name}", text)
    for line in text.splitlines():
        assert len(line.rstrip()) <= width or line.startswith(("  gnnstore", "/data")), line


COLUMNS = ("name", "first", "second", "third")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{a.b} of {n}", "1.5 kB of 1,234"),
        ("{n}[ and {none}]", "1,234"),
        ("{n} and {none}", None),
        ("{flag:*}[ {off:*}]", "* "),
        ("{zero:-}", "-"),
        ("{zero:+} of {n}", None),
        ("{n:+}", "1,234"),
        ("{total_bytes}, {read_bytes_per_second}", "1.5 kB, 2 GB/s"),
        ("{seconds}; {long_seconds}", "0.25 s; 3 h 20 min"),
        ("{seconds_by_round:~}", "2 s [1 s, 9 s]"),
        ("{miss_share} {shape:x} {counts}", "12.5% 3 x 4 train 10, test 2"),
        ("{list.1}", "4"),
    ],
)
def test_quantities_have_the_units_of_their_names(template: str, text: str | None) -> None:
    values = {
        "a": {"b": "1.5 kB"},
        "n": 1234,
        "none": None,
        "flag": True,
        "off": False,
        "zero": 0,
        "total_bytes": 1500,
        "read_bytes_per_second": 2e9,
        "seconds": 0.25,
        "long_seconds": 12_000,
        "seconds_by_round": [9.0, 1.0, 2.0],
        "miss_share": 0.125,
        "shape": [3, 4],
        "counts": {"train": 10, "test": 2},
        "list": [3, 4],
    }
    assert fill(template, values) == text


def test_rows_of_lists_in_lists_have_both() -> None:
    found = rows_at({"a": [{"n": 1, "b": [{"m": 2}, {"m": 3}]}]}, "a.b")
    assert [(row["n"], row["m"]) for row in found] == [(1, 2), (1, 3)]
    assert rows_at({"a": {"x": {"n": 1}, "y": 2}}, "a") == [
        {"key": "x", "n": 1},
        {"key": "y", "value": 2},
    ]
    assert rows_at({}, "a.b") == []


# --- what to do next ----------------------------------------------------------------------------


def first_batch(text: str) -> Any:
    """Run a program until its first batch."""
    assert all(len(line) <= 76 or "gnnstore.open" in line for line in text.splitlines())
    names: dict[str, Any] = {}
    exec(f"{text}\n    break", names)  # noqa: S102 - our own
    return names["batch"]


@pytest.fixture(scope="module")
def social(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with a split, packed epochs and partitions."""
    path = tmp_path_factory.mktemp("next") / "social.gnn"
    gnnstore.converters.from_rmat(path, scale=8, edge_factor=4, feature_dim=4)
    return path


@pytest.mark.parametrize("number", [0, 1])
def test_the_next_lines_end_with_a_program_that_trains(
    run: Any, tmp_path: Path, number: int
) -> None:
    path = tmp_path / "made.gnn"
    words = (
        ("convert", "rmat", path, "--scale", "8", "--feature-dim", "4"),
        ("convert", "planted-types", path, "--papers", "100", "--feature-dim", "4"),
    )[number]
    for text in (run(*words).stdout, run("inspect", path).stdout):
        _, _, lines = text.partition("\nTrain\n")
        batch = first_batch("\n".join(line[2:] for line in lines.splitlines()))
        assert (batch["paper"] if number else batch).batch_size > 0


def test_programs_of_what_is_made_ahead(run: Any, social: Path) -> None:
    for words, made in (
        (("pack", social, "--name", "base", "--batch-size", "16"), "plans/base"),
        (("partition", social, "-p", "4"), "partitions/random-4"),
    ):
        text = run(*words).stdout
        assert f"gnnstore inspect {social / made}" in text
        _, _, lines = text.partition("\nTrain\n")
        batch = first_batch("\n".join(line[2:] for line in lines.splitlines()))
        assert batch.batch_size > 0


@pytest.mark.parametrize(
    ("seeds", "call"),
    [
        ({"input_nodes": "train"}, 'NeighborLoader(store, [10, 10], "train",'),
        ({"input_nodes": "all"}, "NeighborLoader(store, [10, 10], batch_size="),
        ({"input_nodes": "paper:train"}, 'NeighborLoader(store, [10, 10], ("paper", "train"),'),
        ({"input_nodes": "paper:all"}, 'NeighborLoader(store, [10, 10], ("paper", None),'),
        ({"input_nodes": "a:x, b:all"}, 'NeighborLoader(store, [10, 10], {"a": "x", "b": None},'),
        ({"links": "all"}, 'LinkNeighborLoader(store, [10, 10], neg_sampling="binary",'),
        ({"links": "valid"}, '[10, 10], edge_label_index="valid", neg_sampling="binary",'),
        ({"num_neighbors": {"a__b__a": [2]}}, '(store, {("a", "b", "a"): [2]}, batch_size='),
    ],
)
def test_programs_have_the_seeds_that_were_named(seeds: dict[str, Any], call: str) -> None:
    text = program("a", **seeds)
    assert call in " ".join(text.split()).replace("( ", "(")
    compile(text, "program", "exec")


def test_programs_of_descriptions() -> None:
    store = document("inspect")
    assert program_of_packed('a "b"').startswith("import gnnstore")
    elsewhere = {
        "name": "x",
        "path": "/fast/x",
        "order": "train-first",
        "num_partitions": 16,
        "num_train_partitions": 2,
    }
    text = program_of_partitions(store, elsewhere)
    assert 'PartitionPolicy("sequential", capacity=9, name="/fast/x")' in text
    store["graph"]["node_types"][0]["splits"] = {}
    store["graph"]["edge_types"][0]["splits"] = {"valid": {}}
    assert "LinkNeighborLoader" in program_of(store)
    inside = {**elsewhere, "path": f"{store['path']}/partitions/x", "order": "random"}
    text = program_of_partitions(store, inside)
    assert 'PartitionPolicy("two-level", capacity=0.5, name="x")' in text
    assert "LinkNeighborLoader" in text


# --- on a terminal ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_is_long_is_cut_or_wrapped_on_a_terminal(is_terminal: bool) -> None:
    estimate = "packing takes about 12 GB and " * 9
    found: dict[str, Any] = {
        "store": "/data/" + "long" * 30,
        "estimate": estimate.strip(),
        "options": {"columns": [f"column{i}" for i in range(500)]},
        "labels": {f"label {i}": i for i in range(100)},
        "problems": ["a word and a word and " * 9],
    }
    layout: Layout = ["{store}", "{estimate}", Block("", "options"), Block("", "labels")]
    text = drawn(lambda c: print_document(c, found, layout), 80, is_terminal=is_terminal)
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0] == found["store"], "a path stays whole"
    if not is_terminal:
        assert estimate.strip() in lines
        assert "column499" in text
        assert "label 99" in text
        return
    assert max(map(len, lines[1:])) <= 80
    assert estimate.strip() in " ".join(lines), "between words"
    assert "column1," in text
    assert "column499" not in text
    assert "more characters (a pipe and --json have all)" in " ".join(text.split())
    assert "label 39" in text
    assert "label 40" not in text
    assert "… 60 more (a pipe and --json have all)" in text


def test_what_is_printed_has_the_width_that_is_exported(
    run: Any, tmp_path: Path, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = run("inspect", example).stdout
    monkeypatch.setenv("COLUMNS", "80")
    narrow = run("inspect", example).stdout
    assert max(map(len, wide.splitlines())) > 80
    assert all(len(line) <= 80 or str(example) in line for line in narrow.splitlines())
    assert "No room for: " in narrow
    assert "\x1b" not in narrow
    missing = tmp_path / ("name" * 30 + ".gnn")
    for words in (("inspect", missing), ("convert", "nothing", missing), ("predict", missing)):
        lines = run(*words).stderr.splitlines()
        assert lines
        assert all(len(line) <= 80 or str(missing) in line for line in lines), lines


def test_times_of_a_column_have_one_unit() -> None:
    rows = [{"name": f"{i}", "seconds": s} for i, s in enumerate((0.0001, 0.5, 471.2))]
    block = Block("", {"name": "{name}", "took": "{seconds}"}, "rows")
    lines = drawn(lambda c: print_document(c, {"rows": rows}, [block]), 80).splitlines()
    assert [line.split()[1:] for line in lines[-3:]] == [
        ["<0.01", "s"],
        ["0.5", "s"],
        ["471", "s"],
    ]
    for seconds, shown in ((0.05, "50 ms"), (7_200, "120 min"), (9e4, "25 h"), (9e5, "10.4 days")):
        one = {"rows": [{"name": "a", "seconds": seconds}]}
        text = drawn(partial(print_document, document=one, layout=[block]), 80)
        assert text.split()[-2:] == shown.split()
