"""A training job with a known fault, and the files that it would leave behind.

The judge of everything else: nothing here knows of clocks' alignment, derivation or rules.
"""

from __future__ import annotations

from tracekit.simulate.scenario import Request, Scenario, prepare, what_it_takes, write

__all__ = [
    "Request",
    "Scenario",
    "prepare",
    "what_it_takes",
    "write",
]
