"""The error tree: one root, grouped by what the user can do about it.

Every error that gnnstore raises on purpose derives from `GnnstoreError` and, where one
fits, from the builtin that callers already catch (`ValueError`, `FileNotFoundError`,
`OSError`). A message says what failed, where, what was expected and what was found, and
what to do next. Each class carries the exit status that the command line returns for it.
"""

from __future__ import annotations

import errno
import os
from typing import Any


class GnnstoreError(Exception):
    """Root of all errors raised by gnnstore.

    Attributes
    ----------
    path : str or None
        The file or directory concerned, where there is one.
    offset : int or None
        Byte offset in that file, where one applies.
    exit_status : int
        Exit status of the command line for this kind of error.
    """

    exit_status = 1

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else os.fspath(path)
        self.offset = offset

    def __str__(self) -> str:
        # OSError subclasses would otherwise print "[Errno ...]" forms.
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.path, self.offset))


def _rebuild(
    kind: type[GnnstoreError], message: str, path: str | None, offset: int | None
) -> GnnstoreError:
    return kind(message, path=path, offset=offset)


class UsageError(GnnstoreError, ValueError):
    """An argument or a combination of arguments makes no sense; change the call."""

    exit_status = 2


class BudgetError(UsageError):
    """A memory or disk budget is too small for what was asked; the message says by how much.

    Attributes
    ----------
    missing_bytes : int or None
        Bytes by which to raise the budget at least; None where the message alone says what to do.
    """

    missing_bytes: int | None = None


class DiskBudgetError(BudgetError):
    """Files would take more than `disk=` allows."""


class InputError(GnnstoreError, ValueError):
    """The data to convert or to sample from is wrong: the message names the file and place."""


class BadIndexError(UsageError, InputError, IndexError):
    """An index into an array is out of range, or of a kind that it does not take."""


class NotFoundError(GnnstoreError, FileNotFoundError):
    """A file, store, array or split that was named does not exist."""

    exit_status = 3


class NoSplitError(NotFoundError, KeyError):
    """A store has no split of the name that was given."""


class StoreExistsError(GnnstoreError, FileExistsError):
    """The output exists and overwriting was not asked for."""

    exit_status = 2


class UnsupportedVersionError(GnnstoreError):
    """The store needs a newer gnnstore than this one."""

    exit_status = 4


class CorruptStoreError(GnnstoreError, ValueError):
    """A store's bytes are not what its manifest promises, or its metadata is malformed."""


class StorageError(GnnstoreError, OSError):
    """The operating system refused a read or a write."""

    exit_status = 5


class NoSpaceError(StorageError):
    """The file system has no room for what is to be written."""


def storage_error(error: OSError, doing: str, path: str | os.PathLike[str]) -> StorageError:
    """Turn an `OSError` of the operating system into ours, with the place and the remedy.

    Parameters
    ----------
    error : OSError
        What the operating system said.
    doing : str
        What was being done, as in "write the array 'x'".
    path : path-like
        The file or directory it was done to.
    """
    where = os.fspath(path)
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(
            f"cannot {doing}: no space left for {where} ({reason}). "
            "Free some space or choose an output on another file system; "
            "nothing was left under the final name.",
            path=where,
        )
    return StorageError(f"cannot {doing}: {where}: {reason}", path=where)
