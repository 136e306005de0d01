"""How far the health page looks back, and in which parts it draws that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from towline.core.ended import HOUR_US
from towline.web.control_models import moment


class Span(NamedTuple):
    days: int
    hours_a_bar: int
    shown: str
    """How a bar's beginning is written."""

    @property
    def bin_us(self) -> int:
        return self.hours_a_bar * HOUR_US

    @property
    def bars(self) -> int:
        return self.days * 24 // self.hours_a_bar

    @property
    def per(self) -> str:
        return {1: "hour", 24: "day"}.get(self.hours_a_bar, f"{self.hours_a_bar} hours")

    def starts(self, now_us: int) -> Sequence[int]:
        """Of each bar; the last is the one that is not over."""
        last = now_us - now_us % self.bin_us
        return range(last - (self.bars - 1) * self.bin_us, last + 1, self.bin_us)

    def label(self, at_us: int) -> str:
        return format(moment(at_us), self.shown)


SPANS: Final = (Span(1, 1, "%H:%M"), Span(7, 6, "%d %b %H:%M"), Span(30, 24, "%d %b"))


def span_of(days: str | None) -> Span:
    """The shortest, if none is meant."""
    return next((span for span in SPANS if str(span.days) == days), SPANS[0])
