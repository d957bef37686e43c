"""The compiled kernels: plain arrays in, plain arrays out, no policy.

Every kernel checks bounds, releases the GIL, takes its thread count as an argument and
starts no global thread pool. The signatures, dtypes and shapes stand in `_kernels.pyi`.
"""

from gnnstore._core._kernels import *  # noqa: F403
