"""`gnnstore bench disk`: a table, a picture, a document; and a profile that loaders find."""

from __future__ import annotations

import json
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gnnstore.disk.profile import DeviceProfile, load_profile, tune_reads
from gnnstore.tools.layout import block_name

# The least that still measures: the numbers mean nothing, their shape does.
QUICK = ("--size", "4MiB", "--seconds", "0.3", "-q")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep what a test measures in a directory of its own."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    monkeypatch.delenv("GNNSTORE_IO_ENGINE", raising=False)
    return directory


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / "place"
    directory.mkdir()
    return directory


def test_the_document(run: Any, place: Path, cache: Path) -> None:
    done = run("bench", "disk", place, *QUICK, "--json")
    assert (done.status, done.stderr) == (0, "")
    document = done.document
    assert list(document)[:2] == ["schema_version", "command"]
    assert (document["schema_version"], document["command"]) == (3, "bench")
    assert (document["what"], document["path"]) == ("disk", str(place))
    assert document["file_bytes"] == 4 << 20
    assert document["problems"] == []
    assert list(place.iterdir()) == []

    profile = DeviceProfile.from_document(document["profile"])
    assert load_profile(place) == profile
    assert Path(document["saved_to"]).is_relative_to(cache)
    tuning = tune_reads(profile)
    assert document["tuning"] == vars(tuning)
    assert document["drawn_to"] is None


def test_the_table(run: Any, place: Path, cache: Path) -> None:
    done = run("bench", "disk", place, *QUICK)
    assert (done.status, done.stderr) == (0, "")
    (saved,) = cache.rglob("*.json")
    profile = load_profile(place)
    assert profile is not None
    lines = [line.split() for line in done.stdout.splitlines()]
    for block, rates in profile.random_reads_per_second.items():
        cells = [f"{rates[depth]:,.0f}" for depth in sorted(rates)]
        (shown,) = [line[2:] for line in lines if line[:2] == block_name(block).split()]
        assert shown[: len(cells)] == cells
    for text in (f"Disk below {place}", "sequential read", "queue depth", str(saved)):
        assert text in done.stdout
    assert "\x1b" not in done.stdout


def test_nothing_is_kept_where_nothing_should_be(run: Any, place: Path, cache: Path) -> None:
    done = run("bench", "disk", place, *QUICK, "--no-save")
    assert done.status == 0
    assert not cache.exists()
    assert load_profile(place) is None


def test_the_engine_that_was_asked_for(run: Any, place: Path) -> None:
    done = run("bench", "disk", place, *QUICK, "--engine", "pread", "--no-save", "--json")
    assert done.document["profile"]["engine"] == "pread"
    assert run("bench", "disk", place, *QUICK, "--engine", "mmap").status == 2


def test_progress_goes_to_stderr(run: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnstore.progress._LINE_SECONDS", 0)
    done = run("bench", "disk", place, *QUICK[:-1], "--no-save", "--json")
    assert json.loads(done.stdout)
    assert "write a file: 4.19 MB of 4.19 MB" in done.stderr
    # Three rounds of nine depths; reads of 512 bytes are not possible everywhere.
    assert re.search(r"read: (81 of 81|54 of 54) measurements \(100%\)", done.stderr)


# --- the picture --------------------------------------------------------------------------------


def png_size(data: bytes) -> tuple[int, int]:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[12:16] == b"IHDR"
    assert data[-8:-4] == b"IEND"
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def test_the_picture(run: Any, place: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.of.it.png"
    done = run("bench", "disk", place, *QUICK, "--no-save", "--plot", picture)
    assert (done.status, done.stderr) == (0, "")
    assert str(picture) in done.stdout
    assert png_size(picture.read_bytes()) == (1500, 690)
    assert list(place.iterdir()) == []


# --- what goes wrong ----------------------------------------------------------------------------


def test_a_path_that_is_not_there(run: Any, tmp_path: Path) -> None:
    done = run("bench", "disk", tmp_path / "none", *QUICK)
    assert done.status == 3
    assert "no such file or directory" in done.stderr


def test_a_result_that_cannot_be_kept_is_shown(run: Any, place: Path, cache: Path) -> None:
    cache.write_text("not a directory")
    done = run("bench", "disk", place, *QUICK, "--json")
    assert done.status == 5
    document = done.document
    assert document["saved_to"] is None
    assert "cannot keep the measurements" in document["problems"][0]
    assert DeviceProfile.from_document(document["profile"]).best_rate(4096) > 0
    done = run("bench", "disk", place, *QUICK)
    assert done.status == 5
    assert "cannot keep the measurements" in done.stdout


def test_an_interrupt_leaves_nothing(place: Path, cache: Path) -> None:
    words = ["bench", "disk", str(place), "--size", "16MiB", "--seconds", "10"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gnnstore", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not _holds_a_file_in(place, process.pid):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        time.sleep(0.1)  # in the middle of reading
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    finally:
        process.kill()
    assert (process.returncode, stdout) == (130, "")
    assert "interrupted" in stderr
    assert list(place.iterdir()) == []
    assert not cache.exists()


def _holds_a_file_in(place: Path, pid: int) -> bool:
    """Whether a process has a file open there that is full, with a name or without."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if str(link.readlink()).startswith(str(place)) and link.stat().st_size == 16 << 20:
                return True
        except OSError:  # closed meanwhile
            continue
    return False
