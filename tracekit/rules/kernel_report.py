"""
What it means
    The kernel of a host reported a fault of it: a GPU or NIC that failed, a fatal error of an
    NVSwitch, a link that was lost, PCIe errors, a file server or disk that did not answer, tasks
    that were stuck, memory errors, heat, or a process that it killed or that crashed.

How it shows
    In the host's kernel log (dmesg, journalctl -k, syslog), while the job ran; where no trace says
    when that was, at any time of the log. Corrected errors of PCIe and memory only where there are
    many; a server that did not answer only if it was for long. Kills and crashes where no log of
    the job tells of a failure itself. What is reported in stalls of a training log and hardly at
    other times costs what these lost. What came with the last step of a training log that does not
    reach the job's end ended it, and explains why others wait.

Why it hurts
    A lost link stops every collective through it, a server that does not answer every rank that
    reads; a machine that corrects errors or cools itself down is slow.

Remedy
    Take the device out: cable, NIC, riser, memory module, disk; or mend the server.

When this is wrong
    The kernel does not know which devices the job used: a link may be that of a network for
    administration. A link that is down until it first comes up is no loss: what lies within five
    minutes of a boot is left out. Machines are drained and tested between jobs, too: without a
    trace nobody knows whether the job ran.

Source
    Messages of Linux (drivers mlx5_core and others, AER, NFS, Lustre, block layer, hung-task and
    lockup detectors, EDAC, thermal throttling).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from msgspec import Struct

from tracekit.findings import (
    Evidence,
    Finding,
    Owner,
    Scope,
    Severity,
)
from tracekit.rules.base import Facts, Row, Rule, RuleOutcome
from tracekit.rules.logged import EPISODES_QUERY, SUMMARY_QUERY, log_of, with_loss
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import listed, plural, safe, seconds, some, span

QUERY = "kernel_reports"
NEEDS = "kernel logs of the hosts (dmesg -T, journalctl -k)"
CAPTURE = "journalctl -k -o short-iso --since START   on each host"
SHOWN_DEVICES = 3


class KernelReportThresholds(Thresholds):
    """When what a kernel reports is told."""

    min_corrected_count: int = threshold(
        100, "corrected errors of a device while the job ran: single ones are everyday"
    )
    min_silence_ns: int = threshold(
        10_000_000_000,
        "that a file server did not answer: servers fail over within seconds by design",
    )
    max_from_last_ns: int = threshold(
        60_000_000_000,
        "from the training log's last line to a report that ended the job: clocks of machines, and "
        "what other ranks still print of a step that was done",
    )
    max_from_last_ratio: float = threshold(
        2.0, "usual steps, where these are longer: the step that was on the way is not printed"
    )
    min_within_ratio: float = threshold(
        0.5, "of the reports that must lie in stalls of the log: what mostly comes at other times "
        "stalls no job"
    )  # fmt: skip


class _Told(Struct, frozen=True):
    words: str
    severity: Severity
    rows: Sequence[Row]
    devices: tuple[str, ...] = ()


class _Kind(Struct, frozen=True):
    name: str
    codes: tuple[str, ...]
    owner: Owner
    judge: Callable[[Sequence[Row], KernelReportThresholds], _Told | None]
    confirm: str
    remedy: str


def _links(rows: Sequence[Row], limits: KernelReportThresholds) -> _Told | None:
    lost = [r for r in rows if r["is_over"] or r["was_up"]]
    if not lost:
        return None
    down = [r for r in lost if not r["is_over"]]
    each = [
        f"{safe(str(r['device']))} for {seconds(int(r['lasted_ns']) / 1e9)}"
        if r["lasted_ns"] is not None
        else safe(str(r["device"]))
        for r in lost
        if r["is_over"]
    ]
    words = [f"a link was lost and came back: {some(each, SHOWN_DEVICES)}"] if each else []
    if down:
        words.append(f"{some(_devices(down), SHOWN_DEVICES)} lost its link and did not come back")
    return _Told(
        listed(words), Severity.MAJOR if down else Severity.MINOR, lost, tuple(_devices(lost))
    )


def _gpus(rows: Sequence[Row], limits: KernelReportThresholds) -> _Told | None:
    devices = _devices([r for r in rows if r["device"] is not None])
    which = some(devices, SHOWN_DEVICES) if devices else "that it does not name"
    return _Told(f"GPU {which} failed, as its driver says", Severity.MAJOR, rows, tuple(devices))


def _switches(rows: Sequence[Row], limits: KernelReportThresholds) -> _Told | None:
    fatal = [r for r in rows if r["what"] == "fatal"]
    if not fatal:
        return None
    numbers = sorted({str(r["code"]).removeprefix("sxid-") for r in fatal}, key=int)
    words = f"NVSwitch {some(_devices(fatal), SHOWN_DEVICES)}: fatal SXid {listed(numbers[:4])}"
    return _Told(words, Severity.MAJOR, fatal, tuple(_devices(fatal)))


def _nics(rows: Sequence[Row], limits: KernelReportThresholds) -> _Told | None:
    return _Told(
        f"NIC {some(_devices(rows), SHOWN_DEVICES)} failed, as its driver says",
        Severity.MAJOR, rows, tuple(_devices(rows)),
    )  # fmt: skip


def _cables(rows: Sequence[Row], limits: KernelReportThresholds) -> _Told | None:
    what = sorted({str(r["what"]) for r in rows})
    return _Told(
        f"the cable or optic of NIC {some(_devices(rows), SHOWN_DEVICES)}: {listed(what)}",
        Severity.MINOR, rows, tuple(_devices(rows)),
    )  # fmt: skip


def _pcie(rows: Sequence[Row], limits: KernelReportThresholds) -> _Told | None:
    lost = [r for r in rows if r["code"] == "kernel-pcie-lost"]
    fatal = [r for r in rows if r["what"] in ("fatal", "uncorrected")]
    other = [r for r in rows if r["what"] == "non-fatal"]
    if lost:
        words = f"the PCIe link of slot {some(_devices(lost), SHOWN_DEVICES)} was lost"
        return _Told(words, Severity.MAJOR, lost, tuple(_devices(lost)))
    for worse, severity in ((fatal, Severity.MAJOR), (other, Severity.MINOR)):
        if worse:
            words = f"{plural(_count(worse), 'PCIe error')} that the hardware could not correct at "
            return _Told(
                words + some(_devices(worse), SHOWN_DEVICES), severity, worse,
                tuple(_devices(worse)),
            )  # fmt: skip
    return _corrected(rows, limits, "corrected PCIe error", "at")


def _corrected(
    rows: Sequence[Row], limits: KernelReportThresholds, what: str, where: str
) -> _Told | None:
    by_device: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_device[str(row["device"])].append(row)
    device, most = max(by_device.items(), key=lambda item: (_count(item[1]), item[0]))
    if _count(most) < limits.min_corrected_count:
        return None
    words = f"{plural(_count(most), what)} {where} {safe(device)}"
    return _Told(words, Severity.NOTE, most, (safe(device),))


def _storage(rows: Sequence[Row], limits: KernelReportThresholds) -> _Told | None:
    silent = [r for r in rows if r["code"] == "kernel-no-answer"]
    open_ = [r for r in silent if not r["is_over"]]
    lasted_ns = sum(int(r["lasted_ns"] or 0) for r in silent if r["is_over"])
    words, told = [], list[Row]()
    if lasted_ns >= limits.min_silence_ns:
        ended = [r for r in silent if r["is_over"]]
        told += ended
        words.append(
            f"file server {some(_devices(ended), SHOWN_DEVICES)} did not answer for "
            f"{seconds(lasted_ns / 1e9)}"
        )
    if open_:
        told += open_
        words.append(
            f"file server {some(_devices(open_), SHOWN_DEVICES)} stopped answering, and no line "
            "says that it answers again"
        )
    for code, what in (
        ("kernel-evicted", "file server {} cut this client off"),
        ("kernel-disk-error", "errors of disk {}"),
    ):
        these = [r for r in rows if r["code"] == code]
        if these:
            told += these
            words.append(what.format(some(_devices(these), SHOWN_DEVICES)))
    stuck = [r for r in rows if r["code"] == "kernel-stuck-task"]
    if told and stuck:
        told += stuck
        words.append(_stuck_words(stuck))
    if not told:
        return _stuck(rows, limits) if stuck else None
    severity = Severity.MAJOR if open_ else Severity.MINOR
    devices = _devices([r for r in told if r["device"] is not None])
    return _Told(listed(words), severity, told, tuple(devices))


def _stuck(rows: Sequence[Row], limits: KernelReportThresholds) -> _Told | None:
    stuck = [r for r in rows if r["code"] in ("kernel-stuck-task", "kernel-lockup")]
    return _Told(_stuck_words(stuck), Severity.MINOR, stuck)


def _stuck_words(rows: Sequence[Row]) -> str:
    programs = sorted({safe(str(r["program"])) for r in rows if r["program"] is not None})
    longest = max((int(r["longest_ns"]) for r in rows if r["longest_ns"] is not None), default=None)
    what = f"tasks were stuck ({some(programs, SHOWN_DEVICES)})" if programs else "CPUs were stuck"
    return what + (f" for {seconds(longest / 1e9)} and more" if longest is not None else "")


def _memory(rows: Sequence[Row], limits: KernelReportThresholds) -> _Told | None:
    worse = [r for r in rows if r["what"] == "uncorrected"]
    if worse:
        words = f"{plural(_count(worse), 'memory error')} that could not be corrected"
        return _Told(words, Severity.MAJOR, worse)
    return _corrected(rows, limits, "corrected memory error", "of")


def _heat(rows: Sequence[Row], limits: KernelReportThresholds) -> _Told | None:
    words = f"its CPUs were too hot and slowed down ({plural(_count(rows), 'report')})"
    return _Told(words, Severity.NOTE, rows)


def _ended(rows: Sequence[Row], limits: KernelReportThresholds) -> _Told | None:
    kills = [r for r in rows if r["code"] == "oom-kill"]
    killed = sorted({int(r["pid"]) for r in kills if r["pid"]})
    crashed = [r for r in rows if r["code"] == "kernel-crash"]
    words = []
    if killed:
        shown = some([str(pid) for pid in killed], SHOWN_DEVICES)
        words.append(
            f"the kernel killed process{'' if len(killed) == 1 else 'es'} {shown} for want of "
            "memory"
        )
    elif kills:
        words.append("the kernel killed a process for want of memory")
    if crashed:
        each = [
            f"{safe(str(r['program']))} (process {r['pid']})"
            + (f" in {safe(str(r['library']))}" if r["library"] is not None else "")
            for r in crashed
        ]
        words.append(f"{some(each, SHOWN_DEVICES)} crashed")
    return _Told(listed(words), Severity.MAJOR, rows) if words else None


def _devices(rows: Sequence[Row]) -> list[str]:
    return sorted({safe(str(r["device"])) for r in rows})


def _count(rows: Sequence[Row]) -> int:
    return sum(int(r["reports_count"]) for r in rows)


KINDS = (
    _Kind("gpu", ("kernel-gpu-failed",), "hardware", _gpus,
          "nvidia-smi or amd-smi on its host: does it still list the GPU, and does it need a reset",
          "drain the machine, reset the GPU or power the machine off and on"),
    _Kind("nvswitch", ("sxid-",), "hardware", _switches,
          "nvidia-smi nvlink -e; the fabric manager's log   on its host",
          "drain the machine, reset GPUs and NVSwitches together; replace the baseboard if "
          "it comes back"),
    _Kind("link", ("kernel-link-down",), "network", _links,
          "ibstat or ethtool of that interface; the counters of its port and of the switch's",
          "reseat or replace cable or optic; drain the machine if the link is lost again"),
    _Kind("nic", ("kernel-nic-failed",), "hardware", _nics,
          "mlxfwreset -d DEVICE q; devlink health show   on its host",
          "drain the machine, reset the NIC or power the machine off and on; replace the NIC"),
    _Kind("cable", ("kernel-cable",), "hardware", _cables,
          "mlxlink -d DEVICE -m   on its host", "reseat or replace cable or optic"),
    _Kind("pcie", ("kernel-pcie-error", "kernel-pcie-lost"), "hardware", _pcie,
          "lspci -vv of that device (DevSta, UESta, CESta, LnkSta)",
          "reseat the card or riser; drain the machine if it comes back"),
    _Kind("storage",
          ("kernel-no-answer", "kernel-evicted", "kernel-disk-error", "kernel-stuck-task"),
          "platform", _storage,
          "the server's own log at that time; mountstats or iostat -x 1 on its host",
          "mend the server, its network or the disk; save to a local disk first"),
    _Kind("lockup", ("kernel-lockup",), "platform", _stuck,
          "the stack that stands below the line in the kernel's log",
          "update kernel and drivers; drain the machine if it comes back"),
    _Kind("memory", ("kernel-memory-error",), "hardware", _memory,
          "ras-mc-ctl --errors, or edac-util -v   on its host", "replace the memory module"),
    _Kind("heat", ("kernel-heat",), "hardware", _heat,
          "sensors; ipmitool sdr type Temperature   on its host",
          "fans, filters, air flow and power settings of the machine"),
    _Kind("ended", ("oom-kill", "kernel-crash"), "platform", _ended,
          "the output of that process; journalctl -k around that line",
          "of memory: fewer loader workers or a larger limit; of a crash: its core dump"),
)  # fmt: skip


def evaluate(facts: Facts, limits: KernelReportThresholds) -> RuleOutcome:
    """One finding a host and kind of fault."""
    rows = facts.of(QUERY)
    if not rows:
        return facts.lacking(NEEDS, CAPTURE)
    by_host: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if _is_current(facts, row):
            by_host[_machine(facts, row)].append(row)
    has_failures = bool(facts.of("failures"))
    findings = []
    last = _last(facts, limits)
    for machine, theirs in sorted(by_host.items()):
        for kind in KINDS:
            chosen = [r for r in theirs if str(r["code"]).startswith(kind.codes)]
            if not chosen or (kind.name == "ended" and has_failures):
                continue
            told = kind.judge(chosen, limits)
            if told is not None:
                found = _finding(facts, machine, kind, told, last)
                is_end = found.severity is Severity.CRITICAL
                findings.append(found if is_end else _in_stalls(facts, found, told, limits))
    return RuleOutcome(tuple(findings))


class _Last(Struct, frozen=True):
    """The last line of a training log that does not reach the job's end."""

    step: int
    time_ns: int
    slack_ns: float

    def struck(self, told: _Told) -> Row | None:
        """The report nearest to it, if it came with it. Times without a zone are taken as of one,
        and beside those of the epoch as UTC: of two zones, none would be so near."""
        timed = [r for r in told.rows if r["time_ns"] is not None]
        row = min(timed, key=self.distance_ns, default=None)
        is_near = row is not None and self.distance_ns(row) <= self.slack_ns
        return row if is_near and told.severity is Severity.MAJOR else None

    def distance_ns(self, row: Row) -> int:
        return abs(int(row["time_ns"]) - self.time_ns)


