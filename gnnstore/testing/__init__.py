"""What tests of users and of plug-ins can call.

`assert_resumes` checks that a loader resumes exactly. `RowSourceTests`, `CachePolicyTests` and
`StrategyTests` are classes that a plug-in's tests inherit. `gnnstore.testing.graphs` makes small
graphs.
"""

from gnnstore.testing.plugins import CachePolicyTests, RowSourceTests, StrategyTests
from gnnstore.testing.resuming import assert_resumes, assert_same_batches

__all__ = [
    "CachePolicyTests",
    "RowSourceTests",
    "StrategyTests",
    "assert_resumes",
    "assert_same_batches",
]
