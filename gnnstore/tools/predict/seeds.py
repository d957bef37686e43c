"""Finds the seeds of batches that the command line names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gnnstore.converters.inputs.files import open_npy
from gnnstore.errors import UsageError
from gnnstore.loaders.link import resolve_links
from gnnstore.loaders.options import fanouts_of
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.sampling.sampled_graph import columns_needed
from gnnstore.seeds.nodes import InputNodes, resolve_input_nodes

if TYPE_CHECKING:
    from gnnstore.graph.store import GraphStore
    from gnnstore.seeds.links import Links
    from gnnstore.tools.ui.options import SamplingOptions, SeedOptions

_ALL = "all"


def config_of(store: GraphStore, asked: SamplingOptions, **more: Any) -> SamplingConfig:
    """Return the configuration of sampling, checked against a store."""
    schema = store.schema
    config = SamplingConfig(fanouts_of(asked.fanouts, schema), **more, **asked.of_loader)
    columns_needed(schema, store.path, config.time_attr, config.weight_attr)
    return config


def choose_seeds(
    store: GraphStore, config: SamplingConfig, asked: SeedOptions, **more: Any
) -> tuple[dict[str, str | None], InputNodes | Links]:
    """Return the seeds of batches: by name, as "input_nodes" or "links", and as a source."""
    more = {option: _read_if_file(value) for option, value in more.items() if value}
    if asked.links is not None:
        edges = _edges_of(store, asked.links)
        weights = {side: more.pop(side) for side in ("src_weight", "dst_weight") if side in more}
        given = {**asked.of_links, **more}
        if weights and asked.neg_sampling is None:
            raise UsageError("weights are those of --negatives, which are not given")
        if weights:
            tensors = {side: torch.from_numpy(values) for side, values in weights.items()}
            given["neg_sampling"] = {**given["neg_sampling"], **tensors}
        return asked.names, resolve_links(store, config, edges, **given)
    input_time = more.pop("input_time", None)
    if more:
        raise UsageError(
            f"{' and '.join(more)}: only of use with links; give these with --links, or leave the "
            "option out"
        )
    name, given = _nodes_of(store, asked.input_nodes)
    nodes = resolve_input_nodes(store, given, input_time=input_time)
    if config.time_attr is not None and input_time is None:
        timed, _ = columns_needed(store.schema, store.path, config.time_attr, None)
        if missing := [node_type for node_type in nodes.parts if node_type not in timed]:
            raise UsageError(
                f"--time-attr {config.time_attr}: seeds of {', '.join(missing)} have no times of "
                "their own; only 'gnnstore pack' takes those of --input-time"
            )
    if len(nodes) == 0:
        raise UsageError(
            f"{store.path}: the input nodes {name!r} are empty, so there are no batches; choose "
            "others with --input-nodes"
        )
    return {**asked.names, "input_nodes": name}, nodes


def _nodes_of(store: GraphStore, named: str | None) -> tuple[str, Any]:
    """Return the name of the seed nodes, and what a loader would be given."""
    if store.schema.is_homogeneous:
        name = named or ("train" if "train" in store.splits else _ALL)
        return name, None if name == _ALL else name
    if named is None:
        trained = [node.name for node in store.schema.node_types if "train" in node.splits]
        if len(trained) != 1:
            types = ", ".join(node.name for node in store.schema.node_types)
            raise UsageError(
                f"{store.path}: {len(trained)} node types have a split 'train'; name the seeds: "
                f"--input-nodes TYPE:SPLIT, of the types {types}"
            )
        named = f"{trained[0]}:train"
    given = {}
    for part in named.split(","):
        node_type, _, split = part.partition(":")
        given[node_type] = None if split in ("", _ALL) else split
    return named, given


def _edges_of(store: GraphStore, named: str) -> Any:
    """Return what a link loader would be given as its edges."""
    if store.schema.is_homogeneous:
        return None if named == _ALL else _read_if_file(named)
    edge_type, _, which = named.partition(":")
    types = {"__".join(edge.type): edge.type for edge in store.schema.edge_types}
    if edge_type not in types:
        raise UsageError(
            f"--links {named}: expected SOURCE__RELATION__TARGET, and :all or :FILE.npy after it; "
            f"there are the edge types {', '.join(types)}"
        )
    return types[edge_type], None if which in ("", _ALL) else _read_if_file(which)


def _read_if_file(value: Any) -> Any:
    """Return the array of a `.npy` file, and anything else as it is."""
    return open_npy(Path(value)).read() if str(value).endswith(".npy") else value
