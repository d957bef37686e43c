"""What tests need, ours and users' alike: reference implementations, and graphs to try them on.

Each compiled kernel has a twin here, in plain NumPy, that defines what it must compute. Its
system calls fail on demand (`gnnstore.testing.faults`).
"""
