"""What tests of users and of plug-ins can call.

`assert_resumes` checks that a loader resumes exactly. `gnnstore.testing.graphs` makes small graphs.
For the tests of this repository, and not in wheels: `faults` lets system calls of the core fail on
demand, `strategies` has Hypothesis' strategies, and `twins` has a plain NumPy function for each
compiled kernel, which defines what it must compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnnstore.testing.resume import assert_resumes

__all__ = ["assert_resumes"]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first used."""
    if name == "assert_resumes":
        from gnnstore.testing.resume import assert_resumes  # noqa: PLC0415

        return assert_resumes
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
