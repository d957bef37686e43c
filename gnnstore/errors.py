"""The error tree: one root, grouped by what the user can do about it.

Every error that gnnstore raises on purpose derives from `GnnstoreError` and, where one
fits, from the builtin that callers already catch (`ValueError`, `FileNotFoundError`,
`OSError`). A message says what failed, where, what was expected and what was found, and
what to do next. Each class carries the exit status that the command line returns for it.
"""

from __future__ import annotations

import errno
import inspect
import operator
import os
import resource
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, SupportsIndex, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


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
        return (partial(type(self), path=self.path, offset=self.offset), (self.message,))


class UsageError(GnnstoreError, ValueError):
    """An argument or a combination of arguments makes no sense; change the call."""

    exit_status = 2


class UnknownOptionError(UsageError, TypeError):
    """A function was given a keyword argument that it does not take."""


class BudgetError(UsageError):
    """A memory or disk budget is too small for the request; the message has the missing bytes.

    Attributes
    ----------
    missing_bytes : int or None
        Bytes by which to raise the budget at least; None where only the message names a remedy.
    needed_bytes : int or None
        The budget that suffices, in bytes; None where only the message has it.
    """

    missing_bytes: int | None = None
    needed_bytes: int | None = None


class DiskBudgetError(BudgetError):
    """Files would take more than `disk=` allows."""


class InputError(GnnstoreError, ValueError):
    """The data to convert or to sample from is wrong: the message names the file and place."""


class BadIndexError(UsageError, InputError, IndexError):
    """An index into an array is out of range, or of a kind that the array does not take."""


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


class ReplacedError(StorageError):
    """Another directory is in the place of one that was opened: work with it cannot be resumed."""


class NoSpaceError(StorageError):
    """The file system has no room for the data to be written."""


class ResourceError(StorageError):
    """The process met a limit on memory, open files or threads; the message names it."""


# By errno: the resource that is short, its limit, and the remedy.
_LIMITS = {
    errno.EMFILE: ("open files", resource.RLIMIT_NOFILE, "raise the limit (ulimit -n)"),
    errno.EAGAIN: (
        "threads",
        resource.RLIMIT_NPROC,
        "raise the limit (ulimit -u, or the container's), or use fewer (num_threads=)",
    ),
    errno.ENOMEM: (
        "memory",
        resource.RLIMIT_AS,
        "raise the limit (ulimit -v, or the container's), or use less (memory=)",
    ),
    errno.ENFILE: ("open files", None, "the whole system has no more; raise fs.file-max"),
}


def resource_error(
    error: BaseException, doing: str, path: str | os.PathLike[str] | None = None
) -> ResourceError | None:
    """Return a `ResourceError` for an error that reports a limit of the process; else None."""
    code = _code_of(error)
    if code not in _LIMITS:
        return None
    what, kind, remedy = _LIMITS[code]
    limit = resource.RLIM_INFINITY if kind is None else resource.getrlimit(kind)[0]
    unit = " bytes of address space" if kind == resource.RLIMIT_AS else f" {what}"
    met = "" if limit == resource.RLIM_INFINITY else f": the limit of this process is {limit}{unit}"
    reason = str(error) or type(error).__name__
    where = "" if path is None else f"{os.fspath(path)}: "
    found = ResourceError(
        f"cannot {doing}: {where}not enough {what} ({reason}){met}; {remedy}", path=path
    )
    found.errno = code
    for note in getattr(error, "__notes__", ()):
        found.add_note(note)
    return found


