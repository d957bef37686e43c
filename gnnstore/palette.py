"""The colours of all plots: a strategy, and a part of the work, has the same one everywhere.

The three palettes have no colour in common, and the colour-blind can tell the colours of each
apart (Okabe and Ito; Tol's muted and bright schemes). Markers and hatches are for grey print.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle

from gnnstore.budget.ledger import CACHED, STAGING


@dataclass(frozen=True)
class Look:
    """How something is drawn: as a line with markers, or as a bar with a hatch."""

    colour: str
    marker: str = ""
    hatch: str = ""


STRATEGIES: Mapping[str, Look] = {
    "memory": Look("#000000", "h"),
    "mmap": Look("#d55e00", "s"),
    "direct": Look("#999999", "x"),
    "static-degree": Look("#56a0d3", "v"),
    "static-frequency": Look("#e69f00", "^"),
    "belady": Look("#0072b2", "o"),
    "packed": Look("#009e73", "D"),
    "packed-epochs": Look("#cc79a7", "P"),
    "lru": Look("#8c564b", "<"),  # no strategy of ours, but drawn next to them
}

# The stages of a batch, and what memory is for.
PARTS: Mapping[str, Look] = {
    "training": Look("#332288"),
    "wait": Look("#cc6677", hatch="///"),
    "sampling": Look("#88ccee"),
    "planning": Look("#44aa99", hatch="..."),
    "filling": Look("#117733", hatch="\\\\\\"),
    "packing": Look("#ddcc77", hatch="///"),
    "reading": Look("#882255"),
    "assembling": Look("#999933", hatch="xx"),
    "transform": Look("#aa4499"),
    "pinning": Look("#661100"),
    "partitions": Look("#6699cc"),
    "other": Look("#dddddd"),
}
# Other names of the same parts: of timelines, and of reservations.
_PART_OF = {
    "gathering": "reading",
    "recalling": "assembling",
    "transform_sampler_output": "transform",
    "topology": "sampling",
    "traces and plans": "planning",
    CACHED: "filling",
    STAGING: "reading",
    "batches in flight": "assembling",
    "a model and batches in flight": "assembling",
    "attributes": "partitions",
}

# Of what is neither a strategy nor a part: sizes of blocks, directions of edges, types.
SERIES = (
    Look("#4477aa", "o", ""),
    Look("#ee6677", "s", "///"),
    Look("#228833", "^", "..."),
    Look("#ccbb44", "D", "\\\\\\"),
    Look("#66ccee", "v", "xx"),
    Look("#aa3377", "P", "++"),
    Look("#bbbbbb", "X", "--"),
)

# Lines that say where something is, and texts next to them.
GREY = "#555555"


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """Return the look of each strategy, stage or reservation; unknown ones take colours in turn."""
    spare = cycle(SERIES)
    known = {**STRATEGIES, **PARTS, **{name: PARTS[part] for name, part in _PART_OF.items()}}
    return {name: known.get(name) or next(spare) for name in dict.fromkeys(names)}
