"""Every code block of the documentation is run; what is not run says why, and is listed here.

Guides may show what a command prints, below it, or its first lines. These outputs are checked but
for their numbers; with GNNSTORE_UPDATE_DOCS=1 set, they are written anew, empty ones too. Text
right below another block holds words that this block prints, in their order.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest

import gnnstore
from gnnstore import testing
from gnnstore.converters import from_rmat
from gnnstore.plugins import CONVERTERS, POLICIES, SEED_KINDS, STRATEGIES
from gnnstore.strategies.registry import auto
from gnnstore.tools import cli
from tests.support.disks import keep_usual_profile
from tests.support.effort import choose, is_long
from tests.support.forks import RUN_SCRIPT, ForkServer

pytest.importorskip("torch_geometric")

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

# Languages of blocks that hold no code.
_NOT_CODE = {"text", "json"}
_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+?) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

_OUTPUT = re.compile(r"\n<!-- output -->\n```text\n(?P<body>.*?)```\n", re.DOTALL)
_TEXT_BELOW = re.compile(r"\n```text\n(?P<body>.*?)```\n", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]{4,}")
_MAKES_A_STORE = re.compile(
    r'^gnnstore convert \S+ (?:\S+ )?graph\.gnn|from_rmat\("graph\.gnn"', re.MULTILINE
)
MAX_WIDTH, MAX_LINES = 76, 6
TREES = {"docs/architecture.md", "docs/format.md"}  # their drawings are wider

# What the manual runs is run by tests/cli, too, and its options and fields are looked at below.
LONG_FORM = {"cli.md"}

# Page -> how each block that is not run begins; its reason stands on the page.
NOT_RUN = {
    "README.md": [
        "git clone https://github.com/OWNER/gnnstore && cd gnnstore",
    ],
    "CONTRIBUTING.md": ["make test"],
    "docs/benchmarks.md": ["make bench", "make bench-peers"],
    "docs/howto-compare.md": [
        "gnnstore bench load papers100M.gnn --plot epochs.png",
        "gnnstore convert rmat large.gnn --scale 24 --edge-factor 15 \\",
    ],
    "docs/howto-cluster.md": [
        "sbatch --array=0-63 --cpus-per-task=8 --mem=24G --requeue --wrap \\",
        "sbatch --nodes 8 --requeue --wrap 'srun torchrun --nnodes 8 \\",
        "gnnstore pack /nfs/graph.gnn --output /nfs/epochs --ray 64 --memory 16GB \\",
        "python examples/train_ray.py /nfs/graph.gnn --workers 1 3 \\",
        "apiVersion: batch/v1",
        "import gnnstore",
    ],
    "docs/howto-distributed.md": [
        "torchrun --nproc-per-node 2 examples/train_distributed.py graph.gnn \\",
        "from accelerate import Accelerator",
    ],
    "docs/howto-predict.md": [
        "gnnstore convert rmat rmat20.gnn --scale 20 --edge-factor 15 \\",
    ],
    "docs/howto-remote.md": [
        "import gnnstore",
        "gnnstore copy papers100M.gnn s3://bucket/papers100M.gnn",
        "from obstore.auth.boto3 import Boto3CredentialProvider",
    ],
    "docs/howto-lightning.md": [
        "pip install lightning",
        "gnnstore.NeighborLoader(..., device=self.trainer.strategy.root_device)",
    ],
    "docs/howto-train.md": ["from torch_geometric.loader import NeighborLoader"],
}


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, what it is, and why it is not run, if it is not."""

    page: str
    line: int
    language: str
    body: str
    reason: str | None


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("body")) + 1
        name = page.relative_to(ROOT).as_posix()
        yield Block(name, line, match["language"], match["body"], match["reason"])


def run_shell(block: Block) -> str:
    """Run the commands of a block, and return what the first of them prints."""
    outputs = []
    for line in block.body.replace("\\\n", " ").splitlines():
        # Measurements take as long as they are told.
        words = shlex.split(line.replace("--seconds 2 ", "--seconds 0.2 "), comments=True)
        if not words:
            continue
        assert words[0] == "gnnstore", f"{block.page}:{block.line}: {line!r} cannot be run here"
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = cli.main(words[1:])
        assert status == 0, f"{block.page}:{block.line}: {line!r} exits with {status}"
        text = printed.getvalue().replace(f"{Path.cwd()}/", "")
        outputs.append(text.replace(f"{Path(gnnstore.__file__).parents[1]}/", "\u2026/"))
    return outputs[0]


