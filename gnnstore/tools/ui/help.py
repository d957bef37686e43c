"""Help in sections, and suggestions for mistyped commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

# Title of options that are in no section; and of those that all commands have.
_MAIN, GENERAL = "Options", "General"


def together(*options: Decorator) -> Decorator:
    """Return a decorator that adds several options or arguments to a command, in this order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def section(title: str, *options: Decorator) -> Decorator:
    """Return a decorator that adds options, which help lists under a title."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        before = list(getattr(command, "__click_params__", ()))
        command = together(*options)(command)
        for param in command.__click_params__:  # type: ignore[attr-defined]
            if param not in before and not hasattr(param, "section"):  # not in an inner one
                param.section = title
        return command

    return add


class Command(click.Command):
    """A command whose help has its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        _write_options(self.get_params(ctx), ctx, formatter)


class Group(click.Group):
    """A group that suggests a name for a mistyped one."""

    noun = "command"

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named first, or fail with the names that are like it."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            from difflib import get_close_matches  # noqa: PLC0415 - for errors only

            known = self.names(ctx)
            is_path = "." in name or "/" in name  # of an input, without its kind
            found = [] if is_path else get_close_matches(name.lower(), known)
            advice = f"Did you mean {' or '.join(found)}?" if found else f"Choose {_any_of(known)}."
            raise click.UsageError(f"No such {self.noun} {name!r}. {advice}", ctx)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, and then the options."""
        self.format_commands(ctx, formatter)
        _write_options(self.get_params(ctx), ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a sentence about each command."""
        found = [(name, each.get_short_help_str(limit=200)) for name, each in self._shown(ctx)]
        with formatter.section(f"{self.noun.capitalize()}s"):
            formatter.write_dl(found)

    def names(self, ctx: click.Context) -> list[str]:
        """Return the names to choose from."""
        return [name for name, _ in self._shown(ctx)]

    def _shown(self, ctx: click.Context) -> list[tuple[str, click.Command]]:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [(name, each) for name, each in found if each is not None and not each.hidden]


def _any_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _write_options(
    params: Sequence[click.Parameter], ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    sections: dict[str, list[tuple[str, str]]] = {_MAIN: []}
    general: list[tuple[str, str]] = []
    for param in params:
        if isinstance(param, click.Argument) or (record := param.get_help_record(ctx)) is None:
            continue
        title = GENERAL if "--help" in param.opts else getattr(param, "section", _MAIN)
        records = general if title == GENERAL else sections.setdefault(title, [])
        records.append(record)
    for title, records in [*sections.items(), (GENERAL, general)]:
        if records:
            with formatter.section(title):
                formatter.write_dl(records)
