"""Options of the commands: lists of options as text, types of values, and shared options.

Help has options in sections, and suggests names for mistyped commands.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from gnnstore.budget.limits import parse_memory
from gnnstore.errors import BudgetError, UsageError, likely
from gnnstore.tools.session import Session
from gnnstore.units import parse_share, parse_size

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


# By argument: what to give.
_MISSING = {
    "store": "Give the path of a store; 'gnnstore convert' makes one.",
    "output": "Give the path of the store to write, such as graph.gnn.",
    "input": "Give the path of the data to convert.",
}


class Command(click.Command):
    """A command with its options in sections, which names a missing argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; add to an error about a missing one what to give."""
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            name = None if error.param is None else error.param.name
            if (what := _MISSING.get(name or "")) is None:
                raise
            raise click.MissingParameter(what, error.ctx, error.param) from None

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
        is_wrong = not name.startswith("-") and self.get_command(ctx, name) is None
        if is_wrong and not ctx.resilient_parsing:  # else completion by the Tab key
            known = self.list_commands(ctx)
            commands = ctx.find_root().command
            advice = self.advice(args)
            if isinstance(commands, click.Group) and name in commands.list_commands(ctx):
                advice = f"It is a command of its own: gnnstore {name}."
            if not advice:
                is_path = "." in name or "/" in name
                found = [] if is_path else likely(name, known, most=3)
                advice = f"Did you mean {' or '.join(found)}?"
                if not found:
                    advice = f"Choose {', '.join(known[:-1])} or {known[-1]}."
            raise click.UsageError(f"No such {self.noun} {name!r}. {advice}", ctx)
        return super().resolve_command(ctx, args)

    def advice(self, words: Sequence[str]) -> str:  # noqa: ARG002 - of other groups
        """Return what to do where no command is named, better than names like it; or nothing."""
        return ""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, and then the options."""
        self.format_commands(ctx, formatter)
        _write_options(self.get_params(ctx), ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a sentence about each command."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section(f"{self.noun.capitalize()}s"):
            formatter.write_dl([(n, each.get_short_help_str(200)) for n, each in found if each])


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


# Memory that `gnnstore bench load` leaves to a loader: a share of the store's bytes, and bytes.
LOADER_SHARE, SLACK_BYTES = 0.1, 200_000_000

# By hop; or by edge type, and then by hop, as "author__writes__paper".
Fanouts = tuple[int, ...] | Mapping[str, tuple[int, ...]]


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A type of option whose text is parsed by a function of text and option."""

    name = "value"

    def __init__(self, parse: Callable[[str, str], Any]) -> None:
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed value, or fail as click does for a bad option."""
        if not isinstance(value, str):  # a default
            return value
        try:
            return self._parse(value, param.opts[0] if param and param.opts else self.name)
        except BudgetError:  # well written, but more than the container allows
            raise
        except UsageError as error:
            self.fail(str(error), param, ctx)


class Pairs(Parsed):
    """A type of option that is given several times, and whose pairs become a dictionary."""


def parse_share_or_size(text: str, name: str) -> float | int:
    """Return a share as in "10%" as a float (of 1), and anything else as a number of bytes."""
    share = parse_share(text, name=name)
    if share is not None and share > 1:
        raise UsageError(f"{text!r} is more than all rows; write a share up to 100%, or a size")
    return parse_size(text, name=name) if share is None else share


def _parse_fanouts(text: str, _: str) -> Fanouts:
    if "=" in text:
        parts = (part.partition("=") for part in text.split(";"))
        return {name.strip(): _parse_hops(hops) for name, _, hops in parts}
    return _parse_hops(text)


def _parse_hops(text: str) -> tuple[int, ...]:
    try:
        fanouts = tuple(int(part) for part in text.split(","))
    except ValueError:
        fanouts = (-2,)
    if min(fanouts) < -1:
        raise UsageError(
            f"{text!r} is not a list of fan-outs; write a number for each hop, -1 for all "
            "neighbours, as in 10,10, or such a list for each edge type, as in "
            "'author__writes__paper=10,5;paper__cites__paper=10,10'"
        )
    return fanouts


def _parse_shares(text: str, _: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"{text!r} is not a list of shares; write numbers with commas, as in 0.8,0.1,0.1"
        ) from None


# A number of bytes with a unit; and one that the container of this process must allow.
SIZE = Parsed(lambda text, name: parse_size(text, name=name))
MEMORY = Parsed(lambda text, name: parse_memory(text, name=name))


def _parse_budget(text: str, name: str) -> int | str:
    """Return a budget in bytes, and a share of a store as it is, once it is known to be one."""
    return parse_memory(text, name=name) if parse_share(text, name=name) is None else text


BUDGET = Parsed(_parse_budget)


class Whole(click.IntRange):
    """Whole numbers of a range."""

    name = "whole number"  # for click's messages


class Number(click.FloatRange):
    """Numbers of a range."""

    name = "number"


NAMES = Parsed(lambda text, _: tuple(name.strip() for name in text.split(",")))
_PATH = click.Path()
# By the value's word in a list of options: its type, and its word in help.
_VALUES: dict[str, tuple[Any, str | None]] = {
    "N": (int, "N"),
    "X": (float, "X"),
    "N>=0": (Whole(min=0), "N"),
    "N>=1": (Whole(min=1), "N"),
    "SIZE": (SIZE, "SIZE"),
    "MEMORY": (MEMORY, "SIZE"),
    "BUDGET": (BUDGET, "SIZE|N%"),
    "F,F,F": (Parsed(_parse_shares), "F,F,F"),
    "PATH": (_PATH, "PATH"),
    "DIR": (_PATH, "DIR"),
    "FILE": (_PATH, "FILE"),
    "FILE.npy": (_PATH, "FILE.npy"),
    "FILE.npz": (_PATH, "FILE.npz"),
}


# Flags, the value, "-> parameter", and "= default".
_OPTION = re.compile(r"(-\S+(?:, -\S+)*)(?: ([^-=\s]\S*))?(?: -> (\w+))?(?: = (\S+))?")


def declared(text: str, of: Callable[..., Any] | None = None, **types: Any) -> Decorator:
    """Return the options in a text, with the defaults of a Python function's parameters.

    A line has the flags; the value (none for a flag; `N`, `SIZE`, `FILE`, ...; choices as `a|b`;
    `*` after it for several); `-> parameter`; `= default`; and after two spaces the help, which may
    go on in lines with more indentation. Other lines are titles of sections. `types` are the
    types of other values, by parameter.
    """
    parameters = {} if of is None else inspect.signature(of).parameters
    title, found = "", list[tuple[str, str, list[str]]]()
    for line in filter(None, text.splitlines()):
        if not line.startswith(" "):
            title = line
        elif line.startswith("  -"):
            head, _, first = line[2:].partition("  ")
            found.append((title, head, [first.strip()]))
        else:
            found[-1][2].append(line.strip())
    options = []
    for title, head, lines in found:
        option = _option(head, " ".join(lines).strip(), parameters, types)
        options.append(section(title, option) if title else option)
    return together(*options)


def _option(
    head: str,
    text: str,
    parameters: Mapping[str, inspect.Parameter],
    types: Mapping[str, Any],
) -> Decorator:
    match = _OPTION.fullmatch(head)
    if match is None:
        raise ValueError(f"{head!r} is not an option")
    flags, value = match[1].split(", "), match[2] or ""
    name = match[3] or flags[-1].partition("/")[0].lstrip("-").replace("-", "_")
    default: Any = match[4]
    parameter = parameters.get(name)
    required = parameter is not None and parameter.default is inspect.Parameter.empty
    if parameter is not None and default is None and not required:
        default = parameter.default
    settings: dict[str, Any] = {"help": text, "required": required}
    if not value:
        settings["is_flag"] = True
        if "/" not in flags[-1] and default is True:  # --no-SOMETHING
            settings |= {"flag_value": False, "show_default": False}
        elif "/" not in flags[-1]:
            default = False
    else:
        word = value.rstrip("*")
        kind, shown = _VALUES.get(word, (str, word))
        if "|" in word and name not in types:
            kind, shown = click.Choice(word.split("|")), None
        settings |= {"type": types.get(name, kind), "metavar": shown}
    if value.endswith("*"):
        none = () if parameter is None or required else default
        settings |= {"multiple": True, "callback": _several(none)}
        default = None
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    given = {} if default is None and value else {"default": default}
    return click.option(*flags, name, **given, **settings)


def _several(default: Any) -> Callable[..., Any]:
    """Return a callback that makes of the values a dictionary, or what stands for none."""

    def given(_ctx: click.Context, param: click.Parameter, values: tuple[Any, ...]) -> Any:
        if not isinstance(param.type, Pairs):
            return values or default
        if len(found := dict(values)) < len(values):
            raise UsageError(f"{param.opts[0]}: a name is there twice; give each once")
        return found

    return given


def plot_option(help_text: str) -> Decorator:
    """Return the option `--plot`, as `plot_file`; it is first checked that a plot can be drawn."""

    def check(_ctx: click.Context, _param: click.Parameter, file: Path | None) -> Path | None:
        if file is not None:
            from gnnstore.pictures import check_picture  # noqa: PLC0415 - optional

            check_picture(file)
        return file

    kind = click.Path(dir_okay=False, path_type=Path)
    options: dict[str, Any] = {"metavar": "FILE.png", "callback": check, "help": help_text}
    return click.option("--plot", "plot_file", type=kind, **options)


# Options of the same names as a loader's: of sampling, and of `LinkNeighborLoader`.
_OF_SAMPLING = ("time_attr", "temporal_strategy", "time_window", "weight_attr")
_OF_LINKS = (
    *("neg_sampling", "neg_side", "negative_chunks"),
    *("degree_fraction", "strict_negatives", "exclude_edges", "reverse_types"),
)


@dataclass(frozen=True)
class BatchOptions:
    """The batches to sample, as given on the command line."""

    fanouts: Fanouts
    batch_size: int
    input_nodes: str | None  # a split of nodes, or "all"; None: the default
    links: str | None  # "all" edges, an edge split, or a file; None: batches start from nodes
    of_sampling: Mapping[str, Any]  # given ones of `_OF_SAMPLING`
    of_links: Mapping[str, Any]  # given ones of `_OF_LINKS`


def shown_fanouts(fanouts: Fanouts) -> Any:
    """Return fan-outs for JSON documents."""
    if isinstance(fanouts, Mapping):
        return {name: list(hops) for name, hops in fanouts.items()}
    return list(fanouts)


def _parse_negatives(text: str, _: str) -> dict[str, Any]:
    mode, _, amount = text.partition(":")
    try:
        number = float(amount or 1)
    except ValueError:
        number = 0.0
    is_whole = number == int(number) if 0 < number < float("inf") else False
    if mode not in {"binary", "triplet"} or not (is_whole or (mode == "binary" and number > 0)):
        raise UsageError(
            f"{text!r} is not a kind of negatives; write binary or triplet and how many for each "
            "edge, as in binary:1 or triplet:5"
        )
    return {"mode": mode, "amount": int(number) if is_whole else number}


def _parse_reverse_types(text: str, _: str) -> dict[str, str]:
    parts = (pair.partition("=") for pair in text.split(","))
    pairs = {forward: backward for forward, _, backward in parts}
    if not all(of.count("__") == 2 for pair in pairs.items() for of in pair):
        raise UsageError(
            f"{text!r} is not a list of pairs of edge types; write them as in "
            "user__follows__user=user__followed_by__user"
        )
    return pairs


def _batches_together(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the options of batches as one argument."""

    @wraps(command)
    def with_batches(*arguments: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in (*_OF_SAMPLING, *_OF_LINKS)}
        # False is a flag that was not given, as None is another option.
        own = ({n: given[n] for n in names if given[n]} for names in (_OF_SAMPLING, _OF_LINKS))
        names = ("fanouts", "batch_size", "input_nodes", "links")
        batches = BatchOptions(*(options.pop(name) for name in names), *own)
        if batches.links is not None and batches.input_nodes is not None:
            raise UsageError("--links and --input-nodes: batches start from edges, or from nodes")
        if batches.links is None and batches.of_links:
            raise UsageError(
                "negatives and excluded edges belong to edges that batches start from; give "
                "these with --links (--links all: every edge), or leave the other options out"
            )
        return command(*arguments, batches=batches, **options)

    return with_batches


def refuse_given(is_refused: Callable[[str], bool], problem: str) -> None:
    """Refuse given options of the running command that nothing would read."""
    context = click.get_current_context()
    for param in context.command.params:
        name = str(param.name)
        given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and param.expose_value and is_refused(name):
            raise UsageError(f"{param.opts[-1]}: {problem}")


# Options of the commands that sample batches as a loader does, passed as `batches`.
batch_options = together(
    declared(
        """
Batches
  --num-neighbors N,N,... -> fanouts = 10,10
      Fan-out of each hop; -1 takes all neighbours. By edge type: TYPE=N,N;TYPE=N,N, a TYPE being
      SOURCE__RELATION__TARGET.
  --time-attr NAME
      Sample nothing later than a seed, by this attribute of nodes, as time_attr=.
  --temporal-strategy uniform|last
      With --time-attr: choose any of the edges a seed may see, or the latest.
  --time-window N>=1  With --time-attr: the last N units of time before each seed only.
  --weight-attr NAME
      Choose neighbours in proportion to this attribute of edges, as weight_attr=.
  --batch-size N>=1 = 1024  Seeds per batch.
  --input-nodes SPLIT
      Seed nodes; "all" for every node. Default: the split "train" if there is one. If nodes have
      types: TYPE:SPLIT, or several of these with commas.
Links to start from
  --links EDGES
      Start from edges: "all", an edge split, or FILE.npy of sources and targets [2, L]. If nodes
      have types: SOURCE__RELATION__TARGET:all, or with a file.
  --negatives MODE:AMOUNT -> neg_sampling
      Negatives of each edge: binary:1 (pairs) or triplet:5 (targets), as neg_sampling=.
  --neg-side dst|src|both
      Endpoints that negatives of triplets replace. Default: dst.
  --negative-chunks N>=1  Chunks of a batch; the triplets of a chunk share their negatives.
  --degree-fraction SHARE
      Fraction of the negatives that are endpoints of other edges of the batch.
  --strict-negatives  Redraw negatives that are edges of the graph.
  --exclude-edges self|reverse
      Do not sample a batch's own edges (self), or also their reverses (reverse).
  --reverse-types TYPE=TYPE,...
      With --exclude-edges reverse: types whose edges are each other's reverses, as reverse_types=.
""",
        fanouts=Parsed(_parse_fanouts),
        neg_sampling=Parsed(_parse_negatives),
        degree_fraction=Number(0, 1),
        reverse_types=Parsed(_parse_reverse_types),
    ),
    _batches_together,
)


def is_batch_option(name: str) -> bool:
    """Whether a parameter of a command is one of `batch_options`."""
    command = click.command()(batch_options(lambda: None))
    return any(param.name == name for param in command.params)


# By field of Session: flags, and help.
_SESSION_FLAGS = {
    "as_json": (("--json",), "Print one JSON document on stdout."),
    "quiet": (("-q", "--quiet"), "Show no progress on stderr."),
    "debug": (("--debug",), "Show a traceback with an error (also GNNSTORE_DEBUG=1)."),
}


cache_option = section(
    GENERAL,
    click.option(
        "--cache-dir",
        metavar="DIR",
        type=_PATH,
        help="Directory on a local disk for a copy of STORE, made once. Default: none for a path; "
        "for a URL gnnstore-UID in the directory of temporary files.",
    ),
)


def _on_this_machine(session: Session, store: str, cache_dir: str | None) -> str:
    """Return the path of a store; of one that is given by its URL, the path of a copy."""
    from gnnstore.remote.objects import is_elsewhere  # noqa: PLC0415 - on demand

    if cache_dir is None and not is_elsewhere(store):
        return store
    from gnnstore.remote.staging import stage  # noqa: PLC0415

    with session.progress() as progress:
        return str(stage(store, cache_dir, progress=progress))


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json, --quiet and --debug to a command, and pass it the `Session` first."""
    flags = (
        click.option(
            *names,
            is_flag=True,
            is_eager=True,  # so that a bad value of another option is reported in kind
            expose_value=False,
            callback=partial(_remember, field),
            help=text,
        )
        for field, (names, text) in _SESSION_FLAGS.items()
    )

    @click.pass_obj
    @wraps(command)
    def with_session(session: Session, /, *args: Any, **kwargs: Any) -> Any:
        session.options = {
            name: (option.opts[-1], not option.is_flag, (option.secondary_opts or option.opts)[-1])
            for option in click.get_current_context().command.params
            if isinstance(option, click.Option)
            for short in [option.opts[-1].lstrip("-").replace("-", "_")]
            for name in (f"num_{short}", f"{short}_bytes", short, option.name or "")
        }
        if "cache_dir" in kwargs:  # of `cache_option`
            cache_dir = kwargs.pop("cache_dir")
            session.place = (kwargs["store"], cache_dir)
            kwargs["store"] = _on_this_machine(session, kwargs["store"], cache_dir)
        return command(session, *args, **kwargs)

    return section(GENERAL, *flags)(with_session)


def _remember(field: str, ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and (session := ctx.find_object(Session)) is not None:
        setattr(session, field, True)
