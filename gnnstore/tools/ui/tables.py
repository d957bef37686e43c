"""Tables for people, in one style for all commands.

On a terminal they are framed and coloured; in a pipe they are plain columns, one row a line, so
that grep, awk and a bug report can use them. A row is one line on a terminal, too: a table that is
too wide loses columns, those that matter least first, and says which.
"""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterable, Mapping, Sequence

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

# What the first column keeps of its cells before other columns go.
_LEAST_CELLS = 24
# Wider than any table, so that its own width can be measured.
_NO_WIDTH = 10_000


def print_title(console: Console, title: str) -> None:
    """Print a heading, with an empty line before it."""
    console.print()
    console.print(title, style="bold")


def print_facts(console: Console, facts: Mapping[str, object]) -> None:
    """Print names and values in two columns, leaving out values that are None."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value is not None:
            table.add_row(name, str(value))
    console.print(table)


def print_text(console: Console, text: str) -> None:
    """Print a remark after an empty line: wrapped on a terminal, in one line elsewhere."""
    console.print(f"\n{text}", soft_wrap=not console.is_terminal)


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Iterable[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print rows under a header; where there is no room, without the `optional` columns.

    These are given in the order in which they go. If that is not enough, cells of the first column
    lose their middle, and then other columns go, the last first.
    """
    kept, numeric = list(range(len(columns))), set(right)
    cells = [[str(cell) for cell in row] for row in rows]
    table = _table(console, columns, cells, kept, numeric)
    if not console.is_terminal:
        console.width = max(console.width, _natural_width(console, table))
        console.print(table)
        return
    widest = max((len(row[0]) for row in cells), default=0)
    excess = _natural_width(console, table) - console.width
    others = [name for name in reversed(columns[1:]) if name not in optional]
    missing = []
    for name in (*optional, *others):
        if excess <= 0 or (name in others and widest - excess >= _LEAST_CELLS):
            break
        kept.remove(columns.index(name))
        missing += [name] if name else []
        table = _table(console, columns, cells, kept, numeric)
        excess = _natural_width(console, table) - console.width
    if excess > 0:
        room = max(1, widest - excess)
        cells = [[_shortened(console, row[0], room), *row[1:]] for row in cells]
        table = _table(console, columns, cells, kept, numeric)
    console.print(table)
    if missing:
        text = f"No room for: {', '.join(missing)} (a wider terminal or a pipe shows them)."
        console.print(text, style="dim")


def _shortened(console: Console, text: str, room: int) -> str:
    """Return text without its middle: paths differ at their ends."""
    if len(text) <= room:
        return text
    mark = "..." if console.options.ascii_only else "…"
    head = (room - len(mark)) // 3
    return text[:head] + mark + text[len(text) - (room - len(mark) - head) :]


def _table(
    console: Console,
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    kept: Sequence[int],
    numeric: Container[str],
) -> Table:
    frame = box.SIMPLE_HEAD if console.is_terminal else None
    padding = (0, 1, 0, 1) if frame else (0, 2, 0, 2)
    table = Table(box=frame, show_edge=False, padding=padding, header_style="dim")
    for i in kept:
        justify: JustifyMethod = "right" if columns[i] in numeric else "left"
        table.add_column(columns[i], justify=justify, no_wrap=True)
    for row in cells:
        table.add_row(*(row[i] for i in kept))
    return table


def _natural_width(console: Console, table: Table) -> int:
    options = console.options.update(max_width=_NO_WIDTH)
    return console.measure(table, options=options).maximum


def print_next(console: Console, commands: Sequence[Sequence[str]], program: str = "") -> None:
    """Print what to do next, ready to be pasted: commands as their words, and a program."""
    for command in commands:
        if command is commands[0]:
            print_title(console, "Next")
        console.print(f"  {shlex.join(command)}", style="cyan", soft_wrap=True)
    if program:
        print_title(console, "Train")
    for line in program.splitlines():
        console.print(f"  {line}", style="cyan", soft_wrap=True)
