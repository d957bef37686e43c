"""Layers of PyG on batches as CSR (`edge_format="csr"`), compared with `edge_index`.

Batches of W and w, or of one graph alone: 1,024 random seeds, fan-out 10, 10, 10, 128 float32
features; three layers with ReLU between them, forward and backward, on the same batches in turns:

- coo: `edge_index`, as PyG's loaders give it
- plain: a torch.sparse_csr tensor of these edges, with int64 and with int32 indices, unless its
  gradients are wrong
- csr: the batch's `adj_t`, with its transposes
- coo, trimmed by PyG's `trim_to_layer`; csr, trimmed by `gnnstore.nn.trim`, also with `pairs`

Before the layers come sum and mean over 128 columns alone, as PyG calls them, forward and backward.
GCN is normed, by `gnnstore.nn.gcn_norm` for CSR. GAT does not have a fused form: its row is the
time with a plain matrix. Outputs and gradients are compared before anything is timed. Then
the loader alone, with both formats in turns. The bars on CPUs: a step of SAGE
1.3 x coo, 1.5 x with trimming for both; a sum and a mean 2 x coo, and 1.15 x the faster plain one,
also in steps of SAGE; and a loader that is at most 5 % slower.

Run `python -m benchmarks.aggregation --cache DIR`, which keeps the stores (W: 11 GB); with
`--workloads w` nothing large is made, and `--quick` takes seconds. `--device cuda` runs the layers
on a GPU.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv
from torch_geometric.utils import scatter, spmm, trim_to_layer

import gnnstore
from benchmarks.harness import Timing, directory_of, parser, report, several, time_in_turns
from benchmarks.parts.workloads import BATCH_SIZE, FANOUTS, FEATURE_DIM, SEED, WORKLOADS, Workload
from gnnstore.converters.synthetic.rmat import GRAPH500
from gnnstore.nn import gcn_norm, trim
from gnnstore.units import spread

BARS = {
    "SAGE": {"csr": 1.3, "csr, trimmed, pairs": 1.5},
    "sum": {"csr": 2.0},
    "mean": {"csr": 2.0},
}
REDUCTIONS = ("sum", "mean")
LAYERS = ("SAGE", "GIN", "GCN", "GAT")
BAR_PLAIN, BAR_LOADER = 1.15, 1.05
QUICK = Workload("quick", 15, GRAPH500, 0.2)

Step = Callable[[], Any]  # returns the last output, and the gradients of parameters


@dataclass(frozen=True)
class Batch:
    """One batch in all formats, on the device."""

    x: Tensor
    edge_index: Tensor
    adj_t: Any
    plain: dict[str, Tensor]
    hops: tuple[list[int], list[int]]
    num_seeds: int

    @classmethod
    def of(cls, coo: Any, csr: Any, device: str) -> Batch:
        """Return a batch of both loaders."""
        coo, csr = coo.to(device), csr.to(device)
        crow, col, size = csr.adj_t.crow_indices(), csr.adj_t.col_indices(), csr.adj_t.size()
        plain = {
            f"plain, {name}": torch.sparse_csr_tensor(
                crow.to(dtype), col.to(dtype), torch.ones_like(col, dtype=torch.float32), size
            )
            for name, dtype in (("int64", torch.int64), ("int32", torch.int32))
        }
        hops = (coo.num_sampled_nodes, coo.num_sampled_edges)
        return cls(coo.x, coo.edge_index, csr.adj_t, plain, hops, hops[0][0])


class Model(torch.nn.Module):
    """Three layers of one kind with ReLU between them."""

    def __init__(self, kind: str, hidden: int, *, normalizes: bool = True) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.kind = kind
        widths = [FEATURE_DIM, *[hidden] * len(FANOUTS)]
        self.layers = torch.nn.ModuleList(
            _layer(kind, widths[i], widths[i + 1], normalizes=normalizes)
            for i in range(len(FANOUTS))
        )

    def forward(self, x: Any, edges: Any, hops: Any, cut: Callable[..., Any] | None) -> Tensor:
        """Return the output of all layers, for the nodes that `cut` leaves."""
        for i, layer in enumerate(self.layers):
            if cut is not None:
                x, edges, _ = cut(i, *hops, x, edges)
            normed = self.kind == "GCN" and edges.layout == torch.sparse_csr
            x = layer(x, gcn_norm(edges) if normed else edges)
            if i + 1 < len(self.layers):
                x = x.relu()
        out: Tensor = x
        return out


def _layer(kind: str, width: int, hidden: int, *, normalizes: bool) -> Any:
    if kind == "SAGE":
        return SAGEConv(width, hidden)
    if kind == "GIN":
        return GINConv(Linear(width, hidden))
    if kind == "GCN":
        return GCNConv(width, hidden, normalize=normalizes)
    return GATConv(width, hidden, add_self_loops=False)


def _plain(name: str, batch: Batch) -> Tensor:
    return batch.plain[name]


def _pairs(*arguments: Any) -> Any:
    return trim(*arguments, pairs=True)


def steps_of(kind: str, batches: list[Batch], hidden: int, device: str) -> dict[str, Step]:
    """Return forward and backward passes over all batches, by format."""
    of_coo = Model(kind, hidden).to(device)
    of_csr = Model(kind, hidden, normalizes=False).to(device)

    def step(model: Model, edges: Callable[[Batch], Any], cut: Any = None) -> Step:
        def run() -> list[Tensor]:
            model.zero_grad()
            for batch in batches:
                out = model(batch.x, edges(batch), batch.hops, cut)[: batch.num_seeds]
                out.square().mean().backward()
            if device == "cuda":
                torch.cuda.synchronize()
            return [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

        return run

    steps = {"coo": step(of_coo, lambda batch: batch.edge_index)}
    steps["coo, trimmed"] = step(of_coo, lambda batch: batch.edge_index, trim_to_layer)
    for name in () if kind == "GCN" else batches[0].plain:
        if kind != "GAT" or "int64" in name:  # what is not fused takes int64 alone everywhere
            steps[name] = step(of_csr, partial(_plain, name))
    if kind != "GAT":
        steps["csr"] = step(of_csr, lambda batch: batch.adj_t)
        steps["csr, trimmed"] = step(of_csr, lambda batch: batch.adj_t, trim)
    if kind not in ("GCN", "GAT"):
        steps["csr, trimmed, pairs"] = step(of_csr, lambda batch: batch.adj_t, _pairs)
    return steps


def products_of(reduce: str, batches: list[Batch], device: str) -> dict[str, Step]:
    """Return the aggregation alone, forward and backward, as layers of PyG call it."""

    def step(product: Callable[[Batch, Tensor], Tensor]) -> Step:
        def run() -> list[Tensor]:
            for batch in batches:
                x = batch.x.detach().requires_grad_()
                out = product(batch, x)
                out.backward(batch.x)  # some gradient of this shape
            if device == "cuda":
                torch.cuda.synchronize()
            assert x.grad is not None
            return [out.detach(), x.grad]

        return run

    def of_coo(batch: Batch, x: Tensor) -> Tensor:
        source, target = batch.edge_index
        out: Tensor = scatter(x.index_select(0, source), target, 0, len(x), reduce)
        return out

    def of_plain(name: str, batch: Batch, x: Tensor) -> Tensor:
        out: Tensor = spmm(batch.plain[name], x, reduce)
        return out

    steps = {"coo": step(of_coo)}
    for name in batches[0].plain:
        steps[name] = step(partial(of_plain, name))
    steps["csr"] = step(lambda batch, x: spmm(batch.adj_t, x, reduce))
    return steps


def wrong_formats(steps: dict[str, Step]) -> list[str]:
    """Return those with other outputs or gradients; GCN's degrees change when it is trimmed."""
    expected = {base: steps[base]() for base in steps if base.startswith("coo")}
    wrong = []
    for name, run in steps.items():
        base = "coo, trimmed" if "trimmed" in name else "coo"
        for ours, theirs in zip(run(), expected[base], strict=True):
            scale = max(1e-6, float(theirs.abs().max()))
            if not float((ours - theirs).abs().max()) <= 1e-3 * scale:
                wrong.append(name)
                break
    return wrong


