"""The derive step: what the whole run says, from the source tables of all files together.

``derive`` reads the physical source tables of a run and returns the derived tables: who each
file belongs to (rank, attempt, capture, clock, host), the ranks, the hosts, the clocks, and
the steps. ``infer_job`` turns them into a job description with provenance.

Everything here depends on differences of times, never on their absolute values, and on the
paths of the sources, never on the order in which they were read.
"""

from tracekit.derive.infer import infer_job
from tracekit.derive.run import READS, derive

__all__ = ["READS", "derive", "infer_job"]
