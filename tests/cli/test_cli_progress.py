"""Progress: plain lines now and then where there is no terminal, bars where there is one."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gnnstore.display.lines import (
    JsonProgress,
    LineProgress,
    Usage,
    format_amount,
    format_rate,
)
from gnnstore.display.progress import open_progress


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_now_and_then() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, interval_seconds=10, clock=clock)
    with progress.phase("read edges", total=1000, unit="edges") as phase:
        for _ in range(25):
            clock.now += 1
            phase.advance(40)
    assert stream.getvalue().splitlines() == [
        "read edges: 400 of 1,000 edges (40%), 10 s, 40 edges/s, 15 s left",
        "read edges: 800 of 1,000 edges (80%), 20 s, 40 edges/s, 5 s left",
        "read edges: 1,000 of 1,000 edges, done in 25 s, 40 edges/s",
    ]


def test_lines_of_work_that_writes_show_what_it_uses(tmp_path: Path) -> None:
    clock, stream = Clock(), io.StringIO()
    usage = Usage()
    progress = LineProgress(stream, interval_seconds=10, clock=clock, usage=usage)
    progress.note("expected: much")
    with progress.phase("copy", unit="bytes") as phase:
        (tmp_path / "file").write_bytes(bytes(3_000_000))
        clock.now += 20
        phase.advance(5_000_000)
    first, *lines = stream.getvalue().splitlines()
    assert first == "expected: much"
    for line, head in zip(lines, ("copy: 5 MB, 20 s", "copy: 5 MB, done in 20 s"), strict=True):
        assert re.fullmatch(
            rf"{head}, 250 kB/s, 3(\.\d+)? MB written, [\d.]+ [MG]B memory at the peak", line
        )


def test_usage_without_the_kernels_counters(tmp_path: Path) -> None:
    usage = Usage(tmp_path / "none")
    assert usage.written_bytes() is None
    assert re.fullmatch(r"[\d.]+ [MG]B memory at the peak", str(usage))


@pytest.mark.parametrize(
    ("per_second", "unit", "text"),
    [(1234.5, "edges", "1,234 edges/s"), (0.25, "rows", "0.25 rows/s"), (5e6, "bytes", "5 MB/s")],
)
def test_rates(per_second: float, unit: str, text: str) -> None:
    assert format_rate(per_second, unit) == text


def test_a_short_phase_prints_nothing() -> None:
    stream = io.StringIO()
    with LineProgress(stream).phase("sort", total=3) as phase:
        phase.advance(3)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("done", "total", "unit", "text"),
    [
        (5, 10, "rows", "5 of 10 rows"),
        (1234567, None, "edges", "1,234,567 edges"),
        (1_000_000, 2_500_000, "bytes", "1 MB of 2.5 MB"),
        (1_000_000, None, "bytes", "1 MB"),
    ],
)
def test_amounts(done: int, total: int | None, unit: str, text: str) -> None:
    assert format_amount(done, total, unit) == text


# ---- for machines

COMMON = {"event", "bytes_written", "peak_memory_bytes", "elapsed_seconds"}
OF_A_PHASE = {"phase", "done", "total", "unit", "rate", "eta_seconds", "phase_seconds"}


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_an_event_now_and_then(tmp_path: Path) -> None:
    clock, stream = Clock(), io.StringIO()
    progress = JsonProgress(stream, interval_seconds=10, clock=clock, usage=Usage())
    clock.now = 5
    progress.note("expected: much", {"seconds": 25.0})
    progress.note("a remark")
    with progress.phase("read edges", total=1000, unit="edges") as phase:
        (tmp_path / "file").write_bytes(bytes(3_000_000))
        for _ in range(25):
            clock.now += 1
            phase.advance(40)
    with progress.phase("sort"):
        pass
    progress.end(None)
    found = events(stream.getvalue())
    kinds = ["start", "note", *["progress"] * 3, "phase", "progress", "phase", "end"]
    assert [event["event"] for event in found] == kinds
    assert found[0]["estimate"] == {"seconds": 25.0}
    assert found[1]["text"] == "a remark"
    expected = {"phase": "read edges", "done": 800, "total": 1000, "unit": "edges", "rate": 40}
    assert found[4].items() >= {**expected, "eta_seconds": 5, "elapsed_seconds": 25}.items()
    assert found[4]["bytes_written"] >= 3_000_000
    assert found[4]["peak_memory_bytes"] > 10_000_000
    first, last = found[2], found[5]
    assert (first["done"], first["rate"], first["eta_seconds"]) == (0, None, None)
    assert (last["done"], last["phase_seconds"], last["eta_seconds"]) == (1000, 25, 0)
    assert (found[7]["phase"], found[7]["total"], found[7]["eta_seconds"]) == ("sort", None, None)
    assert (found[8]["ok"], found[8]["error"]) == (True, None)
    for event in found:
        assert event.keys() >= COMMON
        assert ("phase" in event) == (event.keys() >= OF_A_PHASE)


def test_several_threads_may_advance_a_phase_that_is_told_as_events() -> None:
    stream = io.StringIO()
    progress = JsonProgress(stream, interval_seconds=0)
    with progress.phase("copy", 4000, "rows") as phase:

        def work() -> None:
            for _ in range(1000):
                phase.advance()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = events(stream.getvalue())  # every line is whole
    assert len(found) == 4000 + 3
    assert found[-1]["done"] == 4000


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("bad luck")])
def test_an_error_is_the_last_event(
    capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    with (
        pytest.raises(type(error)),
        open_progress(style="json") as progress,
        progress.phase("work", 10),
    ):
        raise error
    start, begun, end = events(capsys.readouterr().err)
    assert (start["event"], start["estimate"]) == ("start", None)
    assert (begun["event"], end["event"], end["ok"]) == ("progress", "end", False)
    assert end["error"] == {"kind": type(error).__name__, "message": str(error)}


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with open_progress(quiet=True) as progress, progress.phase("work", 1) as phase:
        phase.advance()
    assert capsys.readouterr().err == ""


def test_no_terminal_means_lines() -> None:
    with open_progress() as progress:
        assert isinstance(progress, LineProgress)


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
    from gnnstore.display import progress as module  # noqa: PLC0415

    stream = io.StringIO()

    def narrow(**_: Any) -> Console:
        return Console(file=stream, width=width, force_terminal=True, color_system=None)

    monkeypatch.setattr(module, "Console", narrow)
    name = "sort edges/node__to__node"
    with (
        open_progress(style="bar", show_usage=True) as shown,
        shown.phase(name, total=total, unit="edges") as phase,
    ):
        phase.advance(done)
        time.sleep(0.25)  # two frames
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
