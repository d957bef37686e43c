"""The error tree: builtin bases, exit statuses, places, and survival of pickling."""

from __future__ import annotations

import errno
import inspect
import pickle
from collections.abc import Collection
from pathlib import Path

import pytest

from gnnstore import errors
from gnnstore.errors import (
    GnnstoreError,
    NoSpaceError,
    StorageError,
    UsageError,
    check_choice,
    storage_error,
)

CLASSES = sorted(
    (
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, GnnstoreError)
    ),
    key=lambda cls: cls.__name__,
)


@pytest.mark.parametrize(
    ("cls", "builtin", "exit_status"),
    [
        (errors.UsageError, ValueError, 2),
        (errors.BudgetError, ValueError, 2),
        (errors.InputError, ValueError, 1),
        (errors.NotFoundError, FileNotFoundError, 3),
        (errors.StoreExistsError, FileExistsError, 2),
        (errors.UnsupportedVersionError, GnnstoreError, 4),
        (errors.CorruptStoreError, ValueError, 1),
        (errors.StorageError, OSError, 5),
        (errors.NoSpaceError, OSError, 5),
        (errors.ResourceError, OSError, 5),
    ],
)
def test_bases_and_exit_status(
    cls: type[GnnstoreError], builtin: type[Exception], exit_status: int
) -> None:
    assert issubclass(cls, builtin)
    assert cls.exit_status == exit_status


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_text_place_and_pickling(cls: type[GnnstoreError]) -> None:
    error = cls("what, where, what to do", path=Path("a/b"), offset=4096)
    for copy in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own bytes
        assert type(copy) is cls
        assert str(copy) == "what, where, what to do"
        assert (copy.path, copy.offset) == ("a/b", 4096)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_is_an_error_of_its_own(number: int) -> None:
    error = storage_error(OSError(number, "No space left on device"), "write 'x'", "out.gnn")
    assert isinstance(error, NoSpaceError)
    assert str(error).startswith("cannot write 'x': no space left for out.gnn")
    assert "nothing was left under the final name" in str(error)


def test_other_refusals_keep_the_reason_of_the_system() -> None:
    error = storage_error(PermissionError(errno.EACCES, "Permission denied"), "read", "a.gnn")
    assert type(error) is StorageError
    assert str(error) == "cannot read: a.gnn: Permission denied"
    assert error.path == "a.gnn"


def test_a_reason_without_a_number_is_kept_too() -> None:
    assert str(storage_error(OSError("short read"), "read", "a")) == "cannot read: a: short read"


@pytest.mark.parametrize("choices", [("a", "b"), {"a": 1, "b": 2}])
@pytest.mark.parametrize("value", ["c", "", None, 3, [], {}])
def test_a_value_that_is_unknown_is_refused(value: object, choices: Collection[str]) -> None:
    check_choice("option", "b", choices)
    with pytest.raises(UsageError, match="is unknown; choose one of a, b"):
        check_choice("option", value, choices)
