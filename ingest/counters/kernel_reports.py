"""What a kernel reports of its machine beside GPUs: lost links, broken NICs, PCIe errors, storage
that does not answer, stuck tasks, memory errors, heat, crashes.

One such thing makes many lines, so each becomes one event an hour and device, with a count; what
begins and ends (a link that is down, a server that does not answer) becomes one event, with how
long it lasted. Never the whole line: names of devices, servers and programs are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct, field

from tracekit.ingest.base import Severity

HOUR_NS = 3_600_000_000_000
MAX_EVENTS = 50_000
"""Hours times devices of one log; more is not read, and counted."""

_PCI = r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_DEVICE = r"[\w.@:+/-]{1,64}"
_PROGRAM = r"[^\s\[\]:]{1,32}"


class _Line(NamedTuple):
    """A kind of line: what must be in it, and how its values are named."""

    code: str
    severity: Severity
    key: str
    """A piece that every such line holds, in lower case."""
    regex: re.Pattern[str]


def _line(code: str, severity: Severity, key: str, regex: str) -> _Line:
    return _Line(code, severity, key, re.compile(regex))


_LINES = (
    _line("kernel-gpu-failed", "error", "rminitadapter failed",
          rf"NVRM: GPU (?P<device>{_PCI}): RmInitAdapter failed"),
    _line("kernel-gpu-failed", "error", "nv_err_reset_required",
          r"NVRM: .{0,80}NV_ERR_RESET_REQUIRED(?P<what>)"),
    _line("kernel-gpu-failed", "error", "gpu reset",
          rf"amdgpu (?P<device>{_PCI}): (?:amdgpu: )?GPU reset(?: begin)?\b(?! succe| end)"),
    _line("kernel-gpu-failed", "error", "uncorrectable hardware error",
          rf"amdgpu (?P<device>{_PCI}): (?:amdgpu: )?.{{0,40}}uncorrectable hardware error"),
    _line("kernel-nic-failed", "error", "mlx5_core",
          rf"mlx5_core (?P<device>{_PCI}):? .{{0,60}}(?:Fatal error \d|[Hh]ealth compromised"
          r"|Health issue observed|handling bad device|in error state)"),
    _line("kernel-nic-failed", "error", "transmit queue",
          rf"NETDEV WATCHDOG: (?P<device>{_DEVICE}) .{{0,60}}transmit queue \d+ timed out"),
    _line("kernel-cable", "warning", "port module event",
          rf"mlx5_core (?P<device>{_PCI}):? .{{0,60}}Port module event(?:\[error\])?: module \d+, "
          r"(?P<what>Cable error|Cable unplugged|High Temperature)"),
    _line("kernel-pcie-error", "warning", "pcie bus error",
          rf"[\w-]{{1,32}} (?P<device>{_PCI}): (?:AER: )?PCIe Bus Error: "
          r"severity=(?P<what>Correct|Uncorrect)(?:ed|able) ?(?P<more>\(Fatal\)|\(Non-Fatal\))?"),
    _line("kernel-pcie-lost", "error", "pciehp",
          rf"pcieport (?P<device>{_PCI}): pciehp: Slot\([^)]{{1,20}}\): "
          r"(?P<what>Link Down|Card not present)"),
    _line("kernel-disk-error", "error", "error",
          r"(?:I/O|critical medium|critical target) error, dev (?P<device>[\w-]{1,32}+)"),
    _line("kernel-disk-error", "error", "buffer i/o",
          r"Buffer I/O error on dev(?:ice)? (?P<device>[\w-]{1,32}+)"),
    _line("kernel-disk-error", "error", "ext4-fs error",
          r"EXT4-fs error \(device (?P<device>[\w-]{1,32}+)\)"),
    _line("kernel-disk-error", "error", "xfs (",
          r"XFS \((?P<device>[\w-]{1,32})\): .{0,80}(?:I/O error|[Cc]orruption)"),
    _line("kernel-disk-error", "error", "read-only",
          r"\((?P<device>[\w-]{1,32})\): Remounting filesystem read-only"),
    _line("kernel-disk-error", "error", "nvme",
          r"nvme (?P<device>nvme\d{1,4}): (?:I/O (?:tag )?\d+ .{0,60}timeout|controller is down"
          r"|Device not ready|Removing after probe failure)"),
    _line("kernel-evicted", "warning", "evicted",
          r"(?P<device>[\w-]{1,40}-(?:OST|MDT)[0-9a-fA-F]{4})\S{0,80}: This client was evicted"),
    _line("kernel-stuck-task", "warning", "blocked for more than",
          rf"INFO: task (?P<program>{_PROGRAM}):(?P<pid>\d{{1,10}}) blocked for more than "
          r"(?P<seconds>\d{1,6}) seconds"),
    _line("kernel-lockup", "error", "lockup",
          r"(?:soft lockup - CPU#\d+ stuck for (?P<seconds>\d{1,6})s|hard LOCKUP on cpu \d)"),
    _line("kernel-lockup", "warning", "stall",
          r"rcu\w{0,20}:? (?:INFO: )?(?:rcu_\w{1,20} )?(?:self-)?detected (?:expedited )?stalls?"),
    _line("kernel-memory-error", "warning", "edac",
          r"EDAC (?P<device>MC\d{1,3}): (?P<count>\d{1,9}) (?P<what>CE|UE) "),
    _line("kernel-memory-error", "error", "memory failure",
          r"Memory failure: 0x[0-9a-f]{1,16}: (?P<what>)"),
    _line("kernel-heat", "warning", "temperature",
          r"CPU\d+: (?P<device>Core|Package) temperature (?:is )?above threshold, cpu clock "
          r"(?:is )?throttled"),
    _line("kernel-crash", "error", "segfault at",
          rf"(?P<program>{_PROGRAM})\[(?P<pid>\d{{1,10}})\]: segfault at \S{{1,20}} ip .{{1,80}}"
          r"error \d+(?: in (?P<library>[\w.+-]{1,60}))?"),
    _line("kernel-crash", "error", "traps:",
          rf"traps: (?P<program>{_PROGRAM})\[(?P<pid>\d{{1,10}})\] (?:general protection|trap )"
          r"(?:.{0,80} in (?P<library>[\w.+-]{1,60}))?"),
)  # fmt: skip
_LINK = re.compile(
    rf"(?P<driver>\w{{2,20}}) (?P<pci>{_PCI}):?(?: (?P<device>{_DEVICE}?))?(?: \w{{1,20}})?: "
    r"(?:Port: (?P<port>\d{1,2}) |NIC )?Link (?:is )?(?P<state>DOWN|[Dd]own|ACTIVE|UP|[Uu]p)\b"
)
_SERVER = re.compile(rf"nfs: server (?P<device>{_DEVICE}) (?P<state>not responding|OK)\b")
_TARGET = re.compile(
    r"(?P<device>[\w-]{1,40}-(?:OST|MDT)[0-9a-fA-F]{4})\S{0,80}: Connection "
    r"(?P<state>restored )?to .{1,120}?(?P<lost>was lost)?(?:;|$)"
)
_CEPH = re.compile(r"ceph: .{0,80}(?P<device>mds\d{1,4}) (?P<state>hung|came back|recovery)")
_SPANS = (
    ("link", "kernel-link-down", _LINK, ("down",)),
    ("nfs: server", "kernel-no-answer", _SERVER, ("not responding",)),
    ("connection ", "kernel-no-answer", _TARGET, ()),
    ("ceph", "kernel-no-answer", _CEPH, ("hung",)),
)
"""What begins and ends: a key, the code, and the states that are its beginning."""
BOOT_NS = 300_000_000_000
"""Links and servers that come up within it of a boot were not lost."""
_BOOT = "Linux version "
_KEYS = tuple(dict.fromkeys([*(line.key for line in _LINES), *(key for key, *_ in _SPANS), _BOOT]))
_ANY = re.compile("|".join(map(re.escape, _KEYS)), re.IGNORECASE)


def may_report(line: str) -> bool:
    """Whether a line holds a word of any report: cheaper than to look at it."""
    return _ANY.search(line) is not None


class Report(NamedTuple):
    """An event, without the words of its line."""

    place: int
    time_ns: int | None
    code: str
    severity: Severity
    fields: list[str]


class _Counted(Struct):
    place: int
    time_ns: int | None
    severity: Severity
    said: dict[str, str]
    count: int = 0
    first_ns: int | None = None
    last_ns: int | None = None


class _Open(Struct):
    place: int
    time_ns: int | None
    since_ns: int | None
    said: dict[str, str]


class KernelReports(Struct):
    """Collects the reports of one log, line by line."""

    left_out: int = 0
    """Reports beyond those that are kept."""
    boots: dict[str | None, int | None] = field(default_factory=dict)
    """When each machine was last seen to boot, on the clock of the lines."""
    _counted: dict[tuple[object, ...], _Counted] = field(default_factory=dict)
    _open: dict[tuple[str, str, str | None], _Open] = field(default_factory=dict)
    _well: set[tuple[str, str, str | None]] = field(default_factory=set)
    """What was seen to be up, or to answer."""
    _ended: list[Report] = field(default_factory=list)

    def line(
        self,
        place: int,
        time_ns: int | None,
        clock_ns: int | None,
        message: str,
        host: str | None = None,
    ) -> bool:
        """Whether a line is a report; ``clock_ns`` need only tell how far lines are apart."""
        if message.startswith(_BOOT):
            self.boots[host] = clock_ns
        lowered = message.lower()
        for key, code, regex, beginnings in _SPANS:
            if key in lowered and (said := regex.search(message)):
                return self._span(place, time_ns, clock_ns, code, said, beginnings, host)
        for line in _LINES:
            if line.key in lowered and (said := line.regex.search(message)):
                self._count(place, time_ns, clock_ns, line, said, host)
                return True
        return False

    def events(self) -> Iterator[Report]:
        """All reports, in the order of their places."""
        reports = list(self._ended)
        for (code, device, host), was in self._open.items():
            seen = ["was_up=1"] if (code, device, host) in self._well else []
            fields = [*(f"{k}={v}" for k, v in was.said.items()), "is_over=0", *seen]
            reports.append(Report(was.place, was.time_ns, code, "error", fields))
        for key, counted in self._counted.items():
            fields = [f"{k}={v}" for k, v in counted.said.items()]
            fields.append(f"count={counted.count}")
            if counted.first_ns is not None and counted.last_ns is not None:
                fields.append(f"lasted_ms={(counted.last_ns - counted.first_ns) // 1_000_000}")
            reports.append(
                Report(counted.place, counted.time_ns, str(key[0]), counted.severity, fields)
            )
        yield from sorted(reports, key=lambda r: (r.place, r.code, r.fields))

    def _is_full(self) -> bool:
        if len(self._counted) + len(self._open) + len(self._ended) < MAX_EVENTS:
            return False
        self.left_out += 1
        return True

    def _span(
        self,
        place: int,
        time_ns: int | None,
        clock_ns: int | None,
        code: str,
        said: re.Match[str],
        beginnings: tuple[str, ...],
        host: str | None,
    ) -> bool:
        boot_ns = self.boots.get(host)
        given = said.groupdict()
        device = given.get("device") or given.get("pci") or "?"
        key = code, device, host
        state = (given.get("state") or "").lower()
        is_begun = state in beginnings if beginnings else bool(given.get("lost"))
        if is_begun:
            is_booting = (
                boot_ns is not None and clock_ns is not None and clock_ns - boot_ns < BOOT_NS
            )
            if not is_booting and key not in self._open and not self._is_full():
                named = {"device": device}
                named |= {k: given[k] for k in ("driver", "pci") if given.get(k)}
                named |= {"host": host} if host is not None else {}
                self._open[key] = _Open(place, time_ns, clock_ns, named)
        elif state:
            self._well.add(key)
            if was := self._open.pop(key, None):
                fields = [*(f"{k}={v}" for k, v in was.said.items()), "is_over=1"]
                if clock_ns is not None and was.since_ns is not None and clock_ns >= was.since_ns:
                    fields.append(f"lasted_ms={(clock_ns - was.since_ns) // 1_000_000}")
                self._ended.append(Report(was.place, was.time_ns, code, "warning", fields))
        return True

    def _count(
        self, place: int, time_ns: int | None, clock_ns: int | None, line: _Line,
        said: re.Match[str],
        host: str | None,
    ) -> None:  # fmt: skip
        given = {k: v for k, v in said.groupdict().items() if v}
        given |= {"host": host} if host is not None else {}
        number, seconds = int(given.pop("count", 1)), given.pop("seconds", None)
        severity = line.severity
        if line.code == "kernel-pcie-error":
            more = given.pop("more", "").strip("()").lower()
            what = "corrected" if given["what"] == "Correct" else more or "uncorrected"
            given["what"] = what
            severity = "warning" if what == "corrected" else "error"
        elif line.code == "kernel-memory-error":
            is_corrected = given.get("what") == "CE"
            given["what"] = "corrected" if is_corrected else "uncorrected"
            severity = "warning" if is_corrected else "error"
        elif line.key == "nv_err_reset_required":
            given["what"] = "reset required"
        elif "what" in given:
            given["what"] = given["what"].lower()
        hour = None if clock_ns is None else clock_ns // HOUR_NS
        key = (line.code, hour, *sorted(given.items()))
        counted = self._counted.get(key)
        if counted is None:
            if self._is_full():
                return
            counted = self._counted[key] = _Counted(
                place, time_ns, severity, given, first_ns=clock_ns
            )
        counted.count += number
        counted.last_ns = clock_ns
        if seconds is not None:
            longest = max(int(seconds), int(counted.said.get("seconds", 0)))
            counted.said = {**counted.said, "seconds": str(longest)}