def loaders_of(
    store: gnnstore.GraphStore, workload: Workload, num_batches: int, strategy: str
) -> dict[str, gnnstore.NeighborLoader]:
    """Return loaders of the same batches in both formats."""
    seeds = workload.seeds()[: num_batches * BATCH_SIZE]
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "strategy": strategy, "seed": SEED}
    return {
        name: gnnstore.NeighborLoader(store, FANOUTS, seeds, edge_format=name, **options)
        for name in ("coo", "csr")
    }


def loader_rounds(loaders: dict[str, gnnstore.NeighborLoader], repeats: int) -> dict[str, Timing]:
    """Time whole epochs of the loaders alone, in turns."""

    def run(loader: gnnstore.NeighborLoader) -> float:
        start = perf_counter()
        for batch in loader:
            del batch
        return (perf_counter() - start) / len(loader)

    found: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(repeats + 1):
        order = loaders if number % 2 else reversed(loaders)
        for name in order:
            seconds = run(loaders[name])
            if number:  # the first warms up
                found[name].append(seconds)
    return {name: Timing(tuple(values)) for name, values in found.items()}


def ratios(slow: Timing, fast: Timing) -> list[float]:
    """Return how many times as fast, round by round."""
    return [a / b for a, b in zip(slow.seconds, fast.seconds, strict=True)]


