"""Days of a job: its training log, its launcher's words, what its hosts and disks counted.

A profile's simulator knows every kernel of a dozen steps; this one knows a number a step of some
hundred thousand. Both have faults of a known place and strength, and write what real jobs leave.
"""

from __future__ import annotations

from tracekit.simulate.history.faults import DECOYS, FAULTS
from tracekit.simulate.history.files import HistoryRequest, is_history, write_history

__all__ = ["DECOYS", "FAULTS", "HistoryRequest", "is_history", "write_history"]
