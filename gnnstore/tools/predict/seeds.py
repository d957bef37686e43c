"""Finds the seeds of batches that the command line names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gnnstore.converters.inputs.npy import open_npy
from gnnstore.errors import UsageError
from gnnstore.loaders.link import resolve_links
from gnnstore.seeds.nodes import InputNodes, resolve_input_nodes

if TYPE_CHECKING:
    from gnnstore.graph.store import GraphStore
    from gnnstore.sampling.neighbor import SamplingConfig
    from gnnstore.seeds.links import Links
    from gnnstore.tools.ui.options import SeedOptions

_ALL = "all"


def choose_seeds(
    store: GraphStore, config: SamplingConfig, asked: SeedOptions, **more: Any
) -> tuple[dict[str, str | None], InputNodes | Links]:
    """Return the seeds of batches: by name, as "input_nodes" or "links", and as a source."""
    more = {option: _read_if_file(value) for option, value in more.items() if value}
    if asked.links is not None:
        edges = None if asked.links == _ALL else _read_if_file(asked.links)
        weights = {side: more.pop(side) for side in ("src_weight", "dst_weight") if side in more}
        given = {**asked.of_links, **more}
        if weights and asked.neg_sampling is None:
            raise UsageError("weights are those of --negatives, which are not given")
        if weights:
            tensors = {side: torch.from_numpy(values) for side, values in weights.items()}
            given["neg_sampling"] = {**given["neg_sampling"], **tensors}
        return asked.names, resolve_links(store, config, edges, **given)
    if more:
        raise UsageError(
            f"{' and '.join(more)}: only of use with links; give these with --links, or leave the "
            "option out"
        )
    name = asked.input_nodes or ("train" if "train" in store.splits else _ALL)
    nodes = resolve_input_nodes(store, None if name == _ALL else name)
    if len(nodes) == 0:
        raise UsageError(
            f"{store.path}: the input nodes {name!r} are empty, so there are no batches; choose "
            "others with --input-nodes"
        )
    return {**asked.names, "input_nodes": name}, nodes


def _read_if_file(value: Any) -> Any:
    """Return the array of a `.npy` file, and anything else as it is."""
    return open_npy(Path(value)).read() if str(value).endswith(".npy") else value