def excerpt(output: str, num_lines: int) -> str:
    """Return the beginning of an output, as pages show it."""
    lines = output.strip("\n").splitlines()
    kept = "\n".join(line.rstrip() for line in lines[:num_lines]).strip("\n").splitlines()
    kept = [f"{line[: MAX_WIDTH - 1]}\u2026" if len(line) > MAX_WIDTH else line for line in kept]
    return "".join(f"{line}\n" for line in kept + ["..."] * (len(lines) > num_lines))


def labels_of(output: str) -> list[str]:
    """Return the words of the first column: what follows differs from run to run and machine."""
    columns = [re.split(r"\s{2,}", line.strip())[0] for line in output.splitlines()]
    # Whole words: an identity may begin with three letters.
    return [" ".join(re.findall(r"(?<![\w.-])[A-Za-z_]{3,}(?!\w)", label)) for label in columns]


def check_output(page: Path, block: Block, output: str) -> None:
    """Compare an output with what the page shows of it, if it does, or write it there."""
    text = page.read_text()
    end = text.index(block.body) + len(block.body) + len("```\n")
    shown = _OUTPUT.match(text, end)
    if shown is None:
        return
    expected = excerpt(output, len(shown["body"].removesuffix("...\n").splitlines()) or MAX_LINES)
    if os.environ.get("GNNSTORE_UPDATE_DOCS"):
        page.write_text(text[: shown.start("body")] + expected + text[shown.end("body") :])
        return
    assert labels_of(shown["body"]) == labels_of(expected), (
        f"{block.page}:{block.line}: the page shows another output; GNNSTORE_UPDATE_DOCS=1 pytest "
        "tests/docs writes outputs anew"
    )


def check_words(page: Path, block: Block, output: str) -> None:
    """Look for the words of the text right below a block in what it prints, in their order."""
    text = page.read_text()
    shown = _TEXT_BELOW.match(text, text.index(block.body) + len(block.body) + len("```\n"))
    if shown is not None:
        printed = iter(_WORD.findall(output))
        for word in _WORD.findall(shown["body"]):
            assert word in printed, f"{block.page}:{block.line}: {word!r} is shown and not printed"


def run_python(block: Block, namespace: dict[str, Any]) -> str:
    """Run a block, and return what it prints."""
    # Blank lines in front make a traceback show the page's own line numbers.
    source = "\n" * (block.line - 1) + block.body
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(source, block.page, "exec"), namespace)  # noqa: S102 - our own pages
    return printed.getvalue()


def runs(block: Block) -> bool:
    return block.reason is None and block.language not in _NOT_CODE


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if any(map(runs, blocks_of(page))) and (is_long() or page.name not in LONG_FORM)
    ],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
@pytest.mark.usefixtures("timed_in_forks", "registries")
def test_code_blocks_run(page: Path, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a page's blocks in order, in one directory; Python blocks share their names."""
    if not _MAKES_A_STORE.search(page.read_text()):
        # Pages that are no guides look at a store that is there.
        _make_graph_store()
    _put_gnnstore_on_the_path(work_dir, monkeypatch)
    keep_usual_profile(work_dir)  # or many pages measure the disk, for three seconds
    resumes = partial(testing.assert_resumes, num_epochs=choose(1, 2))
    monkeypatch.setattr(testing, "assert_resumes", resumes)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if not runs(block) or (page.name, block.language) == ("README.md", "python"):
            continue  # `test_readme` pastes that one into an interpreter
        if block.language == "sh":
            output = run_shell(block)
            if page.name.startswith("howto-"):
                check_output(page, block, output)
            else:
                check_words(page, block, output)
        elif block.language == "python":
            check_words(page, block, run_python(block, namespace))
        else:
            pytest.fail(
                f"{block.page}:{block.line}: a block of language {block.language!r}; write sh, "
                "python, or text"
            )


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget at the end of a page what it has registered."""
    for registry in (SEED_KINDS, POLICIES, STRATEGIES, CONVERTERS):
        monkeypatch.setattr(registry, "_values", {each.name: each for each in registry})


def _make_graph_store() -> None:
    words = ["convert", "numpy", "graph.npz", "graph.gnn", "-q"]
    assert cli.main(words) == 0


def _put_gnnstore_on_the_path(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks that start `gnnstore` as a process find this one, installed or not."""
    scripts = work_dir / ".bin"
    scripts.mkdir()
    script = scripts / "gnnstore"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gnnstore "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(scripts), prepend=":")


def test_guides_make_the_store_that_they_use() -> None:
    for page in (ROOT / "docs").glob("howto-*.md"):
        run = "".join(block.body for block in blocks_of(page) if block.reason is None)
        if re.search(r"[ \"]graph\.gnn", run):
            assert _MAKES_A_STORE.search(run), page.name


def test_blocks_that_are_not_run_are_listed() -> None:
    found: dict[str, list[str]] = {}
    for page in PAGES:
        for block in blocks_of(page):
            if block.reason is not None:
                first_line = block.body.splitlines()[0].split("  ")[0]
                found.setdefault(block.page, []).append(first_line)
    assert found == NOT_RUN


def test_every_fence_is_seen() -> None:
    for page in PAGES:
        fences = sum(line.startswith("```") for line in page.read_text().splitlines())
        assert fences == 2 * len(list(blocks_of(page))), page


def test_code_fits_a_narrow_page() -> None:
    """Between the two columns of navigation of the site there is room for 76 characters."""
    wide = [
        f"{block.page}:{block.line + number}: {line}"
        for page in PAGES
        for block in blocks_of(page)
        if block.page not in TREES or block.language != "text"
        for number, line in enumerate(block.body.splitlines())
        if len(line) > MAX_WIDTH
    ]
    assert not wide, "\n".join(wide)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_make_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(), re.MULTILINE))
        assert named <= targets, page


