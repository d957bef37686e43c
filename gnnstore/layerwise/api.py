"""Runs a model over all nodes, layer by layer: with all neighbours, and each row computed once.

With neighbourhoods of all nodes, sampled or whole, the rows of most nodes are computed many times.
Here the rows of all nodes after one layer are written to disk, in order, as the input of the next.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.budget.limits import MemoryBudget, memory_of
from gnnstore.disk.spool import RunDirectory, default_parent
from gnnstore.errors import (
    CorruptStoreError,
    NotFoundError,
    StorageError,
    StoreExistsError,
    UsageError,
    checked_path,
    known_options,
    limits_named,
    storage_errors,
    truth,
)
from gnnstore.formats import NODE_TYPE, NodeTypeSpec, Schema, StoreManifest, StoreWriter
from gnnstore.formats.base.files import fsync_directory
from gnnstore.formats.container.workdir import (
    COPY_FILE,
    alone_in,
    check_final,
    is_ours,
    remove_leftovers,
    rows_path,
)
from gnnstore.graph.store import GraphStore
from gnnstore.layerwise.layers import Layer, describe, evaluating, read_layers
from gnnstore.layerwise.plan import check_dtype
from gnnstore.layerwise.result import ARRAY_NAME, Embeddings, open_embeddings
from gnnstore.layerwise.run import InferenceRun, check_input
from gnnstore.loaders.options import as_store
from gnnstore.progress import Progress, checked_progress
from gnnstore.units import parse_size

# Names of files that readers of them would expect, and that are not written.
_OTHER_FILES = {".arrow", ".csv", ".feather", ".h5", ".npz", ".parquet", ".pkl", ".pt", ".txt"}


@overload
def inference(
    layers: Any,
    store: GraphStore | str | os.PathLike[str],
    output: None = None,
    *,
    input: str = "x",
    edge_weight: str | None = None,
    edge_attr: str | None = None,
    memory: int | str | None = None,
    dtype: Any = None,
    device: torch.device | str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    shard_bytes: int | str | None = None,
    progress: Progress | None = None,
) -> Tensor: ...
@overload
def inference(
    layers: Any,
    store: GraphStore | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    input: str = "x",
    edge_weight: str | None = None,
    edge_attr: str | None = None,
    memory: int | str | None = None,
    dtype: Any = None,
    device: torch.device | str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    shard_bytes: int | str | None = None,
    progress: Progress | None = None,
) -> Embeddings | npt.NDArray[Any]: ...
@known_options
@torch.no_grad()
@limits_named("run the model over all nodes")
def inference(
    layers: Any,
    store: GraphStore | str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    input: str = "x",  # noqa: A002 - the layers' input
    edge_weight: str | None = None,
    edge_attr: str | None = None,
    memory: int | str | None = None,
    dtype: Any = None,
    device: torch.device | str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    shard_bytes: int | str | None = None,
    progress: Progress | None = None,
) -> Embeddings | npt.NDArray[Any] | Tensor:
    """Run a model over all nodes of a store, layer by layer, with all in-neighbours.

    The result equals the model's on the whole graph in memory, up to the order of sums. Memory
    has the rows that most edges come from, two blocks of nodes with the other rows of their
    in-neighbours, the results of a third, which are being written, and a few bytes for each node;
    the disk has the rows of all nodes before and after a layer, and packed rows of some blocks.

    Parameters
    ----------
    layers : sequence of callable, or torch.nn.Module
        Layers in order, or one of PyTorch Geometric's `BasicGNN` models (GraphSAGE, GCN, GAT, ...).
        A graph layer is a convolution of PyTorch Geometric, or takes ((x, x_dst), edge_index): rows
        [n, F] of the in-neighbours, the first D of which belong to the targets, `x_dst` [D, F],
        and edges [2, m] from rows of `x` to rows of `x_dst`; it returns [D, F']. A layer that takes
        x alone works on each row by itself.
    store : GraphStore or path-like
    output : path-like, optional
        A directory for the result, or a file if the name ends in ".npy". By default it is
        returned in memory.
    input : str
        Node attribute that the first layer takes: [N, F], of any type; it is converted to the type
        of the layer's weights. Features of int8 whose columns have scales are decoded first, to the
        type in which the store shows them.
    edge_weight, edge_attr : str, optional
        Edge attributes for the layers that take an argument of that name.
    memory : int or str, optional
        Budget for everything that inference allocates but the model, as "8GB", or as "10%" of
        what the store's topology and attributes take; by default three quarters of the available
        memory.
    dtype : str or torch.dtype, optional
        The type in which rows are written after each layer: "float16", "bfloat16", "float32" or
        "float64"; by default the type of the layer's result.
    device : torch.device or str, optional
        The device of the layers; by default where their weights are.
    overwrite : bool
        Replace an existing `output`, once the new result is complete.
    resume : bool
        Continue an interrupted run with the same `output`; refused with other layers, weights,
        store or types.
    shard_bytes : int or str, optional
        Size of the files that rows are written to: a resumed run repeats no more than that. By
        default 64 MiB, and more if there would be over 64 files.
    progress : Progress, optional
        Receives each layer as a phase that counts nodes whose rows are written.

    Returns
    -------
    Embeddings, ndarray or Tensor
        The embeddings in the directory, as `gnnstore.open_embeddings` returns them; the .npy file,
        mapped read-only [N, width]; or a tensor [N, width].

    Raises
    ------
    UsageError
        If a layer fails or is not layer-wise, or an option is wrong.
    BudgetError
        If memory does not suffice for the node with the most in-neighbours, or for a result in
        memory; the message has the bytes that do.
    NoSpaceError
        If the disk has too little room, before any work; or is full later.
    StoreExistsError, NotFoundError, StorageError, CorruptStoreError
        If the output cannot be written, or the store not be read.

    Notes
    -----
    With another `memory`, or after `resume`, blocks begin elsewhere and other rows are kept, and
    sums may differ in their last bits.
    """
    if isinstance(layers, GraphStore | str | os.PathLike):
        raise UsageError(
            f"layers is a {type(layers).__name__}; the layers come first, and then the store: "
            "inference([conv1, torch.relu, conv2], store)"
        )
    source = as_store(os.fspath(store) if isinstance(store, os.PathLike) else store, "store")
    overwrite, resume = truth("overwrite", overwrite), truth("resume", resume)
    source.schema.refuse_types(source.path, "layer-wise inference")
    source.schema.refuse_part(source.path, "layer-wise inference")
    memory = memory_of(memory, source.reader.schema.bytes_in_memory)
    found = read_layers(layers)
    with evaluating(found):
        run = InferenceRun(
            source,
            found,
            check_input(source, input),
            {
                name: source.edge_attribute(attribute).spec
                for name, attribute in (("edge_weight", edge_weight), ("edge_attr", edge_attr))
                if attribute is not None
            },
            dtype=check_dtype(dtype),
            device=_device(device, found),
            memory_bytes=MemoryBudget.of("auto" if memory is None else memory).num_bytes,
            asked_shard_bytes=(
                None if shard_bytes is None else parse_size(shard_bytes, name="shard_bytes")
            ),
            progress=checked_progress(progress),
        )
        asked = _fingerprint(run)
        if output is None:
            if resume or overwrite:
                raise UsageError("resume= and overwrite= need an output= that lasts")
            return _to_memory(run, asked)
        path = checked_path("output", output)
        if not path.name:
            raise UsageError(
                f"output={os.fspath(output)!r}: expected the name of a file or directory"
            )
        _check_output(path, source.path)
        if path.suffix == ".npy":
            return _to_npy(run, asked, path, overwrite=overwrite, resume=resume)
        return _to_directory(run, asked, path, overwrite=overwrite, resume=resume)


def _check_output(path: Path, store: Path) -> None:
    """Refuse to replace the store, or a directory of other files."""
    places = [path]
    if path.suffix in _OTHER_FILES:
        raise UsageError(
            f"{path}: embeddings are written to a directory, or to a .npy file, and not as "
            f"{path.suffix}; name {path.with_suffix('.npy')}, or a directory such as "
            f"{path.with_suffix('')}"
        )
    if path.suffix == ".npy":
        if path.is_dir():
            raise UsageError(f"{path} is a directory, and .npy is a file; choose another output")
        places.append(rows := rows_path(path))
        if os.path.lexists(rows) and not is_ours(rows):
            raise StoreExistsError(
                f"{rows} exists, which is where rows lie before they become {path.name}; choose "
                "another output, or move it",
                path=rows,
            )
    if store.resolve() in (place.resolve() for place in places):
        raise UsageError(f"{store} is the store to be read; choose another place for the result")


def _to_directory(
    run: InferenceRun,
    asked: Mapping[str, Any],
    path: Path,
    *,
    overwrite: bool = False,
    resume: bool = False,
    copy_bytes: int = 0,
) -> Embeddings:
    run.compare()  # before the writer, which would remove the work of an interrupted attempt
    with StoreWriter(
        path,
        overwrite=overwrite,
        shard_bytes=run.shard_bytes,
        on_event=run.progress.note,
        fingerprint=asked,
        resume=resume,
    ) as writer:
        run.check_disk(writer.path.parent, writer.temporary_path, copy_bytes)
        spec = run.execute(writer)
        node = NodeTypeSpec(NODE_TYPE, run.store.num_nodes, {ARRAY_NAME: spec})
        final = writer.commit(Schema((node,), ()), asked)
    return open_embeddings(final)


def _to_npy(
    run: InferenceRun,
    asked: Mapping[str, Any],
    path: Path,
    *,
    overwrite: bool,
    resume: bool,
) -> npt.NDArray[Any]:
    if run.plans[-1].dtype == "bfloat16":
        raise UsageError(f"{path}: NumPy has no bfloat16; choose another dtype=, or a directory")
    if not overwrite:
        check_final(path, StoreManifest, overwrite=False)
    # A directory first, which can be resumed and is checked when it is read; then the file from it.
    whole = rows_path(path)
    with alone_in(whole):
        rows = _copied_whole(whole, asked) if resume else None
        if rows is None:
            _core.remove_tree(whole)
    if rows is None:
        rows = _to_directory(
            run, asked, whole, overwrite=True, resume=resume, copy_bytes=run.result_bytes
        )
    with alone_in(whole):  # no other process removes it as garbage
        unfinished = whole / COPY_FILE
        try:
            with storage_errors("write the embeddings", path):
                unfinished.unlink(missing_ok=True)  # from an attempt that was killed
                rows.save_npy(unfinished)
                unfinished.replace(path)
                fsync_directory(path.absolute().parent)
        except StorageError:
            unfinished.unlink(missing_ok=True)
            raise
        rows.remove()
        remove_leftovers(whole)
    mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped


def _copied_whole(path: Path, asked: Mapping[str, Any]) -> Embeddings | None:
    """Return the complete rows of a run that was interrupted while they were copied."""
    try:
        rows = open_embeddings(path)
    except (NotFoundError, CorruptStoreError):  # perhaps it was being removed
        return None
    return rows if rows.provenance == json.loads(json.dumps(asked)) else None


def _to_memory(run: InferenceRun, asked: Mapping[str, Any]) -> Tensor:
    result = Reservation("rows", run.result_bytes)
    Ledger(run.memory_bytes, (result,), "the result in memory").check(
        None, "give an output= to write it to"
    )
    parent = default_parent(run.store.path)
    with RunDirectory.create(parent, purpose="the rows of layers") as directory:
        return _to_directory(run, asked, directory.path / "rows").tensor()


def _fingerprint(run: InferenceRun) -> dict[str, Any]:
    """Return the values that the result depends on, as JSON."""
    scaled = run.input_spec.scaled
    return {
        "kind": "inference",
        "store": run.store.reader.uuid,
        "input": run.input_spec.name,
        **({} if scaled is None else {"decoded": scaled.decoded}),
        "edge_data": {name: spec.name for name, spec in run.edge_specs.items()},
        "layers": [describe(layer) for layer in run.layers],
        "dtypes": [plan.dtype for plan in run.plans],
        "shard_bytes": run.shard_bytes,
    }


def _device(device: Any, layers: tuple[Layer, ...]) -> torch.device:
    """Return a device that tensors can be made on; by default the weights'."""
    if device is None:
        weights = (one for layer in layers for part in layer.modules for one in part.parameters())
        return next((tensor.device for tensor in weights), torch.device("cpu"))
    if not isinstance(device, str | int | torch.device):
        raise UsageError(
            f"device={device!r}: expected the name of a device, such as 'cuda', or a torch.device"
        )
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, ImportError, TypeError, ValueError) as error:
        raise UsageError(f"device={device!r}: {error}") from None
    return found
