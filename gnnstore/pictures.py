"""Shared parts of all plots: matplotlib if it is installed, colours, a common style, whole files.

A strategy, and a part of the work, has the same colour everywhere. The three palettes have no
colour in common, and the colour-blind can tell the colours of each apart (Okabe and Ito; Tol's
muted and bright schemes). Markers and hatches are for grey print.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.budget.ledger import CACHED, STAGING
from gnnstore.errors import StorageError, UsageError, storage_errors
from gnnstore.formats.container.workdir import check_parent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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

# Colours of what is neither a strategy nor a part: sizes of blocks, directions of edges, types.
SERIES = (
    Look("#4477aa", "o", ""),
    Look("#ee6677", "s", "///"),
    Look("#228833", "^", "..."),
    Look("#ccbb44", "D", "\\\\\\"),
    Look("#66ccee", "v", "xx"),
    Look("#aa3377", "P", "++"),
    Look("#bbbbbb", "X", "--"),
)

# Lines that mark where something is, and texts next to them.
GREY = "#555555"


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """Return the look of each strategy, stage or reservation, and no look twice.

    Names that are not known, or of a part that has its own name in the same picture, take the
    looks that are left, in turn.
    """
    own = {**STRATEGIES, **PARTS}
    found: dict[str, Look | None] = {name: own.get(name) for name in names}
    for name, part in _PART_OF.items():
        if name in found and PARTS[part] not in found.values():
            found[name] = PARTS[part]
    taken = {look for look in found.values() if look is not None}
    spare = cycle([look for look in (*SERIES, *PARTS.values()) if look not in taken])
    return {name: look or next(spare) for name, look in found.items()}


def draw_into(
    document: dict[str, Any],
    plot_file: Path | None,
    draw: Callable[[Mapping[str, Any], Path], Path],
) -> None:
    """Draw a document, if a file is given, and note in it the picture or the reason for none."""
    document |= {"drawn_to": None, "problems": []}
    if plot_file is not None:
        try:
            document["drawn_to"] = str(draw(document, plot_file))
        except StorageError as error:
            document["problems"].append(str(error))


def check_picture(file: Path, option: str = "--plot") -> None:
    """Check that a plot can be drawn, before work that may take hours."""
    if file.suffix.lower() not in {".svg", ".png"}:
        raise UsageError(f"{option} {file}: pictures are SVG or PNG; end the name in .svg or .png")
    try:
        import matplotlib.figure  # noqa: F401, PLC0415 - optional, and slow to import
    except ImportError as error:
        raise UsageError(
            f"{option} draws with matplotlib, which cannot be imported ({error}); install it with: "
            "pip install 'gnnstore[plot]'"
        ) from error
    check_parent(file.absolute())


def new_axes(
    columns: int, width_inches: float, height_inches: float = 4.6, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes in a row, each with a light grid."""
    # No pyplot: it would look for a display, and keep the figure.
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    figure = Figure(figsize=(width_inches, height_inches), dpi=150, layout="constrained")
    found = list(figure.subplots(1, columns, squeeze=False, **options)[0])
    for axes in found:
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, found


def draw_level(axes: Axes, height: float, text: str) -> None:
    """Draw a dashed horizontal line with a text above its left end."""
    axes.axhline(height, color=GREY, linestyle="--", linewidth=1.2)
    axes.annotate(
        text,
        (0.02, height),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        color=GREY,
        fontsize=9,
    )


def legend_below(figure: Figure, *panels: Axes, **options: Any) -> None:
    """Put one legend for all panels below them: what has the same label looks the same."""
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    options = {"ncols": len(entries), "frameon": False, **options}
    figure.legend([*entries.values()], [*entries], loc="outside lower center", **options)


def save_picture(figure: Figure, file: Path, title: str) -> Path:
    """Add a title and write the figure, as SVG or PNG by the file's suffix."""
    figure.suptitle(title, fontsize=10)
    picture = io.BytesIO()
    if file.suffix.lower() == ".svg":
        figure.savefig(picture, format="svg", metadata={"Date": None})  # the same each time
    else:
        figure.savefig(picture, format="png")
    with storage_errors("write the picture", file):
        file.write_bytes(picture.getvalue())
    return file
