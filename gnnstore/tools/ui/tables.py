"""Tables and bars for people, drawn alike by every command.

On a terminal they are framed and coloured; in a pipe they are plain columns, one row a
line, so that grep, awk and a bug report can use them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

_BAR_CELLS = 10


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
) -> None:
    """Print rows under a header; the columns named in `right` are aligned to the right."""
    frame = box.SIMPLE_HEAD if console.is_terminal else None
    table = Table(box=frame, padding=(0, 1, 0, 1) if frame else (0, 2, 0, 2), header_style="dim")
    numeric = set(right)
    for position, column in enumerate(columns):
        if column in numeric:
            table.add_column(column, justify="right", no_wrap=True)
        else:  # the first column names the row: on a narrow terminal the others fold
            table.add_column(column, overflow="fold", no_wrap=position == 0)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console.print(table)


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
