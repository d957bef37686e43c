"""Progress: plain lines now and then where there is no terminal, bars where there is one."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rich.console
from rich.console import Console

from gnnstore import progress as module
from gnnstore.progress import (
    LOGGER,
    LineProgress,
    open_progress,
)
from tests.support.loaders import wait_for


class Lines(logging.Handler):
    """Remembers the lines that are logged, and has a clock that a test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.now = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    handler = Lines()
    monkeypatch.setattr(module, "monotonic", lambda: handler.now)
    monkeypatch.setattr(LOGGER, "level", logging.INFO)
    LOGGER.addHandler(handler)
    yield handler
    LOGGER.removeHandler(handler)


def test_a_line_now_and_then(lines: Lines) -> None:
    with LineProgress().phase("read edges", total=1000, unit="edges") as phase:
        for _ in range(25):
            lines.now += 1
            phase.advance(40)
    assert lines.found == [
        "read edges: 400 of 1,000 edges (40%), 10 s, 40 edges/s, 15 s left",
        "read edges: 800 of 1,000 edges (80%), 20 s, 40 edges/s, 5 s left",
        "read edges: 1,000 of 1,000 edges, done in 25 s, 40 edges/s",
    ]


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with open_progress(quiet=True) as progress, progress.phase("work", 1) as phase:
        phase.advance()
    assert capsys.readouterr().err == ""


def test_no_terminal_means_lines() -> None:
    with open_progress() as progress:
        assert isinstance(progress, LineProgress)


def test_lines_of_a_program_without_logging_go_to_stderr() -> None:
    code = (
        "from gnnstore import progress\n"
        "progress._LINE_SECONDS = 0\n"
        "for _ in range(2):\n"
        "    with progress.open_progress() as shown, shown.phase('work', 9) as phase:\n"
        "        phase.advance(9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == ""
    found = [line.partition(",")[0] for line in done.stderr.splitlines()]
    assert found == ["work: 9 of 9 items (100%)", "work: 9 of 9 items"] * 2


def test_a_terminal_gets_bars_on_stderr_and_text_on_stdout(example: Path) -> None:
    """Run with stderr on a pseudo-terminal and stdout in a pipe."""
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gnnstore", "inspect", str(example), "--stats"],
            check=True,
            stdout=subprocess.PIPE,
            stderr=theirs,
            timeout=60,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        )
        drawn = os.read(ours, 1 << 16).decode(errors="ignore")  # may end within a character
    finally:
        os.close(ours)
        os.close(theirs)
    assert "scan nodes/node/x" in drawn
    assert "\x1b[" in drawn
    assert b"\x1b" not in done.stdout


@pytest.mark.parametrize("width", [30, 60, 80, 100, 200])
@pytest.mark.parametrize(("total", "done"), [(None, 0), (None, 5000), (8_388_608, 1_048_576)])
def test_a_bar_takes_one_line_on_any_terminal(
    width: int, total: int | None, done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()

    def narrow(**_: Any) -> Console:
        return Console(file=stream, width=width, force_terminal=True, color_system=None)

    monkeypatch.setattr(rich.console, "Console", narrow)
    name = "sort edges/node__to__node"
    with (
        open_progress(style="bar") as shown,
        shown.phase(name, total=total, unit="edges") as phase,
    ):
        phase.advance(done)
        wait_for(lambda: stream.getvalue().count(name[:10]) >= 2)
        phase.advance(0)
    frames = [
        re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", f) for f in re.split(r"\r|\n", stream.getvalue())
    ]
    frames = [frame for frame in frames if frame.strip()]
    assert len(frames) >= 2
    for frame in frames:
        assert len(frame) <= width
        assert name[:10] in frame  # so that no frame has a second line
    assert "\x1b[1A" not in stream.getvalue()
    if width >= 80:
        assert f"{done:,}" in frames[-1]
