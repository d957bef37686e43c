"""Optimizers of learned rows are torch's on `Embedding(sparse=True)`, and look like them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnstore
from gnnstore.errors import UsageError
from tests.support.stores import write_example_store

N, DIM = 60, 12

Make = Callable[..., gnnstore.EmbeddingTable]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example_store(tmp_path_factory.mktemp("s") / "a.gnn", num_nodes=N).path


@pytest.fixture
def make(store: Path, tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes a table, and close what it made."""
    made: list[gnnstore.EmbeddingTable] = []

    def create(**options: Any) -> gnnstore.EmbeddingTable:
        path = tmp_path / f"{len(made)}.emb"
        made.append(gnnstore.EmbeddingTable.create(path, store, **{"dim": DIM, **options}))
        return made[-1]

    yield create
    for table in made:
        table.close()


class TorchRowwise(torch.optim.Optimizer):
    """PyTorch-BigGraph's rule, with operations of torch."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.sums = torch.zeros(N)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for parameter in self.param_groups[0]["params"]:
            grad = parameter.grad.coalesce()
            rows, values = grad.indices()[0], grad.values()
            self.sums[rows] += (values * values).mean(dim=1)
            scale = self.sums[rows].sqrt() + 1e-10
            parameter[rows] -= self.param_groups[0]["lr"] * values / scale[:, None]


RULES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "rowwise_adagrad": (gnnstore.RowwiseAdagrad, TorchRowwise, {"lr": 0.1}),
    "adagrad": (gnnstore.Adagrad, torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.01}),
    "sgd": (gnnstore.SGD, torch.optim.SGD, {"lr": 0.1}),
    "sparse_adam": (gnnstore.SparseAdam, torch.optim.SparseAdam, {"lr": 0.05, "betas": (0.8, 0.9)}),
}


def loss_of(rows: torch.Tensor, others: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    return ((rows * others).sum(-1) - goal).square().mean()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_that_of_torch(make: Make, rule: str) -> None:
    """Two calls of the table in a step, and ids that come several times."""
    ours, theirs, options = RULES[rule]
    table = make(optimizer=rule, init="uniform", seed=3)
    twin = torch.nn.Embedding(N, DIM, sparse=True)
    start = table[:]
    twin.weight.data.copy_(start)
    optimizers = ours(table, **options), theirs(twin.parameters(), **options)
    rng = np.random.default_rng(0)
    used = torch.zeros(N, dtype=torch.bool)
    for _ in range(20):
        ids, others = torch.from_numpy(rng.integers(0, N - 10, (2, 40)))
        used[ids] = used[others] = True
        goal = torch.from_numpy(rng.random(40, np.float32))
        for module, optimizer in zip((table, twin), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(module(ids), module(others), goal).backward()
            optimizer.step()
    assert 10 <= (~used).sum() < N / 2
    torch.testing.assert_close(table[:], twin.weight.detach(), rtol=1e-6, atol=1e-6)
    assert torch.equal(table[:][~used], start[~used]), "a row moved that was in no batch"


def test_gradients_can_be_clipped_scaled_and_dropped(make: Make) -> None:
    table = make(optimizer="sgd", init="normal")
    optimizer = gnnstore.SGD(table, lr=1.0)
    before = table[:]
    rows = table(torch.tensor([3, 4]))
    (rows * 100).sum().backward()
    assert optimizer.param_groups[0]["params"][0] is rows
    norm = torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    assert norm == pytest.approx(100 * (2 * DIM) ** 0.5)
    optimizer.step()
    assert (table[[3, 4]] - before[[3, 4]]).norm() == pytest.approx(1.0, rel=1e-5)
    assert not optimizer.param_groups[0]["params"]

    for set_to_none in (True, False):
        now = table[:]
        table(torch.tensor([5])).sum().backward()
        optimizer.zero_grad(set_to_none=set_to_none)
        optimizer.step()
        assert torch.equal(table[:], now)

    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    now = table[:]
    scaler.scale(table(torch.tensor([6])).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(table[[6]], now[[6]] - 1)
    scaler.scale(table(torch.tensor([6])).sum() * torch.inf).backward()
    scaler.step(optimizer)
    assert torch.isfinite(table[:]).all(), "the scaler saw no infinite gradient"


def test_groups_and_schedules_change_what_a_step_does(make: Make) -> None:
    tables = [make(optimizer="sgd", init="zeros") for _ in range(2)]
    groups: list[dict[str, Any]] = [{"params": tables[0]}, {"params": tables[1], "lr": 0.5}]
    optimizer = gnnstore.SGD(groups, lr=2.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    for expected in ([-2.0, -0.5], [-2.2, -0.55]):
        for table in tables:
            table(torch.tensor([1])).sum().backward()
        optimizer.step()
        schedule.step()
        assert [float(table[[1]][0, 0]) for table in tables] == pytest.approx(expected)
    state = optimizer.state_dict()
    assert state["state"] == {}
    other = gnnstore.SGD(tables, lr=7.0)
    other.load_state_dict(state)
    tables[0](torch.tensor([1])).sum().backward()
    assert len(other.param_groups[0]["params"]) == 1
    other.step()
    assert [group["lr"] for group in other.param_groups] == pytest.approx([0.02, 0.005])
    with pytest.raises(ValueError, match="different number of parameter groups"):
        gnnstore.SGD(tables[0]).load_state_dict(state)


def test_a_closure_is_called(make: Make) -> None:
    table = make(optimizer="sgd", init="zeros")
    optimizer = gnnstore.SGD(table, lr=1.0)

    def closure() -> torch.Tensor:
        loss: torch.Tensor = table(torch.tensor([0])).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 0
    assert float(table[[0]].sum()) == -DIM


def test_wrong_tables_and_options_are_refused(make: Make) -> None:
    table = make(optimizer="adagrad")
    with pytest.raises(UsageError, match=r"state of 'adagrad'.*optimizer='sgd'"):
        gnnstore.SGD(table)
    with pytest.raises(UsageError, match="got a Linear"):
        gnnstore.Adagrad([torch.nn.Linear(2, 2)])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="twice"):
        gnnstore.Adagrad([table, table])
    with pytest.raises(UsageError, match="lr=-1"):
        gnnstore.Adagrad(table, lr=-1.0)
    for tables, message in ((None, "got a NoneType"), ([{"lr": 0.1}], "a group without 'params'")):
        with pytest.raises(UsageError, match=message):
            gnnstore.Adagrad(tables)  # type: ignore[arg-type]
    for options, message in (({"lr": "a"}, "lr='a'"), ({"eps": None}, "eps=None")):
        with pytest.raises(UsageError, match=message):
            gnnstore.Adagrad(table, **options)
    optimizer = gnnstore.Adagrad(table)
    with pytest.raises(UsageError, match="no table to learn"):
        gnnstore.Adagrad([])
    with pytest.raises(UsageError, match="lr=nan"):
        gnnstore.Adagrad([{"params": table, "lr": float("nan")}])
    optimizer = gnnstore.Adagrad(table)
    with pytest.raises(UsageError, match="all of its tables"):
        optimizer.add_param_group({"params": []})
    with pytest.raises(UsageError, match="betas="):
        gnnstore.SparseAdam(make(optimizer="sparse_adam"), betas=(0.9, 1.0))


def test_class_names_are_not_those_of_torch() -> None:
    """Registries of optimizers, as PyKEEN's, go by the names of `Optimizer`'s subclasses."""
    own = {gnnstore.SGD, gnnstore.Adagrad, gnnstore.SparseAdam, gnnstore.RowwiseAdagrad}
    assert not {each.__name__ for each in own} & set(vars(torch.optim))
    assert len({each.__name__ for each in own}) == 4
