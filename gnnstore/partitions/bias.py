"""The Edge Permutation Bias: how far an epoch by states is from a shuffle of all edges.

After each state, some nodes have been trained on all their edges and others on none; under a
shuffle all would have been trained on the same share. The bias is the largest difference between
shares at any time (MariusGNN, section 6): 0 for a shuffle, at most 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError


def edge_permutation_bias(
    states: npt.NDArray[np.int32], bucket_sizes: npt.NDArray[np.int64] | None = None
) -> float:
    """Return the bias B of an epoch, 0 to 1."""
    num_partitions = len(states)
    if bucket_sizes is None:
        bucket_sizes = np.ones_like(states, np.int64)
    elif bucket_sizes.shape != states.shape:
        raise UsageError(
            f"bucket_sizes has the shape {list(bucket_sizes.shape)} for states of "
            f"{list(states.shape)}"
        )
    num_states = int(states.max()) + 1
    trained = np.zeros((num_states, num_partitions), np.int64)
    for partition in range(num_partitions):  # as a source, then as a target
        for numbers, sizes in (
            (states[partition], bucket_sizes[partition]),
            (states[:, partition], bucket_sizes[:, partition]),
        ):
            trained[:, partition] += np.bincount(
                numbers, weights=sizes, minlength=num_states
            ).astype(np.int64)
    total = trained.sum(axis=0)
    shares = np.cumsum(trained, axis=0)[:, total > 0] / total[total > 0]
    return float(np.ptp(shares, axis=1).max()) if shares.size else 0.0
