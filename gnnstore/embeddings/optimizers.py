"""Optimizers of embedding tables, with the interface of torch's.

A step sums the gradients of each row over all calls of the table since the last one, and changes
the rows that have gradients, and no other. Parameters of an optimizer are the rows that the table
returned since the last step: `clip_grad_norm_`, `GradScaler.unscale_` and `zero_grad` see their
gradients, and schedulers change `param_groups` as in any optimizer. The state that a rule keeps for
each row lies with the row in the table; the state of an optimizer is its options.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, TypeAlias

import torch

from gnnstore.embeddings.table import EmbeddingTable
from gnnstore.errors import UsageError, as_plain

Tables = EmbeddingTable | Iterable[EmbeddingTable] | Iterable[Mapping[str, Any]]


class _RowOptimizer(torch.optim.Optimizer, ABC):
    """A rule that changes rows by their gradients; each table is a parameter group."""

    RULE: ClassVar[str]

    def __init__(self, tables: Tables, defaults: dict[str, Any]) -> None:
        _check_options(defaults)
        self._tables: list[EmbeddingTable] = []
        groups: list[dict[str, Any]] = []
        for given in tables if isinstance(tables, Iterable) else [tables]:
            options = dict(given) if isinstance(given, Mapping) else {"params": given}
            if "params" not in options:
                raise UsageError(f"{type(self).__name__}: a group without 'params', its tables")
            some = options.pop("params")
            for table in some if isinstance(some, (list, tuple)) else [some]:
                self._check_table(table)
                self._tables.append(table)
                groups.append({"params": [], **options})
        if not groups:
            raise UsageError(f"{type(self).__name__}: there is no table to learn")
        super().__init__(groups, defaults)
        for table, group in zip(self._tables, self.param_groups, strict=True):
            _check_options(group)
            group["params"] = table.leaves
            table.optimizer_name = type(self).__name__

    def _check_table(self, table: Any) -> None:
        name = type(self).__name__
        if not isinstance(table, EmbeddingTable):
            raise UsageError(
                f"{name} learns the rows of an EmbeddingTable, and got a {type(table).__name__}; "
                "give other parameters to an optimizer of torch"
            )
        if table in self._tables:
            raise UsageError(f"{name} got the table {table.path} twice; leave one of them out")
        if table.optimizer != self.RULE:
            raise UsageError(
                f"{name}: the rows of {table.path} lie with the state of {table.optimizer!r}; "
                f"use that optimizer, or create the table with optimizer={self.RULE!r}"
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as torch does while an optimizer is made; later calls are refused."""
        if len(self.param_groups) >= len(self._tables):
            raise UsageError(f"give {type(self).__name__} all of its tables when it is made")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change the rows that have gradients, and forget the gradients.

        Parameters
        ----------
        closure : callable, optional
            Computes the loss again, and its gradients.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for table, group in zip(self._tables, self.param_groups, strict=True):
            table.apply_gradients(partial(self._scalars, group))
        return loss

    @abstractmethod
    def _scalars(self, group: Mapping[str, Any], steps: int) -> dict[str, float]:
        """Return the arguments of the kernel for a step, by its number from 1."""


class RowwiseAdagrad(_RowOptimizer):
    """Adagrad with one sum for each row: 4 bytes of state instead of a copy of the row.

    The sum of a row grows by the mean of its squared gradient, and its step is divided by the root
    of the sum, as in PyTorch-BigGraph.

    Parameters
    ----------
    tables : EmbeddingTable, or iterable of tables or of parameter groups
    lr, eps : float
    """

    RULE = "rowwise_adagrad"

    def __init__(self, tables: Tables, lr: float = 1e-2, eps: float = 1e-10) -> None:
        super().__init__(tables, {"lr": lr, "eps": eps})

    def _scalars(self, group: Mapping[str, Any], steps: int) -> dict[str, float]:  # noqa: ARG002
        return {"rate": float(group["lr"]), "eps": group["eps"]}


class TableAdagrad(_RowOptimizer):
    """The rule of `torch.optim.Adagrad` on sparse gradients.

    Parameters
    ----------
    tables : EmbeddingTable, or iterable of tables or of parameter groups
    lr, lr_decay, eps : float
    """

    RULE = "adagrad"

    def __init__(
        self, tables: Tables, lr: float = 1e-2, lr_decay: float = 0.0, eps: float = 1e-10
    ) -> None:
        super().__init__(tables, {"lr": lr, "lr_decay": lr_decay, "eps": eps})

    def _scalars(self, group: Mapping[str, Any], steps: int) -> dict[str, float]:
        return {"rate": group["lr"] / (1 + (steps - 1) * group["lr_decay"]), "eps": group["eps"]}


class TableSGD(_RowOptimizer):
    """The rule of `torch.optim.SGD` on sparse gradients, without momentum.

    Parameters
    ----------
    tables : EmbeddingTable, or iterable of tables or of parameter groups
    lr : float
    """

    RULE = "sgd"

    def __init__(self, tables: Tables, lr: float = 1e-3) -> None:
        super().__init__(tables, {"lr": lr})

    def _scalars(self, group: Mapping[str, Any], steps: int) -> dict[str, float]:  # noqa: ARG002
        return {"rate": float(group["lr"])}


class TableSparseAdam(_RowOptimizer):
    """The rule of `torch.optim.SparseAdam`: moments change with the rows that have gradients.

    Parameters
    ----------
    tables : EmbeddingTable, or iterable of tables or of parameter groups
    lr, eps : float
    betas : tuple of float
        Decays of the means of gradients and of their squares.
    """

    RULE = "sparse_adam"

    def __init__(
        self,
        tables: Tables,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(tables, {"lr": lr, "betas": betas, "eps": eps})

    def _scalars(self, group: Mapping[str, Any], steps: int) -> dict[str, float]:
        beta1, beta2 = group["betas"]
        rate = group["lr"] * (1 - beta2**steps) ** 0.5 / (1 - beta1**steps)
        return {"rate": rate, "eps": group["eps"], "beta1": beta1, "beta2": beta2}


def _check_options(options: Mapping[str, Any]) -> None:
    for name in ("lr", "lr_decay", "eps"):
        value = as_plain(options.get(name, 0))
        if not isinstance(value, int | float) or not value >= 0:
            raise UsageError(f"{name}={options[name]!r}: expected a number of at least 0")
    betas = options.get("betas", ())
    is_pair = isinstance(betas, list | tuple) and all(isinstance(b, int | float) for b in betas)
    if not is_pair or not all(0 <= beta < 1 for beta in betas):
        raise UsageError(f"betas={betas!r}: expected numbers in [0, 1)")


# Registries of torch's optimizers, as PyKEEN's, go by class name, and refuse a second `SGD`.
Adagrad: TypeAlias = TableAdagrad
SGD: TypeAlias = TableSGD
SparseAdam: TypeAlias = TableSparseAdam
