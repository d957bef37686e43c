"""Creates, opens and exports the files of a table, next to its store and its partitions."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.budget.limits import MemoryBudget
from gnnstore.embeddings.rows import FLOAT_BYTES
from gnnstore.errors import (
    UsageError,
    as_plain,
    check_choice,
    truth,
    whole_number,
)
from gnnstore.formats import AttributeSpec, NodeTypeSpec, Schema, StoreReader, StoreWriter
from gnnstore.formats.base.names import node_array
from gnnstore.formats.container.reads import CheckedFiles
from gnnstore.formats.container.writer import SealedWriter
from gnnstore.formats.partitions import PARTITIONS, PartitionsReader, open_partitions
from gnnstore.formats.store.checks import refuse_carried
from gnnstore.formats.table_directory import TableDirectory
from gnnstore.formats.tables import (
    INITIAL,
    MAX_DIM,
    MAX_KEPT,
    MAX_PARTITIONS,
    STATE_FLOATS,
    TableManifest,
)
from gnnstore.graph.store import GraphStore
from gnnstore.partitions.policy import PartitionPolicy
from gnnstore.sampling.neighbor import check_word
from gnnstore.units import format_count, parse_size

StorePath = GraphStore | str | os.PathLike[str]
# Bytes of a partition of a table in the order of nodes: a commit writes whole partitions.
_PARTITION_BYTES = 64 << 20


def create_files(
    path: str | os.PathLike[str],
    store: StorePath,
    *,
    dim: int,
    partitions: PartitionPolicy | str | None,
    optimizer: str,
    init: str,
    scale: float,
    seed: int,
    keep: int,
    overwrite: bool,
    memory: int | str | None,
) -> tuple[TableDirectory, GraphStore, PartitionsReader | None]:
    """Create the files of a table; see `EmbeddingTable.create`."""
    graph = open_store(store)
    if memory is not None:
        parse_size(memory, name="memory")
    dim, keep = whole_number("dim", dim), whole_number("keep", keep)
    if not 1 <= dim <= MAX_DIM:
        raise UsageError(f"dim={dim}: expected 1 to {MAX_DIM} columns")
    check_choice("optimizer", optimizer, STATE_FLOATS)
    if not graph.num_nodes:
        raise UsageError(f"{graph.path} has no nodes, so that there is nothing to learn")
    found = as_plain(scale)
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    if not is_number or not 0 <= found < math.inf:
        raise UsageError(f"scale={scale!r}: expected a number of at least 0")
    check_choice("init", init, INITIAL)
    seed, overwrite = check_word("seed", seed), truth("overwrite", overwrite)
    unit = None
    if partitions is not None:
        if not isinstance(partitions, PartitionPolicy):
            partitions = PartitionPolicy(name=partitions)
        graph.fetch_unit(PARTITIONS, partitions.name)
        unit = open_partitions(graph.path, partitions.name, store_uuid=graph.reader.uuid)
    fixed, per_column = STATE_FLOATS[optimizer]
    # In the order of nodes if there are no partitions.
    fitting = max(1, _PARTITION_BYTES // ((dim * (1 + per_column) + fixed) * FLOAT_BYTES))
    in_order = min(graph.num_nodes, max(fitting, -(-graph.num_nodes // MAX_PARTITIONS)))
    manifest = TableManifest(
        uuid=uuid.uuid4().hex,
        store_uuid=graph.reader.uuid,
        partitions=None if unit is None else unit.name,
        partitions_uuid=None if unit is None else unit.uuid,
        num_nodes=graph.num_nodes,
        dim=dim,
        rows_per_partition=in_order if unit is None else unit.rows_per_partition,
        optimizer=optimizer,
        init=init,
        scale=float(scale),
        seed=seed,
        keep=keep,
    )
    most = MAX_KEPT // manifest.num_partitions - 1
    if not 1 <= keep <= most:
        raise UsageError(
            f"keep={keep}: expected 1 to {most} commits of "
            f"{format_count(manifest.num_partitions, 'partition')}"
        )
    if unit is None and memory is not None:
        check_memory(Path(path), manifest, memory)
    return TableDirectory.create(Path(path), manifest, overwrite=overwrite), graph, unit


def check_memory(
    path: Path, manifest: TableManifest, memory: int | str | None, held_bytes: int = 0
) -> None:
    """Check that all rows of a table fit in its budget, `held_bytes` of which they use already."""
    budget = MemoryBudget.of(memory, held_bytes)
    rows = Reservation("embeddings", manifest.num_partitions * manifest.slot_bytes)
    who = f"the table {path.name}"
    Ledger(budget.num_bytes, (rows,), who, budget.source).check(
        None, "partition the store and train with partitions="
    )


def partitions_of(directory: TableDirectory, graph: GraphStore) -> PartitionsReader | None:
    """Return the partitions of a table, if they are still those that it was created with."""
    manifest = directory.manifest
    if (manifest.store_uuid, manifest.num_nodes) != (graph.reader.uuid, graph.num_nodes):
        raise UsageError(
            f"{directory.path}: the rows are of the nodes of the store {manifest.store_uuid}, and "
            f"{graph.path} is {graph.reader.uuid}; open the table with the store that it was "
            "created for"
        )
    if manifest.partitions is None:
        return None
    graph.fetch_unit(PARTITIONS, manifest.partitions)
    unit = open_partitions(graph.path, manifest.partitions, store_uuid=manifest.store_uuid)
    expected = unit.uuid, unit.rows_per_partition
    if (manifest.partitions_uuid, manifest.rows_per_partition) != expected:
        raise UsageError(
            f"{directory.path}: the rows are cut by partitions {manifest.partitions!r} "
            f"({manifest.partitions_uuid}), and partitions of this name are {unit.uuid} now: the "
            "store was partitioned again. Restore the partitions, or export the table and create "
            "another"
        )
    return unit


def open_store(store: StorePath) -> GraphStore:
    """Open the store of a table, unless it is, in a process that may write the table."""
    graph = store if isinstance(store, GraphStore) else GraphStore(store)
    graph.schema.refuse_types(graph.path, "EmbeddingTable")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        ranks = torch.distributed.get_world_size()
        if ranks > 1:
            raise UsageError(
                f"an EmbeddingTable has one writer, and this is one of {ranks} processes; learn "
                "embeddings in one process"
            )
    return graph


def export_rows(
    pieces: Iterator[npt.NDArray[np.float32]],
    dim: int,
    source: StoreReader,
    path: str | os.PathLike[str],
    *,
    name: str,
    provenance: Mapping[str, Any],
    with_graph: bool,
    overwrite: bool,
    memory_bytes: int,
) -> Path:
    """Write rows, some at a time, as a store of their own or with all arrays of another store."""
    schema, node = source.schema, source.schema.node
    if not with_graph:
        schema = Schema((NodeTypeSpec(node.name, node.num_nodes, {}),), ())
        node = schema.node
    if name in node.attributes:
        raise UsageError(
            f"{source.path} has an attribute {name!r}; choose another name for the embeddings"
        )
    if Path(path).resolve() == source.path.resolve():
        raise UsageError(f"{path} is the store of the table; choose another place for the rows")
    if with_graph:
        refuse_carried(source, memory_bytes)
    with StoreWriter(path, overwrite=overwrite) as writer:
        if with_graph:
            files = CheckedFiles(source)
            for spec in source.manifest.arrays():
                _copy(writer, files, spec)
        rows = writer.paged(
            node_array(node.name, name),
            name=name,
            row_shape=(dim,),
            dtype="float32",
            num_rows=node.num_nodes,
        )
        with rows:
            for piece in pieces:
                rows.append(piece)
        nodes = replace(node, attributes={**node.attributes, name: rows.spec})
        before = source.manifest.provenance if with_graph else {"kind": "embeddings"}
        whole = {**before, "embeddings": {**provenance, "name": name}}
        return writer.commit(replace(schema, node_types=(nodes,)), whole)


def _copy(writer: SealedWriter, files: CheckedFiles, spec: AttributeSpec) -> None:
    if spec.layout == "cold":
        values = files.read(spec)
        writer.compressed(spec.path, values, name=spec.name, dtype=spec.dtype, cat_dim=spec.cat_dim)
        return
    copy = writer.paged(
        spec.path,
        name=spec.name,
        row_shape=spec.shape[1:],
        dtype=spec.dtype,
        num_rows=spec.num_rows,
        cat_dim=spec.cat_dim,
    )
    with copy:
        for _, rows in files.paged(spec).pieces():
            copy.append(rows)