def test_files_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    for name in re.findall(r"`([\w/]+\.(?:py|cpp))`", text):
        places = list((ROOT / "gnnstore").rglob(name.rsplit("/", 1)[-1]))
        assert any(str(place).endswith(name) for place in [*places, ROOT / name]), name


TRACED = ("memory", "static", *choose((), ("belady", "packed", "links in memory")))


def test_batches_enter_the_modules_that_the_architecture_names(forks: ForkServer) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    row = r"^\| `?([\w ]+)`? \| (\d+) \| (\d+) \| (\d+) \| (.*) \|$"
    rows = [found for found in re.findall(row, text, re.MULTILINE) if found[0] in TRACED]
    words = ["--repeats", "1", "--json", "--ways", ",".join(name for name, *_ in rows)]
    done = forks.run(RUN_SCRIPT, ROOT / "benchmarks" / "batch_path.py", *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    entered = found["modules"]
    named: set[str] = set()
    assert len(rows) == len(TRACED)
    for strategy, functions, _, count, which in rows:
        files = re.findall(r"`([\w/]+)\.py`", which)
        named |= {f"gnnstore.{name.replace('/', '.')}" for name in files}
        if strategy in {"memory", "static"}:
            assert sorted(named) == entered[strategy]
        # In one run threads may have done something earlier.
        assert len(entered[strategy]) <= int(count), strategy
        # A page that tells how much there is to read need not follow each change.
        assert found["num_functions"][strategy] < 1.1 * int(functions), strategy


def _commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli.root)
    for name in cli.root.list_commands(context):
        command = cli.root.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            for kind in command.list_commands(context):
                if (sub := command.get_command(context, kind)) is not None:
                    yield f"{name} {kind}", sub


# Fields whose contents are named by the user's data, or of one kind of conversion each.
_OPEN_FIELDS = {"packages", "huge_pages", "splits", "stages", "seconds_by_stage"}
_OPEN_FIELDS |= {"inputs", "parameters", "options", "degrees", "values", "labels"}
_SAMPLED = "--num-neighbors 2,2 --batch-size 32"


@pytest.fixture(scope="module")
def rmat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return from_rmat(tmp_path_factory.mktemp("rmat") / "graph.gnn", scale=9)


@pytest.mark.parametrize(
    ("command", "also"),
    [
        ("info", ""),
        ("inspect graph.gnn", ""),
        ("inspect graph.gnn --array x", ""),
        ("inspect graph.gnn --stats", ""),
        ("verify graph.gnn", ""),
        ("gc .", ""),
        ("convert rmat rmat.gnn --scale 8", "inspect"),
        ("reorder graph.gnn ordered.gnn", "inspect"),
        ("reorder graph.gnn --estimate", ""),
        (f"predict graph.gnn --caches {_SAMPLED}", ""),
        (f"pack graph.gnn --name fixed {_SAMPLED}", "inspect"),
        ("partition graph.gnn", "inspect"),
        ("assign graph.gnn --parts 2 --hops 1", "inspect"),
        (f"bench load graph.gnn --strategies numpy-mmap --batches 2 --no-limit {_SAMPLED}", ""),
    ],
)
@pytest.mark.usefixtures("timed_in_forks")
def test_every_field_of_a_json_document_stands_in_the_manual(
    rmat: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    command: str,
    also: str,
) -> None:
    shutil.copytree(rmat, tmp_path / "graph.gnn")
    keep_usual_profile(tmp_path)
    monkeypatch.chdir(tmp_path)
    sections = re.split(r"^## gnnstore ", (ROOT / "docs" / "cli.md").read_text(), flags=re.M)
    name = " ".join(command.split()[: 1 + command.startswith("bench")])
    described = [text for text in sections if text.startswith((name, also or name))]
    known = set(re.findall(r"\w+", " ".join(described))) | {"schema_version", "command"}
    assert cli.main([*command.split(), "--json"]) == 0
    assert set(_fields(json.loads(capsys.readouterr().out))) <= known


