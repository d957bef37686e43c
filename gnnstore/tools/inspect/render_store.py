"""Prints the description of a store for people; see `describe_store` for its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from gnnstore.tools.inspect.node_order import describe_saving, reorder_command
from gnnstore.tools.inspect.partitioned import describe_order
from gnnstore.tools.inspect.programs import program_of
from gnnstore.tools.ui.tables import print_facts, print_next, print_table, print_title
from gnnstore.units import format_size


def render_store(console: Console, store: Mapping[str, Any]) -> None:
    """Print everything that `gnnstore inspect STORE` shows."""
    render_summary(console, store)
    if store["packed"]:
        print_title(console, "Packed epochs")
        _print_packed(console, store["packed"])
    if store["partitions"]:
        print_title(console, "Partitions")
        _print_partitions(console, store["partitions"])
    print_title(console, "Provenance")
    print_facts(console, flatten(store["provenance"]))
    print_title(console, "Reading it here")
    print_facts(console, _reading(store["reading"]))
    if "stats" in store:
        render_stats(console, store["stats"])
    commands = next_commands(store["path"])["stats" in store :]
    if store.get("stats", {}).get("node_order", {}).get("is_worth_it"):
        commands.append(reorder_command(store["path"]))
    print_next(console, commands, program_of(store))


def next_commands(path: str) -> list[tuple[str, ...]]:
    """Return the commands to try on a store, in order of use."""
    return [
        ("gnnstore", "inspect", path, "--stats"),
        ("gnnstore", "verify", path, "--level", "full"),
    ]


def render_summary(console: Console, store: Mapping[str, Any]) -> None:
    """Print the size of the store and of its arrays."""
    console.print(store["path"], style="bold", soft_wrap=True)
    print_facts(console, _headline(store))
    if store["graph"]["has_types"]:
        _print_types(console, store)
    print_title(console, "Arrays")
    _print_arrays(console, store)


def render_array(console: Console, array: Mapping[str, Any]) -> None:
    """Print everything that `gnnstore inspect STORE --array PATH` shows."""
    console.print(array["path"], style="bold", soft_wrap=True)
    pages = array.get("pages")
    facts: dict[str, object] = {
        "name": array["name"],
        "type": f"{array['dtype']} {_shape(array['shape'])}",
        "layout": array["layout"],
        "values": format_size(array["value_bytes"]),
        "on disk": f"{format_size(array['disk_bytes'])} ({array['share']:.1%} of the store)",
    }
    if pages:
        facts |= {
            "row": f"{pages['row_bytes']:,} bytes",
            "page": f"{pages['page_bytes']:,} bytes",
            "geometry": _geometry(pages),
            "padding": f"{format_size(pages['padding_bytes'])}{_percent(pages, array)}",
            "shards": f"{pages['num_shards']:,} of {pages['rows_per_shard']:,} rows",
        }
    print_facts(console, facts)
    print_title(console, "Files")
    rows = [(file["path"], f"{file['size_bytes']:,}") for file in array["files"]]
    print_table(console, ("file", "bytes"), rows, right=("bytes",))
    if "stats" in array:
        render_stats(console, array["stats"])


def render_stats(console: Console, stats: Mapping[str, Any]) -> None:
    """Print the statistics of arrays."""
    if stats.get("degrees"):
        print_title(console, "Degrees")
        degrees = stats["degrees"]
        print_facts(
            console,
            {
                "in-degree": ", ".join(f"{key} {value:,}" for key, value in degrees["in"].items()),
                "mean": f"{degrees['mean']:.2f}",
                "without in-edge": _count(degrees["no_in_edge"], degrees["num_nodes"]),
                "isolated": _count(degrees["isolated"], degrees["num_nodes"]),
                "node order": _worth(stats.get("node_order")),
            },
        )
    if stats.get("values"):
        print_title(console, "Values")
        columns = ("array", "min", "max", "mean", "NaN", "infinite")
        rows = [
            (path, *(_number(found[key]) for key in ("min", "max", "mean", "nan", "infinite")))
            for path, found in stats["values"].items()
        ]
        print_table(console, columns, rows, right=columns[1:])
    for path, counts in (stats.get("labels") or {}).items():
        print_title(console, f"Labels in {path}")
        total = sum(counts.values()) or 1
        rows = [(label, f"{count:,}", f"{count / total:.1%}") for label, count in counts.items()]
        print_table(console, ("label", "nodes", "share"), rows, right=("nodes", "share"))


def _worth(saving: dict[str, Any] | None) -> str | None:
    return describe_saving(saving) if saving and saving["is_worth_it"] else None


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Return nested values under dotted names, for two columns of text."""
    flat: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            between = "\n" if any(isinstance(item, Mapping) for item in value) else ", "
            flat[f"{prefix}{name}"] = between.join(map(_one_line, value)) or "none"
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _one_line(value: object) -> str:
    """Return an item of a list as text: an input file as its path and size."""
    if isinstance(value, Mapping) and "path" in value and isinstance(value.get("size_bytes"), int):
        return f"{value['path']} ({format_size(value['size_bytes'])})"
    return str(value)


