"""Kernel and fabric-manager logs: XIDs of GPUs, SXids of NVSwitches, kills for want of memory, and
what else the kernel reports of its machine (``kernel_reports``).

Never the whole line.

``dmesg -T`` and the fabric manager write local times without a zone; ``dmesg`` counts seconds
since boot; journalctl's ISO times have their zone. One file has one kind of time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Severity, Sink, SourceFile, write_columns
from tracekit.ingest.counters import times
from tracekit.ingest.counters.kernel_reports import KernelReports, may_report
from tracekit.ingest.counters.names import node_of_file, pci_address
from tracekit.ingest.counters.samples import count_local_time
from tracekit.ingest.counters.times import local_ns
from tracekit.ingest.lines import lines, shape
from tracekit.ingest.steplog.failures import oom_kill
from tracekit.ingest.steplog.formats import is_step_log

NAME = "kernel_log"

_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{5,20})\): (\d{1,9})(?!\d),?"
    r"(?: ?pid=([^,]{1,40}),)?(?: ?name=[^,]{0,64},)? ?(.*)"
)
_NAMED = re.compile(
    r"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?([0-9a-fA-F]{2,8}:[0-9a-fA-F:.]{4,15})"
)
_LOST = "fallen off the bus"
"""How the driver says XID 79 without a number, also over several lines: the GPU, then this."""
MAX_LOST_LINES = 4
_SXID = re.compile(
    r"SXid \((?:PCI:)?([0-9a-fA-F:.]{5,20})\): (\d{1,9}), ?(Non-fatal|Fatal|[A-Z][a-z-]{2,20})"
    r"(?:.{0,40}?Link (\d{1,3}))?"
)
_FABRIC = re.compile(
    r"detected NVSwitch (non-fatal|fatal) error (\d{1,9}) on .{0,80}?"
    r"pci bus id ([0-9a-fA-F:.]{5,20})(?: physical id (\d{1,3}))?(?: port (\d{1,3}))?"
)
_FABRIC_LINE = re.compile(
    r"\[([A-Z][a-z]{2} +\d{1,2} \d{4} [\d:]{8})\] \[([A-Z]+)\] \[tid \d+\] ?(.*)"
)
_BRACKETED = re.compile(r"(?:<\d+>)?\[ *([^\]]{6,40})\] ?(.*)")
_ISO = re.compile(r"(\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}\S{0,20}) (\S{1,200}) kernel: ?(.*)")
_SYSLOG = re.compile(
    r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (\S{1,200}) kernel: ?(?:\[ *[\d.]{6,20}\] ?)?(.*)"
)
"""A year is not in it: the line has no time, but its host, and how far it is from others."""
_BOOT = re.compile(r"(\d{1,10})\.(\d{6})")
_DMESG = re.compile(r"\+?\d{1,10}\.\d{6}|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}")
"""What dmesg puts in brackets: seconds since boot or the line before, or with -T a local time."""
_WHEN = r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,20}) "
_NAMED_KERNEL = re.compile(r"(?m)^" + _WHEN + r"\S{1,200} kernel: ")
_SYSTEM_S = re.compile(_WHEN + r"\S{1,200} [\w.@/()-]{1,80}(?:\[\d{1,10}\])?: ")
"""A line of syslog or journalctl, whoever wrote it."""
SNIFFED_LINES = 2000
MAX_HOSTS = 100_000

_KILLS = re.compile(
    rb"(?m)^(?:<\d+>)?(?:\[ *[^\]\n]{6,40}\]|(?:[A-Z][a-z]{2} [ \d]\d )?\S{1,40} \S{1,200} kernel:)"
    rb" ?(?:\[[^\]\n]{6,40}\] )?"
    rb"(?:[Mm]emory cgroup o|O)ut of memory: Killed process \d"
)
"""Behind a kernel's own time only: a job's output may hold such a line, too."""
_WORDS = ("Xid", "NVSwitch", "SXid", "Killed process", _LOST, "NVRM: The NVIDIA GPU")
_FATAL = frozenset({48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 121, 136, 140, 143, 171, 172})
_WARN = frozenset({13, 31, 45, 109, 137})
"""The rest is the application's, or says what follows from another (see the rules)."""
_LINK_XIDS = frozenset(range(144, 151))


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise a log that names the NVIDIA driver's errors, the fabric manager's lines, or what
    the kernel killed for want of memory."""
    if b"NVRM: Xid" in head or b"SXid (" in head or b"NVRM: " in head:
        return Recognition("xid", "a kernel log with messages of the NVIDIA driver", NAME)
    if _KILLS.search(head) and not is_step_log(head):
        return Recognition("kernel_log", "a kernel log with kills for want of memory", NAME)
    first = head[:2000].decode("utf-8", "replace").split("\n", 1)[0]
    if _FABRIC_LINE.match(first):
        return Recognition("xid", "a log of NVIDIA's fabric manager", NAME)
    if _is_kernel_s(head) and not is_step_log(head):
        return Recognition("kernel_log", "lines of a kernel's log", NAME)
    return None


def _is_kernel_s(head: bytes) -> bool:
    """Whether most lines are a system's log by their form, and one is the kernel's: by its name, or
    of dmesg one that reports what we know or begins a boot.

    A job's output may hold such lines as well, and what else it holds would be lost.
    """
    text = head.decode("utf-8", "replace")
    lines_ = [x for x in text.split("\n", SNIFFED_LINES)[:SNIFFED_LINES] if x.strip()]
    dmesg = [
        found[2]
        for x in lines_
        if (found := _BRACKETED.match(x)) and _DMESG.fullmatch(found[1].strip())
    ]
    if 2 * (len(dmesg) + sum(_SYSTEM_S.match(x) is not None for x in lines_)) < len(lines_):
        return False
    if _NAMED_KERNEL.search(text):
        return True
    reports = KernelReports()
    return any(
        message.startswith("Linux version ") or reports.line(number, None, None, message)
        for number, message in enumerate(dmesg)
    )


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the events into log_event."""
    with source.open() as stream:
        reader = _Reader(sink, node_of_file(source))
        for number, line in lines(stream):
            reader.line(number, line)
        reader.finish(streams.stream_problem(stream))


