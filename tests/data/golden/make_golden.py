"""Write the golden store of the current format version, once, when the version is released.

A golden store is never written again: later versions must read what was written then.

    python tests/data/golden/make_golden.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gnnstore.formats import FORMAT_VERSION
from tests.support.stores import write_example_store

HERE = Path(__file__).parent


def main() -> None:
    """Write `vN.gnn` and `vN.npz`; refuse to replace them."""
    expected = HERE / f"v{FORMAT_VERSION}.npz"
    if expected.exists():
        raise SystemExit(f"{expected} exists; a golden store is never written again")
    example = write_example_store(
        HERE / f"v{FORMAT_VERSION}.gnn",
        num_nodes=60,
        num_edges=90,
        feature_shape=(300,),  # 1200 bytes: three rows and a tail in a page
        shard_bytes=2**15,  # the smallest: two of them
    )
    # Slashes would become directories in the archive.
    arrays = {path.replace("/", "|"): array for path, array in example.arrays.items()}
    np.savez_compressed(expected, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
