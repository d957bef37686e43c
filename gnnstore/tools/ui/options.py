"""Options that several commands share, and the parameter types behind them.

One place decides what `--json` or a size like "8GB" means, so that no two commands differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from gnnstore.budget.limits import parse_memory
from gnnstore.errors import UsageError
from gnnstore.tools.ui.session import Session
from gnnstore.units import parse_size


class SizeType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A number of bytes, written as a person would: 4096, "512MiB", "8GB"."""

    name = "size"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """Return the bytes, or fail as click does for a bad option."""
        try:
            return parse_size(value, name=param.opts[0] if param and param.opts else "size")
        except UsageError as error:
            self.fail(str(error), param, ctx)


class MemoryType(SizeType):
    """A budget of memory, which the container of this process allows."""

    name = "memory"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """Return the bytes; a BudgetError says what the container allows."""
        name = param.opts[0] if param and param.opts else self.name
        num_bytes = super().convert(value, param, ctx)
        return None if num_bytes is None else parse_memory(value, name=name)


SIZE, MEMORY = SizeType(), MemoryType()

# (flags, field of Session, help)
_SESSION_FLAGS = (
    (("--json",), "as_json", "Print one JSON document on stdout."),
    (("-q", "--quiet"), "quiet", "Show no progress on stderr."),
    (("--debug",), "debug", "Show a traceback with an error (also GNNSTORE_DEBUG=1)."),
)


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json, --quiet and --debug to a command, and hand it the `Session` first."""
    command = click.pass_obj(command)
    for flags, field, text in reversed(_SESSION_FLAGS):
        command = click.option(
            *flags,
            is_flag=True,
            is_eager=True,  # so that a bad value of another option is reported in kind
            expose_value=False,
            callback=_setter(field),
            help=text,
        )(command)
    return command


def _setter(field: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def remember(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        session = ctx.find_object(Session)
        if value and session is not None:
            setattr(session, field, True)

    return remember
