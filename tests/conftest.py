"""What every test gets: a check that it leaves no thread behind, and the real graphs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Real graphs are not part of the project; they lie beside it where somebody put them there.
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

# Threads that libraries start once and keep: zarr's event loop, and its executor.
_KEPT_BY_LIBRARIES = ("zarr_io", "asyncio_")
_GRACE_SECONDS = 5.0


def _alive() -> set[threading.Thread]:
    return {
        thread
        for thread in threading.enumerate()
        if thread.is_alive() and not thread.name.startswith(_KEPT_BY_LIBRARIES)
    }


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    """Fail a test that ends with a thread alive which it did not find."""
    before = _alive()
    yield
    deadline = time.monotonic() + _GRACE_SECONDS
    left = _alive() - before
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left = _alive() - before
    assert not left, f"the test left threads behind: {sorted(thread.name for thread in left)}"


def _real(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is absent: this test needs a real graph that is not in the project")
    return path


@pytest.fixture(scope="session")
def cora_directory() -> Path:
    """Cora in the layout of OGB's node-property data sets."""
    return _real("cora")


@pytest.fixture(scope="session")
def facebook_npz() -> Path:
    """Facebook page-page: edge_index, x, y and splits in one npz."""
    return _real("facebook/facebook.npz")


@pytest.fixture(scope="session")
def twitch_edges() -> Path:
    """Twitch users in German: a SNAP text edge list, compressed."""
    return _real("twitch-de/musae-twitch-DE.txt.gz")
