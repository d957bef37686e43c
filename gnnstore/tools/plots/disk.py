"""A picture of what a disk can do. Draws with matplotlib, which is an optional extra."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gnnstore.disk.profile.device_profile import DeviceProfile
from gnnstore.tools.plots.pictures import make_plain, new_figure, save_png
from gnnstore.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Told apart by everyone, the colour-blind included, and in grey by their markers.
_LINES = (("#0072b2", "o"), ("#d55e00", "s"), ("#009e73", "^"), ("#cc79a7", "D"))
_GREY = "#555555"


def block_name(block_bytes: int) -> str:
    """Return "512 B" or "4 KiB": blocks are powers of two, and so is their unit."""
    return f"{block_bytes} B" if block_bytes < 1024 else f"{block_bytes // 1024} KiB"


def draw_profile(profile: DeviceProfile, file: Path) -> Path:
    """Draw reads per second and bandwidth over the queue depth, as a PNG.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    figure = new_figure(10)
    reads, bandwidth = figure.subplots(1, 2)
    for (block, rates), (colour, marker) in zip(
        sorted(profile.random_reads_per_second.items()), _LINES, strict=False
    ):
        depths = sorted(rates)
        look = {"color": colour, "marker": marker, "markersize": 4.5, "label": block_name(block)}
        reads.plot(depths, [rates[depth] for depth in depths], **look)
        bandwidth.plot(depths, [rates[depth] * block for depth in depths], **look)
    _draw_reference(bandwidth, profile)
    reads.set_ylabel("random reads per second")
    bandwidth.set_ylabel("bytes read per second")
    _dress(reads, profile)
    _dress(bandwidth, profile)
    reads.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    bandwidth.yaxis.set_major_formatter(lambda value, _: _speed(value))
    handles, labels = reads.get_legend_handles_labels()
    figure.legend(
        handles,
        [f"{label} a read" for label in labels],
        loc="outside lower center",
        ncols=len(labels),
        frameon=False,
    )
    cached = "" if profile.is_direct else ", through the page cache"
    figure.suptitle(
        f"{profile.mount_point} ({profile.filesystem_type}, {profile.device}), read by "
        f"{profile.engine}{cached}, {profile.measured_at[:10]}",
        fontsize=11,
    )
    return save_png(figure, file)


def _draw_reference(axes: Axes, profile: DeviceProfile) -> None:
    """Draw what the disk does in sequence: more cannot be expected of random reads."""
    bandwidth = profile.sequential_read_bytes_per_second
    axes.axhline(bandwidth, color=_GREY, linestyle="--", linewidth=1.2)
    axes.annotate(
        f"in sequence: {_speed(bandwidth)}",
        (0.01, bandwidth),  # at the left, where the curves are low
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        color=_GREY,
        fontsize=9,
    )


def _speed(bytes_per_second: float) -> str:
    return f"{format_size(bytes_per_second)}/s"


def _dress(axes: Axes, profile: DeviceProfile) -> None:
    depths = sorted({d for rates in profile.random_reads_per_second.values() for d in rates})
    axes.set_xscale("log", base=2)
    axes.set_xticks(depths, [str(depth) for depth in depths])
    axes.minorticks_off()
    axes.set_xlabel("reads in flight")
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])  # room for the text above the highest line
    make_plain(axes)
