"""Slurm's records of jobs: ``sacct`` as a table or with delimiters, and ``scontrol show job``.

A record of a job, with those of its steps, is a row of ``log_event`` of code ``job-state``:
``job``, ``state`` and, where it has ended, ``exit_code`` or ``signal``, ``why`` (what Slurm ended
it for, or that a step's memory ran out) and ``host``, where it names one node. Names of jobs,
commands, paths and comments are never kept.

A step that is cancelled tells nothing: Slurm cancels what is left of a step one of whose tasks
failed. That memory ran out in a step comes before whatever ended its job. An exit code belongs to
no process that is named, so it accuses none.

Formats: manual pages of Slurm 23.11 (sacct(1), scontrol(1)). Times are local, without a zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Severity, Sink, SourceFile, stated_host, write_columns
from tracekit.ingest.lines import lines
from tracekit.ingest.steplog.failures import ended_by_signal, local_moment

NAME = "slurm_jobs"

MAX_RECORDS = 100_000
"""Jobs of one file that are kept; more is a cluster's year, not a job."""
MAX_LINE_BYTES = 64 << 10

_OUT_OF_MEMORY = "out of memory"
_WHY: Mapping[str, str | None] = {
    "BOOT_FAIL": "node failure",
    "CANCELLED": "cancelled",
    "COMPLETED": None,
    "DEADLINE": "deadline",
    "FAILED": None,
    "NODE_FAIL": "node failure",
    "OUT_OF_MEMORY": _OUT_OF_MEMORY,
    "PREEMPTED": "preempted",
    "REVOKED": None,
    "TIMEOUT": "time limit",
}
"""States in which a job has ended, and what Slurm ended it for."""
_GOING_ON = (
    "COMPLETING", "CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING",
    "RESV_DEL_HOLD", "RUNNING", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "SUSPENDED",
)  # fmt: skip
_MAX_SIGNAL = 64
"""Slurm's own marks lie beyond: 125 where memory ran out."""
_STATES = (*_WHY, *_GOING_ON)

_ID = re.compile(
    r"(?P<job>\d{1,12}(?:_(?:\d{1,9}|\[[\d,%-]{1,80}\]))?(?:\+\d{1,4}(?=[.\s]|$))?)"
    r"(?P<step>\.[\w+.-]{1,40})?$"
)
"""Of an array 77_3, of a heterogeneous job 77+0, a step 77.0 or 77.batch."""
_STATE = re.compile(r"([A-Z_]{2,20})(\+?)(?: .{0,40})?$")
_CODE = re.compile(r"(\d{1,3}):(\d{1,3})$")
_NODE = re.compile(r"[\w.-]{1,200}")
_RULER = re.compile(r"-+(?: +-+)* *$")
_SCONTROL_ID = re.compile(r"JobId=(\S{1,100})")
_SCONTROL_KEYS = re.compile(r"(?:^|\s)(JobState|ExitCode|EndTime|NodeList|FailedNode)=(\S{1,200})")
_SCONTROL_LINE = re.compile(r"[A-Z][\w/:-]{0,40}=")
_COMMAND = re.compile(r"[^|]{0,200}?\b(?:sacct|scontrol) ")
"""What a record was printed by, where that was copied with it."""
_ROW = re.compile(r"\d{1,12}[_.+|\s]")
_LOOKED_AT = 200
"""Lines by which a file is recognised."""
_WHOLE_SHARE = 0.8
"""Share of lines that are records: a job's own log, which may print some, has other lines."""


class _Row(NamedTuple):
    """A line of sacct, or a job of scontrol, in sacct's words."""

    place: int
    given: Mapping[str, str]


class _Record(Struct):
    """A job once: sacct's line of it and those of its steps."""

    place: int
    job: str
    state: str | None = None
    code: str = ""
    time_ns: int | None = None
    why: str | None = None
    hosts: set[str | None] = field(default_factory=set)
    """Where that was; None is one of several nodes."""
    is_of_job: bool = False
    """Whether that is said of the job, and of none of its steps."""


