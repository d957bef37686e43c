"""Numbers for the nodes of a type that go by names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from gnnstore.converters.edges.numbering import NameNumbering, ReadNames
from gnnstore.errors import InputError
from gnnstore.formats.base.names import encode


@dataclass(frozen=True)
class Names:
    """One or two columns of names of nodes."""

    label: str  # of the input, for messages
    read: ReadNames
    num_rows: int = -1  # if known


class NodeNames:
    """Numbers nodes by the rows of their table or, without one, as edges name them first."""

    numbering: NameNumbering  # from `number` on; its text 0 is the table

    def __init__(self, table: Names | None = None) -> None:
        self._table = table
        self._edges: list[Names] = []

    def add(self, edges: Names) -> int:
        """Add names at the ends of edges; return the number of their text in the numbering."""
        self._edges.append(edges)
        return len(self._edges)

    def number(self, writer: Any, *of: str, taken_bytes: int = 0) -> None:
        """Assign numbers to the nodes of a writer, of the type `of` where there are several.

        Two rows of one name, and edges of a name that the table does not have, are refused.
        """
        directory = writer.spill_directory.joinpath("names", *map(encode, of))
        self.numbering = names = NameNumbering(directory, writer.options.memory_bytes, taken_bytes)
        table = Names("", tuple) if self._table is None else self._table
        with writer.progress.phase(" ".join(("read names", *of))):
            names.collect(table.read, *(edges.read for edges in self._edges))
        if self._table is not None:
            self._check_rows(self._table)
        writer.reserve_memory(names.memory_bytes)
        writer.set_num_nodes(*of, names.num_nodes)
        writer.set_original_names(*of, names.names(), names.num_nodes, names.name_bytes)
        names.begin(1)

    def _check_rows(self, table: Names) -> None:
        done = 0
        for block in table.read():
            numbers = self.numbering.numbers(block)[:, 0]
            wrong = np.flatnonzero(numbers != np.arange(done, done + len(numbers)))
            if len(wrong):
                name = block.names[int(block.codes[wrong[0], 0])].decode()
                raise InputError(
                    f"{table.label}: row {done + int(wrong[0])} has the name {name!r}, which row "
                    f"{int(numbers[wrong[0]])} has; each node has one row"
                )
            done += len(numbers)
        if self.numbering.num_nodes > done:
            self._refuse_unknown(table, done)

    def _refuse_unknown(self, table: Names, num_known: int) -> NoReturn:
        """Raise for the first edge with a name that the table does not have."""
        for text, edges in enumerate(self._edges, 1):
            self.numbering.begin(text)
            done = 0
            for block in edges.read():
                numbers = self.numbering.numbers(block)
                unknown = np.argwhere(numbers >= num_known)
                if len(unknown):
                    row, column = unknown[0]
                    name = block.names[int(block.codes[row, column])].decode()
                    raise InputError(
                        f"{edges.label}: row {done + int(row)}: the name {name!r} is not in "
                        f"{table.label}"
                    )
                done += len(numbers)
        raise InputError(f"{table.label}: names have changed while they were read; convert again")
