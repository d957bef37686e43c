"""What every command keeps to: help, version, exit statuses, messages, where output goes."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import gnnstore
from gnnstore.errors import (
    CorruptStoreError,
    GnnstoreError,
    InputError,
    NoSpaceError,
    NotFoundError,
    UnsupportedVersionError,
    UsageError,
)
from gnnstore.formats.base.files import Problem
from gnnstore.pipeline.check import Report
from gnnstore.tools import cli
from gnnstore.tools.commands import upkeep
from gnnstore.tools.options import BUDGET, MEMORY, session_options
from gnnstore.tools.session import SCHEMA_VERSION, Session, report
from tests.support.effort import choose


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Return a function that puts a command named `fail` in place, which raises an error."""

    def install(error: BaseException) -> None:
        @click.command()
        @session_options
        def command(_session: object) -> None:
            raise error

        module = type("Module", (), {"fail_command": command})
        monkeypatch.setitem(sys.modules, "gnnstore.tools.commands.failing", module)
        monkeypatch.setitem(cli._MODULES, "fail", "failing")

    return install


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("gnnstore ins", "inspect"),
        ("gnnstore convert rm", "rmat"),
        ("gnnstore predict --strateg", "--strategies"),
    ],
)
def test_the_tab_key_completes(
    words: str, found: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_GNNSTORE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit):
        cli.main([])
    assert capsys.readouterr().out.split() == [f"plain,{found}"]


