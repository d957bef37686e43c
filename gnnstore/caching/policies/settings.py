"""The user's options of a strategy that samples and plans ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from gnnstore.errors import UsageError, as_whole_number
from gnnstore.units import parse_size


@dataclass(frozen=True)
class PlannedSettings:
    """The user's options.

    Attributes
    ----------
    cache_bytes : int or None
        Memory for the cached rows; None: what the budget leaves.
    num_batches : int or None
        Batches of a superbatch; None: as many as there is room for, an epoch at most, or a few
        epochs where rows are packed.
    tmpdir : str or None
        Where subgraphs are written to that do not fit in memory, and packed rows; None: beside
        the store.
    disk_bytes : int or None
        For packed rows, and traces and plans that memory is too small for; None: half of what is
        free there.
    """

    cache_bytes: int | None = None
    num_batches: int | None = None
    tmpdir: str | None = None
    disk_bytes: int | None = None

    @classmethod
    def read(
        cls,
        strategy: str,
        cache_bytes: int | str | None,
        superbatch: int | str | None,
        tmpdir: object = None,
        disk: int | str | None = None,
        *,
        plans: bool = True,
    ) -> Self | None:
        """Read the loader's options; None where the strategy plans nothing.

        Parameters
        ----------
        plans : bool
            Whether it samples and plans ahead.

        Raises
        ------
        UsageError
            If an option makes no sense, or the strategy has no use for it.
        """
        if disk is not None and not plans:
            raise UsageError(
                f"strategy={strategy!r} has no use for disk={disk!r}: it keeps nothing there; "
                "choose strategy='packed' or 'belady', or leave the option out"
            )
        if not plans:
            if superbatch is not None or tmpdir is not None:
                name = "superbatch" if superbatch is not None else "tmpdir"
                value = superbatch if superbatch is not None else tmpdir
                raise UsageError(
                    f"strategy={strategy!r} has no use for {name}={value!r}: it plans no "
                    "superbatches; choose strategy='belady', or leave the option out"
                )
            return None
        if superbatch == "auto":
            superbatch = None
        if superbatch is not None:
            num_batches = as_whole_number(superbatch)
            if num_batches is None or num_batches < 1:
                raise UsageError(
                    f"superbatch={superbatch!r}: expected a number of batches, at least 1, or "
                    "'auto'"
                )
            superbatch = num_batches
        num_bytes = None if cache_bytes is None else parse_size(cache_bytes, name="cache_bytes")
        return cls(
            num_bytes,
            superbatch,
            None if tmpdir is None else str(tmpdir),
            None if disk is None else parse_size(disk, name="disk"),
        )
