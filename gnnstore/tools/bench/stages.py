"""Divides the time of an epoch among its stages, from the timeline that a loader recorded.

Stages run at the same time in several threads, so each moment is divided evenly among the stages
that run in it, one share for each thread. The shares of all moments add up to the epoch.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

# In the order of a batch's way.
STAGES = ("sampling", "planning", "filling", "packing", "reading", "assembling", "other")

_STAGE_OF = {name: name for name in STAGES[:4]}
_STAGE_OF |= {"recalling": "assembling", "gathering": "assembling"}


def stages_of(file: Path, seconds: float, *, faults_are_reads: bool) -> dict[str, float]:
    """Return the seconds of each of `STAGES`, which add up to `seconds`."""
    events = json.loads(file.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X" and event["name"] in _STAGE_OF]
    times = np.array([(span["ts"], span["ts"] + span["dur"]) for span in spans]).reshape(-1, 2)
    begins, ends = np.clip(times.T * 1e-6, 0, seconds)
    moments = np.unique([begins, ends])
    begun, ended = (np.searchsorted(np.sort(t), moments[:-1], "right") for t in (begins, ends))
    # A span's share is the integral of 1 / (spans that run): the difference of two readings.
    each = np.append(0, np.cumsum(np.diff(moments) / np.maximum(1, begun - ended)))
    shares = each[np.searchsorted(moments, ends)] - each[np.searchsorted(moments, begins)]
    found = dict.fromkeys(STAGES, 0.0)
    for span, share, length in zip(spans, shares.tolist(), (ends - begins).tolist(), strict=True):
        reading = 0.0
        if span["name"] == "gathering" and length > 0:
            waited = span.get("args", {}).get("ms_reading", 0.0) * 1e-3 / length
            reading = share * (1.0 if faults_are_reads else min(1.0, waited))
        found["reading"] += reading
        found[_STAGE_OF[span["name"]]] += share - reading
    found["other"] = max(0.0, seconds - sum(found.values()))
    return found
