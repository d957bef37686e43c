"""`gnnstore info`: the facts of a bug report, whatever the machine lacks."""

from __future__ import annotations

import errno
import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import gnnstore
from gnnstore.disk.engines import ENGINES
from tests.support.faults import inject


def test_versions_and_machine(run: Any, tmp_path: Path) -> None:
    document = run("info", tmp_path, "--json").document
    assert document["gnnstore"]["version"] == gnnstore.__version__
    assert Path(document["gnnstore"]["core"]["file"]).is_file()
    assert document["python"]["version"] == platform.python_version()
    assert document["packages"]["numpy"] == metadata.version("numpy")
    machine = document["machine"]
    assert 1 <= machine["cpus_usable"] <= machine["cpus_online"]
    assert machine["memory"]["available_bytes"] > 0
    assert machine["page_bytes"] % 4096 == 0


def test_the_file_system_of_a_path(run: Any, example: Path) -> None:
    found = run("info", example, "--json").document["filesystem"]
    assert found["path"] == str(example)
    assert os.path.ismount(found["mount_point"])
    assert found["free_bytes"] <= found["total_bytes"]
    assert found["direct_io"]["alignment_bytes"] % 512 == 0
    assert not list(example.glob(".gnnstore-info-*"))


@pytest.mark.parametrize("kind", ["a store", "a directory", "a file"])
def test_engines_that_work(run: Any, example: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    path = {"a store": example, "a directory": tmp_path, "a file": tmp_path / "file"}[kind]
    before = sorted(path.rglob("*"))
    probes = run("info", path, "--json").document["engines"]["probes"]
    assert sorted(path.rglob("*")) == before
    assert [probe["name"] for probe in probes] == list(ENGINES)
    for probe in probes[1:]:  # these two work everywhere
        assert probe["is_available"]
        assert probe["detail"].startswith(probe["name"])
        assert probe["remedy"] is None


def test_an_engine_that_does_not_work(run: Any, example: Path) -> None:
    with inject("io_uring_setup", errno=errno.EPERM, times=-1):
        found = run("info", example, "--json").document["engines"]["probes"][0]
        text = run("info", example).stdout
    assert found["name"] == "io_uring"
    assert found["is_available"] is False
    assert found["detail"] == "io_uring_setup: Operation not permitted"
    assert "io_uring" in found["remedy"]
    assert re.search(r"^  io_uring: io_uring_setup: Operation not permitted\. \w", text, re.M)
    assert re.search(r"^  pread: pread, up to \d+ threads$", text, re.M)


def test_an_engine_that_the_environment_asks_for(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GNNSTORE_IO_ENGINE", raising=False)
    assert run("info", tmp_path, "--json").document["engines"]["forced"] is None
    monkeypatch.setenv("GNNSTORE_IO_ENGINE", "mmap")
    assert run("info", tmp_path, "--json").document["engines"]["forced"] == "mmap"
    assert "The engine is set to mmap." in run("info", tmp_path).stdout


def test_text_for_people(run: Any) -> None:
    done = run("info")
    assert done.status == 0
    assert done.stdout.startswith(f"gnnstore {gnnstore.__version__}\n")
    for text in ("torch", "numcodecs", "File system", "direct_io", "Engines"):
        assert text in done.stdout


def test_a_path_that_is_not_there(run: Any, tmp_path: Path) -> None:
    done = run("info", tmp_path / "none")
    assert done.status == 3
    assert "no such file or directory" in done.stderr


def test_a_file_system_without_direct_reads(run: Any, example: Path) -> None:
    reason = "the file system refuses to open with O_DIRECT: Invalid argument"
    with inject("open", errno=errno.EINVAL):
        found = run("info", example, "--json").document["filesystem"]["direct_io"]
    assert found["refused_because"] == reason
    with inject("open", errno=errno.EINVAL):
        text = run("info", example).stdout
    assert re.search(rf"^  direct_io.refused_because +{reason}$", text, re.M)
