"""Embeddings that are learned: a module of torch whose rows need not fit in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from gnnstore.budget.limits import MemoryBudget
from gnnstore.embeddings.following import FollowingTable, as_json
from gnnstore.embeddings.opening import (
    StorePath,
    create_files,
    export_rows,
    open_store,
    partitions_of,
)
from gnnstore.embeddings.rows import FLOAT_BYTES
from gnnstore.errors import BadIndexError, UsageError, limits_named
from gnnstore.formats.partitions import PartitionsReader
from gnnstore.formats.table_directory import TableDirectory
from gnnstore.graph.lazy import LazyTensor
from gnnstore.graph.store import GraphStore
from gnnstore.partitions.policy import PartitionPolicy
from gnnstore.threads import in_one_step

# Rows in memory are exported in pieces of this size; and the bytes for sorting a row's id.
_PIECE_BYTES, _SORTING_BYTES = 64 << 20, 64


class EmbeddingTable(FollowingTable):
    """Trainable embeddings of the nodes of a store, kept on disk.

    `table(ids)` returns the rows of the nodes of a batch. In training they collect gradients, and a
    step of one of gnnstore's optimizers (`RowwiseAdagrad`, `Adagrad`, `SGD`, `SparseAdam`) updates
    the rows; `commit` makes them durable. Initial rows are computed from (seed, node, column) when
    they are needed; partitions without changed rows take no disk.

    A table that was created with partitions holds the rows of the partitions that the loader
    with `tables=[table]` has in memory. One without partitions is in memory as a whole, and works
    with any loader.

    Create a table with `EmbeddingTable.create`, and open it again with `EmbeddingTable.open`.

    Attributes
    ----------
    path : Path
        The directory.
    num_embeddings, embedding_dim : int
        Number of rows, one for each node, and their width.
    optimizer : str
        Name of the optimizer whose state is stored with the rows.
    leaves : list of Tensor
        Rows that were returned since the last step: the parameters of the optimizer.
    """

    def __init__(
        self,
        directory: TableDirectory,
        store: GraphStore,
        unit: PartitionsReader | None,
        memory: int | str | None = None,
    ) -> None:
        super().__init__(directory, store, unit, memory)
        self.num_embeddings, self.embedding_dim = self._manifest.num_nodes, self._manifest.dim
        self.optimizer = self._manifest.optimizer
        self.optimizer_name: str | None = None

    @classmethod
    @limits_named("create a table of embeddings")
    def create(
        cls,
        path: str | os.PathLike[str],
        store: StorePath,
        *,
        dim: int,
        partitions: PartitionPolicy | str | None = None,
        optimizer: str = "rowwise_adagrad",
        init: str = "xavier_uniform",
        scale: float = 1.0,
        seed: int = 0,
        keep: int = 2,
        overwrite: bool = False,
        memory: int | str | None = None,
    ) -> Self:
        """Create a table with a row for each node of a store, and open it.

        Parameters
        ----------
        path : path-like
            The directory to create, as "users.emb".
        store : GraphStore or path-like
        dim : int
            Width of a row.
        partitions : PartitionPolicy, str or None
            The partitions of the store by which the table is stored: the policy of the loader, or
            their name. None: the table is in memory as a whole.
        optimizer : "rowwise_adagrad", "adagrad", "sgd" or "sparse_adam"
            The optimizer that will update the rows. Its state is stored with each row, and takes
            1, `dim`, 0 or 2 `dim` floats.
        init : "xavier_uniform", "xavier_normal", "uniform", "normal" or "zeros"
            Distribution of the initial values, as `torch.nn.init` fills a matrix of all rows;
            "uniform" in [-scale, scale).
        scale : float
            Factor of the initial values.
        seed : int
            Seed of the initial values.
        keep : int
            Number of commits that stay on disk. With two, the last commit but one can still be
            opened, as a checkpoint needs that was not saved after its commit.
        overwrite : bool
            Whether to replace a table of this name.
        memory : int or str, optional
            Limit for a table that is in memory as a whole, as "4GB"; by default what is available
            when rows are first asked for.

        Raises
        ------
        UsageError, NotFoundError
            If options make no sense, or the store has no such partitions.
        BudgetError
            If a table without partitions does not fit in `memory`.
        StoreExistsError
            If there is a table, and `overwrite` is false.
        """
        given = {name: value for name, value in locals().items() if name != "cls"}
        return cls(*create_files(**given), memory)

    @classmethod
    @limits_named("open a table of embeddings")
    def open(
        cls,
        path: str | os.PathLike[str],
        store: StorePath,
        *,
        commit: str | None = None,
        memory: int | str | None = None,
    ) -> Self:
        """Open a table at its last commit.

        Parameters
        ----------
        path : path-like
            The directory.
        store : GraphStore or path-like
            The store that the table was created for.
        commit : str, optional
            The commit to go back to, as `commit()` returned it; by default the last one.
        memory : int or str, optional
            Budget of a table that is in memory as a whole.

        Raises
        ------
        NotFoundError, UnsupportedVersionError, CorruptStoreError, StorageError
            If there is no table, or it cannot be read.
        UsageError
            If it is of another store, open already, or has not kept the commit.
        """
        graph = open_store(store)
        directory = TableDirectory(Path(path), commit)
        try:
            return cls(directory, graph, partitions_of(directory, graph), memory)
        except BaseException:
            directory.close()
            raise

    # --- rows ------------------------------------------------------------------------------

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of nodes, [*ids.shape, dim], on the device of `ids`.

        Rows that are given out in training, with gradients on, are parameters of the optimizer
        until its next step.

        Raises
        ------
        UsageError
            If the partition of a node is not in memory, or no optimizer was made for the table.
        BudgetError
            If a table without partitions does not fit in memory.
        BadIndexError
            If an id is not a node.
        """
        self._check_usable()
        ids = torch.as_tensor(ids)
        if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
            raise BadIndexError(
                f"{self.path}: expected ids of nodes, integers; found a tensor of {ids.dtype}"
            )
        nodes = ids.detach().reshape(-1).to("cpu", torch.int64).contiguous().numpy()
        if self._is_whole and not self._rows.are_resident:
            self.load()
        places = self._rows.find(nodes)
        result = torch.from_numpy(self._rows.gather(places))
        result = result.reshape(*ids.shape, self.embedding_dim).to(ids.device)
        if self.training and torch.is_grad_enabled():
            if self.optimizer_name is None:
                raise UsageError(
                    f"{self.path}: rows are asked for in training, and no optimizer would change "
                    "them: make one (gnnstore.RowwiseAdagrad(table)) first; or call eval() on the "
                    "table, or use torch.no_grad()"
                )
            if self._pending is not None:  # rows are learned from this loader's batches
                self._noted, self._pending = self._pending, None
            result.requires_grad_()
            self.leaves.append(result)
            self._given.append((places, result))
        return result

    def load(self) -> None:
        """Load all rows, also of partitions that are not in memory.

        In a loop over a loader by partitions, they stay until it goes on to other partitions.

        Raises
        ------
        BudgetError
            If they do not fit.
        """
        self._check_usable()
        self._check_stepped()
        if not self._is_reserved:
            self._check_budget()
        every = np.arange(self._manifest.num_partitions)
        self._rows.enter(every, len(every))
        self._buffer.cancel()
        if not self._is_whole:  # else a loader entered the state, and its turn ends
            self._loaded_in = self._state

    @torch.no_grad()
    def apply_gradients(self, scalars: Callable[[int], dict[str, float]]) -> None:
        """Change the rows that have gradients; `scalars` has the rule's numbers of each step."""
        self._check_usable()
        given = [(places, leaf.grad) for places, leaf in self._given if leaf.grad is not None]
        if not given:
            self._forget()
            return
        gradients = [grad.reshape(-1).to("cpu", torch.float32) for _, grad in given]
        flat = gradients[0].contiguous() if len(given) == 1 else torch.cat(gradients)
        places, leaves = np.concatenate([places for places, _ in given]), list(self.leaves)
        update = self._rows.prepare_update(places, flat.numpy(), scalars(self._steps + 1))
        # An interrupt could write a part of the rows, or make a step twice.
        count = partial(object.__setattr__, self, "_steps", self._steps + 1)
        in_one_step(update, count, self._given.clear, self.leaves.clear)
        self._refuse(leaves)

    # --- commits ---------------------------------------------------------------------------

    @property
    def is_committed(self) -> bool:
        """Whether no row has changed since the last commit."""
        return self._steps == self._committed_steps

    @property
    def commit_id(self) -> str:
        """The id of the commit that the table's changes build on."""
        return self._directory.base.id

    def commit(self, position: Mapping[str, Any] | None = None) -> str:
        """Make all rows durable as they are, and return the id of the commit.

        It writes the partitions that changed since they were written last. A process that is killed
        at any moment leaves the last commit.

        Parameters
        ----------
        position : Mapping, optional
            `loader.state_dict()`, compared when training goes on; by default the state of a loader
            with `tables=[table]`.

        Raises
        ------
        StorageError
            If the operating system refuses. The last commit stays, and rows stay in memory: make
            room, and call it again.
        """
        self._check_usable()
        if position is None and self._noted is not None:
            position = self._noted[1]
        elif position is None and self.is_committed:  # and no loader has trained since then
            position = self._position
        plain = None if position is None else as_json(position)
        done = self._rows.commit(self._steps, plain)
        self._committed_steps, self._position = self._steps, plain
        return done

    def check_position(self, state_dict: Mapping[str, Any]) -> None:
        """Check that a loader goes on where the table does.

        Parameters
        ----------
        state_dict : Mapping
            The state that the loader has loaded, or will.

        Raises
        ------
        UsageError
            If it is not the state of the commit; the message has both positions.
        """
        position = self._position
        if position is None:
            return
        if not self.is_committed:
            raise UsageError(
                f"{self.path}: {self._steps - self._committed_steps} steps were made since the "
                "commit, so that the rows are beyond any state of a loader; open the table again"
            )
        if position == (state_dict := as_json(state_dict)):
            return
        ours, theirs = (
            f"batch {state.get('batches')} of epoch {state.get('epoch')}"
            for state in (position, state_dict)
        )
        if ours == theirs:
            ours, theirs = f"{ours} of a loader with other options", "the same batch"
        raise UsageError(
            f"{self.path}: the rows are those after {ours} (commit {self.commit_id}), and the "
            f"loader is to go on after {theirs}: batches would be learned twice, or never. Open "
            "the table with commit=, the id that the checkpoint of the loader goes with. If no "
            "batch lies between, as from the last one of an epoch to the start of the next, call "
            "commit() on the table with the state of the loader"
        )

    def get_extra_state(self) -> dict[str, str]:
        """Return the reference to the last commit, the whole state of the table in `state_dict`.

        Raises
        ------
        UsageError
            If rows have changed since: a checkpoint could not restore them.
        """
        if not self.is_committed:
            raise UsageError(
                f"{self.path}: {self._steps - self._committed_steps} steps since the last commit "
                "would not be in the checkpoint, which holds only the id of a commit; call "
                "commit() on the table before state_dict()"
            )
        return {"table": self._manifest.uuid, "commit": self.commit_id}

    def set_extra_state(self, state: Any) -> None:
        """Check that the table is at the commit of a checkpoint.

        Raises
        ------
        UsageError
            If it is another table, or at another commit.
        """
        found = {"table": self._manifest.uuid, "commit": self.commit_id}
        if state != found or not self.is_committed:
            raise UsageError(
                f"{self.path}: the checkpoint goes with {state}, and the table is "
                f"{'at' if self.is_committed else 'beyond'} {found}; open the table that was "
                "trained with it by EmbeddingTable.open(path, store, commit=the checkpoint's)"
            )

    def close(self) -> None:
        """Close the table, so that it can be opened again; changes without a commit are lost."""
        self._forget()
        self._buffer.dirty[:] = False
        self._buffer.resize(0)
        self._close()

    # --- reading all rows ------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and their width."""
        return self.num_embeddings, self.embedding_dim

    @property
    def dtype(self) -> torch.dtype:
        """Type of the elements."""
        return torch.float32

    def __len__(self) -> int:
        return self.num_embeddings

    def __getitem__(self, ids: Any) -> Tensor:
        """Return the rows of nodes as they are now, from memory or from disk."""
        self._check_usable()
        return LazyTensor(self._rows)[ids]

    def export(
        self,
        path: str | os.PathLike[str],
        name: str = "x",
        *,
        with_graph: bool = False,
        overwrite: bool = False,
        memory: int | str | None = None,
    ) -> Path:
        """Write the rows as they are now as an attribute of nodes, in the format of stores.

        The result is read like any store: by `gnnstore.open`, loaders, `gnnstore.inference`,
        `gnnstore.link_ranks` and Zarr.

        Parameters
        ----------
        path : path-like
            The directory to create.
        name : str
            Name of the attribute.
        with_graph : bool
            Whether the edges, the attributes and all else of the table's store are copied, so that
            loaders show the rows in their batches. By default the rows are written alone.
        overwrite : bool
            Whether a store of this name is replaced.
        memory : int or str, optional
            Budget, as "4GB"; by default what is available. A table that is not in memory is read
            once for each piece of its rows that half the budget holds.

        Returns
        -------
        Path
            The directory.

        Raises
        ------
        UsageError
            If the store has an attribute of that name, and is copied.
        StoreExistsError, StorageError
            If the directory exists, or cannot be written.
        CorruptStoreError
            If bytes of the table, or of the store that is copied, are damaged.
        """
        row_bytes = self.embedding_dim * FLOAT_BYTES
        # Memory for the rows, a partition that is read, and sorting ids.
        memory_bytes = MemoryBudget.of(memory).num_bytes
        most = memory_bytes // 2 // (row_bytes + _SORTING_BYTES)
        if self._rows.are_resident:
            most = min(most, _PIECE_BYTES // row_bytes)
        step = max(1, most)
        self._check_usable()
        compared: set[int] = set()  # partitions
        pieces = (
            self._rows.take(range(first, min(first + step, len(self))), compared).numpy()
            for first in range(0, len(self), step)
        )
        provenance = {"table": self._manifest.uuid, "commit": self.commit_id, "steps": self._steps}
        return export_rows(
            pieces,
            self.embedding_dim,
            self._store.reader,
            path,
            name=name,
            provenance=provenance,
            with_graph=with_graph,
            overwrite=overwrite,
            memory_bytes=memory_bytes,
        )

    # --- what a table is not ---------------------------------------------------------------

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"{self.path}: a table is one writer on its directory, and cannot be pickled or "
            "copied; save its state_dict(), and open it there with EmbeddingTable.open"
        )

    def extra_repr(self) -> str:
        """Return the module's details for its representation."""
        cut = self._manifest.partitions
        return (
            f"{str(self.path)!r}, {self.num_embeddings}, {self.embedding_dim}, "
            f"optimizer={self.optimizer!r}" + (f", partitions={cut!r}" if cut else "")
        )
