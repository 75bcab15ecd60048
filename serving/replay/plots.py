"""Plots as SVG text: lines with points, an axis each way, a legend. Colours come from the page's style sheet (`c0` … `c5`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 400, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 18, 12, 40
_COLOURS = 6
_LEGEND_LINE = 15


@dataclass(frozen=True)
class Line:
    """One series; `spans` are vertical intervals of its points."""

    name: str
    points: Sequence[tuple[float, float]]
    spans: Sequence[tuple[float, float] | None] = ()
    has_dots: bool = False
    has_line: bool = True
    colour: int | None = None
    is_dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """What a plot shows in one direction."""

    label: str
    low: float | None = None
    high: float | None = None


def plot(lines: Sequence[Line], x: Axis, y: Axis, *, shaded: tuple[float, float] | None = None) -> str:
    """`shaded`: a part of the x axis with another ground. Without a point it says so."""
    lines = [line for line in lines if line.points]
    if not lines:
        return _empty("nothing to show")
    xs = [point[0] for line in lines for point in line.points]
    ys = [point[1] for line in lines for point in line.points] + [
        end for line in lines for span in line.spans if span for end in span
    ]
    x_ticks, y_ticks = _ticks(x, xs), _ticks(y, ys)
    names = [line.name for line in lines if line.name]
    height = HEIGHT + (_LEGEND_LINE * math.ceil(len(names) / 2) + 6 if names else 0)
    frame = _Frame(x_ticks[0], x_ticks[-1], y_ticks[0], y_ticks[-1])
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(y.label)} against {escape(x.label)}">']
    if shaded is not None:
        left, right = frame.x(max(shaded[0], frame.x0)), frame.x(min(shaded[1], frame.x1))
        parts.append(f'<rect class="window" x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" height="{frame.height:.1f}"/>')
    parts += _axes(frame, x, y, x_ticks, y_ticks)
    for place, line in enumerate(lines):
        parts += _line(frame, line, line.colour if line.colour is not None else place)
    parts += _legend(lines)
    parts.append("</svg>")
    return "".join(parts)


@dataclass(frozen=True)
class _Frame:
    """From values to the picture's units."""

    x0: float
    x1: float
    y0: float
    y1: float

    @property
    def height(self) -> float:
        return HEIGHT - _TOP - _BOTTOM

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x0) / ((self.x1 - self.x0) or 1) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (value - self.y0) / ((self.y1 - self.y0) or 1) * self.height


def _line(frame: _Frame, line: Line, colour: int) -> list[str]:
    style = f"c{colour % _COLOURS}"
    points = [(frame.x(a), frame.y(b)) for a, b in line.points]
    parts = []
    if line.has_line and len(points) > 1:
        way = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        dashed = " dashed" if line.is_dashed else ""
        parts.append(f'<polyline class="line {style}{dashed}" points="{way}"/>')
    for (a, _), span in zip(points, line.spans, strict=False):
        if span is not None:
            parts.append(f'<path class="span {style}" d="M{a:.1f} {frame.y(span[0]):.1f}V{frame.y(span[1]):.1f}"/>')
    if line.has_dots:
        parts += [f'<circle class="dot {style}" cx="{a:.1f}" cy="{b:.1f}" r="2.5"/>' for a, b in points]
    return parts


def _axes(frame: _Frame, x: Axis, y: Axis, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> list[str]:
    parts = []
    for value in y_ticks:
        at = frame.y(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_tick(value)}</text>')
    for value in x_ticks:
        at = frame.x(value)
        parts.append(f'<path class="grid" d="M{at:.1f} {_TOP}V{HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - _BOTTOM + 15}" text-anchor="middle">{_tick(value)}</text>')
    middle = _TOP + frame.height / 2
    parts.append(
        f'<text class="label" x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x.label)}</text>'
    )
    turned = f'transform="rotate(-90 12 {middle:.0f})"'
    parts.append(f'<text class="label" x="12" y="{middle:.0f}" text-anchor="middle" {turned}>{escape(y.label)}</text>')
    return parts


def _legend(lines: Sequence[Line]) -> list[str]:
    parts = []
    named = [(place, line) for place, line in enumerate(lines) if line.name]
    for number, (place, line) in enumerate(named):
        left = _LEFT + (number % 2) * (WIDTH - _LEFT - _RIGHT) / 2
        top = HEIGHT + 9 + (number // 2) * _LEGEND_LINE
        colour = (line.colour if line.colour is not None else place) % _COLOURS
        dashed = " dashed" if line.is_dashed else ""
        parts.append(f'<path class="line c{colour}{dashed}" d="M{left:.0f} {top}h18"/>')
        parts.append(f'<text x="{left + 23:.0f}" y="{top + 4}">{escape(line.name)}</text>')
    return parts


def _empty(text: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} 60" role="img"><text x="{WIDTH / 2}" y="34" text-anchor="middle">{escape(text)}</text></svg>'
    )


def _ticks(axis: Axis, values: Sequence[float]) -> list[float]:
    """Four to seven round numbers that hold all values; from zero where that is near."""
    low = min(values) if axis.low is None else axis.low
    high = max(values) if axis.high is None else axis.high
    if axis.low is None and 0 < low <= 0.5 * high:
        low = 0.0
    if high <= low:
        low, high = (0.0, 1.0) if high == 0 else (min(0.0, low), max(high, 0.0) or 1.0)
    step = _round_step((high - low) / 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def _round_step(rough: float) -> float:
    unit = 10.0 ** math.floor(math.log10(rough))
    return next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough * 0.999)


def _tick(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:,.4g}k"
    return f"{value:.4g}" if value else "0"
