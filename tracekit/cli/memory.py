"""A bound on what one statement of a user may take, beside DuckDB's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SLACK_BYTES = 512 << 20
"""Stacks of threads, buffers and what the allocator keeps: not counted by DuckDB, and not rows."""


@contextmanager
def bounded(memory_bytes: int) -> Iterator[None]:
    """Let the process take twice ``memory_bytes`` more than it has: DuckDB's part and the rows.

    DuckDB's limit does not count what one value takes: ``repeat('x', 3e9)`` is 4 GB beside it. An
    allocation beyond fails, and with it the statement. Where the system does not say what a process
    has (other than Linux), nothing is bounded.
    """
    has_bytes = _data_bytes()
    if has_bytes is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = has_bytes + 2 * memory_bytes + SLACK_BYTES
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([wanted, *limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int | None:
    """Private writable memory of this process, which RLIMIT_DATA counts."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    fields = next((line.split() for line in lines if line.startswith("VmData:")), None)
    return int(fields[1]) * 1024 if fields else None
