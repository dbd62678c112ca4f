"""Plots as SVG, written by hand: bars with their range, and lines on two logarithmic axes."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 760
NAMES = 250
"""Room for the names left of the bars."""
BAR = 18
STEP = 26
TOP = 56
BOTTOM = 36
COLOURS = ("#888888", "#bbbbbb", "#2f6fb0", "#3f9c5a", "#c2702a", "#8a5bb0", "#b04a5a", "#4aa3a8")


@dataclass(frozen=True)
class Bar:
    """A value with the range of its rounds."""

    name: str
    value: float
    low: float
    high: float
    best: float | None = None
    """Of the best rounds, drawn as a dot."""


@dataclass(frozen=True)
class Line:
    """Points (x, y) of one contender."""

    name: str
    points: Sequence[tuple[float, float]]


def bar_chart(title: str, unit: str, bars: Sequence[Bar], mark: float | None = None) -> str:
    """Horizontal bars from 0, with a whisker for the range and a line at `mark`."""
    most = max([max(bar.high, bar.best or 0.0) for bar in bars] + ([mark] if mark else [])) or 1.0
    height = TOP + STEP * len(bars) + BOTTOM

    def x(value: float) -> float:
        return NAMES + value / most * (WIDTH - NAMES - 70)

    parts = [_head(title, unit)]
    for place, bar in enumerate(bars):
        y = TOP + STEP * place
        middle = y + BAR / 2
        colour = COLOURS[2] if bar.name.startswith("conduit-py") else COLOURS[0]
        parts += [
            _text(NAMES - 8, middle + 4, bar.name, anchor="end"),
            f'<rect x="{NAMES}" y="{y}" width="{x(bar.value) - NAMES:.1f}" height="{BAR}" fill="{colour}"/>',
            _line(x(bar.low), middle, x(bar.high), middle, "#222222"),
            _text(x(max(bar.high, bar.best or 0.0)) + 6, middle + 4, _short(bar.value)),
        ]
        if bar.best is not None:
            parts.append(f'<circle cx="{x(bar.best):.1f}" cy="{middle}" r="4" fill="#222222"/>')
    if mark:
        parts.append(_line(x(mark), TOP - 6, x(mark), height - BOTTOM, "#c0392b"))
    return _svg(height, parts)


def line_chart(title: str, unit: str, lines: Sequence[Line]) -> str:
    """Lines on logarithmic axes: what grows in proportion is straight and has the same slope everywhere."""
    height = 320
    left, right, top, bottom = 70, WIDTH - 220, TOP, 320 - BOTTOM
    # A growth from 0 processors has its first point where 0.5 would be.
    points = [(max(px, 0.5), py) for line in lines for px, py in line.points]
    scale_x = _scale([px for px, _ in points], left, right)
    scale_y = _scale([py for _, py in points], bottom, top)
    parts = [_head(title, unit), _line(left, bottom, right, bottom), _line(left, top, left, bottom)]
    for px in sorted({px for line in lines for px, _ in line.points}):
        parts.append(_text(scale_x(max(px, 0.5)), bottom + 16, _short(px), anchor="middle"))
    for py in (min(py for _, py in points), max(py for _, py in points)):
        parts.append(_text(left - 6, scale_y(py) + 4, _short(py), anchor="end"))
    for place, line in enumerate(lines):
        colour = COLOURS[place % len(COLOURS)]
        path = " ".join(f"{scale_x(max(px, 0.5)):.1f},{scale_y(py):.1f}" for px, py in line.points)
        parts += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
            _line(right + 12, top + 20 * place, right + 32, top + 20 * place, colour),
            _text(right + 38, top + 20 * place + 4, line.name),
        ]
    return _svg(height, parts)


def stack(charts: Sequence[str]) -> str:
    """Several charts below one another, as one picture."""
    parts, y = [], 0
    for chart in charts:
        parts.append(chart.replace("<svg ", f'<svg y="{y}" ', 1))
        y += _height(chart)
    return _svg(y, parts)


def _height(chart: str) -> int:
    found = re.search(r'height="(\d+)"', chart)
    assert found is not None
    return int(found[1])


def _scale(values: Sequence[float], start: float, stop: float) -> "_Scale":
    low, high = math.log(min(values)), math.log(max(values))
    return _Scale(low, (high - low) or 1.0, start, stop)


@dataclass(frozen=True)
class _Scale:
    low: float
    span: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        return self.start + (math.log(value) - self.low) / self.span * (self.stop - self.start)


def _svg(height: int, parts: Sequence[str]) -> str:
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif">'
    return "\n".join([begin, f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>', *parts, "</svg>"])


def _head(title: str, unit: str) -> str:
    return _text(12, 22, title, size=15) + _text(12, 40, unit, colour="#666666")


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, colour: str = "#222222") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{colour}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = "#999999") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="1.5"/>'


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"
