"""Tables and bars for people, in one style for all commands.

On a terminal they are framed and coloured; in a pipe they are plain columns, one row a line, so
that grep, awk and a bug report can use them. No word is ever broken: a table that is too wide for
the terminal loses columns that are not essential, and then becomes a paragraph a row.
"""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterable, Mapping, Sequence

from rich import box
from rich.console import Console, JustifyMethod
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_BAR_CELLS = 10
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


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Iterable[str] = (),
    optional: Iterable[str] = (),
) -> None:
    """Print rows under a header."""
    kept, numeric = list(range(len(columns))), set(right)
    cells = [[str(cell) for cell in row] for row in rows]
    table = _table(console, columns, cells, kept, numeric)
    if not console.is_terminal:
        console.print(table, width=_natural_width(console, table), crop=False)
        return
    for name in optional:
        if _natural_width(console, table) <= console.width:
            break
        kept.remove(columns.index(name))
        table = _table(console, columns, cells, kept, numeric)
    if _natural_width(console, table) <= console.width:
        console.print(table)
        return
    for row in cells:
        console.print(row[0], style="bold", overflow="fold")
        facts = [f"{columns[i]} {row[i]}".strip() for i in kept[1:] if row[i]]
        console.print(Padding(Text(", ".join(facts)), (0, 0, 0, 4)))


def _table(
    console: Console,
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    kept: Sequence[int],
    numeric: Container[str],
) -> Table:
    frame = box.SIMPLE_HEAD if console.is_terminal else None
    table = Table(box=frame, padding=(0, 1, 0, 1) if frame else (0, 2, 0, 2), header_style="dim")
    for i in kept:
        justify: JustifyMethod = "right" if columns[i] in numeric else "left"
        table.add_column(columns[i], justify=justify, no_wrap=True)
    for row in cells:
        table.add_row(*(row[i] for i in kept))
    return table


def _natural_width(console: Console, table: Table) -> int:
    options = console.options.update(max_width=_NO_WIDTH)
    return console.measure(table, options=options).maximum


def share_bar(console: Console, share: float) -> str:
    """Return a bar for a share from 0 to 1, in characters that the output can show."""
    full = "#" if console.options.ascii_only else "█"
    cells = round(share * _BAR_CELLS)
    return full * max(cells, 1 if share > 0 else 0)


def print_next(console: Console, commands: Sequence[Sequence[str]]) -> None:
    """Print the commands to try next, each given as its words, ready to be pasted."""
    print_title(console, "Next")
    for command in commands:
        console.print(f"  {shlex.join(command)}", style="cyan", soft_wrap=True)