def held(reached: bool) -> str:
    """Return whether a bar is reached."""
    return "reached" if reached else "MISSED"


def compare(
    kind: str, steps: dict[str, Step], repeats: int, *, has_bars: bool
) -> Iterator[tuple[str, str, Any]]:
    """Time the formats in turns; yield rows of the table, and numbers."""
    for name in wrong_formats(steps):  # such as torch 2.13's, of int32 indices in large batches
        assert name.startswith("plain"), name
        yield f"  {kind}, {name}", "gives wrong gradients; not timed", None
        del steps[name]
    timings = time_in_turns(steps, repeats)
    for name, timing in timings.items():
        base = timings["coo, trimmed" if "trimmed" in name else "coo"]
        speedup = ratios(base, timing)
        text = f"{timing.milliseconds()}"
        if not name.startswith("coo"):
            text += f"; {spread(speedup)} x coo"
            bar = BARS.get(kind, {}).get(name)
            if has_bars and bar is not None:
                text += f", the bar of {bar}: {held(median(speedup) >= bar)}"
        yield f"  {kind}, {name}", text, {"seconds": timing.seconds, "speedup": speedup}
    plain = [timings[name] for name in timings if name.startswith("plain")]
    if plain and "csr" in timings:
        over = ratios(min(plain, key=lambda timing: timing.median), timings["csr"])
        text = f"{spread(over)} x the faster plain one"
        if has_bars and kind in BARS:
            text += f", the bar of {BAR_PLAIN}: {held(median(over) >= BAR_PLAIN)}"
        yield f"  {kind}, transposes", text, {"speedup": over}


def measure(arguments: argparse.Namespace, directory: Path) -> None:
    """Run the benchmark on the stores in a directory."""
    rows, numbers = [("device", _device(arguments.device))], dict[str, Any]()
    for workload in [QUICK] if arguments.quick else [WORKLOADS[w] for w in arguments.workloads]:
        store = gnnstore.open(workload.store(directory))
        loaders = loaders_of(store, workload, arguments.batches, "mmap")
        batches = [
            Batch.of(coo, csr, arguments.device) for coo, csr in zip(*loaders.values(), strict=True)
        ]
        sizes = f"{len(batches)} batches of {_mean(len(b.x) for b in batches):,.0f} nodes and "
        sizes += f"{_mean(b.edge_index.size(1) for b in batches):,.0f} edges"
        rows.append((workload.name, sizes))
        found = numbers[workload.name] = dict[str, Any]()
        for kind in (*REDUCTIONS, *arguments.layers):
            steps = (
                products_of(kind, batches, arguments.device)
                if kind in REDUCTIONS
                else steps_of(kind, batches, arguments.hidden, arguments.device)
            )
            has_bars = arguments.device == "cpu"
            for name, text, number in compare(kind, steps, arguments.repeats, has_bars=has_bars):
                rows.append((name, text))
                found[name.strip()] = number
        del batches
        loaders = loaders_of(store, workload, arguments.loader_batches, "memory")
        timings = loader_rounds(loaders, 3 * arguments.repeats)
        slower = ratios(timings["csr"], timings["coo"])
        text = f"{timings['csr'].milliseconds()} a batch, {spread(slower)} x coo, the bar of "
        rows.append(("  the loader", text + f"{BAR_LOADER}: {held(median(slower) <= BAR_LOADER)}"))
        found["loader"] = {name: timing.seconds for name, timing in timings.items()}
        del loaders, store
    report("batches as CSR", rows, as_json=arguments.json, workloads=numbers)


def _mean(values: Iterator[int]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _device(device: str) -> str:
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"


def main() -> None:
    """Read the options and run."""
    options = parser(__doc__)
    options.set_defaults(repeats=5)
    options.add_argument("--workloads", type=several(choices=sorted(WORKLOADS)), default=["W", "w"])
    options.add_argument("--layers", type=several(choices=LAYERS), default=list(LAYERS))
    options.add_argument("--batches", type=int, default=2, help="batches of a timing (2)")
    options.add_argument("--loader-batches", type=int, default=64, help="of an epoch (64)")
    options.add_argument("--hidden", type=int, default=64, help="width of the layers (64)")
    options.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options.add_argument("--cache", type=Path, help="directory that keeps the stores")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.repeats, arguments.hidden = min(arguments.repeats, 2), 32
        arguments.batches, arguments.loader_batches = 1, 6
    # PyG's own matrices, of GAT, and torch's beta state.
    warnings.filterwarnings("ignore", message="Sparse ")
    with directory_of(arguments) as directory:
        measure(arguments, directory)


if __name__ == "__main__":
    main()