@pytest.mark.parametrize("words", ["gnnstore nope pre", "gnnstore convert e.csv pre"])
def test_the_tab_key_says_nothing_of_wrong_words(
    words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_GNNSTORE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", "2")
    with contextlib.suppress(SystemExit):
        cli.main([])
    assert capfd.readouterr().err == ""


def imported_by(*commands: str) -> set[str]:
    """Return which heavy packages runs of the command line import in one process."""
    code = (
        "import sys\nfrom gnnstore.tools.cli import main\n"
        "for words in sys.argv[1:]:\n"
        "    try:\n        main(words.split())\n    except SystemExit:\n        pass\n"
        "heavy = {'torch', 'torch_geometric', 'zarr', 'numpy', 'pyarrow', 'rich', 'matplotlib'}\n"
        "print(' '.join(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *commands],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return set(done.stderr.strip().splitlines()[-1].split()) if done.stderr.strip() else set()


def test_version(run: Any) -> None:
    done = run("--version")
    assert (done.status, done.stdout) == (0, f"gnnstore {gnnstore.__version__}\n")


def test_version_and_help_import_nothing_heavy() -> None:
    assert imported_by("--version", "--help") == set()


def test_help_and_commands_that_learn_nothing_need_no_torch(example: Path, tmp_path: Path) -> None:
    names = ("predict", "pack", "bench disk", "bench load", "partition")
    np.save(tmp_path / "edge_index.npy", [[0, 1], [1, 2]])
    found = imported_by(
        *(f"{name} --help" for name in names),
        f"inspect {example}",
        f"verify {example} -q",
        f"convert numpy {tmp_path} {tmp_path / 'a.gnn'} -q",
    )
    assert not found & {"torch", "torch_geometric", "zarr", "matplotlib"}
    assert (tmp_path / "a.gnn" / "zarr.json").exists()


def options_of(command: click.Command, *names: str) -> Iterator[tuple[str, click.Option]]:
    """Yield the options of a command and of those below it, each with the command's name."""
    for param in command.params:
        if isinstance(param, click.Option):
            yield " ".join(names), param
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options_of(below, *names, name)


def test_a_word_means_one_thing() -> None:
    found: dict[str, dict[str, click.Option]] = {}
    for command, option in options_of(cli.root):
        found.setdefault(option.opts[-1], {})[command] = option
        assert option.nargs == 1, f"{command} {option.opts}: values of a tuple have commas"
    assert found["--memory"].keys() > {"convert ogb", "partition", "pack", "predict", "reorder"}
    for command, option in found["--memory"].items():
        has_store = command in {"partition", "pack", "predict"}  # that a budget may be a share of
        assert option.metavar == ("SIZE|N%" if has_store else "SIZE"), command
        if command != "pack":  # with --ray the memory of other machines, parsed once that is clear
            assert option.type == (BUDGET if has_store else MEMORY), command
    assert list(found["--loader-memory"]) == ["bench load"]
    assert sorted(found["--cache-bytes"]) == ["pack", "predict"]
    assert {option.name for option in found["--spill-dir"].values()} == {"spill_dir"}
    old = ("by", "cache", "cached-by", "tmpdir", "shared-negatives")
    assert not found.keys() & {f"--{word}" for word in old}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["inspect"], "Missing argument 'STORE'"),
        (["inspect", "a.gnn", "--nothing"], "No such option"),
        (["verify", "a.gnn", "--level", "deep"], "'deep' is not one of"),
        (["bench", "load", "a.gnn", "--batches", "0"], "0 is not in the range"),
        (["bench", "load", "a.gnn", "--batches", "x"], "'x' is not a valid whole number."),
        (["bench", "disk", ".", "--seconds", "x"], "'x' is not a valid number."),
    ],
)
def test_wrong_usage_exits_with_2(run: Any, arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.status == 2
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("line 3 is no number"), 1),
        (CorruptStoreError("short file"), 1),
        (UsageError("the options contradict one another"), 2),
        (NotFoundError("no such store"), 3),
        (UnsupportedVersionError("format version 9"), 4),
        (NoSpaceError("no space left"), 5),
    ],
)
def test_an_error_is_one_message_and_its_status(
    run: Any, failing: Any, error: GnnstoreError, status: int
) -> None:
    failing(error)
    done = run("fail")
    assert (done.status, done.stdout) == (status, "")
    assert done.stderr == f"gnnstore: error: {error}\n"


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file", "a.npz"), 3, "No such file: a.npz"),
        (PermissionError(errno.EACCES, "Permission denied", "a"), 5, "Permission denied: a"),
        (OSError(errno.EIO, "Input/output error"), 5, "Input/output error"),
        (MemoryError(), 5, "not enough memory (MemoryError)"),
        (MemoryError("Unable to allocate 9 TB"), 5, "(Unable to allocate 9 TB)"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_of_the_system(
    run: Any, failing: Any, error: BaseException, status: int, message: str
) -> None:
    failing(error)
    done = run("fail")
    assert done.status == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_left_is_no_error(run: Any, failing: Any) -> None:
    failing(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    done = run("fail")
    assert (done.status, done.stderr) == (141, "")


def test_an_unforeseen_error_asks_for_a_report(run: Any, failing: Any) -> None:
    failing(ZeroDivisionError("oh"))
    done = run("fail")
    assert done.status == 70
    assert "Traceback (most recent call last)" in done.stderr
    assert "ZeroDivisionError: oh" in done.stderr
    assert "`gnnstore info`" in done.stderr


def test_debug_shows_a_traceback(run: Any, failing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(InputError("line 3 is no number"))
    assert "Traceback" not in run("fail").stderr
    assert "Traceback (most recent call last)" in run("fail", "--debug").stderr
    monkeypatch.setenv("GNNSTORE_DEBUG", "1")
    assert "Traceback (most recent call last)" in run("fail").stderr
    monkeypatch.setenv("GNNSTORE_DEBUG", "0")
    assert "Traceback" not in run("fail").stderr


def test_an_error_with_json_is_a_document_too(run: Any, failing: Any) -> None:
    failing(CorruptStoreError("a.gnn: the file is short", path="a.gnn", offset=512))
    done = run("fail", "--json")
    assert done.status == 1
    assert done.document == {
        "schema_version": SCHEMA_VERSION,
        "command": "fail",
        "error": {
            "kind": "CorruptStoreError",
            "message": "a.gnn: the file is short",
            "path": "a.gnn",
            "offset": 512,
            "exit_status": 1,
        },
    }
    assert done.stderr == "gnnstore: error: a.gnn: the file is short\n"


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "--json"),
        ("inspect", "--json", "--nope"),
        ("inspect", "a.gnn", "--json", "--array"),
        ("convert", "--json"),
        ("convert", "--json", "snap", "a.txt", "a.gnn"),
        ("convert", "snap", "none.txt", "a.gnn", "--json"),
        ("convert", "nothing", "--json"),
        ("nothing", "--json"),
        ("--json", "inspect"),
    ],
)
def test_whatever_is_wrong_there_is_a_document(run: Any, words: tuple[str, ...]) -> None:
    """Also where the words cannot be parsed, and --json itself was never reached."""
    done = run(*words)
    assert done.document["schema_version"] == SCHEMA_VERSION
    error = done.document["error"]
    assert error["exit_status"] == done.status != 0
    assert error["message"]


def test_every_json_document_is_led_by_its_schema(run: Any, example: Path) -> None:
    for arguments in (["inspect", example], ["verify", example], ["info", example]):
        document = run(*arguments, "--json").document
        assert list(document)[:2] == ["schema_version", "command"]
        assert (document["schema_version"], document["command"]) == (SCHEMA_VERSION, arguments[0])


def test_text_in_a_pipe_has_no_colours_and_no_trailing_spaces(run: Any, example: Path) -> None:
    for arguments in (["inspect", example, "--stats"], ["verify", example], ["info"]):
        text = run(*arguments).stdout
        assert "\x1b" not in text
        assert all(line == line.rstrip() for line in text.splitlines())


