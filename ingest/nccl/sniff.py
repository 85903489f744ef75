"""Recognises the files that NCCL, its tools and PyTorch's NCCL backend leave."""

from __future__ import annotations

import re

from tracekit.ingest.base import Recognition
from tracekit.ingest.steplog.formats import is_step_log

_NCCL = re.compile(
    # Only where a name begins: from each of its letters, one long word takes its length squared.
    rb"(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]++:\d++:\d++ (?:\[-?\d++\] )?(?:[^\n]{0,160} )?"
    rb"NCCL (?:INFO|WARN|TRACE|CALL)"
)
_VERSION = re.compile(rb"(?m)^(?:[^\n]{0,80}\W)?[NR]CCL version ?:? \d")
_TESTS = re.compile(
    rb"# nThreads? \d+ nGpus \d+ minBytes|# Collective test starting:"
    rb"|# {1,40}size {1,40}count {1,40}type {1,40}redop\b"
)
_WATCHDOG = re.compile(
    rb"WorkNCCL\(SeqNum=|last enqueued NCCL work|Watchdog caught collective operation timeout"
    rb"|(?:failed to pass|successfully reached) monitoredBarrier"
    rb"|mismatch between collectives on ranks"
)
_RAS = re.compile(rb"(?m)^Job summary\r?\n=+|^Communicators\.\.\. \(|PEER_DEAD: Process")
_FAILURE = re.compile(
    rb'Traceback \(most recent call last\):\r?\n[^\n]{0,200}  File "|failed \(exitcode: -?\d'
    rb"|MPI_ABORT was invoked on rank \d|(?m:^=   BAD TERMINATION OF ONE OF YOUR APPLICATION)"
    rb"|(?m:^srun: error: |^slurmstepd: error: )"
    rb'|"py_callstack": ?"Traceback'  # what PyTorch's @record writes of an exception
)
"""How an end is told that is no training step; in a file of any name."""
_LOG_NAME = re.compile(
    r"\.(?:log|out|err|stdout|stderr)(?:[.-]\d+)?$|(?:^|[._-])nccl[._-]"
    r"|(?:^|[._-])(?:logs?|stdout|stderr)(?:[._-]\d{1,12})?\.txt$",
    re.I,
)
_FLIGHT_NAME = re.compile(r"nccl_trace|fr_trace|flight.?rec|comm_lib_trace", re.I)
_FLIGHT_KEYS = re.compile(rb'"(?:pg_config|pg_status|collective_seq_id|nccl_comm_state)"\s*:')
_INSPECTOR = re.compile(
    rb'"(?:coll_perf|p2p_perf)"\s*:|"inspector_output_format_version"\s*:'
    rb"|(?m:^nccl_(?:p2p_)?(?:bus_bandwidth_gbs|(?:collective_)?exec_time_microseconds)\{)"
)
_RAS_JSON = re.compile(
    rb'"nccl_version"\s*:[^\x00]{0,2000}"communicators(?:_count)?"\s*:|"group"\s*:\s*"LIFECYCLE"'
)
_TESTS_JSON = re.compile(rb'"(?:out_of_place|average_bus_bandwidth)"\s*:')
_PICKLE_WORDS = (b"pg_config", b"collective_seq_id", b"record_id", b"pg_status", b"entries")
_TEXT = bytes(set(range(32, 256)) | {7, 8, 9, 10, 12, 13, 27})


def sniff(head: bytes, name: str) -> Recognition | None:
    """What kind of file this is; None if it is none of ours."""
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return _pickle(head, name)
    if b"\0" in head[:4096]:
        return None
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start in (b"{", b"["):
        recognition = _json(head)
        if recognition is not None:
            return recognition
    if _INSPECTOR.search(head):
        return Recognition("nccl_inspector", "records of NCCL Inspector", "nccl_inspector")
    if _NCCL.search(head):
        return Recognition("nccl", "it has lines of NCCL_DEBUG", "nccl")
    # Its client begins with NCCL's version, as a debug log without a process's name does.
    if _RAS.search(head):
        return Recognition("nccl_ras", "output of NCCL's RAS client", "nccl_ras")
    if _VERSION.search(head):
        return Recognition("nccl", "it has lines of NCCL_DEBUG", "nccl")
    if _TESTS.search(head):
        return Recognition("nccl_tests", "it has a table of nccl-tests", "nccl")
    if _WATCHDOG.search(head):
        return Recognition("nccl", "it has lines of PyTorch's watchdog of collectives", "nccl")
    return None


def sniff_job_log(head: bytes, name: str) -> Recognition | None:
    """A text file that its name calls a log: what it holds may begin far behind its head.

    A file of any other name must show a step of a training program there, or how one ended.
    """
    if is_step_log(head):
        return Recognition("job_log", "it has lines of training steps", "job_log")
    if _FAILURE.search(head) and _is_text(head):
        return Recognition("job_log", "it says how processes ended", "job_log")
    if _LOG_NAME.search(name) and head.strip() and _is_text(head):
        return Recognition(
            "job_log", "a log by its name; searched for steps and lines of NCCL", "job_log"
        )
    return None


def _is_text(head: bytes) -> bool:
    return not head.translate(None, _TEXT)


def _json(head: bytes) -> Recognition | None:
    if b'"traceEvents"' in head:
        return None
    if _FLIGHT_KEYS.search(head):
        return Recognition("flight_recorder", "a Flight Recorder dump", "flight_recorder")
    if _INSPECTOR.search(head):
        return Recognition("nccl_inspector", "records of NCCL Inspector", "nccl_inspector")
    if _RAS_JSON.search(head):
        return Recognition("nccl_ras", "JSON of NCCL's RAS client", "nccl_ras")
    if _TESTS_JSON.search(head):
        return Recognition("nccl_tests", "JSON of nccl-tests", "nccl_tests")
    return None


def _pickle(head: bytes, name: str) -> Recognition | None:
    if _FLIGHT_NAME.search(name) or any(word in head for word in _PICKLE_WORDS[:4]):
        return Recognition(
            "flight_recorder",
            "a Flight Recorder dump (pickle: read by its opcodes, never loaded)",
            "flight_recorder",
        )
    return None
