"""The plug-ins of docs/extending.md: no list elsewhere names them, and they do all that ours do."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np
import pytest

import gnnstore
from gnnstore import BudgetError, NeighborLoader, UsageError
from gnnstore.disk.profile import save_profile
from gnnstore.plugins import POLICIES, SEED_KINDS, STRATEGIES
from gnnstore.strategies import auto as optimizer
from gnnstore.testing.graphs import random_graph
from gnnstore.tools.bench.harness import ways
from gnnstore.tools.cli import main, root
from tests.support.batches import assert_goes_on, assert_same_batches, batches_of
from tests.support.disks import usual_profile
from tests.support.effort import is_long
from tests.support.packing import pack

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
PLUGINS: dict[str, dict[str, Any]] = {
    "modulo": {"strategy": "modulo", "cache_bytes": "100kB"},
    "first-rows": {"strategy": "first-rows", "memory": "100MB"},
}
OPTIONS: dict[str, Any] = {"batch_size": 50, "shuffle": True, "seed": 1}
SEEDS = np.arange(0, 500, 5)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Run the page's seeds, policy and strategy; return its names, and the path of its store."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    before = Path.cwd()
    context = click.Context(root)
    for command in root.list_commands(context):  # whose help has the names there are at first use
        root.get_command(context, command)
    with pytest.MonkeyPatch.context() as patch:
        for registry in (SEED_KINDS, POLICIES, STRATEGIES):
            patch.setattr(registry, "_values", {each.name: each for each in registry})
        module = ModuleType("extending")  # imported where a loader of the page's is unpickled
        patch.setitem(sys.modules, "extending", module)
        names = vars(module)
        os.chdir(tmp_path_factory.mktemp("plugins"))
        for block in (*blocks[:4], *(b for b in blocks if "RowSource" in b)):
            source = block.replace("assert_resumes(make_loader)", "")
            exec(compile(source, PAGE, "exec"), names)  # noqa: S102 - our own page
        names["path"] = Path.cwd() / "small.gnn"
        os.chdir(before)
        yield names


def loader_of(page: dict[str, Any], **options: Any) -> NeighborLoader:
    return NeighborLoader(page["path"], [5, 5], "train", **(OPTIONS | options))


def test_the_page_s_own_tests_pass(page: dict[str, Any]) -> None:
    kinds = [kind for name, kind in page.items() if name.startswith("Test")]
    assert len(kinds) == 4
    for kind in kinds:
        tests = kind()
        getattr(kind, "setup_class", int)()
        for name in dir(tests):
            # In `make test` both resume where the page is tested.
            is_left_out = name == "test_resumes" and not is_long()
            if name.startswith("test_") and not is_left_out:
                getattr(tests, name)()
        getattr(kind, "teardown_class", int)()


@pytest.mark.parametrize("name", PLUGINS)
def test_a_strategy_counts_what_it_caches(page: dict[str, Any], name: str) -> None:
    loader = loader_of(page, **PLUGINS[name])
    assert len(list(loader)) > 0
    assert loader.stats().strategy == name
    assert loader.stats().rows_cached > 0


def test_a_budget_without_room_is_refused(page: dict[str, Any]) -> None:
    with pytest.raises(BudgetError, match="first rows"):
        loader_of(page, strategy="first-rows", memory="90kB", topology="mmap")


def test_strategies_and_policies_are_predicted(
    page: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--num-neighbors", "5,5", "--batch-size", "50", "--threads", "1", "--json"]
    assert main(["predict", str(page["path"]), *words, "--cache-bytes", "10%"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {one["strategy"]: one for one in document["predictions"]["strategies"]}
    assert found["modulo"]["problem"] is found["first-rows"]["problem"] is None
    assert found["modulo"]["superbatch"] == found["belady"]["superbatch"]
    (cache,) = document["caches"]
    misses = {policy["policy"]: policy["misses"] for policy in cache["policies"]}
    assert misses["belady"] < misses["modulo"] < document["rows_needed"]
    assert {"modulo", "first-rows"} <= ways().keys()


def test_a_strategy_is_chosen_where_it_is_the_fastest(
    page: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = random_graph(4000, 40_000, seed=5, feature_dim=3000, num_classes=7)
    path = wide.write(tmp_path / "wide.gnn")
    monkeypatch.setattr(optimizer, "SMALLEST_BYTES", 1)
    save_profile(usual_profile(path))
    kind = page["FirstRowsStrategy"]
    real = kind.predict
    monkeypatch.setattr(kind, "predict", lambda *of: replace(real(*of), seconds=1e-6))
    options = {**OPTIONS, "memory": "45MB", "batch_size": 16, "num_threads": 1}
    loader, plain = (
        NeighborLoader(path, [4, 4], "train", strategy=strategy, **options)
        for strategy in ("auto", "mmap")
    )
    assert loader.stats().strategy == "first-rows"
    assert loader.stats().predicted_epoch_seconds == 1e-6
    for found, wanted in islice(zip(loader, plain, strict=True), 3):
        assert_same_batches([found.to_dict()], [wanted.to_dict()])


def test_seeds_come_through_every_strategy_and_packed_epochs(page: dict[str, Any]) -> None:
    def partners(strategy: str, nodes: Any = SEEDS) -> Any:
        return page["PartnerLoader"](page["path"], [5, 5], nodes, strategy=strategy, **OPTIONS)

    wanted = batches_of(partners("memory"), 2)
    for strategy in STRATEGIES.names:
        assert_same_batches(batches_of(partners(strategy), 2), wanted)
    strategies = cycle(("static", "packed"))
    assert_goes_on(lambda: partners(next(strategies)))
    kind = page["Partners"](SEEDS, 500)
    packed = pack(page["path"], [5, 5], seeds=kind, seed=1)
    assert_same_batches(batches_of(gnnstore.open_packed(packed).loader(), 2), wanted)
    with pytest.raises(UsageError, match="nodes with partners"):
        partners("memory", SEEDS + 1).load_state_dict(partners("memory").state_dict())
    with pytest.raises(UsageError, match="seeds: expected nothing, found 'partners'"):
        NeighborLoader(page["path"], [5, 5], SEEDS, packed=packed, **OPTIONS)


def test_a_name_is_taken_once(page: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="'modulo' is registered already"):
        POLICIES.register(page["Modulo"]())
