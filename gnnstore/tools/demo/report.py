"""Print what the demonstration measured; see `cmd_demo` for its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from gnnstore.tools.inspect.render_store import next_commands
from gnnstore.tools.ui.tables import print_facts, print_next, print_table, print_title, share_bar
from gnnstore.units import format_size


def render_demo(console: Console, document: Mapping[str, Any]) -> None:
    """Print accuracies side by side, sizes beside memory, seconds by stage, next commands."""
    store, memory = document["store"], document["memory"]
    print_title(console, "Accuracy on test nodes")
    rows = [
        (
            result["model"],
            f"{result['test_accuracy']:.1%}",
            share_bar(console, result["test_accuracy"]),
            f"{result['seconds']:.1f}",
            result["sees"],
        )
        for result in document["results"]
    ]
    columns = ("model", "accuracy", "", "seconds", "sees")
    print_table(console, columns, rows, right=("accuracy", "seconds"))

    print_title(console, "Disk and memory")
    print_facts(
        console,
        {
            "store on disk": format_size(store["disk_bytes"]),
            "of it, features": f"{format_size(store['feature_bytes'])}, left on disk",
            "memory for training": f"{format_size(memory['training_added_bytes'])}: graph "
            "structure, batches and model together",
            "memory before that": f"{format_size(memory['before_training_bytes'])}: Python, torch",
        },
    )

    print_title(console, "Seconds")
    loader = document["loader"]
    print_facts(
        console,
        {
            **{stage: f"{seconds:.2f}" for stage, seconds in document["seconds"].items()},
            "GraphSAGE's batches": f"{loader['seconds_sampling']:.2f} sampling, "
            f"{loader['seconds_gathering']:.2f} gathering, for {loader['batches']:,} batches, in "
            f"{loader['num_threads']} threads beside the model",
            "the model waited": f"{loader['seconds_waiting']:.2f}",
        },
    )
    print_next(console, [*next_commands(store["path"]), ("gnnstore", "convert", "--help")])
