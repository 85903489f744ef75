"""What a layout implies: formulas with their sources, and an expectation from a description."""

from tracekit.expect.plan import Expectation, TrafficRow, expect

__all__ = ["Expectation", "TrafficRow", "expect"]