def _last(facts: Facts, limits: KernelReportThresholds) -> _Last | None:
    row = next(iter(facts.of(SUMMARY_QUERY)), None)
    if row is None or row["end_ns"] is None:
        return None
    if row["total_steps_count"] is not None and row["last_step"] >= row["total_steps_count"]:
        return None
    steps_ns = limits.max_from_last_ratio * (row["p50_ns"] or 0.0)
    return _Last(row["last_step"], row["end_ns"], max(limits.max_from_last_ns, steps_ns))


def _is_current(facts: Facts, row: Row) -> bool:
    """Whether it was while the job ran, and of a host of the job as far as these are known."""
    if facts.job.hosts and row["host"] is not None and row["ranks"] is None:
        return False
    return bool(row["is_in_window"] or (row["is_in_window"] is None and not facts.ranks))


def _machine(facts: Facts, row: Row) -> str:
    if row["host"] is not None:
        return safe(str(row["host"]))
    source = int(row["source_id"])
    return f"the machine of {safe(facts.sources.get(source, f'source {source}'))}"


def _finding(facts: Facts, machine: str, kind: _Kind, told: _Told, last: _Last | None) -> Finding:
    hosts = tuple(sorted({safe(str(r["host"])) for r in told.rows if r["host"] is not None}))
    is_known = all(r["is_in_window"] for r in told.rows)
    row = last.struck(told) if last is not None else None
    summary = f"The kernel of {machine} reports: {told.words}"
    evidence = [
        Evidence.count(
            "reports", _count(told.rows), None, QUERY, facts.places(told.rows, unit="line ")
        )
    ]
    basis = "the kernel's own word"
    if last is not None and row is not None:
        summary += f", at the time of step {last.step:,}, the last of the training log"
        basis += ", and the log's last step at that time"
        evidence.append(
            Evidence.seconds(
                "between the log's last line and the report", last.distance_ns(row), None,
                SUMMARY_QUERY,
            )
        )  # fmt: skip
    elif not is_known:
        basis += "; whether the job ran then is not known"
    return facts.finding(
        Scope(hosts=hosts, devices=told.devices, identity_source="log"),
        f"{summary}.",
        evidence,
        by=("log",),
        basis=basis,
        least=Severity.CRITICAL if row is not None else told.severity,
        place=f"{machine.removeprefix('the machine of ')}-{kind.name}",
        owner=kind.owner,
        keys=(),
        confirm=(kind.confirm,),
        remedy=(kind.remedy,),
    )


