"""The wheel and the source archive: what is in them, and that they work where nobody develops."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.support import effort

ROOT = Path(__file__).parents[2]
# What a build or a run leaves behind.
JUNK = re.compile(r"(^|/)(__pycache__|\.(?!github/)[^/]*)(/|$)|^(build|dist|demo)/|\.(so|pyc)$")


def run(*words: str | Path, **options: object) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        check=False,
        capture_output=True,
        text=True,
        timeout=1500,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{words}:\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sdist")
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(directory)!r})"
    run(sys.executable, "-c", code, cwd=ROOT)
    return next(directory.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Build from the source archive, in an environment that holds only what it asks for."""
    words = ["wheel", "--no-deps", "--wheel-dir", str(sdist.parent), str(sdist)]
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *words)
    return next(sdist.parent.glob("*.whl"))


def test_the_source_archive_holds_the_sources_and_no_junk(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not [name for name in names if JUNK.search(name)]
    for folder in ("gnnstore", "docs", "tests", "examples", "benchmarks"):
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and not JUNK.search(name):
                assert name in names, name
    for name in ("README.md", "LICENSE", "CITATION.cff", "Makefile", "constraints.txt"):
        assert name in names, name


@pytest.mark.skipif(not effort.is_long(), reason="`make long`: compiles the core")
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gnnstore").rglob("*.py")}
    assert modules <= names
    (core,) = (name for name in names if name.endswith(".so"))
    assert {name for name in names - modules - {core} if ".dist-info/" not in name} == {
        "gnnstore/py.typed",
        "gnnstore/_core/_kernels.pyi",
    }
    assert core.startswith("gnnstore/_core/_kernels.")
    if sys.version_info >= (3, 12):
        assert "-cp312-abi3-" in wheel.name
        assert core.endswith(".abi3.so")


@pytest.mark.skipif(not effort.is_long(), reason="`make long`: compiles the core")
def test_the_wheel_needs_no_libraries_but_the_systems(wheel: Path) -> None:
    report = run(sys.executable, "-m", "auditwheel", "show", wheel)
    assert re.search(r"consistent\s+with\s+the\s+following\s+platform\s+tag:\s+.manylinux_", report)


@pytest.mark.skipif(not effort.is_long(), reason="`make long`: compiles the core, installs torch")
def test_the_wheel_works_in_a_fresh_environment_without_a_compiler(
    wheel: Path, tmp_path: Path
) -> None:
    home = tmp_path / "env"
    run(sys.executable, "-m", "venv", home)
    python = home / "bin" / "python"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "CC", "CXX") and not name.startswith("COV_")
    }
    environment["PATH"] = str(home / "bin")
    words = ["install", "--quiet", "--no-compile", "--only-binary", ":all:"]
    words += ["--constraint", str(ROOT / "constraints.txt"), str(wheel)]
    run(python, "-m", "pip", "--disable-pip-version-check", *words, env=environment)
    script = Path(__file__).with_name("try_wheel.py")
    told = run(python, script, env=environment, cwd=tmp_path)
    assert str(home) in told
    told = run(home / "bin" / "gnnstore", "--version", env=environment, cwd=tmp_path)
    assert "gnnstore" in told
    # And the README's first block, as pasted.
    block = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)[0]
    told = run(python, "-i", "-q", env=environment, cwd=tmp_path, input=block)
    assert "last loss 0." in told


def test_a_build_without_a_compiler_ends_with_what_to_install(sdist: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "CXX": str(tmp_path / "none")}
    words = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(sdist)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
    )
    assert done.returncode != 0
    output = done.stdout + done.stderr
    end = output[output.index("the C++ core could not be built") :]
    assert "apt install g++ python3-dev" in end
    assert len(end.splitlines()) < 20, "what pip itself adds, and no more"


def test_the_release_workflow_says_what_is_there() -> None:
    """As far as can be told where it cannot run: it parses, and names files and jobs that exist."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    workflow = yaml.safe_load(text)
    assert "UNTESTED" in text
    jobs = workflow["jobs"]
    for job in jobs.values():
        assert set(job.get("needs", [])) <= set(jobs)
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
    for name in re.findall(r"\{project\}/(\S+)", text):
        assert (ROOT / name).exists(), name
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    (script,) = re.findall(r"\{project\}/(\S+)", settings["test-command"])
    assert (ROOT / script).exists()
    assert settings["build"] == ["cp311-manylinux_*", "cp312-manylinux_*"]
    built = {entry["arch"] for entry in jobs["wheels"]["strategy"]["matrix"]["include"]}
    assert sysconfig.get_platform().removeprefix("linux-") in built | {"x86_64"}
    assert built == {"x86_64", "aarch64"}
