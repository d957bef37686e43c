"""Splits by position: the first nodes train, the next ones validate, the rest test."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def split_ranges(
    num_nodes: int, fractions: tuple[float, float]
) -> dict[str, npt.NDArray[np.int64]]:
    """Return the node ids of train, valid and test.

    Parameters
    ----------
    num_nodes : int
        Nodes to divide, from the first.
    fractions : (float, float)
        Shares of train and valid, each rounded down to whole nodes.
    """
    train, valid = (int(num_nodes * fraction) for fraction in fractions)
    bounds = {"train": (0, train), "valid": (train, train + valid)}
    bounds["test"] = (train + valid, num_nodes)
    return {name: np.arange(*bound, dtype=np.int64) for name, bound in bounds.items()}
