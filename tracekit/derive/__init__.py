"""The derive step: what the whole run says, from the source tables of all files together.

``run.derive`` reads the physical source tables of a run and returns the derived tables: who each
file belongs to (rank, attempt, capture, clock, host), the ranks, the hosts, the clocks, and
the steps. ``infer.infer_job`` turns them into a job description with provenance.

Everything here depends on differences of times, never on their absolute values, and on the
paths of the sources, never on the order in which they were read.
"""