def sniff(head: bytes) -> Recognition | None:
    """Recognise a file all of whose lines are records, behind at most a header."""
    text = head.decode("utf-8", "replace").removeprefix("\ufeff")
    head_lines = [line for line in text.split("\n")[:_LOOKED_AT] if line.strip()]
    if head_lines and _COMMAND.match(head_lines[0]):
        head_lines = head_lines[1:]
    if not head_lines:
        return None
    if _SCONTROL_ID.match(head_lines[0]) and "JobState=" in text:
        if _share(head_lines, _SCONTROL_LINE) >= _WHOLE_SHARE:
            return Recognition("slurm_jobs", "records of scontrol show job", NAME)
        return None
    if _header(head_lines[0]) is None:
        return None
    rows = head_lines[1:]
    if rows and _RULER.match(rows[0].rstrip("\r")):
        rows = rows[1:]
    elif "|" not in head_lines[0]:
        return None
    if rows and _share(rows, _ROW) < _WHOLE_SHARE:
        return None
    return Recognition("slurm_jobs", "records of Slurm's sacct", NAME)


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the records into log_event."""
    with source.open() as stream:
        records = _Records(sink)
        for row in _rows(((n, t) for n, t in lines(stream, MAX_LINE_BYTES)), sink):
            records.add(row)
        records.finish(streams.stream_problem(stream))


def _share(head_lines: list[str], pattern: re.Pattern[str]) -> float:
    return sum(pattern.match(line.lstrip()) is not None for line in head_lines) / len(head_lines)


def _header(line: str) -> list[str] | None:
    """The columns that a line names, in lower case; None where it is no header of sacct."""
    words = re.split(r"\|" if "|" in line else r"\s+", line.strip())
    names = [w.strip().lower() for w in words]
    if "jobid" not in names:
        names = ["jobid" if n == "jobidraw" else n for n in names]
    is_ours = {"jobid", "state"} <= set(names) and all(re.fullmatch(r"\w*", n) for n in names)
    return names if is_ours else None


def _rows(numbered: Iterator[tuple[int, str]], sink: Sink) -> Iterator[_Row]:
    names: list[str] | None = None
    spans: list[slice] | None = None
    open_job: tuple[int, dict[str, str]] | None = None
    torn = 0
    for place, text in numbered:
        if not text.strip():
            continue
        header = _header(text) if "State" in text else None
        job_start = _SCONTROL_ID.match(text)
        if (header or job_start) and open_job:
            yield _Row(*open_job)
            open_job = None
        if job_start:
            open_job = place, {"jobid": job_start[1]}
        if open_job:
            for key, value in _SCONTROL_KEYS.findall(text):
                name = {"JobState": "state", "EndTime": "end"}.get(key, key.lower())
                open_job[1].setdefault(name, value)
        elif header:
            names, spans = header, None  # of several calls in one file each has its own
        elif names and _RULER.match(text):
            spans = [slice(*m.span()) for m in re.finditer(r"-+", text)]
            torn += len(spans) != len(names)
        elif names:
            cells = [text[s].strip() for s in spans] if spans else text.split("|")
            if len(cells) < len(names):
                torn += 1
            else:
                yield _Row(place, dict(zip(names, (c.strip() for c in cells), strict=False)))
    if open_job:
        yield _Row(*open_job)
    sink.count("torn_slurm_line", torn, doc="Lines of sacct with fewer columns than its header.")


class _Records:
    """Puts the rows of a job and its steps together."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._records: list[_Record] = []
        self._of_step: _Record | None = None
        """What the next steps belong to."""
        self._unknown = 0
        self._unknown_place: int | None = None
        self._left_out = 0

    def add(self, row: _Row) -> None:
        """A job, or a step of the job before it."""
        id_match = _ID.match(row.given["jobid"])
        state = _state(row.given.get("state", ""))
        if id_match is None or state is None:
            self._unknown += 1
            self._unknown_place = self._unknown_place or row.place
            if id_match is None:
                self._of_step = None
                return
        job, host = id_match["job"], _host(row.given)
        if id_match["step"]:
            record = self._of_step
            if record is None or record.job != job:
                record = self._begin(row.place, job)  # its steps alone were asked for
            if record is not None and state == "OUT_OF_MEMORY":
                if record.why != _OUT_OF_MEMORY or record.is_of_job:
                    record.why, record.hosts, record.is_of_job = _OUT_OF_MEMORY, set(), False
                record.hosts.add(host)
            return
        record = self._begin(row.place, job)
        if record is None or state is None:
            return
        record.state, record.code = state, row.given.get("exitcode", "")
        if state in _WHY:
            record.why, record.is_of_job = _WHY[state], True
            record.hosts = {host}
            record.time_ns = local_moment(row.given.get("end", "").encode())

    def _begin(self, place: int, job: str) -> _Record | None:
        if len(self._records) >= MAX_RECORDS:
            self._left_out += 1
            self._of_step = None
        else:
            self._of_step = _Record(place, job)
            self._records.append(self._of_step)
        return self._of_step

    def finish(self, problem: str | None) -> None:
        """Write the records and the facts."""
        if self._records:
            severity: list[Severity] = ["error" if r.why else "info" for r in self._records]
            columns = {
                "place": [r.place for r in self._records],
                "time_ns": [r.time_ns for r in self._records],
                "code": ["job-state"] * len(self._records),
                "severity": severity,
                "fields": [list(_fields(r)) for r in self._records],
            }
            write_columns(self._sink, "log_event", columns)
        count = self._sink.count
        count(
            "unknown_slurm_record",
            self._unknown,
            doc="Records whose job or state is no word of Slurm's.",
            place=self._unknown_place,
        )
        count("slurm_record_left_out", self._left_out, doc="Jobs beyond those kept of one file.")
        known = [r.time_ns for r in self._records if r.time_ns is not None]
        self._sink.fact(
            place_kind="line",
            producer="Slurm",
            time_basis="local" if known else "none",
            is_truncated_end=problem is not None,
        )
        if known:
            self._sink.fact(window_start_ns=min(known), window_end_ns=max(known))
        if problem is not None:
            self._sink.fact(status="partial", reason=f"it breaks off ({problem})")
        elif not self._records:
            self._sink.fact(status="empty", reason="it has a header and no job")


