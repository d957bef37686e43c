"""Converters of plug-ins in `gnnstore convert`, and what a `GraphWriter` takes from them."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnstore.converters import GraphWriter
from gnnstore.errors import GnnstoreError, InputError, UsageError
from gnnstore.plugins import CONVERTERS
from gnnstore.tools import cli
from gnnstore.tools.session import PLUGINS
from tests.support.graphs import read_store

PLUGIN = '''
from pathlib import Path

from gnnstore.plugins import CONVERTERS, Converter, GraphWriter, converter


@converter
def from_lines(input, output, *, options=None, progress=None):
    """Convert lines of two numbers."""
    source = {"inputs": [{"path": str(Path(input).absolute()), "size_bytes": 0}]}
    with GraphWriter(
        output, kind="lines", source=source, options=options, progress=progress
    ) as writer:
        for line in Path(input).read_text().splitlines():
            source, target = map(int, line.split())
            writer.add_edges([source], [target])
        return writer.commit()


CONVERTERS.register(Converter("lines", from_lines, "Convert lines of two numbers."))
'''


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that installs modules as plug-ins, by their texts."""
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "site")
    cli.load_plugins.cache_clear()

    def install(**modules: str) -> None:
        for name, text in modules.items():
            (tmp_path / "site" / f"{name}.py").write_text(text)
        found = [EntryPoint(name, name, "gnnstore.plugins") for name in modules]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: found)

    monkeypatch.setattr(CONVERTERS, "_values", {})
    yield install
    PLUGINS.clear()
    for name in ("gnnstore_lines", "gnnstore_broken"):
        sys.modules.pop(name, None)


def test_a_plugin_s_converter_is_a_command(run: Any, tmp_path: Path, plugins: Any) -> None:
    plugins(gnnstore_broken="import gnnstore.no_such_module", gnnstore_lines=PLUGIN)
    (tmp_path / "e.lines").write_text("0 1\n1 2\n")
    done = run("convert", "lines", tmp_path / "e.lines", tmp_path / "o.gnn", "--undirected")
    assert done.status == 0, done.stderr
    assert read_store(tmp_path / "o.gnn").pairs() == [(1, 0), (0, 1), (2, 1), (1, 2)]
    said = "the plug-in gnnstore_broken (gnnstore_broken) cannot be imported and is left out: Mod"
    assert said in done.stderr
    done = run("convert", "--help")
    assert "lines" in done.stdout
    assert said not in done.stderr, "a plug-in is imported once"
    assert "Convert lines of two numbers." in run("convert", "lines", "--help").stdout


MISBEHAVING = {
    "gnnstore_exits": ("import sys\nsys.exit(3)", "is left out: SystemExit: 3"),
    "gnnstore_raises": ("raise GeneratorExit('no')", "is left out: GeneratorExit: no"),
    "gnnstore_prints": (
        "import os, sys; os.write(1, b'by hand, '); print('by print', file=sys.__stdout__)",
        "printed on stdout when it was imported: 'by hand, by print'",
    ),
}


def test_what_plugins_do_when_they_are_imported_costs_a_warning(
    tmp_path: Path, plugins: Any, capfd: Any
) -> None:
    plugins(**{name: text for name, (text, _) in MISBEHAVING.items()}, gnnstore_lines=PLUGIN)
    (tmp_path / "e.lines").write_text("0 1\n1 2\n")
    words = ["convert", "lines", str(tmp_path / "e.lines"), str(tmp_path / "o.gnn"), "--json"]
    assert cli.main(words) == 0
    done = capfd.readouterr()
    assert json.loads(done.out)["command"] == "convert"
    for name, (_, said) in MISBEHAVING.items():
        assert f"the plug-in {name} ({name}) " in done.err
        assert said in done.err
        sys.modules.pop(name, None)


def test_ctrl_c_during_an_import_ends_the_command(plugins: Any, run: Any) -> None:
    plugins(gnnstore_broken="raise KeyboardInterrupt")
    assert run("convert", "--help").status == 130


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("KeyError('weight')", "the plug-in gnnstore_lines (gnnstore_lines) raised KeyError: "),
        ("InputError('line 2 is odd')", "gnnstore: error: line 2 is odd"),
    ],
)
def test_an_error_in_a_plugin_names_it(
    run: Any, tmp_path: Path, plugins: Any, raised: str, said: str
) -> None:
    status = 1 if raised.startswith("InputError") else 70
    text = PLUGIN.replace("    source = {", f"    raise {raised}\n    source = {{")
    plugins(gnnstore_lines="from gnnstore.errors import InputError\n" + text)
    (tmp_path / "e.lines").write_text("0 1\n")
    done = run("convert", "lines", tmp_path / "e.lines", tmp_path / "o.gnn")
    assert done.status == status
    assert said in done.stderr
    assert ("InputError." in done.stderr) == ("Traceback" in done.stderr) == (status == 70)
    assert "a defect" not in done.stderr


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_a_writer_takes_arrays_tensors_and_lists(tmp_path: Path, kind: Any) -> None:
    with GraphWriter(tmp_path / "o.gnn", kind="test", num_nodes=3) as writer:
        writer.add_edges(kind([0, 1]), kind([1, 2]), {"edge_time": kind([5, 6])})
        writer.set_node_attribute("y", kind([0, 1, 0]))
        with writer.node_rows("x", num_rows=3, row_shape=(2,), dtype="float32") as rows:
            rows.append(kind([[0.5, 1], [2, 3]]))
            rows.append(kind([[4.0, 5]]))
        writer.set_split("train", kind([0, 2]))
        writer.set_edge_split("test", kind([0]), kind([2]))
        writer.set_graph_array("shape", kind([1, 2]))
        writer.commit()
    graph = read_store(tmp_path / "o.gnn")
    assert graph.pairs() == [(0, 1), (1, 2)]
    assert graph.attributes["x"].tolist() == [[0.5, 1], [2, 3], [4, 5]]
    assert graph.splits["train"].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("x.npy", r"<U5 of type str cannot be stored"),
        ([[1], [2, 3], [4]], "is not an array of numbers"),
        ({1, 2, 3}, "object of type set cannot be stored; use arrays, tensors or lists"),
        (None, "object of type NoneType cannot be stored"),
        (torch.zeros(3, dtype=torch.complex64), "complex64 of type Tensor cannot be stored"),
        (torch.zeros(3, dtype=torch.bfloat16), "is not an array of numbers"),
    ],
)
def test_a_writer_refuses_others_in_words(tmp_path: Path, values: Any, message: str) -> None:
    calls: list[Any] = [
        lambda writer: writer.set_node_attribute("y", values),
        lambda writer: writer.set_split("train", values),
        lambda writer: writer.add_edges(values, values),
        lambda writer: writer.set_graph_array("a", values),
        lambda writer: writer.set_original_ids(values),
    ]
    for call in calls:
        with (
            GraphWriter(tmp_path / "o.gnn", kind="test", num_nodes=3) as writer,
            pytest.raises(UsageError, match=message),
        ):
            call(writer)


def test_a_writer_checks_what_comes(tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "o.gnn", kind="test", num_nodes=3) as writer:
        with pytest.raises(InputError, match="ids are integers"):
            writer.add_edges([0.5], [1])
        with pytest.raises(InputError, match=r"\[1\] sources and \[2\] targets"):
            writer.add_edges([0], [1, 2])
        with pytest.raises(GnnstoreError, match="rows of"):  # noqa: SIM117
            with writer.node_rows("x", num_rows=3, row_shape=(2,), dtype="float32") as rows:
                rows.append([[1.0, 2, 3]])
