"""The matrix of a batch as a tensor: moved, copied, shown, and in functions of torch's."""

from __future__ import annotations

import copy
import io
import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch_geometric.utils import is_torch_sparse_tensor, spmm, to_edge_index

from gnnstore.errors import UsageError
from gnnstore.nn import AdjT
from tests.support.csr import assert_sound, batch_pair, looped_graph
from tests.support.forks import ForkServer


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return looped_graph().write(tmp_path_factory.mktemp("csr") / "s.gnn")


@pytest.fixture(scope="module", params=[None, "edge_weight"])
def pair(request: Any, path: Path) -> tuple[Any, Any]:
    return batch_pair(path, [4, 3], adj_value=request.param)


def assert_same(ours: Any, expected: AdjT) -> None:
    assert type(ours) is AdjT
    assert (ours.size(), ours.dtype) == (expected.size(), expected.dtype)
    assert ours.has_values == expected.has_values
    for a, b in zip(arrays_of(ours), arrays_of(expected), strict=True):
        assert (a.dtype, a.device) == (b.dtype, b.device)
        assert torch.equal(a, b)


def arrays_of(adj_t: AdjT) -> list[Tensor]:
    found = [adj_t.crow_indices(), adj_t.col_indices()]
    of_values: list[Any] = [adj_t.values() if adj_t.has_values else None]
    for each in adj_t.transposes:
        found += [each.ptr, each.index]
        of_values.append(each.values)
    return [*found, *(each for each in of_values if each is not None)]


def test_a_batch_has_the_edges_of_edge_index(pair: Any) -> None:
    coo, csr = pair
    assert_sound(csr.adj_t, coo.edge_index, (coo.num_sampled_nodes, coo.num_sampled_edges))
    if csr.adj_t.has_values:
        assert torch.equal(csr.adj_t.values(), coo.edge_weight)
    else:
        assert torch.equal(csr.adj_t.values(), torch.ones(coo.num_edges))


def test_it_is_a_tensor_in_csr(pair: Any) -> None:
    adj_t = pair[1].adj_t
    assert isinstance(adj_t, Tensor)
    assert adj_t.layout == torch.sparse_csr
    assert (adj_t.dim(), adj_t.is_cuda, adj_t.requires_grad) == (2, False, False)
    assert is_torch_sparse_tensor(adj_t)
    assert repr(adj_t).startswith(f"AdjT(size=({adj_t.size(0)}, {adj_t.size(1)}), edges=")
    (sources, targets) = pair[0].edge_index
    assert torch.equal(to_edge_index(adj_t)[0], torch.stack([targets, sources]))


def saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


MOVES: dict[str, Any] = {
    "to(device)": lambda adj: adj.to("cpu", copy=True),
    "to(tensor)": lambda adj: adj.to(torch.zeros(1), copy=True),
    "cpu": lambda adj: adj.cpu(),
    "share_memory_": lambda adj: adj.clone().share_memory_(),
    "clone": lambda adj: adj.clone(),
    "torch.clone": torch.clone,
    "detach": lambda adj: adj.detach(),
    "pickle": lambda adj: pickle.loads(pickle.dumps(adj)),  # noqa: S301
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "torch.save": saved,
}


@pytest.mark.parametrize("move", MOVES)
def test_the_class_and_transposes_are_kept(pair: Any, move: str) -> None:
    adj_t = pair[1].adj_t
    if move == "torch.clone":
        plain = torch.clone(adj_t)
        assert plain.layout == torch.sparse_csr
        assert torch.equal(plain.to_dense(), adj_t.to_dense())
        return
    assert_same(MOVES[move](adj_t), adj_t)


def test_moving_a_batch_moves_it(pair: Any) -> None:
    batch = pair[1]
    assert_same(batch.clone().adj_t, batch.adj_t)
    assert_same(batch.to("cpu").adj_t, batch.adj_t)
    assert batch.to("cpu").adj_t is batch.adj_t
    moved = batch.clone().to("meta").adj_t
    assert type(moved) is AdjT
    assert {each.device.type for each in arrays_of(moved)} == {"meta"}
    assert moved.device.type == "meta"


