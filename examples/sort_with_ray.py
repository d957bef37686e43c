"""Sort a table of edges with Ray Data, and convert it as it comes: no sorted runs of our own.

    python examples/sort_with_ray.py
    python examples/sort_with_ray.py --edges edges/ --source src --target dst --output graph.gnn

Needs Ray Data: pip install "ray[data]". Takes a directory of Parquet files with the ends of edges
in two columns of integers, whose other columns become edge attributes; by default some small ones
are made. Ray starts on this machine, or, with RAY_ADDRESS, joins a cluster, on whose machines the
directories of input and output are the same.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import ray
from pyarrow import parquet

import gnnstore


def make_edges(directory: Path, num_edges: int = 20_000) -> Path:
    """Write a small table in two files, in no order, and return their directory."""
    rng = np.random.default_rng(0)
    directory.mkdir()
    for number in range(2):
        ends = rng.integers(0, 1_000, (2, num_edges // 2))
        times = rng.integers(0, 10**9, num_edges // 2)
        table = pa.table({"source": ends[0], "target": ends[1], "time": times})
        parquet.write_table(table, directory / f"edges-{number}.parquet")
    return directory


def sort(edges: Path, output: Path, source: str, target: str) -> None:
    """Write the rows of a directory as files whose names are in the order of sorting."""
    rows = ray.data.read_parquet(str(edges)).sort([target, source])
    # One file for each block, which are in order; their names count them.
    rows.write_parquet(str(output))


def main() -> None:
    """Sort and convert."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--edges", type=Path, help="a directory of Parquet; default: one is made")
    parser.add_argument("--source", default="source", help="the column of sources")
    parser.add_argument("--target", default="target", help="the column of targets")
    parser.add_argument("--output", type=Path, help="the store; default: a temporary one")
    parser.add_argument("--cpus", type=int, help="processors for Ray on this machine")
    given = parser.parse_args()
    ray.init(num_cpus=given.cpus, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    with tempfile.TemporaryDirectory(dir=given.output and given.output.parent) as name:
        directory = Path(name)
        edges = given.edges or make_edges(directory / "edges")
        sort(edges, directory / "sorted", given.source, given.target)
        files = sorted((directory / "sorted").iterdir())
        columns = parquet.read_schema(files[0]).names
        store = gnnstore.from_tables(
            files,
            given.output or directory / "graph.gnn",
            source=given.source,
            target=given.target,
            edge_columns=[name for name in columns if name not in (given.source, given.target)],
            sorted=True,
        )
        print(gnnstore.open(store))
    ray.shutdown()


if __name__ == "__main__":
    main()
