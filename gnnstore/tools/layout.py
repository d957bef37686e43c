"""Prints documents for people, in one style for all commands: facts and tables that name fields.

Quantities have the units that the names of their fields say, and the times of a column one unit. On
a terminal, tables are framed; in a pipe they are plain columns, one row a line, for grep, awk and
bug reports. A row is one line on a terminal, too: a table that is too wide loses its last columns,
which a line below names; long values lose their ends. The programs at the end train on what a
command made, and are to be pasted into Python.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gnnstore.units import format_at_least, format_count, format_duration, format_size, wrapped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


Document: TypeAlias = Mapping[str, Any]

_FIELD = re.compile(r"\{([\w.]*):?([^{}]*)\}")
_NUMBER = re.compile(
    r"-|(needs )?[-+<]*[\d.,]+%?( ([kMGT]?B|[KM]iB|ms|s|min|h|days)(/s)?)?( \[.*\])?"
)
_OPTIONAL = re.compile(r"\[([^][]*)\]")
# Columns that stay while cells of the first lose their middle, and what these keep.
_LEAST_COLUMNS, _LEAST_CELLS = 3, 24
_NO_WIDTH = 10_000  # wider than any table
_MOST_CELLS = 76  # of a line of a program
# On a terminal: characters of a value, and facts of a block, that are printed.
_MOST_OF_VALUE, _MOST_FACTS = 300, 40
_ELSEWHERE = "(a pipe and --json have all)"


class Unit(NamedTuple):
    """A unit of times, and the least time for which a column has it, both in seconds."""

    name: str
    seconds: float
    least: float


_UNITS = (
    Unit("ms", 1e-3, 0),
    Unit("s", 1, 0.1),
    Unit("min", 60, 600),
    Unit("h", 3600, 36_000),
    Unit("days", 86_400, 3 * 86_400),
)
_LEAST_SHOWN = 0.01  # of a unit
# Sizes in powers of two.
_OF_DISKS = {"alignment_bytes", "block_bytes", "gap_bytes", "max_read_bytes", "page_bytes"}


@dataclass(frozen=True)
class Block:
    """Facts of a document, or a table of one of its lists.

    Cells are templates: `{a.b}` is a field, `{a.b:.2f}` a field in a format, `{a.b:-}` one with "-"
    for 0, `{a.b:*}` a star for what is true, `{a.b:~}` a median with its range, `{a.b:row}` a
    number of rows. `[...]` is left out if one of its fields has no value (`{a.b:+}`: or 0); so is a
    fact, a column where no row has a value, and a row with its first cell alone. In place of cells:
    the path of values that are all printed, or, of rows, the template of a line.
    """

    title: str
    cells: Mapping[str, str] | str
    rows: str = ""  # path of the list whose entries are rows


_MAX_INPUTS = 10  # files of a store's inputs that are printed
# Texts are paragraphs, but for the first, which is the heading; a path has its value's own layout.
Layout: TypeAlias = Sequence["Block | str | tuple[str, Layout]"]


def print_document(
    console: Console,
    document: Document,
    layout: Layout,
    commands: Sequence[Sequence[str]] = (),
    program: str = "",
) -> None:
    """Print a document, the problems of its making, and what to do next: commands, a program."""
    for place, block in enumerate(layout):
        if isinstance(block, tuple):
            print_document(console, value_at(document, block[0]), block[1])
        elif isinstance(block, Block):
            _print_block(console, document, block)
        elif (text := fill(block, document)) is not None:
            _print_text(console, text, style="bold" if place == 0 else "")
    problems = [each for each in document.get("problems", ()) if isinstance(each, str)]
    for text in (*document.get("remarks", ()), *problems):
        _print_text(console, text)
    if document.get("drawn_to"):
        _print_text(console, f"Drawn in {document['drawn_to']}")
    if commands:
        _print_title(console, "Next")
    for command in commands:
        console.print(f"  {shlex.join(command)}", style="cyan", soft_wrap=True)
    if program:
        _print_title(console, "Train")
    for line in program.splitlines():
        console.print(f"  {line}", style="cyan", soft_wrap=True)


def fill(template: str, document: Document, unit: Unit | None = None) -> str | None:
    """Return a template with its fields' values, times in a unit; None if one has no value."""
    text = ""
    for place, part in enumerate(_OPTIONAL.split(template)):
        values = [(value_at(document, f[1]), f[2]) for f in _FIELD.finditer(part)]
        if any(_is_nothing(value, form) for value, form in values):
            if place % 2 == 0:
                return None
        else:
            text += _FIELD.sub(lambda f: shown(value_at(document, f[1]), f[1], f[2], unit), part)
    return text or None