def _in_some_year_ns(stated: str) -> int | None:
    """A time of syslog in a leap year, as if it were that of the log."""
    try:
        moment = datetime.strptime(f"2024 {stated}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(moment.timestamp()) * 10**9


class _Event(NamedTuple):
    place: int
    time_ns: int | None
    device_id: str | None
    code: str
    severity: Severity
    template: str
    fields: list[str]


class _Reader:
    def __init__(self, sink: Sink, named_host: str | None = None) -> None:
        """``named_host`` is what the file's name says: of a log whose lines name none."""
        self._sink = sink
        self._named_host = named_host
        self._events: list[_Event] = []
        self._basis: str | None = None
        self._host: str | None = None
        """The first that a line names; where others follow, the file is of no one host."""
        self._line_host: str | None = None
        self._hosts: set[str] = set()
        self._lines = 0
        self._named: tuple[int, int | None, str | None] | None = None
        """Where and when the driver began to speak of a GPU, and of which."""
        self._reports = KernelReports()
        self._clock_ns: int | None = None
        """Where the line stands on the log's own clock, which need not say in which year."""

    def line(self, number: int, line: str) -> None:
        """One line; most are nothing of ours."""
        self._lines += 1
        if not any(word in line for word in _WORDS):
            if may_report(line):
                moment, message = self._moment(line)
                self._reports.line(number, moment, self._clock_ns, message, self._line_host)
            elif self._lines <= 50 and self._basis is None:
                self._moment(line)
            return
        moment, message = self._moment(line)
        event = self._event(number, moment, message)
        if event is not None:
            if self._line_host is not None:
                event.fields.append(f"host={self._line_host}")
            self._events.append(event)

    def finish(self, problem: str | None) -> None:
        """Write the events and the facts."""
        self._events += [
            _Event(r.place, r.time_ns, None, r.code, r.severity, r.code, r.fields)
            for r in self._reports.events()
        ]
        self._events.sort(key=lambda e: e.place)
        if self._reports.left_out:
            self._sink.count(
                "report_left_out", self._reports.left_out,
                doc="Reports of the kernel beyond those kept of one file.",
            )  # fmt: skip
        if len(self._hosts) == 1:  # what the whole file is of
            told = f"host={self._host}"
            self._events = [
                e._replace(fields=[f for f in e.fields if f != told]) for e in self._events
            ]
        if self._events:
            columns = dict(zip(_Event._fields, zip(*self._events, strict=True), strict=True))
            write_columns(self._sink, "log_event", columns)
        self._sink.fact(place_kind="line", is_truncated_end=problem is not None)
        known = [e.time_ns for e in self._events if e.time_ns is not None]
        self._sink.fact(time_basis=self._basis or "none")
        if known:
            self._sink.fact(window_start_ns=min(known), window_end_ns=max(known))
        if len(self._hosts) == 1:
            self._sink.fact(host_name=self._host)
        elif not self._hosts and self._named_host is not None:
            self._sink.fact(host_name=self._named_host)
        if self._basis == "local":
            count_local_time(self._sink)
        if problem is not None:
            self._sink.fact(status="partial", reason=f"it breaks off ({problem})")
        elif not self._events:
            self._sink.fact(status="ok", reason="it holds no XID: that is an answer")

    def _moment(self, line: str) -> tuple[int | None, str]:
        """The time of a line on the file's clock, and the message behind it."""
        self._clock_ns = self._line_host = None
        if fabric := _FABRIC_LINE.match(line):
            return self._on("local", local_ns(fabric[1])), f"{fabric[2]}: {fabric[3]}"
        if iso_line := _ISO.match(line):
            stated = iso_line[1].replace(",", ".")
            moment = times.parse(stated)
            basis = "epoch" if moment is not None else "local"
            self._of(iso_line[2])
            return self._on(basis, moment if moment is not None else local_ns(stated)), iso_line[3]
        if plain := _SYSLOG.match(line):
            self._of(plain[2])
            self._clock_ns = _in_some_year_ns(plain[1])
            return None, plain[3]
        if bracketed := _BRACKETED.match(line):
            if boot := _BOOT.fullmatch(bracketed[1].strip()):
                ns = int(boot[1]) * 10**9 + int(boot[2]) * 1000
                return self._on("relative", ns), bracketed[2]
            return self._on("local", local_ns(bracketed[1])), bracketed[2]
        return None, line

    def _of(self, host: str) -> None:
        """Whose line it is."""
        self._line_host, self._host = host, self._host or host
        if len(self._hosts) < MAX_HOSTS:
            self._hosts.add(host)

    def _on(self, basis: str, moment: int | None) -> int | None:
        if moment is None:
            return None
        self._basis = self._basis or basis
        self._clock_ns = moment if basis == self._basis else None
        if basis == "relative":
            self._reports.boots.setdefault(None, 0)  # it counts from the boot
        return self._clock_ns

    def _event(self, number: int, moment: int | None, message: str) -> _Event | None:
        if killed := oom_kill(message.encode()):
            return _Event(number, moment, None, killed[0], "error", shape(message), killed[1])
        if xid := _XID.search(message):
            code = int(xid[2])
            severity: Severity = (
                "error" if code in _FATAL or code in _LINK_XIDS
                else "warning" if code in _WARN else "info"
            )  # fmt: skip
            fields = [f"xid={code}"]
            if (xid[3] or "").strip("'<> ").isdecimal():
                fields.append(f"pid={xid[3].strip()}")
            if code == 154 and (
                action := re.search(r"to 0x[0-9a-f]+ \(([A-Za-z -]{3,40})\)", xid[4])
            ):
                fields.append(f"action={action[1].strip()}")
            if code in _LINK_XIDS and (link := re.search(r"[Ll]ink (\d{1,3})", xid[4])):
                fields.append(f"link={int(link[1])}")
            device = pci_address(xid[1])
            return _Event(number, moment, device, f"xid-{code}", severity, shape(message), fields)
        if named := _NAMED.search(message):
            self._named = number, moment, pci_address(named[1].rstrip(":"))
        if _LOST in message:
            return self._lost(number, moment, message)
        if sxid := _SXID.search(message) or None:
            severity = "error" if sxid[3] == "Fatal" else "warning"
            fields = [f"sxid={int(sxid[2])}", f"severity={sxid[3].lower()}"]
            if sxid[4]:
                fields.append(f"link={int(sxid[4])}")
            device = pci_address(sxid[1])
            return _Event(
                number, moment, device, f"sxid-{int(sxid[2])}", severity, shape(message), fields
            )
        if fault := _FABRIC.search(message) or None:
            severity = "error" if fault[1] == "fatal" else "warning"
            fields = [f"sxid={int(fault[2])}", f"severity={fault[1]}"]
            if fault[4]:
                fields.append(f"switch={int(fault[4])}")
            if fault[5]:
                fields.append(f"link={int(fault[5])}")
            device = pci_address(fault[3])
            return _Event(
                number, moment, device, f"sxid-{int(fault[2])}", severity, shape(message), fields
            )
        return None

    def _lost(self, number: int, moment: int | None, message: str) -> _Event | None:
        """A GPU that is gone, told without a number; once where the number is told too."""
        device = None
        if self._named is not None and number - self._named[0] < MAX_LOST_LINES:
            _, at, device = self._named
            moment = moment if moment is not None else at
        self._named = None
        if any(e.code == "xid-79" and e.device_id == device for e in self._events):
            return None
        return _Event(number, moment, device, "xid-79", "error", shape(message), ["xid=79"])
