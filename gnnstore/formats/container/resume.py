"""Going on with an interrupted store: whether that is possible, and what to say about it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gnnstore.errors import NotFoundError, StorageError, StoreExistsError, UsageError
from gnnstore.formats.container.files import directory_bytes, free_bytes
from gnnstore.formats.container.journal import Journal
from gnnstore.formats.container.journal_file import JOURNAL_FILE, read_records
from gnnstore.formats.container.transaction import DirectoryTransaction
from gnnstore.units import format_size

_MAX_DIFFERENCES = 3  # named in a message


def can_continue(fingerprint: Mapping[str, Any], directory: Path) -> bool:
    """Whether an attempt with this fingerprint may go on in a directory that one left.

    Returns
    -------
    bool
        False if nothing in it is of use.

    Raises
    ------
    UsageError
        If it was left by an attempt with other data or options: what is in it may be worth
        hours, so it is not for us to remove.
    """
    records, _ = read_records(directory / JOURNAL_FILE)
    if not records or not Journal(directory, records).has_work:
        return False
    found = list(differences(records[0]["fingerprint"], fingerprint))
    if not found:
        return True
    shown = "; ".join(found[:_MAX_DIFFERENCES])
    more = len(found) - _MAX_DIFFERENCES
    raise UsageError(
        f"{directory}: the interrupted conversion there cannot be continued, since it is another "
        f"one: {shown}{f'; and {more} more' if more > 0 else ''}. Repeat the command that was "
        "interrupted, or leave --resume (resume=True) out to remove it and start anew",
        path=directory,
    )


def differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """Yield in words where two JSON values differ."""
    if isinstance(before, dict) and isinstance(now, Mapping):
        for key in sorted(before.keys() | now.keys()):
            place = f"{name}.{key}" if name else str(key)
            yield from differences(before.get(key), now.get(key), place)
    elif isinstance(before, list) and isinstance(now, list | tuple) and len(before) == len(now):
        for number, values in enumerate(zip(before, now, strict=True)):
            yield from differences(*values, f"{name}[{number}]")
    elif before != (list(now) if isinstance(now, tuple) else now):
        yield f"{name} was {before!r} and is {now!r} now"


def open_journal(transaction: DirectoryTransaction, fingerprint: Mapping[str, Any]) -> Journal:
    """Return the journal of the directory of a transaction: the one in it, or a new one.

    Raises
    ------
    StorageError
        If the operating system refuses.
    """
    journal = Journal.reopen(transaction.path) if transaction.adopted else None
    if journal is None:
        return Journal.create(transaction.path, fingerprint)
    remove_unfinished(journal)
    return journal


def remove_unfinished(journal: Journal) -> None:
    """Delete every file that no record speaks for, and the directories that are empty then."""
    kept = journal.kept_files()
    for place in (journal.directory, *journal.spill_directories[1:]):
        for root, _, names in os.walk(place, topdown=False):
            for name in names:
                if Path(root, name) not in kept:
                    Path(root, name).unlink(missing_ok=True)
            if Path(root) != journal.directory and not any(Path(root).iterdir()):
                Path(root).rmdir()


def describe_start(transaction: DirectoryTransaction) -> str:
    """Return a sentence on where a resumed conversion begins."""
    if not transaction.adopted:
        return f"nothing to resume for {transaction.final}: starting from the beginning"
    size = format_size(directory_bytes(transaction.path))
    return f"resuming with the {size} that an interrupted conversion finished in {transaction.path}"


def is_resumable_error(error: BaseException) -> bool:
    """Whether an error says nothing against the data, so that a later attempt may succeed."""
    if isinstance(error, NotFoundError | StoreExistsError):
        return False
    return isinstance(error, StorageError | OSError | MemoryError | KeyboardInterrupt)


def describe_missing(directory: Path, needed_bytes: int) -> str:
    """Return how much space is missing in the file system of a directory; "" if none is.

    Parameters
    ----------
    needed_bytes : int
        Bytes that the arrays begun so far still need.
    """
    free = free_bytes(directory)
    if needed_bytes <= free:
        return ""
    return (
        f"At least {format_size(needed_bytes)} more are needed and {format_size(free)} are free: "
        f"{format_size(needed_bytes - free)} are missing."
    )


def describe_kept(directory: Path) -> str:
    """Return what to do about a conversion that stopped and can go on."""
    return (
        f"What was finished ({format_size(directory_bytes(directory))}) is kept in {directory}: "
        "repeat the command with --resume (resume=True) to go on; 'gnnstore gc' removes it."
    )
