"""`gnnstore verify`: exit status, levels, and messages that name file and byte range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FEATURES = "nodes/node/x/c.0.0"


def flip(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 0x40
    file.write_bytes(data)


@pytest.mark.parametrize("level", ["header", "checksums", "full"])
def test_a_sound_store(run: Any, example: Path, level: str) -> None:
    done = run("verify", example, "--level", level)
    assert (done.status, done.stderr) == (0, "")
    assert f"{example}: sound at level {level}" in done.stdout
    deeper = f"\nNext\n  gnnstore verify {example} --level full\n"
    assert (deeper in done.stdout) == (level != "full")
    document = run("verify", example, "--level", level, "--json").document
    assert document["ok"]
    assert document["problems"] == []
    files = [file for file in example.rglob("*") if file.is_file()]
    assert document["files"] == len(files)
    expected = 0 if level == "header" else sum(file.stat().st_size for file in files)
    root = 0 if level == "header" else (example / "zarr.json").stat().st_size
    assert document["bytes_read"] == expected - root


def test_the_default_level_reads_every_byte(run: Any, example: Path) -> None:
    assert run("verify", example, "--json").document["level"] == "checksums"


def test_a_flipped_byte_is_named_with_its_range(run: Any, scratch: Path) -> None:
    flip(scratch / FEATURES, 5000)
    size = (scratch / FEATURES).stat().st_size
    assert run("verify", scratch, "--level", "header").status == 0
    done = run("verify", scratch)
    assert done.status == 1
    assert f"{scratch / FEATURES} bytes 0-{size}: checksum mismatch" in done.stdout
    assert "1 problem found at level checksums" in done.stdout
    assert "convert the data again" in done.stdout
    (problem,) = run("verify", scratch, "--json").document["problems"]
    assert problem["path"] == str(scratch / FEATURES)
    assert (problem["first_byte"], problem["end_byte"]) == (0, size)


def test_a_short_file_is_found_at_every_level(run: Any, scratch: Path) -> None:
    file = scratch / FEATURES
    file.write_bytes(file.read_bytes()[:-1])
    for level in ("header", "checksums", "full"):
        done = run("verify", scratch, "--level", level)
        assert done.status == 1
        assert f"{file}" in done.stdout
        assert "but the manifest says" in done.stdout


def test_a_file_that_does_not_belong_is_found(run: Any, scratch: Path) -> None:
    (scratch / "nodes/notes.txt").write_text("mine")
    done = run("verify", scratch, "--level", "header")
    assert done.status == 1
    assert "nodes/notes.txt: the manifest does not list this file" in done.stdout


def test_an_altered_manifest_is_found(run: Any, scratch: Path) -> None:
    root = scratch / "zarr.json"
    root.write_text(root.read_text().replace('"example"', '"altered"'))
    done = run("verify", scratch, "--level", "header")
    assert done.status == 1
    assert "the manifest was altered after it was written" in done.stdout


def test_what_is_no_store_is_an_error(run: Any, tmp_path: Path) -> None:
    done = run("verify", tmp_path / "none.gnn")
    assert (done.status, done.stdout) == (3, "")
    assert "no such store" in done.stderr


def test_threads_change_nothing(run: Any, scratch: Path) -> None:
    flip(scratch / FEATURES, 0)
    flip(scratch / "nodes/node/y/zarr.json", 3)
    found = [
        sorted(
            str(p) for p in run("verify", scratch, "--threads", n, "--json").document["problems"]
        )
        for n in (1, 4)
    ]
    assert found[0] == found[1]
    assert len(found[0]) >= 1
