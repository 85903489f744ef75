"""What a layout implies: formulas with their sources, and an expectation from a description."""

from tracekit.expect.expectation import Expectation, TrafficRow
from tracekit.expect.implied import expect

__all__ = ["Expectation", "TrafficRow", "expect"]
