"""Sort a table of edges with DuckDB, and convert it as it comes: no sorted runs of our own.

    python examples/sort_with_duckdb.py
    python examples/sort_with_duckdb.py --edges 'edges/*.parquet' --source src --output graph.gnn

Needs DuckDB: pip install duckdb. Takes Parquet files with the ends of edges in two columns of
integers, whose other columns become edge attributes; by default some small ones are made. It is for
edges that are in DuckDB anyway: gnnstore sorts by itself, too.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from pyarrow import parquet

import gnnstore


def make_edges(directory: Path, num_edges: int = 20_000) -> str:
    """Write a small table in two files, in no order, and return their pattern."""
    rng = np.random.default_rng(0)
    for number in range(2):
        ends = rng.integers(0, 1_000, (2, num_edges // 2))
        times = rng.integers(0, 10**9, num_edges // 2)
        table = pa.table({"source": ends[0], "target": ends[1], "time": times})
        parquet.write_table(table, directory / f"edges-{number}.parquet")
    return str(directory / "edges-*.parquet")


def sort(edges: str, sorted_path: Path, source: str, target: str, memory: str) -> None:
    """Write the rows of some files as one, in ascending order of target, then source."""
    with duckdb.connect(config={"memory_limit": memory}) as connection:
        connection.execute(f"SET temp_directory = '{sorted_path.parent}'")
        connection.read_parquet(edges).order(f'"{target}", "{source}"').write_parquet(
            str(sorted_path)
        )


def main() -> None:
    """Sort and convert."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--edges", help="a pattern of Parquet files; default: some that are made")
    parser.add_argument("--source", default="source", help="the column of sources")
    parser.add_argument("--target", default="target", help="the column of targets")
    parser.add_argument("--output", type=Path, help="the store; default: a temporary one")
    parser.add_argument("--memory", default="1GB", help="memory for DuckDB")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.output and given.output.parent) as name:
        directory = Path(name)
        edges = given.edges or make_edges(directory)
        sorted_path = directory / "sorted.parquet"
        sort(edges, sorted_path, given.source, given.target, given.memory)
        columns = parquet.read_schema(sorted_path).names
        store = gnnstore.from_tables(
            sorted_path,
            given.output or directory / "graph.gnn",
            source=given.source,
            target=given.target,
            edge_columns=[name for name in columns if name not in (given.source, given.target)],
            sorted=True,
        )
        print(gnnstore.open(store))


if __name__ == "__main__":
    main()
