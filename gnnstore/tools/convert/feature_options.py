"""Options of the kinds whose features may lie in files of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from gnnstore.converters.arrays.files import RawLayout
from gnnstore.errors import UsageError


class RawLayoutType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """What raw binary files hold: "float32,-1,128"."""

    name = "layout"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> RawLayout:
        """Return the layout, or fail as click does for a bad option."""
        if isinstance(value, RawLayout):
            return value
        try:
            return RawLayout.parse(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


def _or_none(
    _ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...] | None:
    return value or None


def feature_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name files of features to a command."""
    options = (
        click.option(
            "--features",
            multiple=True,
            type=click.Path(),
            callback=_or_none,
            metavar="FILE",
            help="Node features [N, F]: .npy, FILE.npz:NAME, .csv or raw. Repeat it, or give a "
            "quoted pattern, for several files one behind the other.",
        ),
        click.option(
            "--features-raw",
            type=RawLayoutType(),
            metavar="TYPE,ROWS,WIDTH",
            help="The features are raw binary of this type and shape; ROWS -1: what there is.",
        ),
        click.option(
            "--features-ids",
            type=click.Path(),
            metavar="FILE",
            help="The id of each row of the features, if they are in another order: .npy or .csv.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
