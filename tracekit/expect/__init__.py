"""What a layout implies: formulas with their sources, and an expectation from a description."""

from tracekit.expect.crossing import crossing
from tracekit.expect.expectation import TrafficRow
from tracekit.expect.implied import expect

__all__ = ["TrafficRow", "crossing", "expect"]
