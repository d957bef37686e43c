"""Divides the time of an epoch among its stages, from the timeline that a loader recorded.

Stages run side by side, in several threads. Their plain sums say how much work there was, and not
what the epoch's time was spent on; so each moment is divided evenly among the stages that run
in it, one share for each thread. The shares of all moments add up to the epoch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# In the order of a batch's way.
STAGES = ("sampling", "planning", "filling", "packing", "reading", "assembling", "other")

_STAGE_OF = {
    "sampling": "sampling",
    "planning": "planning",
    "filling": "filling",
    "packing": "packing",
    "recalling": "assembling",
    "gathering": "assembling",
}
_MICROSECOND = 1e-6


def stages_of(file: Path, seconds: float, *, faults_are_reads: bool) -> dict[str, float]:
    """Return the seconds of each of `STAGES`, which add up to `seconds`."""
    document = json.loads(file.read_text())
    spans = [
        (max(0.0, begin), min(seconds, end), event["name"], event.get("args", {}))
        for event in document["traceEvents"]
        if event["ph"] == "X" and event["name"] in _STAGE_OF
        for begin in [event["ts"] * _MICROSECOND]
        for end in [begin + event["dur"] * _MICROSECOND]
    ]
    found = dict.fromkeys(STAGES, 0.0)
    for (_, _, name, args), share, length in _shared(spans):
        reading = 0.0
        if name == "gathering" and length > 0:
            waited = args.get("ms_reading", 0.0) * 1e-3 / length
            reading = share * (1.0 if faults_are_reads else min(1.0, waited))
        found["reading"] += reading
        found[_STAGE_OF[name]] += share - reading
    found["other"] = max(0.0, seconds - sum(found.values()))
    return found


_Span = tuple[float, float, str, dict[str, Any]]


def _shared(spans: list[_Span]) -> list[tuple[_Span, float, float]]:
    """Return each span, its share of the time, and its length."""
    spans = [span for span in spans if span[1] > span[0]]
    edges = sorted(
        [(begin, 1, number) for number, (begin, *_) in enumerate(spans)]
        + [(end, 0, number) for number, (_, end, *_) in enumerate(spans)]
    )
    # A span's share is the integral of 1 / (spans that run): the difference of two readings.
    each = last = 0.0
    running = 0
    at_begin = [0.0] * len(spans)
    shares = [0.0] * len(spans)
    for moment, is_begin, number in edges:
        if running:
            each += (moment - last) / running
        last = moment
        if is_begin:
            running += 1
            at_begin[number] = each
        else:
            running -= 1
            shares[number] = each - at_begin[number]
    lengths = [end - begin for begin, end, *_ in spans]
    return list(zip(spans, shares, lengths, strict=True))