def described(error: BaseException) -> str:
    """Return the kind of an error of any library, and its message if it has one."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _code_of(error: BaseException) -> int | None:
    """Return the errno of an error that is about a resource; else None."""
    text = str(error)
    if isinstance(error, GnnstoreError):
        return None
    if isinstance(error, OSError):
        return error.errno if error.errno != errno.EAGAIN or "thread" in text else None
    # Python and torch report these by their text only.
    if isinstance(error, RuntimeError) and "can't start new thread" in text:
        return errno.EAGAIN
    of_torch = isinstance(error, RuntimeError) and "can't allocate memory" in text
    return errno.ENOMEM if of_torch or isinstance(error, MemoryError) else None


@contextmanager
def limits_named(doing: str) -> Iterator[None]:
    """Raise an error about a limit of the process as a `ResourceError`; also a decorator."""
    try:
        yield
    except BaseException as error:
        if (found := resource_error(error, doing)) is None:
            raise
        raise found from error


def as_whole_number(value: object) -> int | None:
    """Return a whole number of Python, NumPy or torch as an int; None for other values."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except (TypeError, ValueError):  # arrays only look like one
        return None


def whole_number(name: str, value: SupportsIndex) -> int:
    """Return an option that is a whole number, as an int."""
    if (number := as_whole_number(value)) is None:
        raise UsageError(f"{name}={value!r} is not a whole number")
    return number


def as_plain(value: Any) -> Any:
    """Return a number or truth value of NumPy or torch as Python's own; other values unchanged."""
    try:
        return value.item() if hasattr(value, "item") else value
    except (TypeError, ValueError, RuntimeError):  # arrays of several
        return value


def checked_path(name: str, path: Any) -> Path:
    """Return a path that a user gives, or refuse what is none."""
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"{name} has the type {type(path).__name__}; expected a path")
    if "\0" in str(path):
        raise UsageError(f"{name}={str(path)!r} has a null byte, which paths do not have")
    return Path(path)


def truth(name: str, value: object) -> bool:
    """Return an option that is True or False, or equals True or False, as a bool."""
    found = as_plain(value)
    if not isinstance(found, int | float) or found not in (0, 1):
        raise UsageError(f"{name}={value!r} is neither True nor False")
    return bool(found)


def likely(name: object, names: Iterable[object], most: int = 1) -> list[Any]:
    """Return the names, texts or tuples of texts, that a misspelt one is most like."""
    from difflib import get_close_matches  # noqa: PLC0415 - for errors only

    def text(each: object) -> str:
        return "__".join(map(str, each)) if isinstance(each, tuple) else str(each)

    by_text = {text(each).lower(): each for each in names}
    return [by_text[each] for each in get_close_matches(text(name).lower(), by_text, most)]


def did_you_mean(name: object, names: Iterable[object]) -> str:
    """Return a question to follow a name that is not among some; "" if it is like none."""
    return "".join(f" (did you mean {each!r}?)" for each in likely(name, names))


def refuse_unknown(who: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise UnknownOptionError if a name among some given ones is not known."""
    for name in given:
        if name not in known:
            raise UnknownOptionError(f"{who} has no option {name!r}{did_you_mean(name, known)}")


def known_options(function: Callable[P, T]) -> Callable[P, T]:
    """Refuse keyword arguments that a function does not take; a decorator."""
    known = inspect.signature(function).parameters

    @wraps(function)
    def with_known(*args: P.args, **kwargs: P.kwargs) -> T:
        refuse_unknown(function.__name__, kwargs, known)
        return function(*args, **kwargs)

    return with_known


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise UsageError unless an option has one of its possible values."""
    if not isinstance(value, str) or value not in tuple(choices):
        raise UsageError(
            f"{name}={value!r} is unknown; choose one of {', '.join(choices)}"
            f"{did_you_mean(value, choices)}"
        )


def storage_error(error: OSError, doing: str, path: str | os.PathLike[str]) -> StorageError:
    """Return an `OSError` of the operating system as a `StorageError` with place and remedy."""
    where = os.fspath(path)
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(
            f"cannot {doing}: no space left for {where} ({reason}). "
            "Free some space or choose an output on another file system; "
            "nothing was left under the final name.",
            path=where,
        )
    found = resource_error(error, doing, where)
    return found or StorageError(f"cannot {doing}: {where}: {reason}", path=where)


@contextmanager
def storage_errors(doing: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise errors of the operating system as `storage_error` does; pass on gnnstore's own."""
    try:
        yield
    except OSError as error:
        if isinstance(error, GnnstoreError):
            raise
        raise storage_error(error, doing, path) from error
