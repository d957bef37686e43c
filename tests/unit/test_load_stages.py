"""The time of an epoch, divided among what ran at each moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.tools.bench.stages import STAGES, stages_of


def write(path: Path, *spans: tuple[str, float, float, dict[str, float]]) -> Path:
    """Write spans (name, begin, end, args), in seconds, as a loader's timeline does."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "thread_name", "args": {"name": "main"}}]
    events += [
        {"ph": "X", "name": name, "ts": begin * 1e6, "dur": (end - begin) * 1e6, "args": args}
        for name, begin, end, args in spans
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_a_moment_is_divided_among_what_runs_in_it(tmp_path: Path) -> None:
    file = write(
        tmp_path / "t.json",
        ("sampling", 0, 4, {}),
        ("packing", 2, 6, {}),
        ("planning", 2, 4, {}),
        ("wait", 0, 10, {}),
        ("training", 5, 10, {}),
    )
    stages = stages_of(file, 10.0, faults_are_reads=False)
    assert stages["sampling"] == pytest.approx(2 + 2 / 3)
    assert stages["planning"] == pytest.approx(2 / 3)
    assert stages["packing"] == pytest.approx(2 / 3 + 2)
    assert stages["other"] == pytest.approx(4)
    assert sum(stages.values()) == pytest.approx(10)


def test_gathering_is_reading_as_far_as_it_waited_for_reads(tmp_path: Path) -> None:
    file = write(tmp_path / "t.json", ("gathering", 0, 2, {"ms_reading": 500.0}))
    stages = stages_of(file, 2.0, faults_are_reads=False)
    assert (stages["reading"], stages["assembling"]) == pytest.approx((0.5, 1.5))
    stages = stages_of(file, 2.0, faults_are_reads=True)
    assert (stages["reading"], stages["assembling"]) == pytest.approx((2.0, 0.0))


def test_what_began_before_or_ends_after_is_cut(tmp_path: Path) -> None:
    file = write(tmp_path / "t.json", ("sampling", -3, 1, {}), ("packing", 3, 9, {}))
    stages = stages_of(file, 4.0, faults_are_reads=False)
    assert (stages["sampling"], stages["packing"], stages["other"]) == pytest.approx((1, 1, 2))


def test_an_empty_timeline_is_other(tmp_path: Path) -> None:
    stages = stages_of(write(tmp_path / "t.json"), 3.0, faults_are_reads=False)
    assert stages == {**dict.fromkeys(STAGES, 0.0), "other": 3.0}


@pytest.mark.parametrize("seed", range(5))
def test_random_spans_equal_a_count_of_every_moment(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ["sampling", "planning", "filling", "packing"]
    spans: list[tuple[str, float, float, dict[str, float]]] = []
    for _ in range(30):
        begin, end = sorted(rng.integers(0, 50, 2).tolist())
        spans.append((str(rng.choice(names)), float(begin), float(end), {}))
    stages = stages_of(write(tmp_path / "t.json", *spans), 50.0, faults_are_reads=False)
    expected = dict.fromkeys(STAGES, 0.0)
    for moment in range(50):
        running = [name for name, begin, end, _ in spans if begin <= moment < end]
        for name in running or ["other"]:
            expected[name] += 1 / max(1, len(running))
    assert stages == pytest.approx(expected)
