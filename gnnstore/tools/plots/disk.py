"""A plot of the speed of a disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnnstore.disk.profile import DeviceProfile
from gnnstore.palette import SERIES
from gnnstore.pictures import draw_level, legend_below, new_axes, save_picture
from gnnstore.units import format_size


def block_name(block_bytes: int) -> str:
    """Return "512 B" or "4 KiB": blocks are powers of two, and so is their unit."""
    return f"{block_bytes} B" if block_bytes < 1024 else f"{block_bytes // 1024} KiB"


def speed(bytes_per_second: float) -> str:
    """Return "4.2 GB/s"."""
    return f"{format_size(bytes_per_second)}/s"


def draw_profile(profile: DeviceProfile, file: Path) -> Path:
    """Plot reads per second and bandwidth over the queue depth, as a PNG."""
    figure, (reads, bandwidth) = new_axes(2, 10)
    blocks = sorted(profile.random_reads_per_second.items())
    for (block, rates), series in zip(blocks, SERIES, strict=False):
        depths = sorted(rates)
        label = f"{block_name(block)} per read"
        look: dict[str, Any] = {
            "color": series.colour,
            "marker": series.marker,
            "markersize": 4.5,
            "label": label,
        }
        reads.plot(depths, [rates[depth] for depth in depths], **look)
        bandwidth.plot(depths, [rates[depth] * block for depth in depths], **look)
    # Random reads cannot exceed sequential ones.
    in_sequence = profile.sequential_read_bytes_per_second
    draw_level(bandwidth, in_sequence, f"in sequence: {speed(in_sequence)}")
    reads.set_ylabel("random reads per second")
    bandwidth.set_ylabel("bytes read per second")
    depths = sorted({d for rates in profile.random_reads_per_second.values() for d in rates})
    for axes in (reads, bandwidth):
        axes.set_xscale("log", base=2)
        axes.set_xticks(depths, [str(depth) for depth in depths])
        axes.minorticks_off()
        axes.set_xlabel("reads in flight")
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])  # room for the text above the highest line
    reads.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    bandwidth.yaxis.set_major_formatter(lambda value, _: speed(value))
    legend_below(figure, reads)
    cached = "" if profile.is_direct else ", through the page cache"
    return save_picture(
        figure,
        file,
        f"{profile.mount_point} ({profile.filesystem_type}, {profile.device}), read by "
        f"{profile.engine}{cached}, {profile.measured_at[:10]}",
    )