def _fields(document: Any) -> Iterator[str]:
    if isinstance(document, list):
        for entry in document:
            yield from _fields(entry)
    if isinstance(document, dict):
        for name, value in document.items():
            yield name
            if name not in _OPEN_FIELDS:
                yield from _fields(value)


def test_every_option_stands_in_the_manual_and_none_is_made_up() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    known = {"--help", "--version"}
    for name, command in _commands():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                options = [*parameter.opts, *parameter.secondary_opts]
                known.update(options)
                for option in options:
                    assert f"`{option}" in text, f"gnnstore {name} {option}"
    assert set(re.findall(r"--[a-z][a-z-]+", text)) <= known


def test_defaults_in_the_manual_are_those_of_the_options() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    for name, command in _commands():
        for parameter in command.params:
            default = parameter.to_info_dict()["default"]
            if not isinstance(parameter, click.Option) or parameter.is_flag or not default:
                continue
            values = default if isinstance(default, tuple) else (default,)
            shown = " ".join(map(str, values))
            row = rf"\| `{parameter.opts[0]}[^|]*(?:\\\|[^|]*)*\| `?{re.escape(shown)}`? \|"
            assert re.search(row, text), f"gnnstore {name} {parameter.opts[0]}: {shown}"


def test_every_strategy_stands_in_the_docs() -> None:
    """Where users look for them: the guide says what each does, in the words of its summary."""
    guide = (ROOT / "docs" / "howto-train.md").read_text()
    manual = (ROOT / "docs" / "cli.md").read_text()
    loader = gnnstore.NeighborLoader.__doc__ or ""
    for strategy in STRATEGIES:
        assert f'| `strategy="{strategy.name}"` | {strategy.summary} |\n' in guide
        assert f'"{strategy.name}"' in loader
    for candidate in auto().candidates:
        assert f"`{candidate.choice}`" in manual


def test_every_parameter_of_loaders_is_in_a_group() -> None:
    text = (ROOT / "docs" / "reference" / "loaders.md").read_text()
    for loader in (gnnstore.NeighborLoader, gnnstore.LinkNeighborLoader):
        for name in inspect.signature(loader).parameters.keys() - {"kwargs"}:
            assert f"`{name}`" in text, name


def test_exit_statuses_in_the_manual_are_those_of_the_code() -> None:
    from gnnstore.tools import session  # noqa: PLC0415

    text = (ROOT / "docs" / "cli.md").read_text()
    in_manual = {int(n) for n in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    numbers = {name: n for name, n in vars(session).items() if isinstance(n, int)}
    in_code = {n for name, n in numbers.items() if name[0] != "_" and name != "SCHEMA_VERSION"}
    assert in_manual == in_code


def test_every_example_is_run_by_a_test() -> None:
    """Beside those below: what stops and goes on, and what runs in several processes."""
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for script in (ROOT / "examples").glob("*.py"):
        assert f'"{script.name}"' in tests or f'"{script.stem}"' in tests, script.name


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("train_hetero", ["--strategy", "belady", "--memory", "100MB"]),
        ("train_temporal", ["--weighted"]),
    ],
)
def test_examples_of_types_and_times_learn(
    work_dir: Path, forks: ForkServer, name: str, options: list[str]
) -> None:
    script = ROOT / "examples" / f"{name}.py"
    done = forks.run(RUN_SCRIPT, script, "--papers", "1500", "--epochs", "3", *options)
    assert done.returncode == 0, done.stderr
    accuracy = float(done.stdout.split()[-1])
    assert accuracy > 0.6  # of 8 classes


@pytest.mark.parametrize(("strategy", "edges"), [("memory", ["--csr"]), ("belady", [])])
def test_the_example_script_trains(
    work_dir: Path, forks: ForkServer, strategy: str, edges: list[str]
) -> None:
    """Training and evaluation, in memory and under one budget for both."""
    _make_graph_store()
    script = ROOT / "examples" / "train_sage.py"
    options = ["--epochs", "1", "--fanouts", "5,5", "--hidden", "16", "--batch-size", "100"]
    options += ["--strategy", strategy, "--memory", "100MB", *edges]
    done = forks.run(RUN_SCRIPT, script, work_dir / "graph.gnn", *options)
    assert done.returncode == 0, done.stderr
    assert "test" in done.stdout
