"""Embeddings that are learned: a module of torch whose rows need not fit in memory."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import MemoryBudget
from gnnstore.embeddings.buffer import PartitionBuffer
from gnnstore.embeddings.export import export_rows
from gnnstore.embeddings.layout import FLOAT_BYTES, InitialRows, RowLayout
from gnnstore.embeddings.opening import (
    StorePath,
    TableFiles,
    check_memory,
    create_files,
    open_files,
)
from gnnstore.embeddings.rows import StoredRows, num_threads
from gnnstore.errors import BadIndexError, UsageError, limits_named
from gnnstore.graph.lazy import LazySource, LazyTensor, Rows
from gnnstore.partitions.followers import Slots
from gnnstore.partitions.policy import PartitionPolicy
from gnnstore.threads import in_one_step

# Rows in memory are exported in pieces of this size; and the bytes for sorting a row's id.
_PIECE_BYTES, _SORTING_BYTES = 64 << 20, 64
# If a table has more partitions than this, messages name the first ones.
_NAMED = 8


class EmbeddingTable(torch.nn.Module):
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

    def __init__(self, files: TableFiles, memory: int | str | None = None) -> None:
        super().__init__()
        directory, manifest, unit = files.directory, files.directory.manifest, files.unit
        self._directory, self._manifest, self._store = directory, manifest, files.store
        self._close = weakref.finalize(self, directory.close)
        self.path = directory.path
        self.num_embeddings, self.embedding_dim = manifest.num_nodes, manifest.dim
        self.optimizer = manifest.optimizer
        self._layout = RowLayout(manifest, unit)
        initial = InitialRows(
            manifest.init, manifest.scale, manifest.seed, manifest.num_nodes, manifest.dim
        )
        MemoryBudget.of(memory)  # refuses a value that is not a size
        self._memory = memory
        self._rows = StoredRows(directory, self._layout, initial)
        self._buffer = PartitionBuffer(
            manifest.num_partitions, manifest.slot_floats, self._rows.load, self._rows.store
        )
        # Whether all partitions are in memory: without partitions, or with a loader that has none.
        self._is_whole = unit is None
        self._is_reserved = False  # whether the loader reserves all partitions
        self._steps = directory.base.steps
        self._committed_steps = self._steps
        self._position = directory.base.position
        # State of the loader that trains, with the loader; then that of one that may be evaluating.
        self._noted: tuple[Any, Mapping[str, Any]] | None = None
        self._pending: tuple[Any, Mapping[str, Any]] | None = None
        # The state that was entered last; and the one in which `load` was called.
        self._state = self._loaded_in = np.empty(0, np.int64)
        self._process = os.getpid()
        self.optimizer_name: str | None = None
        self.leaves: list[Tensor] = []
        self._given: list[tuple[npt.NDArray[np.int64], Tensor]] = []

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
        files = create_files(
            path,
            store,
            dim=dim,
            partitions=partitions,
            optimizer=optimizer,
            init=init,
            scale=scale,
            seed=seed,
            keep=keep,
            overwrite=overwrite,
            memory=memory,
        )
        return cls(files, memory)

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
        files = open_files(path, store, commit)
        try:
            return cls(files, memory)
        except BaseException:
            files.directory.close()
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
            If an id is no node.
        """
        self._check_usable()
        try:
            ids = torch.as_tensor(ids)
        except (RuntimeError, TypeError, ValueError) as error:
            raise BadIndexError(f"{self.path}: expected ids of nodes, integers; {error}") from None
        if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
            raise BadIndexError(
                f"{self.path}: expected ids of nodes, integers; found a tensor of {ids.dtype}"
            )
        nodes = ids.detach().reshape(-1).to("cpu", torch.int64).contiguous().numpy()
        rows = self._find(nodes)
        found = _core.empty((len(nodes), self.embedding_dim), np.float32)
        if len(nodes):
            self._gather(rows, found)
        result = torch.from_numpy(found).reshape(*ids.shape, self.embedding_dim).to(ids.device)
        if self.training and torch.is_grad_enabled():
            if self.optimizer_name is None:
                raise UsageError(
                    f"{self.path}: rows are asked for in training, and no optimizer would change "
                    "them: make one (gnnstore.RowwiseAdagrad(table)) first; or call eval() on the "
                    "table, or use torch.no_grad()"
                )
            if self._pending is not None:
                self._noted, self._pending = self._pending, None
            result.requires_grad_()
            self.leaves.append(result)
            self._given.append((rows, result))
        return result

    def _find(self, nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        manifest, rows = self._manifest, np.empty(len(nodes), np.int64)
        if self._is_whole and len(self._buffer.resident()) < manifest.num_partitions:
            self.load()
        try:
            found = _core.resident_rows(
                nodes,
                self._layout.place,
                manifest.num_nodes,
                manifest.rows_per_partition,
                self._buffer.slots,
                rows,
            )
        except IndexError as error:
            raise BadIndexError(f"{self.path}: {error}; ids are those of the store") from None
        if found < len(nodes):
            node = int(nodes[found])
            partition = int(self._layout.rows_of(nodes[found : found + 1])[0])
            partition //= manifest.rows_per_partition
            resident = self._buffer.resident().tolist()
            state = ", ".join(map(str, resident[:_NAMED])) + ", …" * (len(resident) > _NAMED)
            raise UsageError(
                f"{self.path}: node {node} is of partition {partition}, which is not in memory: "
                f"{f'resident are {state}' if resident else 'none is'}. Ask for the nodes of the "
                "batch that the loader with tables=[table] handed out last; read any rows with "
                "table[ids]; or have all rows in memory with table.load()"
            )
        return rows

    def _gather(self, rows: npt.NDArray[np.int64], out: npt.NDArray[np.float32]) -> None:
        manifest = self._manifest
        _core.gather_rows(
            self._buffer.memory.view(np.uint8),
            rows,
            out.reshape(-1).view(np.uint8),
            num_rows=self._buffer.num_slots * manifest.rows_per_partition,
            row_bytes=manifest.dim * FLOAT_BYTES,
            rows_per_page=manifest.rows_per_partition,
            page_stride_bytes=manifest.slot_bytes,
            num_threads=num_threads(),
        )

    def load(self) -> None:
        """Load all rows, also those of partitions that are not in memory.

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
        self._enter(every, len(every))
        self._buffer.leave()
        if not self._is_whole:  # else a loader entered the state, and its turn ends
            self._loaded_in = self._state

    def _check_budget(self) -> None:
        """Refuse all rows if they do not fit the table's own budget."""
        held_bytes = len(self._buffer.memory) * FLOAT_BYTES
        check_memory(self.path, self._manifest, self._memory, held_bytes)

    @torch.no_grad()
    def apply_gradients(self, scalars: Callable[[int], dict[str, float]]) -> None:
        """Change the rows that have gradients; for optimizers.

        Parameters
        ----------
        scalars : callable
            Given the number of the step, from 1, returns the numbers of the rule.
        """
        self._check_usable()
        given = [(rows, leaf.grad) for rows, leaf in self._given if leaf.grad is not None]
        if given:
            gradients = [grad.reshape(-1).to("cpu", torch.float32) for _, grad in given]
            flat = gradients[0].contiguous() if len(given) == 1 else torch.cat(gradients)
            rows = np.concatenate([rows for rows, _ in given])
            self._update(rows, flat.numpy(), scalars(self._steps + 1))
        else:
            self._refuse_more()

    def _update(
        self,
        rows: npt.NDArray[np.int64],
        gradients: npt.NDArray[np.float32],
        scalars: dict[str, float],
    ) -> None:
        manifest, leaves = self._manifest, list(self.leaves)
        held = np.zeros(self._buffer.num_slots, np.bool_)
        held[rows // manifest.rows_per_partition] = True
        resident = self._buffer.resident()
        self._buffer.dirty[resident[held[self._buffer.slots[resident]]]] = True
        update = partial(
            _core.update_rows,
            self._buffer.memory,
            rows,
            gradients,
            dim=manifest.dim,
            rows_per_slot=manifest.rows_per_partition,
            slot_floats=manifest.slot_floats,
            rule=manifest.optimizer,
            num_threads=num_threads(),
            **scalars,
        )
        # An interrupt could write a part of the rows, or make a step twice.
        count = partial(object.__setattr__, self, "_steps", self._steps + 1)
        in_one_step(update, count, self._given.clear, self.leaves.clear)
        self._refuse(leaves)

    def _forget(self) -> None:
        self._given.clear()
        self.leaves.clear()

    # --- following a loader ----------------------------------------------------------------

    def attach(self, unit_uuid: str, num_partitions: int, rows_per_partition: int) -> None:
        """Check that the table goes with a loader by partitions; see `ResidentTable`."""
        manifest = self._manifest
        if manifest.partitions is None:
            return
        if unit_uuid != manifest.partitions_uuid:
            raise UsageError(
                f"{self.path}: the table is cut by the partitions {manifest.partitions!r} "
                f"({manifest.partitions_uuid}), and the loader goes through {unit_uuid}; give the "
                "loader the partitions of the table, or create a table of its partitions"
            )
        if (num_partitions, rows_per_partition) != (
            manifest.num_partitions,
            manifest.rows_per_partition,
        ):
            raise UsageError(
                f"{self.path}: the table has {manifest.num_partitions} partitions of "
                f"{manifest.rows_per_partition} rows, and the loader {num_partitions} of "
                f"{rows_per_partition}; create a table of the loader's partitions"
            )

    def reserve(self, slots: Slots | None) -> Reservation:
        """Return the memory with this many partitions at once; see `ResidentTable`."""
        manifest = self._manifest
        if slots is None or manifest.partitions is None:
            if self._memory is not None:
                self._check_budget()
            slots = Slots(manifest.num_partitions, 0)
        num_bytes = sum(slots) * manifest.slot_bytes
        return Reservation(f"embeddings of {self.path.name}", num_bytes + self._layout.place_bytes)

    def enter(self, state: npt.NDArray[np.int64] | None, slots: Slots | None) -> bool:
        """Load the partitions of a state; see `ResidentTable`."""
        self._check_usable()
        self._is_whole = self._is_reserved = state is None or self._manifest.partitions is None
        if state is None or slots is None or self._is_whole:
            return False  # all are read when rows are needed
        state, num_slots = np.sort(state), max(len(state), slots[0]) + slots[1]
        if np.array_equal(state, self._loaded_in):
            return False
        self._loaded_in = np.empty(0, np.int64)
        self._state = state
        is_there = np.array_equal(state, self._buffer.resident())
        if is_there and self._buffer.num_slots <= num_slots:
            return False
        self._check_stepped()
        self._enter(state, num_slots)
        return True

    def _enter(self, state: npt.NDArray[np.int64], num_slots: int) -> None:
        if self._buffer.num_slots != num_slots:
            self._buffer.resize(num_slots)
        self._buffer.enter(state)

    def _check_stepped(self) -> None:
        """Forget rows that were given out, since their places in memory change."""
        waiting = sum(leaf.grad is not None for leaf in self.leaves)
        if waiting:
            raise UsageError(
                f"{self.path}: the loader goes on to other partitions, and gradients of {waiting} "
                "calls of the table wait for a step, which must be made while their rows are in "
                "memory: call step() before the next batch, or zero_grad() to drop them; "
                "accumulate gradients within a state only"
            )
        self._refuse_more()

    def _refuse_more(self) -> None:
        """Forget rows that were given out, and refuse their gradients from now on."""
        self._refuse(self.leaves)
        self._forget()

    def _refuse(self, leaves: Iterable[Tensor]) -> None:
        for leaf in leaves:  # a loss may still be computed from these
            leaf.register_hook(self._refuse_late)

    def _refuse_late(self, _: Tensor) -> NoReturn:
        raise UsageError(
            f"{self.path}: backward() of rows that a step was made with, or whose partitions have "
            "left memory; compute all gradients of a batch before step() and the next batch, or "
            "call the table again"
        )

    def expect(self, state: npt.NDArray[np.int64]) -> None:
        """Begin to read the next state; see `ResidentTable`."""
        if not self._is_whole:
            self._buffer.expect(np.asarray(state, np.int64))

    def leave(self, loader: object) -> None:
        """End an iteration; see `ResidentTable`."""
        if self._pending is not None and self._pending[0]() is loader:
            self._pending = None
        self._is_reserved = False
        self._buffer.leave()

    def position(self) -> dict[str, Any] | None:
        """Return the loader's state at the table's commit, or None."""
        return None if self._position is None else dict(self._position)

    def note_position(self, loader: object, state_dict: dict[str, Any]) -> None:
        """Take a loader's state, for the next commit; see `ResidentTable`."""
        trains = self._noted is not None and self._noted[0]() is loader
        found = weakref.ref(loader), state_dict
        if trains:
            self._noted, self._pending = found, None
        else:
            self._pending = found

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
        plain = None if position is None else _as_json(position)
        self._buffer.flush()
        try:
            done = self._directory.commit(self._steps, plain)
        except BaseException:
            again = np.array(self._directory.doubtful(), np.int64)
            self._buffer.dirty[again[self._buffer.slots[again] >= 0]] = True
            raise
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
            If it is not that of the commit; says where both stand.
        """
        position = self._position
        if position is None:
            return
        if not self.is_committed:
            raise UsageError(
                f"{self.path}: {self._steps - self._committed_steps} steps were made since the "
                "commit, so that the rows are beyond any state of a loader; open the table again"
            )
        if position == (state_dict := _as_json(state_dict)):
            return
        ours, theirs = (
            f"batch {state.get('batches')} of epoch {state.get('epoch')}"
            for state in (position, state_dict)
        )
        if ours == theirs:
            ours, theirs = f"{ours} of a loader with other options", f"that of {theirs}"
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
        if not isinstance(state, Mapping) or state.get("table") != self._manifest.uuid:
            raise UsageError(
                f"{self.path}: the checkpoint is of another table; open the one that was trained "
                "with it"
            )
        if state.get("commit") != self.commit_id or not self.is_committed:
            raise UsageError(
                f"{self.path}: the checkpoint goes with the commit {state.get('commit')}, and the "
                f"table is {'at' if self.is_committed else 'beyond'} {self.commit_id}; open it "
                "with EmbeddingTable.open(path, store, commit=the checkpoint's)"
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

        def read(rows: Rows) -> Tensor:
            return torch.from_numpy(self._rows.read(np.asarray(rows, np.int64), self._buffer))

        return LazyTensor(_TableRows(self, read))[ids]

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
        """
        row_bytes = self.embedding_dim * FLOAT_BYTES
        # Memory for the rows, a partition that is read, and sorting ids.
        most = MemoryBudget.of(memory).num_bytes // 2 // (row_bytes + _SORTING_BYTES)
        if len(self._buffer.resident()) == self._manifest.num_partitions:
            most = min(most, _PIECE_BYTES // row_bytes)
        step = max(1, most)
        firsts = range(0, self.num_embeddings, step)
        provenance = {"table": self._manifest.uuid, "commit": self.commit_id, "steps": self._steps}
        return export_rows(
            (self[first : first + step].numpy() for first in firsts),
            self.embedding_dim,
            self._store.reader,
            path,
            name=name,
            provenance=provenance,
            with_graph=with_graph,
            overwrite=overwrite,
        )

    # --- what a table is not ---------------------------------------------------------------

    def _check_usable(self) -> None:
        if not self._close.alive:
            raise UsageError(
                f"{self.path}: the table was closed; open it again with EmbeddingTable.open"
            )
        if os.getpid() != self._process:
            raise UsageError(
                f"{self.path}: the table is open in process {self._process}, and this is a forked "
                "process, whose changes would be lost; use the table in the training loop, not in "
                "workers of a DataLoader"
            )

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"{self.path}: a table is one writer on its directory, and cannot be pickled or "
            "copied; save its state_dict(), and open it there with EmbeddingTable.open"
        )

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__reduce__()

    def extra_repr(self) -> str:
        """Return the module's details for its representation."""
        cut = self._manifest.partitions
        return (
            f"{str(self.path)!r}, {self.num_embeddings}, {self.embedding_dim}, "
            f"optimizer={self.optimizer!r}" + (f", partitions={cut!r}" if cut else "")
        )


class _TableRows(LazySource):
    """The rows of a table as they are now, from memory or from disk."""

    dtype = torch.float32

    def __init__(self, table: EmbeddingTable, read: Callable[[Rows], Tensor]) -> None:
        self.name, self.shape, self._read = str(table.path), table.shape, read

    def read(self) -> Tensor:
        """Return all rows."""
        return self.take(range(self.shape[0]))

    def take(self, rows: Rows) -> Tensor:
        """Return some rows."""
        return self._read(rows)


def _as_json(position: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if not isinstance(position, Mapping):
            raise TypeError(f"a {type(position).__name__} is no state of a loader")
        plain: dict[str, Any] = json.loads(json.dumps(position, allow_nan=False, default=_as_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"position: {error}; give what loader.state_dict() returns: values that JSON knows"
        ) from None
    return plain


def _as_plain(value: Any) -> Any:
    """Return the plain form of values in a user's sampler state, to be compared."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}")
