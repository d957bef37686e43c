"""The harness of `gnnstore bench` and of the benchmarks."""