def _in_stalls(
    facts: Facts, finding: Finding, told: _Told, limits: KernelReportThresholds
) -> Finding:
    """Without traces: the finding with the stalls of the training log in which it was reported,
    where hardly any report lies elsewhere."""
    log = log_of(facts)
    reports = [
        (r["time_ns"], r["time_ns"] + (r["lasted_ns"] or 0))
        for r in told.rows
        if r["time_ns"] is not None
    ]
    if log is None or facts.ranks or not reports or told.severity is Severity.NOTE:
        return finding

    def holds(stall: Row, report: tuple[int, int]) -> bool:
        begin, end = stall["start_ns"], stall["end_ns"]
        return None not in (begin, end) and report[0] <= end and report[1] >= begin

    stalls = [s for s in log.of("stall") if any(holds(s, report) for report in reports)]
    within = [report for report in reports if any(holds(s, report) for s in stalls)]
    if not stalls or len(within) < limits.min_within_ratio * len(told.rows):
        return finding
    lost_ns = sum(float(s["lost_ns"] or 0) for s in stalls)
    steps = listed([f"{s['last_step']:,}" for s in stalls[:SHOWN_DEVICES]])
    more = f" and {len(stalls) - SHOWN_DEVICES} others" if len(stalls) > SHOWN_DEVICES else ""
    return with_loss(
        facts,
        log,
        finding,
        lost_ns,
        f"the job stalled at step {steps}{more}, for {span(lost_ns / 1e9)}",
        "the kernel's own word, and the training log: it stalled just then",
        Evidence.seconds("stalls in which it was reported", lost_ns, None, EPISODES_QUERY),
    )


RULE = Rule(
    name="kernel-report",
    summary="A host's kernel reported a fault of its links, PCIe, storage, memory or tasks.",
    owner="hardware",
    thresholds=KernelReportThresholds(),
    queries=(QUERY, "failures"),
    evaluate=evaluate,
    needs=NEEDS,
    topic="what hosts lack",
    optional={
        SUMMARY_QUERY: "whether the job's log ends with what a kernel reported",
        EPISODES_QUERY: "whether the job stalled then",
    },
    explains=("a lost member",),
)
