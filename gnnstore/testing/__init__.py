"""Reference implementations and small graphs for tests, ours and users' alike.

Each compiled kernel has a twin here, in plain NumPy, that defines what it must compute. Its
system calls fail on demand (`gnnstore.testing.faults`).
"""
