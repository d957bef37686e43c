"""What all pictures share: matplotlib if it is there, plain axes, and a file that is whole."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from gnnstore.errors import NotFoundError, UsageError, storage_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def require_matplotlib() -> None:
    """Import matplotlib, so that it is not missed only after the work.

    Raises
    ------
    UsageError
        If it is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401, PLC0415 - optional, and slow to import
    except ImportError as error:
        raise UsageError(
            f"--plot draws with matplotlib, which cannot be imported ({error}); install it with: "
            "pip install 'gnnstore[plot]'"
        ) from error


def check_picture(file: Path) -> None:
    """Make sure that a picture can be drawn, so that it is not missed only after hours.

    Raises
    ------
    UsageError
        If matplotlib is not installed.
    NotFoundError
        If there is no such directory.
    """
    require_matplotlib()
    if not file.absolute().parent.is_dir():
        raise NotFoundError(
            f"{file}: the directory to draw into does not exist; create it first", path=file
        )


def new_figure(width_inches: float, height_inches: float = 4.6) -> Figure:
    """Return an empty figure."""
    # No pyplot: it would look for a display, and keep the figure.
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    return Figure(figsize=(width_inches, height_inches), dpi=150, layout="constrained")


def make_plain(axes: Axes) -> None:
    """Leave of the axes what helps to read them."""
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def save_png(figure: Figure, file: Path) -> Path:
    """Write a figure as a PNG, once it is drawn completely.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    try:
        file.write_bytes(picture.getvalue())
    except OSError as error:
        raise storage_error(error, "write the picture", file) from error
    return file
