"""Miss-ratio curves of caches (Ginex, figure 5). Draws with matplotlib, an optional extra."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnnstore.planning.policies import POLICIES
from gnnstore.tools.pictures import make_plain, new_figure, save_png
from gnnstore.tools.render_plan import miss_rate

# Told apart by everyone, the colour-blind included, and in grey by their markers.
_LINES = (
    ("#0072b2", "o"),
    ("#56b4e9", "s"),
    ("#e69f00", "^"),
    ("#cc79a7", "D"),
    ("#000000", "v"),
)
_NAMES = {
    "degree": "degree (static)",
    "frequency": "frequency (static)",
    "lru": "LRU",
    "sieve": "SIEVE",
    "belady": "Belady",
}


def draw_misses(document: Mapping[str, Any], file: Path) -> Path:
    """Draw the share of missing rows over the size of the cache, as a PNG.

    Parameters
    ----------
    document : mapping
        What `gnnstore plan --json` prints.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    figure = new_figure(7)
    axes = figure.subplots()
    caches = sorted(document["caches"], key=lambda cache: cache["num_rows"])
    shares = [100 * cache["share"] for cache in caches]
    for policy, (colour, marker) in zip(POLICIES, _LINES, strict=True):
        rates = [
            100 * miss_rate(document, outcome)
            for cache in caches
            for outcome in cache["policies"]
            if outcome["policy"] == policy
        ]
        axes.plot(shares, rates, color=colour, marker=marker, markersize=4.5, label=_NAMES[policy])
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows in the cache (% of all nodes)")
    axes.set_ylabel("misses (% of the rows that batches need)")
    make_plain(axes)
    axes.legend(frameon=False)
    figure.suptitle(
        f"{Path(document['store']).name}: {document['num_batches']} batches of "
        f"{document['batch_size']} seeds",
        fontsize=11,
    )
    return save_png(figure, file)
