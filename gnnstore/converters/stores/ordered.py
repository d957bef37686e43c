"""Conversions in another order of nodes: converted first, then reordered.

How often a node is an in-neighbour is known when all edges are. So the input is converted as it is,
to a store with a hidden name next to the output, and that store is reordered. Both steps resume.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from gnnstore import _core
from gnnstore.converters.stores.graph import StoreInput
from gnnstore.converters.stores.reorder import Scoring, write_reordered
from gnnstore.converters.writer.opening import AlreadyConverted, fingerprint
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import GnnstoreError, limits_named
from gnnstore.formats.container.leftovers import locked, remove_leftovers, unordered_path
from gnnstore.formats.container.transaction import check_final
from gnnstore.formats.container.writer import is_resumable_error
from gnnstore.formats.store.reader import StoreReader
from gnnstore.formats.store.schema import StoreManifest

P = ParamSpec("P")


def converter(*, edge_ids: bool = True) -> Callable[[Callable[P, Path]], Callable[P, Path]]:
    """Return a decorator of converters, which obeys `ConvertOptions.node_order`."""

    def decorate(convert: Callable[P, Path]) -> Callable[P, Path]:
        signature = inspect.signature(convert)

        @wraps(convert)
        @limits_named("convert")
        def run(*args: P.args, **kwargs: P.kwargs) -> Path:
            bound = signature.bind(*args, **kwargs)
            options = bound.arguments.get("options") or ConvertOptions()
            if options.node_order == "none":
                return convert(*args, **kwargs)
            output = Path(bound.arguments["output"])
            unordered, kind = unordered_path(output), StoreManifest
            _remove_useless(unordered, output, options)
            check_final(output.absolute(), options.overwrite, kind.is_at, kind.NOUN)
            keep = edge_ids if options.edge_ids is None else options.edge_ids
            bound.arguments["output"] = unordered
            bound.arguments["options"] = replace(options, node_order="none", overwrite=True)
            with suppress(AlreadyConverted):
                convert(*bound.args, **bound.kwargs)
            with _removed_at_last(unordered):
                return _reorder(unordered, output, replace(options, edge_ids=keep), bound.arguments)

        return run

    return decorate


def _reorder(
    unordered: Path, output: Path, options: ConvertOptions, arguments: dict[str, Any]
) -> Path:
    graph = StoreInput(unordered)
    origin = _origin(graph, options)
    # The rules were those of the first step.
    plain = ConvertOptions(
        page_bytes=options.page_bytes,
        overwrite=options.overwrite,
        memory_bytes=options.memory_bytes,
        edge_ids=options.edge_ids,
        resume=options.resume,
        spill_directory=options.spill_directory,
    )
    progress = arguments.get("progress")
    return write_reordered(graph, output, plain, progress, Scoring("degree"), origin=origin)


def _origin(unordered: StoreInput, options: ConvertOptions) -> dict[str, Any]:
    """Return the provenance of a conversion from that of its first step."""
    found = dict(unordered.reader.manifest.provenance)
    return {**found, "options": {**found["options"], "node_order": options.node_order}}


def _remove_useless(unordered: Path, output: Path, options: ConvertOptions) -> None:
    """Remove the result of a first step whose conversion was killed while it removed it."""
    if not os.path.lexists(unordered):
        return
    with locked(unordered) as free:
        if free:
            try:
                origin = _origin(StoreInput(unordered), options)
                done = StoreManifest.is_at(output) and StoreReader.open(output).manifest.provenance
            except GnnstoreError:
                done = origin = {}
            if done == origin:
                _core.remove_tree(unordered)


@contextmanager
def _removed_at_last(path: Path) -> Iterator[None]:
    """Remove a store, unless an attempt that resumes can use it."""
    with locked(path):  # 'gnnstore gc' must not remove it meanwhile
        try:
            yield
        except BaseException as error:
            provenance = StoreInput(path).reader.manifest.provenance
            if not is_resumable_error(error) or fingerprint(provenance) is None:
                _core.remove_tree(path)
            raise
        _core.remove_tree(path)
    remove_leftovers(path)  # of earlier attempts at the first step
