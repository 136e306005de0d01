"""Bar charts as plain SVG, readable on light and dark pages.

A picture brings its own background and follows the reader's colour scheme. A bar is the median,
its whisker the spread of the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from bench.figures import Spread, spread, written
from bench.plan import Chart, Figure, Page, Suite
from bench.results import Results
from bench.suites import SUITES

_WIDTH, _LABELS, _NUMBERS = 820, 190, 90
_ROW, _BAR, _HEAD, _FOOT, _EDGE = 24, 14, 40, 26, 16

_STYLE = """
  .paper { fill: #ffffff; stroke: #d0d7de }
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 14px }
  .small { font-size: 11px; fill: #59636e }
  .grid { stroke: #d8dee4 }
  .ours { fill: #1a7f64 } .floor { fill: #8c959f } .peer { fill: #4a7ab5 }
  .missed { fill: #b3462f }
  .whisker { stroke: #1f2328; stroke-width: 1.2; opacity: 0.75 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #161b22; stroke: #3d444d }
    text { fill: #e6edf3 } .small { fill: #9198a1 } .grid { stroke: #30363d }
    .ours { fill: #3fb68b } .floor { fill: #6e7681 } .peer { fill: #6ca0dc }
    .missed { fill: #e5735a }
    .whisker { stroke: #e6edf3 }
  }
"""


@dataclass(frozen=True)
class Bar:
    label: str
    kind: str
    spread: Spread


@dataclass(frozen=True)
class Panel:
    title: str
    log: bool
    bars: list[Bar]
    labels: int = _LABELS
    """How wide they are."""

    @property
    def height(self) -> int:
        return _HEAD + _ROW * len(self.bars) + _FOOT


@dataclass(frozen=True)
class Picture:
    name: str
    panels: list[Panel]

    @property
    def title(self) -> str:
        return "; ".join(panel.title for panel in self.panels)


class Scale:
    """Places values on the width that the bars have."""

    def __init__(self, panel: Panel) -> None:
        lowest = min(bar.spread.low for bar in panel.bars)
        highest = max(bar.spread.high for bar in panel.bars)
        self._log = panel.log
        self.left = panel.labels
        if panel.log:
            self._first = math.floor(math.log10(max(lowest, 1e-3))) - 0.3
            self._last = math.log10(highest) + 0.02
        else:
            self._first, self._last = 0.0, highest * 1.02

    def at(self, value: float) -> float:
        place = math.log10(max(value, 1e-9)) if self._log else value
        share = (place - self._first) / (self._last - self._first)
        return self.left + (_WIDTH - self.left - _NUMBERS) * min(1.0, max(0.0, share))

    def ticks(self) -> list[float]:
        if self._log:
            return [10.0**n for n in range(math.ceil(self._first), math.floor(self._last) + 1)]
        step = 10 ** math.floor(math.log10(self._last))
        return [step * n for n in range(int(self._last / step) + 1)]


def pictures(results: Results, page: Page) -> list[Picture]:
    """One for each picture that a chart of the page names, with all panels that have figures."""
    panels: dict[str, list[Panel]] = {}
    for name, suite in SUITES.items():
        if suite.page != page or name not in results.suites:
            continue
        for chart in suite.charts:
            panel = _panel(suite, chart, results)
            if panel.bars:
                panels.setdefault(chart.picture, []).append(panel)
    return [Picture(name, its_panels) for name, its_panels in panels.items()]


def _panel(suite: Suite, chart: Chart, results: Results) -> Panel:
    samples = results.suites[suite.name].samples
    bars = []
    for contender in suite.contenders:
        found = spread(samples, Figure(contender.name, chart.metric))
        if found is not None:
            bars.append(Bar(contender.name, contender.kind, found))
    bars.sort(key=lambda bar: bar.spread.median, reverse=not chart.lower_is_better)
    scale = ", logarithmic" if chart.log else ""
    return Panel(f"{chart.title}{scale}", chart.log, bars)


def svg(picture: Picture) -> str:
    height = sum(panel.height for panel in picture.panels) + 2 * _EDGE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(picture.title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>',
    ]
    top = _EDGE
    for panel in picture.panels:
        lines += _drawn(panel, top)
        top += panel.height
    return "\n".join([*lines, "</svg>", ""])


def _drawn(panel: Panel, top: int) -> Iterator[str]:
    scale = Scale(panel)
    bottom = top + _HEAD + _ROW * len(panel.bars)
    yield f'<text class="title" x="{_EDGE}" y="{top + 18}">{escape(panel.title)}</text>'
    for tick in scale.ticks():
        x = scale.at(tick)
        yield f'<line class="grid" x1="{x:.1f}" y1="{top + _HEAD - 8}" x2="{x:.1f}" y2="{bottom}"/>'
        label = f"{tick:,g}" if tick < 1 else f"{tick:,.0f}"
        place = f'x="{x:.1f}" y="{bottom + 14}" text-anchor="middle"'
        yield f'<text class="small" {place}>{label}</text>'
    for number, bar in enumerate(panel.bars):
        yield from _bar(bar, scale, top + _HEAD + _ROW * number)


def _bar(bar: Bar, scale: Scale, top: float) -> Iterator[str]:
    left, right = float(scale.left), scale.at(bar.spread.median)
    low, high = scale.at(bar.spread.low), scale.at(bar.spread.high)
    text, middle = top + 12, top + _BAR / 2 + 1
    yield f'<text x="{left - 8}" y="{text}" text-anchor="end">{escape(bar.label)}</text>'
    yield (
        f'<rect class="{bar.kind}" x="{left}" y="{top + 1}" '
        f'width="{max(1.0, right - left):.1f}" height="{_BAR}" rx="2"/>'
    )
    if high - low > 1:
        yield (
            f'<line class="whisker" x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}"/>'
        )
    number = written(bar.spread.median)
    yield f'<text x="{max(right, high) + 6:.1f}" y="{text}">{number}</text>'
