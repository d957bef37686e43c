"""`gnnstore info`: the facts of a bug report, whatever the machine lacks."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import gnnstore
from gnnstore.tools import system
from gnnstore.tools.filesystem import describe_filesystem


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
    direct = found["direct_io"]
    if direct is not None and direct["offset_alignment_bytes"]:
        assert direct["offset_alignment_bytes"] % 512 == 0
    assert not list(example.glob(".gnnstore-info-*"))


def test_text_for_people(run: Any) -> None:
    done = run("info")
    assert done.status == 0
    assert done.stdout.startswith(f"gnnstore {gnnstore.__version__}\n")
    for text in ("torch", "zarr", "huge pages", "File system of .", "direct I/O"):
        assert text in done.stdout


def test_a_path_that_is_not_there(run: Any, tmp_path: Path) -> None:
    done = run("info", tmp_path / "none")
    assert done.status == 3
    assert "no such file or directory" in done.stderr


def test_a_package_that_is_not_installed_is_no_failure() -> None:
    assert system.package_version("no-such-package-of-any-kind") is None


def test_a_file_answers_for_its_file_system(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 4096)
    assert describe_filesystem(file)["direct_io"] == describe_filesystem(tmp_path)["direct_io"]