def _fields(record: _Record) -> Iterator[str]:
    yield f"job={record.job}"
    if record.state:
        yield f"state={record.state}"
    if record.state in _WHY and (exit_status := _CODE.match(record.code)):
        exit_code, signal = int(exit_status[1]), int(exit_status[2])
        if signal == 0:
            yield f"exit_code={exit_code}"
        elif signal <= _MAX_SIGNAL:
            yield ended_by_signal(signal)
    if record.why:
        yield f"why={record.why}"
    if len(record.hosts) == 1 and None not in record.hosts:
        yield f"host={next(iter(record.hosts))}"


def _state(text: str) -> str | None:
    """The state that a column names; a table may cut it short: ``CANCELLED+``, ``OUT_OF_ME+``."""
    state_match = _STATE.match(text)
    if state_match is None:
        return None
    if not state_match[2]:
        return state_match[1] if state_match[1] in _STATES else None
    fitting = [s for s in _STATES if s.startswith(state_match[1])]
    return fitting[0] if len(fitting) == 1 else None


def _host(given: Mapping[str, str]) -> str | None:
    """The node whose failure ended it, as Slurm says, or the only one that it had."""
    for name in ("failednode", "nodelist"):
        if _NODE.fullmatch(given.get(name, "")) and (host := stated_host(given[name])):
            return host
    return None
