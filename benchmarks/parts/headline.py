"""Draws the README's figure from the table "Training, end to end" of docs/benchmarks.md.

    python -m benchmarks.parts.headline

That table was measured by `benchmarks.epoch`; nothing is measured here. A test compares the picture
with what this draws, so that it cannot show other numbers than the page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from gnnstore.pictures import STRATEGIES

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "headline.svg"
SOURCE = ROOT / "docs" / "benchmarks.md"

# Strategy of the table -> its label and its colour: without names that a newcomer has not met.
LINES = {
    "mmap": ("memory map", STRATEGIES["mmap"].colour),
    "packed": ("gnnstore", STRATEGIES["packed"].colour),
}
SHARES = {"memory for all features": 0, "the same": 0, "for a tenth": 1}

_WIDTH, _HEIGHT = 760, 312
_LEFT, _RIGHT, _TOP, _BOTTOM = 130, 500, 74, 274
_LARGEST = 3.5
_CELL = re.compile(r"^\| `(\w+)`, ([a-z ]+) \| ([\d.]+) \[([\d.]+), ([\d.]+)\]", re.MULTILINE)

_STYLE = """
    .card { fill: #ffffff } .ink { fill: #1f2328 } .soft { fill: #59636e }
    .grid { stroke: #d8dee4 } .axis { stroke: #59636e }
    text { font-family: system-ui, sans-serif; font-size: 14px }
    @media (prefers-color-scheme: dark) {
      .card { fill: #161b22 } .ink { fill: #e6edf3 } .soft { fill: #9aa4af }
      .grid { stroke: #30363d } .axis { stroke: #9aa4af }
    }"""


class Point(NamedTuple):
    """An epoch's time over that with everything in memory, median and extremes of three rounds."""

    median: float
    least: float
    most: float


def read_points(text: str) -> dict[str, list[Point]]:
    """Return the points of each strategy, with memory for all features and for a tenth."""
    section = text.split("### Training, end to end")[1].split("\n### ", maxsplit=1)[0]
    points: dict[str, list[Point]] = {}
    for strategy, share, *numbers in _CELL.findall(section):
        row = points.setdefault(strategy, [])
        assert len(row) == SHARES[share], f"{strategy}, {share}: another row was expected"
        row.append(Point(*map(float, numbers)))
    return points


def draw(points: dict[str, list[Point]]) -> str:
    """Return the picture as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        "<title>Training time against memory: flat with gnnstore, rising with a memory map</title>",
        f"<style>{_STYLE}\n  </style>",
        f'<rect class="card" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>',
        _text(24, 32, "A training epoch, relative to one with everything in memory", "ink", 17),
        _text(24, 54, "3-layer GraphSAGE, 16.8 million nodes, 8.6 GB of features", "soft"),
    ]
    for tick in (1, 2, 3):
        y = _y(tick)
        parts.append(f'<path class="grid" d="M{_LEFT - 30} {y:.1f}H{_RIGHT + 30}"/>')
        parts.append(_text(_LEFT - 38, y + 5, f"{tick} x", "soft", anchor="end"))
    for x, label in ((_LEFT, "memory for all features"), (_RIGHT, "for a tenth of them")):
        parts.append(f'<path class="axis" d="M{x} {_BOTTOM}v6"/>')
        parts.append(_text(x, _BOTTOM + 24, label, "soft", anchor="middle"))
    for strategy, (label, colour) in LINES.items():
        parts += _line(points[strategy], label, colour)
    return "\n  ".join(parts) + "\n</svg>\n"


def _line(points: list[Point], label: str, colour: str) -> list[str]:
    """Return a strategy's line, its spread, and its label."""
    ends = list(zip((_LEFT, _RIGHT), points, strict=True))
    path = "L".join(f"{x} {_y(point.median):.1f}" for x, point in ends)
    parts = [f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="3"/>']
    for x, point in ends:
        spread = f"M{x} {_y(point.least):.1f}V{_y(point.most):.1f}"
        parts.append(f'<path d="{spread}" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<circle cx="{x}" cy="{_y(point.median):.1f}" r="5" fill="{colour}"/>')
    last = points[-1].median
    text = f"{label}: {last:.2f} x"
    parts.append(
        f'<text x="{_RIGHT + 16}" y="{_y(last) + 5:.1f}" fill="{colour}" font-weight="600">'
        f"{text}</text>"
    )
    return parts


def _y(value: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * value / _LARGEST


def _text(
    x: float, y: float, text: str, kind: str, size: int = 14, *, anchor: str = "start"
) -> str:
    style = f' style="font-size:{size}px;font-weight:600"' if size > 14 else ""
    return f'<text class="{kind}" x="{x}" y="{y:.0f}" text-anchor="{anchor}"{style}>{text}</text>'


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(draw(read_points(SOURCE.read_text())))
    print(PICTURE)


if __name__ == "__main__":
    main()
