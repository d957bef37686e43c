"""Options of the commands that sample batches as a loader would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


class FanoutsType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """Fan-outs as in "10,10,10"."""

    name = "fanouts"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the fan-outs, or fail as click does for a bad option."""
        try:
            fanouts = tuple(int(part) for part in value.split(","))
        except ValueError:
            fanouts = (-2,)
        if min(fanouts) < -1:
            self.fail(
                f"{value!r} is no list of fan-outs; write one number a hop, -1 for all "
                "neighbours, as in 10,10,10",
                param,
                ctx,
            )
        return fanouts


def batch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add fan-outs, batch size and input nodes to a command."""
    options = (
        click.option(
            "--num-neighbors",
            "fanouts",
            type=FanoutsType(),
            metavar="N,N,...",
            default="10,10,10",
            show_default=True,
            help="Fan-out of each hop; -1 takes all neighbours.",
        ),
        click.option(
            "--batch-size",
            type=click.IntRange(min=1),
            default=1024,
            show_default=True,
            help="Seed nodes of a batch.",
        ),
        click.option(
            "--input-nodes",
            metavar="SPLIT",
            help='Where batches start; "all" for all nodes. Default: the split "train", if '
            "there is one.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
