"""Schedules of partitions: which are in the buffer, when, and what is trained there (MariusGNN).

Pure functions of a policy, a seed and an epoch: orders of states (`orders`), which state trains
which edges and nodes (`assignment`), how far an order is from a shuffle of all edges (`bias`), and
how many partitions a budget of memory allows (`sizes`).
"""