def _headline(store: Mapping[str, Any]) -> dict[str, object]:
    graph, state = store["graph"], store["state"]
    splits = {
        (f"{node['name']} {name}" if graph["has_types"] else name): count
        for node in graph["node_types"]
        for name, count in node["splits"].items()
    }
    by_time = {name for edge in graph["edge_types"] for name in edge["orders"]}
    by_weight = {name for edge in graph["edge_types"] for name in edge["weight_sums"]}
    edge_splits = {
        name: split["num_edges"]
        for edge in graph["edge_types"]
        for name, split in edge["splits"].items()
    }
    unfinished = state["unfinished_beside_it"]
    return {
        "nodes": f"{graph['num_nodes']:,}",
        "edges": f"{graph['num_edges']:,} ({graph['mean_in_degree']:.4g} per node)",
        "splits": ", ".join(f"{name} {count:,}" for name, count in splits.items()) or None,
        "edge splits": ", ".join(f"{name} {n:,}" for name, n in edge_splits.items()) or None,
        "ordered by": ", ".join(sorted(by_time)) or None,
        "weighted by": ", ".join(sorted(by_weight)) or None,
        "attributes": ", ".join(f"{k}={v}" for k, v in graph["attributes"].items()) or None,
        "size": f"{format_size(state['disk_bytes'])} in {state['num_files']:,} files",
        "state": "complete"
        + ("" if state["writable"] else ", read-only")
        + (f"; unfinished conversions next to it: {', '.join(unfinished)}" if unfinished else ""),
        "format": f"version {store['format_version']}, written by {store['created_by']}",
        "uuid": store["uuid"],
    }


def _print_types(console: Console, store: Mapping[str, Any]) -> None:
    """Print a line for each node type and each edge type."""
    graph = store["graph"]
    print_title(console, "Node types")
    rows = [
        (
            node["name"],
            f"{node['num_nodes']:,}",
            ", ".join(node["attributes"]) or "-",
            ", ".join(f"{name} {count:,}" for name, count in node["splits"].items()) or "-",
        )
        for node in graph["node_types"]
    ]
    print_table(console, ("type", "nodes", "attributes", "splits"), rows, right=("nodes",))
    print_title(console, "Edge types")
    counts = {node["name"]: node["num_nodes"] for node in graph["node_types"]}
    lines = []
    for edge in graph["edge_types"]:
        source, relation, target = edge["type"]
        lines.append(
            (
                f"{source} -> {target}",
                relation,
                f"{edge['num_edges']:,}",
                f"{edge['num_edges'] / max(1, counts[target]):.4g}",
                ", ".join(edge["attributes"]) or "-",
                ", ".join(edge["orders"]) or "-",
                ", ".join(edge["weight_sums"]) or "-",
            )
        )
    columns = ("type", "relation", "edges", "per target", "attributes", "times", "weights")
    optional = ("per target", "weights", "times", "attributes")
    print_table(console, columns, lines, right=("edges", "per target"), optional=optional)


