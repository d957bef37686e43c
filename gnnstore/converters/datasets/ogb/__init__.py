"""The layouts of the Open Graph Benchmark."""
