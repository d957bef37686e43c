"""The work of `gnnstore convert`: run a converter of the library, and print a summary."""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.formats.store.reader import StoreReader
from gnnstore.progress import Style
from gnnstore.tools.ui.layout import Block
from gnnstore.tools.ui.session import Session, interrupts_wait

# Arguments of a command that make up `ConvertOptions`; the others belong to its converter.
COMMON = tuple(field.name for field in fields(ConvertOptions))

_M_MMAP_THRESHOLD = -3  # of mallopt(3)
_THRESHOLD_BYTES = 2**20

DEGREES = (
    Block(
        "Degrees",
        {
            "": "{key}",
            "nodes": "{num_nodes}",
            "edges": "{num_edges}",
            "mean": "{mean:,.2f}",
            "highest": "{max}",
            "none": "{zero_share}",
            "tail": "{tail_exponent:.2f}",
        },
        "degrees",
    ),
    (
        "{degrees.node_factor} times the nodes, {degrees.edge_factor} times the edges. Distance of "
        "the distributions (Kolmogorov-Smirnov, in-degrees in units of their mean): "
        "{degrees.ks_distance:.4f}"
    ),
)


def convert(
    session: Session,
    run: Callable[..., Path],
    *,
    style: Style,
    plot_file: Path | None = None,
    **arguments: Any,
) -> None:
    """Run a converter of the library and print a summary."""
    options = ConvertOptions(**{n: arguments.pop(n) for n in COMMON if n in arguments})
    if options.memory_bytes is not None:
        _return_large_blocks()
    with interrupts_wait():
        importlib.import_module("zarr.codecs")  # else imported in the middle of the work
    started = time.perf_counter()
    with session.progress(style=style) as progress:
        path = run(options=options, progress=progress, **arguments)
    seconds = time.perf_counter() - started
    with interrupts_wait():
        # On demand: they import the strategies, which takes longer than --help may.
        from gnnstore.tools.inspect import describe, layouts  # noqa: PLC0415
        from gnnstore.tools.inspect.programs import next_commands, program_of  # noqa: PLC0415
    store = describe.describe_store(StoreReader.open(path))
    speed = store["state"]["disk_bytes"] / max(seconds, 1e-9)
    document = {"store": store, "seconds": seconds, "written_bytes_per_second": speed}
    layout: list[Any] = [("store", layouts.summary(store))]
    if run.__name__ == "from_kronecker":
        document |= _compare_degrees(arguments["seed_store"], path, plot_file)
        layout += DEGREES
    layout.append("Converted in {seconds} ({written_bytes_per_second} written).")
    session.emit(document, layout, next_commands(store["path"]), program_of(store))


def _return_large_blocks() -> None:
    """Let glibc return blocks of 1 MiB and more to the system as soon as they are freed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)


def _compare_degrees(before: str, after: Path, plot_file: Path | None) -> dict[str, Any]:
    from gnnstore.tools.inspect.scan import compare_degrees  # noqa: PLC0415 - on demand

    comparison = compare_degrees(before, after)
    document: dict[str, Any] = {"degrees": comparison.to_json()}
    if plot_file is not None:
        from gnnstore.tools.plots import draw_comparison  # noqa: PLC0415 - optional

        document["drawn_to"] = str(draw_comparison(comparison, plot_file))
    return document
