"""What `gnnstore predict` and `gnnstore pack` say that packed epochs take is what they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnnstore.converters import ConvertOptions, from_numpy, from_rmat
from gnnstore.disk import measure
from gnnstore.disk.profile import save_profile
from gnnstore.formats.base.files import directory_bytes
from tests.support.disks import usual_profile
from tests.support.effort import choose, paired

FLAT = (0.45, 0.22, 0.22, 0.11)


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sizes") / "s.gnn"
    if request.param == "facebook":
        source = request.getfixturevalue("facebook_npz")
        return from_numpy(source, path, options=ConvertOptions(undirected=True))
    options: dict[str, Any] = {"probabilities": FLAT} if request.param == "flat" else {}
    return from_rmat(path, scale=choose(15, 16), feature_dim=256, **options)


@pytest.mark.parametrize(
    ("store", "memory"),
    paired(choose(["flat"], ["rmat", "flat", "facebook"]), ["60MB", "85MB"], 1),
    indirect=["store"],
)
def test_one_size_for_all(
    run: Any, store: Path, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(measure, "_kept", {})
    save_profile(usual_profile(store))
    options = (
        "--num-neighbors",
        "5,5",
        "--batch-size",
        "128",
        "--input-nodes",
        choose("train", "all"),
    )
    asked = (*options, "--memory", memory, "--threads", 1, "--json")
    found = run("predict", store, *asked, "--strategies", "packed-epochs", "--batches", 2)
    (predicted,) = found.document["predictions"]["strategies"]
    assert predicted["problem"] is None
    estimated = run("pack", store, "--name", "a", *asked, "--estimate").document["estimate"]
    written = run("pack", store, "--name", "a", *asked)
    assert written.status == 0
    actual = directory_bytes(store / "plans" / "a")
    run("rm", store, "--packed", "a")
    for what, size in (("predict", predicted["disk_bytes"]), ("pack", estimated["total_bytes"])):
        assert 0.8 < size / actual < 1.25, f"{what}: {size / actual}"
    assert predicted["cached_bytes"] == pytest.approx(estimated["cache_bytes"], rel=0.1)