def test_what_is_on_a_device_stays_as_it_is(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    adj_t = pair[1].adj_t
    adj_t.values()
    assert all(each is adj_t for each in (adj_t.to("cpu"), adj_t.to("cpu:0"), adj_t.cpu()))
    assert adj_t.to(torch.device("cpu", 0), copy=True) is not adj_t
    with FakeTensorMode():
        crow, col = (torch.zeros(2, dtype=torch.int32, device="cuda:1") for _ in range(2))
        placed = AdjT(crow, col, size=(1, 1))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
        assert all(each is placed for each in (placed.to("cuda"), placed.cuda(), placed.cuda(1)))
        assert placed.to(crow.float()) is placed
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        assert not placed._is_on(torch.device("cuda"))


def test_an_element_type_is_that_of_values(pair: Any) -> None:
    adj_t = pair[1].adj_t
    half = adj_t.to(torch.float16)
    assert (type(half), half.dtype, half.values().dtype) == (AdjT, torch.float16, torch.float16)
    assert half.col_indices().dtype == torch.int64
    assert len(half.transposes) == len(adj_t.transposes)


def test_other_functions_take_it_as_plain_csr(pair: Any) -> None:
    coo, csr = pair
    dense = torch.zeros(csr.adj_t.size())
    weights = coo.edge_weight if csr.adj_t.has_values else torch.ones(coo.num_edges)
    dense.index_put_(tuple(coo.edge_index.flip(0)), weights, accumulate=True)
    torch.testing.assert_close(csr.adj_t.to_dense(), dense)
    torch.testing.assert_close(csr.adj_t @ csr.x, dense @ csr.x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(csr.adj_t.t() @ csr.x, dense.t() @ csr.x, rtol=1e-4, atol=1e-4)
    assert type(csr.adj_t * 2) is Tensor
    assert csr.adj_t._nnz() == coo.num_edges
    assert csr.num_nodes == coo.num_nodes
    assert csr.num_edges == coo.num_edges


def test_products_of_pyg(pair: Any) -> None:
    adj_t, x = pair[1].adj_t, pair[1].x
    for reduce in ("sum", "mean", "max", "min"):
        torch.testing.assert_close(
            spmm(adj_t, x, reduce), spmm(adj_t._plain(), x, reduce), rtol=1e-4, atol=1e-4
        )


def test_values_that_require_a_gradient_are_refused(pair: Any) -> None:
    adj_t = pair[1].adj_t
    values = torch.ones(len(adj_t.col_indices()), requires_grad=True)
    with pytest.raises(UsageError, match="require a gradient"):
        AdjT(adj_t.crow_indices(), adj_t.col_indices(), values, size=adj_t.size())


def test_a_gradient_that_is_not_contiguous(pair: Any) -> None:
    """That of a sum is one number, expanded."""
    adj_t, x = pair[1].adj_t, pair[1].x.clone().requires_grad_()
    torch.sparse.mm(adj_t, x).sum().backward()
    expected = adj_t.to_dense().sum(0)[:, None].expand_as(x)
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-4)


def test_nobody_is_told_that_csr_is_in_beta_state(path: Path, forks: ForkServer) -> None:
    code = (
        "import torch, warnings\n"
        "with warnings.catch_warnings():\n"
        "    warnings.simplefilter('error')\n"
        "    import gnnstore\n"
        f"    loader = gnnstore.NeighborLoader({str(path)!r}, [2], edge_format='csr')\n"
        "    batch = next(iter(loader)); torch.sparse.mm(batch.adj_t, batch.x)"
    )
    done = forks.run(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_products_on_devices_other_than_the_cpu_are_plain(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    adj_t, given = pair[1].adj_t.to("meta"), list[Any]()

    def product(*args: Any) -> Tensor:
        given.append(args)
        return torch.ones(adj_t.size(0), 3, device="meta")

    monkeypatch.setattr(torch.sparse, "mm", product)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    for reduce in ("sum", "mean"):
        adj_t._product(torch.ones(adj_t.size(1), 3, device="meta"), reduce)
    assert [len(args) for args in given] == [2, 2]
    with pytest.raises(UsageError, match=r'no sparse product on meta .* max; .*format="coo"'):
        adj_t._product(torch.ones(adj_t.size(1), 3, device="meta"), "max")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestOnAGpu:
    """What a machine without a GPU cannot show."""

    def test_products_and_gradients(self, pair: Any) -> None:
        adj_t, x = pair[1].adj_t, pair[1].x
        for reduce in ("sum", "mean"):
            found = []
            for device in ("cpu", "cuda"):
                given = x.detach().clone().to(device).requires_grad_()
                out = spmm(adj_t.to(device), given, reduce)
                (out**2).sum().backward()
                found.append([out.cpu(), given.grad.cpu()])
            for a, b in zip(*found, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        with pytest.raises(UsageError, match='edge_format="coo"'):
            torch.sparse.mm(adj_t.cuda(), x.cuda(), "max")

    def test_pinned_memory_and_streams(self, pair: Any) -> None:
        pinned = pair[1].adj_t.pin_memory()
        assert pinned.is_pinned()
        moved = pinned.to("cuda", non_blocking=True)
        moved.record_stream(torch.cuda.current_stream())
        assert_same(moved.cpu(), pair[1].adj_t)
