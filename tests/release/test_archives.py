"""The wheel and the source archive: what is in them, and that they work where nobody develops."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any

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
    # Without environments: the build looks at each of their files before it leaves them out.
    tree = tmp_path_factory.mktemp("tree") / "gnnstore"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".venv*", ".git"))
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(directory)!r})"
    run(sys.executable, "-c", code, cwd=tree)
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


@pytest.fixture(scope="module")
def page(sdist: Path) -> Message:
    """Return what PyPI shows of the package."""
    with tarfile.open(sdist) as archive:
        name = next(name for name in archive.getnames() if name.count("/") == 1 and "PKG" in name)
        file = archive.extractfile(name)
        assert file is not None
        return message_from_string(file.read().decode())


def test_links_of_the_page_are_absolute(page: Message) -> None:
    text, version = str(page.get_payload()), page["Version"]
    places = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    assert places
    assert [place for place in places if not re.match("https?://", place)] == []
    assert "![A training epoch" in text
    assert f"/raw/v{version}/docs/images/headline.svg)" in text
    assert f"/blob/v{version}/docs/tutorial.md)" in text


def test_code_and_addresses_on_the_page_stay(tmp_path: Path) -> None:
    path = ROOT / "release" / "project_pages.py"
    spec = importlib.util.spec_from_file_location("project_pages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    given = "[a](b.md#c) ![d](e.png) [f](#g) [h](https://i/j)\n```python\nk[l](m)\n```\n"
    assert module.with_absolute_links(given, "https://r", "2") == (
        "[a](https://r/blob/v2/b.md#c) ![d](https://r/raw/v2/e.png) [f](https://r#g) "
        "[h](https://i/j)\n```python\nk[l](m)\n```\n"
    )


def test_the_repository_is_the_same_everywhere(page: Message) -> None:
    (source,) = (url for url in page.get_all("Project-URL", []) if url.startswith("Source, "))
    repository = source.removeprefix("Source, ")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["repository-code"] == repository
    assert citation["version"] == page["Version"]
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        found = re.findall(r"https://github\.com/[^/\s]+/gnnstore\b", (ROOT / name).read_text())
        assert set(found) <= {repository}, name


def test_licences_of_what_the_core_is_linked_with(page: Message) -> None:
    assert page.get_all("License-File") == [
        "LICENSE",
        "release/nanobind.txt",
        "release/robin-map.txt",
    ]
    (nanobind,) = (file for file in metadata.files("nanobind") or [] if "licenses" in file.parts)
    assert (ROOT / "release" / "nanobind.txt").read_text() == nanobind.read_text()
    header = next(
        file for file in metadata.files("nanobind") or [] if file.name == "robin_map.h"
    ).read_text()
    comment = "".join(line[3:] or "\n" for line in header.splitlines(keepends=True)[1:22])
    assert (ROOT / "release" / "robin-map.txt").read_text() == comment


def test_what_the_oldest_versions_are() -> None:
    done = run(sys.executable, ROOT / "release" / "bounds.py", cwd=ROOT)
    assert {"numpy==1.26", "numcodecs==0.16.3", "pyarrow==19", "ray==2.60"} <= set(done.split())
    bounds = dict(one.split("==") for one in done.split())
    needed = (
        f"torch {bounds['torch']} or newer, PyTorch Geometric {bounds['torch_geometric']} or newer"
    )
    assert needed in " ".join((ROOT / "README.md").read_text().split())


def test_a_build_on_another_system_ends_with_a_sentence(tmp_path: Path) -> None:
    script = tmp_path / "elsewhere.cmake"
    lists = ROOT / "gnnstore" / "_core" / "CMakeLists.txt"
    script.write_text(f'set(CMAKE_HOST_SYSTEM_NAME Darwin)\ninclude("{lists}")\n')
    cmake = Path(sys.executable).with_name("cmake")
    done = subprocess.run([cmake, "-P", script], check=False, capture_output=True, text=True)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "gnnstore runs on Linux only, and this is Darwin; Windows can run it in WSL 2" in said


@pytest.mark.skipif(not effort.is_long(), reason="`make long`: compiles the core")
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gnnstore").rglob("*.py")}
    assert modules <= names
    (core,) = (name for name in names if name.endswith(".so"))
    licences = {name.partition(".dist-info/licenses/")[2] for name in names}
    assert licences - {""} == {"LICENSE", "release/nanobind.txt", "release/robin-map.txt"}
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
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, wheel.parent / "*.tar.gz")
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


def read_jobs(name: str) -> tuple[str, dict[str, Any]]:
    """Return the text of a workflow, and its jobs."""
    text = (ROOT / ".github" / "workflows" / name).read_text()
    assert "UNTESTED" in text
    jobs = yaml.safe_load(text)["jobs"]
    for job in jobs.values():
        assert set(job.get("needs", [])) <= set(jobs)
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
    return text, jobs


def test_the_workflow_of_tests_names_all_versions() -> None:
    """As far as can be seen where it cannot run: it parses, and names targets that exist."""
    _, jobs = read_jobs("tests.yml")
    runs = jobs["tests"]["strategy"]["matrix"]["include"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert [one["python"] for one in runs if one["target"] == "test"] == versions
    targets = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.M)
    assert {one["target"] for one in runs} <= set(" ".join(targets).split())


def test_the_release_workflow_says_what_is_there() -> None:
    """As far as can be seen where it cannot run: it parses, and names files and jobs that exist."""
    text, jobs = read_jobs("release.yml")
    assert "twine check --strict" in str(jobs["check"])
    for name in re.findall(r"\{project\}/(\S+)", text):
        assert (ROOT / name).exists(), name
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    (script,) = re.findall(r"\{project\}/(\S+)", settings["test-command"])
    assert (ROOT / script).exists()
    assert settings["build"] == ["cp311-manylinux_*", "cp312-manylinux_*"]
    built = {entry["arch"] for entry in jobs["wheels"]["strategy"]["matrix"]["include"]}
    assert sysconfig.get_platform().removeprefix("linux-") in built | {"x86_64"}
    assert built == {"x86_64", "aarch64"}