def _is_nothing(value: Any, form: str) -> bool:
    """Whether a field has no value, or 0 where that is none."""
    return value is None or value in ("", [], (), {}) or (form == "+" and not value)


def value_at(document: Any, path: str) -> Any:
    """Return the value at a dotted path; None if there is none."""
    for part in filter(None, path.split(".")):
        if isinstance(document, Mapping):
            document = document.get(part)
        else:
            document = document[int(part)] if document and part.isdigit() else None
    return document


def rows_at(document: Any, path: str, above: Document = {}) -> list[Document]:  # noqa: B006
    """Return the entries of a list at a dotted path, of lists in lists, or of a mapping by key."""
    if isinstance(document, list | tuple):
        return [row for each in document for row in rows_at(each, path, {**above, **each})]
    first, _, rest = path.partition(".")
    if first:
        return rows_at((document or {}).get(first), rest, above)
    if above or not document:
        return [above] if above else []
    return [
        {"key": key, **(each if isinstance(each, Mapping) else {"value": each})}
        for key, each in document.items()
    ]


def shown(value: Any, name: str = "", form: str = "", unit: Unit | None = None) -> str:
    """Return a value as text, with the unit that its name says, or in a unit of times."""
    if isinstance(value, Mapping):
        between = "; " if any(isinstance(each, list | tuple) for each in value.values()) else ", "
        return between.join(f"{key} {shown(each, name)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return _several(value, name, form, unit)
    if form in ("*", "-"):
        mark = {"*": "*" if value else "", "-": "" if value else "-"}[form]
        return mark or (shown(value, name, "", unit) if form == "-" else "")
    if form not in ("", "+"):
        is_noun = len(form) > 1 and form.isalpha()
        return format_count(value, form) if is_noun else format(value, form)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _quantity(value, name, unit) if isinstance(value, int | float) else str(value)


def _several(values: Sequence[Any], name: str, form: str, unit: Unit | None) -> str:
    """Return values in a row, or (`~`) the median of numbers, with the least and the most."""
    if form == "~":
        found = sorted(values)
        middle, *ends = (
            _quantity(each, name, unit) for each in (median(found), *found[:: len(found) - 1 or 1])
        )
        return middle + (f" [{', '.join(ends)}]" if len(found) > 1 else "")
    return (" x " if form == "x" else ", ").join(shown(each, name) for each in values)


def _quantity(value: float, name: str, unit: Unit | None) -> str:
    words = name.rpartition(".")[2].split("_")
    if name.rpartition(".")[2] in _OF_DISKS:
        return block_name(int(value))
    if "bytes" in words:
        size = format_at_least(int(value)) if "needed" in words else format_size(value)
        return size + ("/s" if words[-1] == "second" else "")
    if unit is not None:
        return _in_unit(value, unit)
    if _is_time(name):
        return f"{value:.3g} s" if value < 99.5 else format_duration(value)
    if words[-1] in {"share", "rate"}:
        return f"{value:.1%}"
    whole = isinstance(value, int) or abs(value) >= 1000
    return f"{value:,.0f}" if whole else f"{value:.4g}"


def _is_time(name: str) -> bool:
    """Whether a field has seconds: by its name, or as a stage of an epoch."""
    first, _, last = name.rpartition(".")
    return "seconds" in last.split("_") or first == "stages"


def _unit_of(cell: str, rows: Sequence[Document]) -> Unit | None:
    """Return the unit of a column of times, which suits the longest; None for other columns."""
    field = _FIELD.fullmatch(cell)
    if field is None or not _is_time(field[1]):
        return None
    found = [value_at(row, field[1]) for row in rows]
    times = [t for each in found for t in (each if isinstance(each, list) else [each]) if t]
    return next(unit for unit in reversed(_UNITS) if unit.least <= max(times, default=0))


def _in_unit(seconds: float, unit: Unit) -> str:
    number = seconds / unit.seconds
    if 0 < number < _LEAST_SHOWN:
        return f"<{_LEAST_SHOWN} {unit.name}"
    return f"{number:.3g} {unit.name}" if number < 999.5 else f"{number:,.0f} {unit.name}"


def block_name(block_bytes: int) -> str:
    """Return "512 B" or "4 KiB": pages and blocks are powers of two, and so is their unit."""
    for name, unit in (("MiB", 2**20), ("KiB", 2**10)):
        if block_bytes and block_bytes % unit == 0:
            return f"{block_bytes // unit} {name}"
    return f"{block_bytes} B"


def flatten(values: Document, prefix: str = "") -> dict[str, str]:
    """Return nested values as texts under dotted names."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        dotted = f"{prefix}{name}" if name else prefix[:-1]  # "": what holds for all types
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{dotted}.")
        elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
            lines = [
                fill("{path}[ ({size_bytes})]", each) or str(each) for each in value[:_MAX_INPUTS]
            ]
            if len(value) > _MAX_INPUTS:
                lines.append(f"… {len(value) - _MAX_INPUTS:,} more; --json has all")
            flat[dotted] = "\n".join(lines)
        elif value is not None:
            is_plain = isinstance(value, int) and not name.endswith("_bytes")
            text = str(value) if is_plain else shown(value, name)
            flat[dotted] = text or "none"
    return flat


def _print_text(console: Console, text: str, style: str = "") -> None:
    """Print a heading, or a paragraph: wrapped on a terminal, in one line elsewhere."""
    text = wrapped(text, console.width) if console.is_terminal else text
    console.print(text if style else f"\n{text}", style=style, soft_wrap=True)


def _print_title(console: Console, title: str) -> None:
    if title:
        console.print()
        console.print(title, style="bold")


def _print_block(console: Console, document: Document, block: Block) -> None:
    if block.rows:
        rows = rows_at(document, block.rows)
        if isinstance(block.cells, str):
            lines = [line for row in rows if (line := fill(block.cells, row)) is not None]
            if lines:
                _print_title(console, block.title)
            for line in lines:
                text = wrapped(line, console.width) if console.is_terminal else line
                console.print(text, soft_wrap=True)
            return
        units = [_unit_of(cell, rows) for cell in block.cells.values()]
        columns = [*zip(block.cells.values(), units, strict=True)]
        cells = [[fill(cell, row, unit) or "-" for cell, unit in columns] for row in rows]
        if filled := [row for row in cells if any(cell != "-" for cell in row[1:])]:
            _print_title(console, fill(block.title, document) or "")
            print_table(console, [*block.cells], filled)
        return
    if isinstance(block.cells, str):
        facts = flatten(value_at(document, block.cells) or {})
    else:
        filled_in = {name: fill(cell, document) for name, cell in block.cells.items()}
        facts = {name: text for name, text in filled_in.items() if text is not None}
    if facts:
        _print_title(console, fill(block.title, document) or "")
        _print_facts(console, facts)


def _print_facts(console: Console, facts: Mapping[str, str]) -> None:
    from rich.table import Table  # noqa: PLC0415 - 40 ms that --help need not pay

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    shown = [*facts.items()]
    if console.is_terminal:
        shown = [(name, _cut(text)) for name, text in shown]
        if len(shown) > _MOST_FACTS:
            more = f"… {len(shown) - _MOST_FACTS:,} more {_ELSEWHERE}"
            shown = [*shown[:_MOST_FACTS], ("", more)]
    for name, text in shown:
        table.add_row(name, text)
    console.print(table)


def _cut(text: str) -> str:
    """Return text without its end if it is long, and how much is missing."""
    if (more := len(text) - _MOST_OF_VALUE) <= 0:
        return text
    return f"{text[:_MOST_OF_VALUE].rstrip()} … {more:,} more characters {_ELSEWHERE}"


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header, but for columns without values, and the last if room is short."""
    places = [i for i in range(len(columns)) if not i or any(row[i] != "-" for row in rows)]
    names, cells = [columns[i] for i in places], [[row[i] for i in places] for row in rows]
    kept = len(names)
    table = _table(console, names, cells)
    if not console.is_terminal:
        console.width = max(console.width, _natural_width(console, table))
        console.print(table)
        return
    widest = max((len(row[0]) for row in cells), default=0)
    while (excess := _natural_width(console, table) - console.width) > 0:
        room = widest - excess
        if kept == 1 or (kept <= _LEAST_COLUMNS and room >= _LEAST_CELLS):
            cells = [[_shortened(console, row[0], max(1, room)), *row[1:]] for row in cells]
            table = _table(console, names[:kept], cells)
            break
        kept -= 1
        table = _table(console, names[:kept], cells)
    console.print(table)
    if missing := ", ".join(filter(None, names[kept:])):
        text = f"No room for: {missing} (a wider terminal or a pipe shows them)."
        console.print(text, style="dim")


def _shortened(console: Console, text: str, room: int) -> str:
    """Return text without its middle: paths differ at their ends."""
    if len(text) <= room:
        return text
    mark = "..." if console.options.ascii_only else "…"
    head = (room - len(mark)) // 3
    return text[:head] + mark + text[len(text) - (room - len(mark) - head) :]


def _table(console: Console, columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    """Return the columns as a table: numbers on the right, and the first column on the left."""
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    frame = box.SIMPLE_HEAD if console.is_terminal else None
    padding = (0, 1, 0, 1) if frame else (0, 2, 0, 2)
    table = Table(box=frame, show_edge=False, padding=padding, header_style="dim")
    for i, name in enumerate(columns):
        is_number = i > 0 and all(_NUMBER.fullmatch(row[i]) for row in cells)
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True)
    for row in cells:
        table.add_row(*row[: len(columns)])
    return table


def _natural_width(console: Console, table: Table) -> int:
    options = console.options.update(max_width=_NO_WIDTH)
    return console.measure(table, options=options).maximum


def next_commands(path: str) -> list[tuple[str, ...]]:
    """Return the commands to try on a store, in order of use."""
    full = ("gnnstore", "verify", path, "--level", "full")
    return [("gnnstore", "inspect", path, "--stats"), full]


def program_of(store: Mapping[str, Any], *more: str, setup: str = "") -> str:
    """Return a program for the store of a description; `more`: arguments of its loader."""
    input_nodes, links = _seeds_of(store["graph"])
    return program(store["path"], input_nodes, *more, links=links, setup=setup)


def _seeds_of(graph: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the input nodes, or the links, that a graph is probably to be trained on."""
    trained = [node["name"] for node in graph["node_types"] if "train" in node["splits"]]
    if graph["has_types"]:
        first = graph["node_types"][0]["name"]
        return (f"{trained[0]}:train" if trained else f"{first}:all"), None
    if not trained and any(edge["splits"] for edge in graph["edge_types"]):
        return None, "all"
    return ("train" if trained else None), None


def program(
    path: str,
    input_nodes: str | None = None,
    *more: str,
    links: str | None = None,
    num_neighbors: Any = (10, 10),
    batch_size: int = 1024,
    setup: str = "",
) -> str:
    """Return a program whose loader has the seeds that the command line's options name."""
    words = ["store", _fanouts(num_neighbors)]
    if links is not None:
        loader = "LinkNeighborLoader"
        words += [] if links == "all" else [f"edge_label_index={json.dumps(links)}"]
        words.append('neg_sampling="binary"')
    else:
        loader = "NeighborLoader"
        words += [] if input_nodes in {None, "all"} else [_seeds(str(input_nodes))]
    words += [f"batch_size={batch_size}", "shuffle=True", *more]
    opening = f"store = gnnstore.open({json.dumps(path)})"
    return _loop("\n".join(filter(None, (opening, setup))), f"gnnstore.{loader}", words)


def program_of_packed(path: str) -> str:
    """Return a program that trains on packed epochs."""
    return _loop(f"packed = gnnstore.open_packed({json.dumps(path)})", "packed.loader", [])


def program_of_partitions(store: Mapping[str, Any], partitions: Mapping[str, Any]) -> str:
    """Return a program that trains on partitions of a store, both as they are described."""
    kind, capacity = "dispersed", "0.5"
    if _seeds_of(store["graph"])[1] is not None:
        kind = "two-level"
    elif partitions["order"] == "train-first":
        number, trained = partitions["num_partitions"], partitions["num_train_partitions"]
        kind, capacity = "sequential", str(max(trained + 1, (number + trained) // 2))
    is_inside = Path(store["path"]) in Path(partitions["path"]).parents
    name = partitions["name" if is_inside else "path"]
    words = [f'"{kind}"', f"capacity={capacity}", f"name={json.dumps(name)}"]
    policy = _assigned("policy", "gnnstore.PartitionPolicy", words)
    return program_of(store, "partitions=policy", setup=policy)


def _loop(opening: str, call: str, words: list[str]) -> str:
    return (
        f"import gnnstore\n\n{opening}\n{_assigned('loader', call, words)}\n"
        "for batch in loader:\n    print(batch)  # a Data object of PyG: train here"
    )


def _assigned(name: str, call: str, words: list[str]) -> str:
    """Return `name = call(words)`, with lines for the words if they do not fit in one."""
    line = f"{name} = {call}({', '.join(words)})"
    if len(line) <= _MOST_CELLS:
        return line
    lines = words[:1]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 7 <= _MOST_CELLS:
            lines[-1] += f", {word}"
        else:
            lines.append(word)
    return f"{name} = {call}(\n    " + ",\n    ".join(lines) + "\n)"


def _fanouts(num_neighbors: Any) -> str:
    if not isinstance(num_neighbors, Mapping):
        return str(list(num_neighbors))
    each = ((tuple(name.split("__")), list(hops)) for name, hops in num_neighbors.items())
    return _quoted(dict(each))


def _quoted(value: Any) -> str:
    return repr(value).replace("'", '"')


def _seeds(text: str) -> str:
    """Return `TYPE:SPLIT`, or several with commas, as a loader takes them."""
    pairs = [part.strip().partition(":") for part in text.split(",")]
    if not pairs[0][1]:
        return json.dumps(text)
    given = {name: None if split == "all" else split for name, _, split in pairs}
    return _quoted(next(iter(given.items())) if len(given) == 1 else given)
