"""The peers that benchmarks compare with: an environment of their own, and processes in it.

GraphBolt has one library for each version of torch that it was compiled for, and none is recent.
So the peers live in `.venv-peers`, which `make bench-peers` sets up (`python
benchmarks/parts/peers.py` does): what could not be had there is named with its reason, and the
benchmarks go on with the rest. Where there is no such environment, peers that this Python can
import are compared with (`pip install --group bench`).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-peers"
WORKER = Path(__file__).with_name("peer.py")
LOADERS = ("GraphBolt", "torch-sparse")
HINT = "not installed: make bench-peers"
# dgl 2.1.0, the last one on PyPI, carries libraries for torch 2.0.0 to 2.2.1.
GRAPHBOLT = ("dgl==2.1.0", "torchdata==0.7.1", "numpy<2", "pandas<3", "pydantic", "pyyaml")
TORCH_VERSIONS = ("2.2.1", "2.2.0", "2.1.2")
PYG = ("torch_geometric<2.7", "setuptools<70", "wheel")
# Compiled against the torch that is there, without CUDA.
COMPILED = ("torch-scatter", "torch-sparse")


def python() -> str:
    """Return the interpreter that peers run on."""
    own = ENVIRONMENT / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def quietly(command: Sequence[str]) -> str:
    """Run a command, and return the last line of its errors, or "" if it succeeds."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return "" if done.returncode == 0 else (lines or [f"status {done.returncode}"])[-1]


@cache
def installed() -> dict[str, dict[str, str]]:
    """Return the version of each peer that can be had, or the problem with it."""
    done = subprocess.run([python(), str(WORKER)], capture_output=True, text=True, check=False)
    found: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def peers_of(*names: str) -> list[str]:
    """Return the names of peers that are installed."""
    return [name for name in names if "version" in installed()[name]]


def missing(*names: str) -> list[tuple[str, str]]:
    """Return rows of a table that say which peers cannot be had, and why."""
    hint = "" if ENVIRONMENT.exists() else f"; {HINT}"
    found = [(name, installed()[name].get("problem")) for name in names]
    return [(name, f"cannot be had: {problem}{hint}") for name, problem in found if problem]


class Peer:
    """A process in which a peer makes batches.

    Parameters
    ----------
    name : str
        One of those in `benchmarks.parts.peer.PEERS`.
    work : "sample", "load" or "links"
    arrays : dict of str to ndarray or dict
        `indptr`, `indices` and `seeds`; `x` and `y` to be loaded. A table of a store is given as
        files that are read in place (`files_of`), an array is written down.
    options
        `fanouts`, `batch_size`, `workers`; `is_mapped`: rows are gathered from a mapping.

    Raises
    ------
    RuntimeError
        If the peer fails, with the last line of what it said.
    """

    def __init__(self, name: str, work: str, arrays: dict[str, Any], **options: Any) -> None:
        self.name = name
        self._folder = tempfile.TemporaryDirectory(prefix="gnnstore-peer-")
        entries = {key: self._entry(key, value) for key, value in arrays.items()}
        job = {"workers": 0, "is_mapped": False, **options}
        job |= {"peer": name, "work": work, "arrays": entries}
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [python(), str(WORKER), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._answer()
        self._folder.cleanup()  # what was written down is in its memory

    def _entry(self, key: str, array: Any) -> dict[str, Any]:
        if isinstance(array, dict):
            return array
        path = Path(self._folder.name) / key
        array.tofile(path)
        files = [(str(path), array.nbytes)]
        return {"files": files, "dtype": array.dtype.str, "shape": array.shape}

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().rpartition("\n")[2]
        self.close()
        raise RuntimeError(f"{self.name}: {said or f'status {status}'}")

    def batches(self, count: int) -> Iterator[tuple[float, float, int]]:
        """Make a number of batches; yield seconds, CPU seconds and nodes of each as it comes."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        for _ in range(count):
            yield self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PeerLoader(Peer):
    """A peer's loader: called, it returns the mean seconds and CPU seconds of some batches.

    The first batches are not counted: workers must start, and have prepared the next ones by then.
    """

    def __init__(
        self,
        name: str,
        work: str,
        arrays: dict[str, Any],
        fanouts: Sequence[int],
        batch_size: int,
        *,
        workers: int,
        num_batches: int | None = None,
    ) -> None:
        self._first, self._num_batches = max(1, 2 * workers), num_batches
        options = {"fanouts": [*fanouts], "batch_size": batch_size, "workers": workers}
        super().__init__(name, work, arrays, **options)

    def __call__(self, num_batches: int) -> tuple[float, float]:
        """Make some batches, or as many as were given."""
        count = self._num_batches or num_batches
        found = [*self.batches(self._first + count)][self._first :]
        seconds, cpu_seconds, _ = (sum(column) / count for column in zip(*found, strict=True))
        return seconds, cpu_seconds


def arrays_of(store: Any, seeds: Any) -> dict[str, Any]:
    """Return what a peer's loader takes of a store with seeds: the graph, features and labels."""
    csc = store.topology("memory").columns()
    graph = {"indptr": csc.indptr, "indices": csc.indices, "seeds": seeds}
    features = store.reader.paged(store.features.spec)
    return {**graph, "x": files_of(features), "y": store.labels.numpy()}


def files_of(table: Any) -> dict[str, Any]:
    """Return where the rows of a paged array lie, for a peer to read or map them in place."""
    files = [
        (str(path), size) for path, size in zip(table.file_paths, table.body_bytes, strict=True)
    ]
    return {"files": files, "dtype": table.dtype.str, "shape": table.spec.shape}


# --- the environment ----------------------------------------------------------------------------


def set_up(
    install: Callable[..., str], check: Callable[[], dict[str, dict[str, str]]]
) -> list[str]:
    """Install what can be had, and return a line for each peer: its version, or why not.

    Parameters
    ----------
    install : callable
        Takes words of `pip install`; returns "" or the problem.
    check : callable
        Returns what can be imported, as `installed` does.
    """
    reasons: dict[str, str] = {}
    for version in TORCH_VERSIONS:
        problem = install(f"torch=={version}", *GRAPHBOLT)
        problem = problem or check()["GraphBolt"].get("problem", "")
        if not problem:
            break
        reasons[version] = problem
    else:
        install("torch", "numpy")
    problem = install(*PYG) or install("--no-build-isolation", "--no-deps", *COMPILED)
    lines = []
    for name, found in check().items():
        text = found.get("version") or f"cannot be had: {found['problem']}"
        if name == "GraphBolt" and "problem" in found:
            tried = "; ".join(f"torch {version}: {reason}" for version, reason in reasons.items())
            text = f"cannot be had. Tried with {tried}"
        elif name == "torch-sparse" and problem:
            text = f"cannot be had: {problem}"
        elif name == "pyg-lib" and "problem" in found:
            text += " (it is not on PyPI, so it was not tried)"
        lines.append(f"{name}: {text}")
    return lines


def main() -> int:
    """Set up the environment, and say what it has."""
    if not (ENVIRONMENT / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    pip = [python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += shlex.split(os.environ.get("PEERS_PIP", ""))
    os.environ |= {"FORCE_ONLY_CPU": "1"}

    def install(*words: str) -> str:
        print("installing " + " ".join(word for word in words if word[0] != "-"), flush=True)
        return quietly([*pip, *words])

    def check() -> dict[str, dict[str, str]]:
        installed.cache_clear()
        return installed()

    print("\n".join(set_up(install, check)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