def _print_arrays(console: Console, store: Mapping[str, Any]) -> None:
    columns = ("array", "values", "layout", "on disk", "padding", "share")
    rows = []
    for array in sorted(store["arrays"], key=lambda item: -item["disk_bytes"]):
        pages = array.get("pages")
        rows.append(
            (
                array["path"],
                f"{array['dtype']} {_shape(array['shape'])}",
                _geometry(pages) if pages else "compressed",
                format_size(array["disk_bytes"]),
                _percent(pages, array).strip(" ()") if pages else "",
                f"{array['share']:.1%}",
            )
        )
    metadata = store["metadata_bytes"]
    share = metadata / (store["state"]["disk_bytes"] or 1)
    rows.append(("(metadata)", "", "", format_size(metadata), "", f"{share:.1%}"))
    right = ("on disk", "padding", "share")
    print_table(console, columns, rows, right=right, optional=("padding", "layout", "share"))


def _print_packed(console: Console, packed: list[Mapping[str, Any]]) -> None:
    columns = ("name", "epochs", "batches", "fan-outs", "batch size", "seed", "on disk")
    optional = ("seed", "batch size", "fan-outs")
    rows = []
    for one in packed:
        if one["problem"] is not None:
            rows.append((one["name"], "damaged: see 'gnnstore verify'", *[""] * 5))
            continue
        rows.append(
            (
                one["name"],
                f"{one['epochs']:,}",
                f"{one['batches_per_epoch']:,} an epoch",
                ", ".join(map(str, one["num_neighbors"] or [])),
                f"{one['batch_size']:,}" + (", shuffled" if one["shuffle"] else ""),
                f"{one['seed']}",
                format_size(one["disk_bytes"]),
            )
        )
    print_table(console, columns, rows, right=("on disk",), optional=optional)


def _print_partitions(console: Console, found: list[Mapping[str, Any]]) -> None:
    columns = ("name", "partitions", "nodes of each", "order", "seed", "on disk")
    rows = []
    for one in found:
        if one["problem"] is not None:
            rows.append((one["name"], "damaged: see 'gnnstore verify'", *[""] * 4))
            continue
        rows.append(
            (
                one["name"],
                f"{one['num_partitions']:,}",
                f"{one['rows_per_partition']:,}",
                describe_order(one),
                f"{one['seed']}",
                format_size(one["disk_bytes"]),
            )
        )
    print_table(console, columns, rows, right=("on disk",), optional=("seed", "nodes of each"))


def _reading(reading: Mapping[str, Any]) -> dict[str, object]:
    if reading["strategy"] is None:
        return {"not possible": reading["reason"]}
    return {
        "reason": reading["reason"],
        "memory available": format_size(reading["available_bytes"]),
    }


def _shape(shape: list[int]) -> str:
    return " x ".join(f"{extent:,}" for extent in shape) or "scalar"


def _geometry(pages: Mapping[str, Any]) -> str:
    size = (
        format_size(pages["page_bytes"])
        if pages["page_bytes"] % 1024
        else (f"{pages['page_bytes'] // 1024} KiB")
    )
    if pages["pages_per_row"] > 1:
        return f"{pages['pages_per_row']} pages of {size} a row"
    return f"{pages['rows_per_page']:,} rows a page of {size}"


def _percent(pages: Mapping[str, Any], array: Mapping[str, Any]) -> str:
    padding = pages["padding_bytes"]
    return f" ({padding / (array['value_bytes'] + padding):.1%})" if padding else ""


def _count(count: int, total: int) -> str:
    return f"{count:,} ({count / total:.1%})" if total else "0"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
