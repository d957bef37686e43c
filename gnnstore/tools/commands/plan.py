"""`gnnstore plan`: how well caches of several sizes and kinds would do on a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnnstore.errors import UsageError
from gnnstore.strategies.builtin import auto
from gnnstore.tools.ui.batch_options import batch_options
from gnnstore.tools.ui.options import MEMORY, SIZE, session_options
from gnnstore.tools.ui.session import Session
from gnnstore.units import parse_size

_HELP = """Compare strategies and caches for training on STORE, before training.

Predicts what an epoch takes by each strategy of a loader, within --memory and --disk: time, reads
and bytes, memory and disk, and which stage is the longest. Marks what strategy="auto" takes. The
disk is measured first, for three seconds, unless it was.

Then samples the first batches of an epoch, as a loader would, and runs five caches over them:
static ones by out-degree and by frequency in sampled batches, LRU and SIEVE, and Belady's, which
knows the batches and has the fewest misses there can be.

\b
Examples:
  gnnstore plan papers100M.gnn --memory 16GB --disk 100GB
  gnnstore plan papers100M.gnn --num-neighbors 15,10 --cache 4GiB,16GiB --batches 200
  gnnstore plan papers100M.gnn --plot misses.png
"""


class StrategiesType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """Candidates as in "belady,packed"; the name of a strategy stands for all of its scores."""

    name = "strategies"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Return the names of candidates, in their usual order, or fail as click does."""
        if isinstance(value, tuple):
            return value
        named = {text.strip() for text in value.split(",")}
        candidates = auto().candidates
        scored = {found.name: found.strategy.name for found in candidates if found.score}
        named |= {name for name, strategy in scored.items() if strategy in named}
        names = [found.name for found in candidates]
        if unknown := ", ".join(sorted(named - {*names, *scored.values()})):
            self.fail(
                f"{unknown!r} is no strategy that is predicted; choose some of "
                f"{', '.join(dict.fromkeys((*scored.values(), *names)))}",
                param,
                ctx,
            )
        return tuple(name for name in names if name in named)


class CachesType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """Cache sizes as in "5%,10%,2GiB": shares of the rows as text, else bytes."""

    name = "caches"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float | int, ...]:
        """Return shares (float, of 1) and bytes (int), or fail as click does."""
        try:
            return tuple(_cache_size(text.strip()) for text in value.split(","))
        except (UsageError, ValueError):
            self.fail(
                f"{value!r} is no list of cache sizes; write shares of the rows from 0% to 100%, "
                "or bytes, as in 5%,10%,512MiB",
                param,
                ctx,
            )


def _cache_size(text: str) -> float | int:
    if not text.endswith("%"):
        return parse_size(text, name="--cache")
    share = float(text[:-1]) / 100
    if not 0 <= share <= 1:
        raise ValueError
    return share


@click.command(name="plan", help=_HELP)
@click.argument("store", type=click.Path())
@batch_options
@click.option(
    "--memory",
    "memory_bytes",
    type=MEMORY,
    metavar="SIZE",
    help="Budget of a loader, as of its memory=. Default: what this machine has free.",
)
@click.option(
    "--disk",
    "disk_bytes",
    type=SIZE,
    help="Budget beside the store, as of disk=. Default: half of what is free there.",
)
@click.option(
    "--strategies",
    "strategies",
    type=StrategiesType(),
    metavar="NAME,NAME,...",
    default=lambda: ",".join(found.name for found in auto().candidates),
    help=(
        f"What to predict: some of {', '.join(found.name for found in auto().candidates)}; plan is "
        "what gnnstore pack makes. Default: everything."
    ),
)
@click.option(
    "--batches",
    "num_batches",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Batches to sample: an epoch at most.",
)
@click.option(
    "--cache",
    "caches",
    type=CachesType(),
    metavar="SIZE,SIZE,...",
    help="Cache sizes: shares of the rows, or bytes. Default: 5%,10%,20%; more with --plot.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the batches."
)
@click.option(
    "--threads", type=click.IntRange(min=1), help="Threads that sample; default: all processors."
)
@click.option(
    "--plot", type=click.Path(dir_okay=False), metavar="FILE.png", help="Draw misses, and times."
)
@session_options
def command(session: Session, store: str, plot: str | None, **options: Any) -> int:
    """Sample, compare, draw, print, and return the exit status."""
    # On demand: torch and the kernels take longer to load than --help may.
    from gnnstore.tools.plan.caches import plan_caches  # noqa: PLC0415

    return plan_caches(session, store, plot_file=None if plot is None else Path(plot), **options)
