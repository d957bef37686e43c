"""Programs that train on what a command made, to be pasted into Python."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MOST_CELLS = 76


def next_commands(path: str) -> list[tuple[str, ...]]:
    """Return the commands to try on a store, in order of use."""
    full = ("gnnstore", "verify", path, "--level", "full")
    return [("gnnstore", "inspect", path, "--stats"), full]


def program_of(store: Mapping[str, Any], *more: str, setup: str = "") -> str:
    """Return a program for the store of a description; `more`: arguments of its loader."""
    input_nodes, links = _seeds_of(store["graph"])
    return program(store["path"], input_nodes, *more, links=links, setup=setup)


def _seeds_of(graph: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the input nodes, or the links, that a graph is probably to be trained on."""
    trained = [node["name"] for node in graph["node_types"] if "train" in node["splits"]]
    if graph["has_types"]:
        first = graph["node_types"][0]["name"]
        return (f"{trained[0]}:train" if trained else f"{first}:all"), None
    if not trained and any(edge["splits"] for edge in graph["edge_types"]):
        return None, "all"
    return ("train" if trained else None), None


def program(
    path: str,
    input_nodes: str | None = None,
    *more: str,
    links: str | None = None,
    num_neighbors: Any = (10, 10),
    batch_size: int = 1024,
    setup: str = "",
) -> str:
    """Return a program whose loader has the seeds that the command line's options name."""
    words = ["store", _fanouts(num_neighbors)]
    if links is not None:
        loader = "LinkNeighborLoader"
        words += [] if links == "all" else [f"edge_label_index={json.dumps(links)}"]
        words.append('neg_sampling="binary"')
    else:
        loader = "NeighborLoader"
        words += [] if input_nodes in {None, "all"} else [_seeds(str(input_nodes))]
    words += [f"batch_size={batch_size}", "shuffle=True", *more]
    opening = f"store = gnnstore.open({json.dumps(path)})"
    return _loop("\n".join(filter(None, (opening, setup))), f"gnnstore.{loader}", words)


def program_of_packed(path: str) -> str:
    """Return a program that trains on packed epochs."""
    return _loop(f"packed = gnnstore.open_packed({json.dumps(path)})", "packed.loader", [])


def program_of_partitions(store: Mapping[str, Any], partitions: Mapping[str, Any]) -> str:
    """Return a program that trains on partitions of a store, both as they are described."""
    kind, capacity = "dispersed", "0.5"
    if _seeds_of(store["graph"])[1] is not None:
        kind = "two-level"
    elif partitions["order"] == "train-first":
        number, trained = partitions["num_partitions"], partitions["num_train_partitions"]
        kind, capacity = "sequential", str(max(trained + 1, (number + trained) // 2))
    is_inside = Path(store["path"]) in Path(partitions["path"]).parents
    name = partitions["name" if is_inside else "path"]
    words = [f'"{kind}"', f"capacity={capacity}", f"name={json.dumps(name)}"]
    policy = _assigned("policy", "gnnstore.PartitionPolicy", words)
    return program_of(store, "partitions=policy", setup=policy)


def _loop(opening: str, call: str, words: list[str]) -> str:
    return (
        f"import gnnstore\n\n{opening}\n{_assigned('loader', call, words)}\n"
        "for batch in loader:\n    print(batch)  # a Data object of PyG: train here"
    )


def _assigned(name: str, call: str, words: list[str]) -> str:
    """Return `name = call(words)`, with lines for the words if they do not fit in one."""
    line = f"{name} = {call}({', '.join(words)})"
    if len(line) <= _MOST_CELLS:
        return line
    lines = words[:1]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 7 <= _MOST_CELLS:
            lines[-1] += f", {word}"
        else:
            lines.append(word)
    return f"{name} = {call}(\n    " + ",\n    ".join(lines) + "\n)"


def _fanouts(num_neighbors: Any) -> str:
    if not isinstance(num_neighbors, Mapping):
        return str(list(num_neighbors))
    each = ((tuple(name.split("__")), list(hops)) for name, hops in num_neighbors.items())
    return _quoted(dict(each))


def _quoted(value: Any) -> str:
    return repr(value).replace("'", '"')


def _seeds(text: str) -> str:
    """Return `TYPE:SPLIT`, or several with commas, as a loader takes them."""
    pairs = [part.strip().partition(":") for part in text.split(",")]
    if not pairs[0][1]:
        return json.dumps(text)
    given = {name: None if split == "all" else split for name, _, split in pairs}
    return _quoted(next(iter(given.items())) if len(given) == 1 else given)