def test_a_message_with_brackets_is_printed_as_it_is(run: Any) -> None:
    done = run("inspect", "[bold]missing[/bold].gnn")
    assert done.status == 3
    assert "[bold]missing[/bold].gnn: no such store" in done.stderr


@pytest.mark.parametrize("command", ["verify {} --json", *choose([], ["inspect {}"])])
def test_a_full_device_is_no_damage(example: Path, command: str) -> None:
    words = [sys.executable, "-m", "gnnstore", *command.format(example).split()]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (5, "gnnstore: error: No space left on device\n")


def test_closed_streams_lead_nowhere(example: Path) -> None:
    """And no file that is opened takes their numbers, and what is printed."""
    closed = "<&- >&- 2>&-"
    command = f"{sys.executable} -m gnnstore verify {example} --level full {closed}"
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 0
    command = f"{sys.executable} -m gnnstore verify {example.parent / 'none'} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert done.returncode == 3


@pytest.mark.parametrize("make", [lambda: None, StringIO], ids=["none", "closed"])
def test_streams_that_a_program_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], StringIO | None]
) -> None:
    """Before a command, and while it runs; and what the library says after it."""

    def close() -> None:
        for name in ("stdout", "stderr"):
            stream = make()
            monkeypatch.setattr(sys, name, stream)
            if stream is not None:
                stream.close()

    def found(*_: object, **__: object) -> Report:
        close()
        logging.getLogger("gnnstore").warning("said")
        return Report("full", [Problem("a", "is damaged")])

    def refused(*_: object, **__: object) -> Report:
        close()
        raise InputError("it is not a graph")

    for words in (["--version"], ["inspect", "--help"], ["inspect"], ["inspect", str(tmp_path)]):
        close()
        assert cli.main(words) == (0 if words[-1][:2] == "--" else 2 + (words != ["inspect"]))
    for verify in (found, refused):
        monkeypatch.setattr(upkeep, "verify", verify)
        for more in ([], ["--json"]):
            assert cli.main(["verify", str(tmp_path), *more]) == 1
    assert report(click.UsageError("a word too many"), Session(as_json=True)) == 2
    assert report(KeyError("x"), Session()) == 70


def test_paths_that_cannot_be_shown_are_escaped(example: Path, tmp_path: Path) -> None:
    both = ("é.gnn", "ascii"), (os.fsdecode(b"\xfe.gnn"), "utf-8")
    for name, encoding in choose(((os.fsdecode("é".encode() + b"\xfe.gnn"), "ascii"),), both):
        (tmp_path / name).symlink_to(example)
        done = subprocess.run(
            [sys.executable, "-m", "gnnstore", "inspect", tmp_path / name],
            env=os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert b"nodes" in done.stdout


@pytest.mark.usefixtures("small_budgets")
def test_messages_name_options_as_they_are_typed(run: Any, tmp_path: Path) -> None:
    """The library's messages have Python's names; the command line's those of its options."""
    edges = tmp_path / "edges.txt"
    edges.write_text("from to\n1 2\n")
    asked = run("convert", "snap", edges, tmp_path / "g.gnn")
    assert "skip it with --skip-header" in asked.stderr  # a flag, without the value
    words = ("--skip-header", "--feature-dtype", "float16")
    unused = run("convert", "snap", edges, tmp_path / "g.gnn", *words)
    assert "--feature-dtype 'float16': there are no features to store; name" in unused.stderr
    budget = run("convert", "rmat", tmp_path / "g.gnn", "--scale", "12", "--memory", "1kB")
    assert re.search(r"(?s)of the --memory budget.*raise --memory by at least", budget.stderr)
    assert unused.status == budget.status == 2


def test_paths_in_messages_stay(run: Any, tmp_path: Path) -> None:
    place = tmp_path / "seed=3" / "memory=1"
    missing = run("convert", "numpy", place / "x.npz", tmp_path / "g.gnn", "--json")
    assert f"{place / 'x.npz'} does not exist" in missing.document["error"]["message"]


@pytest.mark.parametrize("words", [*choose([], [()]), ("--threads", "2")])
def test_what_is_told_on_the_way_names_options_as_well(
    run: Any, example: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert run("pack", example, "--output", tmp_path / "plan", *words).status == 0
    taken = run("pack", example, "--output", tmp_path / "plan", *words)
    assert "or pass --overwrite to replace it" in taken.stderr
    small = run("pack", example, "--output", tmp_path / "b", "--memory", "1MB", *words)
    assert "num_threads=" not in small.stderr
