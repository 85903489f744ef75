"""The text report: what it says, in which order, and what never reaches the terminal."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from tracekit.findings import BudgetPart, Evidence, Severity
from tracekit.report import InputFile, Report, build_report
from tracekit.report.finding_words import evidence_words
from tracekit.report.html import to_html
from tracekit.report.job_words import rounded
from tracekit.report.markdown import to_markdown
from tracekit.report.notebook import report_html
from tracekit.report.text import MAX_LINES, MAX_UNCHECKED_LINES, to_text
from tracekit.rules import RULES
from tracekit.target import Target

MakeJob = Callable[..., Any]

SUMMARY = {
    "rank": None,
    "steps_count": 10,
    "mean_ns": 150e6,
    "std_ns": 0.0,
    "cv_ratio": 0.0,
    "p50_ns": 150e6,
    "p95_ns": None,
    "p99_ns": None,
    "max_ns": 150_000_000,
    "outliers_count": 0,
}


def files(count: int = 4) -> list[InputFile]:
    return [InputFile(path=f"r{i}.json", kind="kineto", status="ok", rows=10) for i in range(count)]


def culprit(make_job: MakeJob) -> Report:
    job = make_job(comm_ms=10).stall("input_stall", [1], range(1, 11), 50)
    job.rows["step_time_summary"] = [SUMMARY]
    return build_report(job.facts(), [*files(3), replace(files(4)[3], status="partial")])


CULPRIT = """\
job  steps 1-10  2026-07-21 03:01:07-03:01:08 UTC  4 of 4 ranks, 2 hosts; 4 kineto
          1 file partial: r3.json

VERDICT   Rank 1 waits 50.0 ms for input in every step, with nothing else running: the data loader
          is too slow.  [F1]
          host h0  (rank from the trace)
COST      50.0 ms of every 150 ms step (33 %): 32 GPU-hours a day while it lasts. By comparison
          with other ranks, 0 to 50.0 ms.
SURE      likely: the rank's own input wait ranges, its GPU idle meanwhile and other ranks waiting
          for it agree, 10 of 10 steps. Against: nothing found.
DO        confirm  train 50 steps on one batch kept in memory: is the stall gone?
          act      raise num_workers and prefetch_factor; persistent_workers=True, pin_memory=True
          act      cache or pre-decode what is read every epoch; pack sequences offline

STEP      150 ms = 50 F1 + 80 computing + 10 communication not hidden + 10 idle
          p50 150 ms  max 150 ms (n 10)
A RANK'S  compute 50 %   communication not hidden 40 %   copies 3.3 %   idle 6.7 %
          (rank 0, median)
          F1 critical  dataloader-stall       rank 1         50.0 ms/step  explains F2
          F2 minor     exposed-communication  all ranks      60.0 ms/step  explained by F1
NOT CHECKED  gc-pause; GPU health; 3 more  ->  tracekit capture --what profiler,dcgm,host,nic,nccl
             collective-hang: needs collectives matched across ranks, Flight Recorder or a
             watchdog's log
             29 more rules: --all
MORE      tracekit show run1 F1    tracekit explain dataloader-stall
""".replace("29 more rules", f"{len(RULES) - 34} more rules")

HEALTHY = """\
job  steps 1-10  2026-07-21 03:01:07-03:01:08 UTC  4 of 4 ranks, 2 hosts; 4 kineto

VERDICT   Nothing to fix: 100 ms a step; 1 of RULES_COUNT rules could look and found no fault.
NOT CHECKED  MISSING rules for want of inputs (dataloader-stall, checkpoint-stall, gc-pause, \
sync-stall
             and 26 more); 1 is not built yet: --all
""".replace("RULES_COUNT", str(len(RULES))).replace("MISSING", str(len(RULES) - 1))


def test_the_rules_that_looked_and_those_that_could_not_are_all(make_job: MakeJob) -> None:
    """The verdict's count and that of the last line add up, whatever is known."""
    for report in (
        build_report(make_job().facts(), files()),
        build_report(make_job(comm_ms=10).facts(), files()),
        build_report(make_job(ranks_count=1).facts(), files(1)),
    ):
        text = " ".join(report.to_text(width=200).split())
        looked = re.search(r"(\d+) of (\d+) rules could look", text)
        left = re.search(r"NOT CHECKED (\d+) rules? for want of inputs", text)
        idle = re.search(r"; (\d+) ha(?:s|ve) no meaning", text)
        assert looked and left, text
        counts = [looked[1], left[1], idle[1] if idle else "0"]
        assert sum(map(int, counts)) == int(looked[2]) == len(RULES), text


def test_a_culprit_is_told_with_cost_certainty_and_remedy(make_job: MakeJob) -> None:
    assert culprit(make_job).to_text(width=99) == CULPRIT


def test_a_healthy_job_gets_one_verdict_and_no_more(make_job: MakeJob) -> None:
    assert build_report(make_job().facts(), files()).to_text(width=99) == HEALTHY


def test_colour_adds_only_escapes(make_job: MakeJob) -> None:
    import re

    report = culprit(make_job)
    colored = report.to_text(color=True)
    assert "\x1b[31;1mVERDICT\x1b[0m" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == report.to_text()


def test_it_is_short_unless_everything_is_asked_for(make_job: MakeJob) -> None:
    job = make_job(comm_ms=20, idle_ms=40).launching()
    for query in ("input_stall", "gc_pause", "sync_stall"):
        job.stall(query, [1], range(1, 11), 20)
    damaged = [replace(f, status=s) for f in files(3) for s in ("partial", "empty", "unreadable")]
    report = build_report(job.facts(world_size=64), damaged)
    short = report.to_text(width=60).splitlines()
    assert len(short) == MAX_LINES
    end = next(i for i, line in enumerate(short) if line.startswith("          F1"))
    assert short[end - 1].endswith("more lines: --all")
    assert [line[:4] for line in short if line[:4] in ("NOT ", "MORE")] == ["NOT ", "MORE"]
    everything = report.to_text(everything=True)
    assert len(everything.splitlines()) > MAX_LINES
    assert all(f.summary.split()[0] in everything for f in report.findings)
    for entry in report.document.not_checked:
        assert entry.rule in everything


@pytest.mark.parametrize("width", [40, 80, 110])
def test_no_line_is_wider_than_asked(make_job: MakeJob, width: int) -> None:
    lines = culprit(make_job).to_text(width=width).splitlines()
    # A command is never cut in two: what follows a line's end would run by itself.
    prose = [line for line in lines if "tracekit " not in line]
    assert max(len(line) for line in prose) <= max(width, 40)


def test_no_line_ends_between_a_number_and_its_unit(make_job: MakeJob) -> None:
    report = culprit(make_job)
    for width in range(45, 120, 3):
        for line, following in pairwise(report.to_text(width=width).splitlines()):
            assert not (line[-1:].isdigit() and re.match(r" +(ms|%)", following)), (width, line)


@pytest.mark.parametrize("width", [60, 80, 110, 120])
def test_what_was_not_checked_takes_four_lines_at_most(make_job: MakeJob, width: int) -> None:
    lacking = make_job(comm_ms=10).stall("input_stall", [1], range(1, 11), 50)
    for report in (
        build_report(lacking.facts(), files()),
        build_report(make_job().facts(), files()),
    ):
        lines = report.to_text(width=width).splitlines()
        begin = next(i for i, line in enumerate(lines) if line.startswith("NOT CHECKED"))
        block = [line for line in lines[begin:] if not line.startswith(("MORE", "          tr"))]
        assert len(block) <= MAX_UNCHECKED_LINES, "\n".join(block)
        assert block[-1].endswith("--all")
        rules = {e.rule for e in report.document.not_checked}
        everything = report.to_text(everything=True, width=width)
        assert all(name in everything for name in rules)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_commands_are_whole_at_any_width(make_job: MakeJob, width: int) -> None:
    report = culprit(make_job)
    paths = ("traces of monday/rank 0", "a" * 70 + "/it's;here", "-b")
    target = Target(paths, ("my job.toml",), {"--ranks": "0-1"})
    report = replace(report, notes=replace(report.notes, target=target))
    text = report.to_text(width=width)
    show = next(line for line in text.splitlines() if "tracekit show" in line)
    assert shlex.split(show.removeprefix("MORE").partition("    tracekit explain")[0]) == [
        *("tracekit", "show", "traces of monday/rank 0", paths[1], "./-b", "F1"),
        *("--job", "my job.toml", "--ranks", "0-1"),
    ]
    export = "nsys export --type=sqlite --include-blobs=true REPORT.nsys-rep"
    noted = replace(report, notes=replace(report.notes, data_lines=(f"unless asked: {export}",)))
    assert export in noted.to_text(width=width)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_keeps_the_costs_of_findings(make_job: MakeJob, width: int) -> None:
    report = culprit(make_job)
    lines = [line for line in report.to_text(width=width).splitlines() if "/step" in line]
    assert len(lines) == len(report.findings)
    assert all(len(line) <= width for line in lines)
    assert "50.0 ms/step" in lines[0] and "60.0 ms/step" in lines[1]
    assert ("explained by F1" in lines[1]) == (width >= 120)
    assert ("exposed-communication" in lines[1]) == (width >= 80)


def test_what_fails_a_command_is_what_the_verdict_says(make_job: MakeJob) -> None:
    healthy = build_report(make_job(comm_ms=5).facts())
    noted = replace(
        healthy, document=replace(healthy.document, findings=culprit(make_job).findings)
    )
    assert healthy.verdict.kind == "inherent"
    assert noted.worst() is None
    assert healthy.verdict.severity is None

    launching = build_report(make_job(idle_ms=40).launching().facts())
    assert launching.verdict.kind == "configuration"
    assert launching.findings[0].severity is Severity.CRITICAL  # 36 % of the step
    assert launching.verdict.severity is launching.worst() is Severity.CRITICAL

    idle = build_report(make_job(idle_ms=40).facts())
    assert (idle.verdict.kind, idle.verdict.finding) == ("unexplained", None)
    assert idle.verdict.severity is idle.worst() is Severity.CRITICAL


def test_on_hosts_alone_nothing_is_called_a_kernel(make_job: MakeJob) -> None:
    """Neither the words of findings nor those of a verdict that no finding states."""
    for job in (make_job(measured_on="host", idle_ms=50), make_job(measured_on="host")):
        text = build_report(job.facts()).to_text(everything=True).partition("NOT CHECKED")[0]
        assert "kernel" not in text


def test_no_control_character_of_a_foreign_file_reaches_the_terminal(make_job: MakeJob) -> None:
    evil = "x\x1b[2J\x07\u202egnp.exe\r\nVERDICT   all is well\x9b31m"
    job = make_job(comm_ms=30)
    job.rows["exposed_comm_by_op"] = [{"rank": 0, "op": evil, "exposed_comm_ns": 5}]
    report = build_report(
        job.facts(name=evil, layout=evil, hosts={0: evil}, world_size=8),
        [replace(files(1)[0], path=evil, status="partial", kind=evil)],
    )
    for text in (report.to_text(), report.to_text(everything=True)):
        assert all(c.isprintable() or c == "\n" for c in text)
        assert not any(line.startswith("VERDICT   all is well") for line in text.splitlines())


def test_a_guessed_rank_is_never_named_without_its_file(make_job: MakeJob) -> None:
    job = make_job().stall("input_stall", [1], range(1, 11), 50)
    text = build_report(job.facts(rank_sources=dict.fromkeys(range(4), "assigned"))).to_text()
    assert "rank 1 is r1.json" in text


def test_times_without_an_epoch_are_told_as_a_length(make_job: MakeJob) -> None:
    text = build_report(make_job().facts(is_epoch=False)).to_text()
    assert "UTC" not in text
    assert "1.00 s window" in text


def test_a_single_checkpoint_is_said_where_it_is_not_checked(make_job: MakeJob) -> None:
    job = make_job().stall("checkpoint_stall", range(4), [6], 300)
    job.stall("input_stall", [1], range(1, 11), 50)
    assert "there is one, of 300 ms in step 6" in " ".join(
        build_report(job.facts()).to_text().split()
    )


def test_what_is_printed_adds_up() -> None:
    assert rounded([0.333, 0.333, 0.334], 2) == [33, 33, 34]
    assert sum(rounded([1.006, 1.006, 1.006], 2)) == 302
    parts = [BudgetPart(part="floor", s_per_step=x) for x in (0.1, 0.25, 0.65)]
    assert sum(rounded([p.s_per_step for p in parts], 1)) == 10


def test_labels_and_ids_find_a_finding(make_job: MakeJob) -> None:
    report = culprit(make_job)
    assert report.finding("F1") is report.findings[0]
    assert report.finding("dataloader-stall/1") is report.findings[0]
    assert report.finding("F9") is None
    assert report.finding("nothing") is None
    worst = report.worst()
    assert worst is not None
    assert worst.value == "critical"


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (2.0, "count", "2"),
        (1460.0, "count", "1,460"),
        (2.82632e10, "bytes/s", "28.3 GB/s"),
        (512.0, "bytes", "512 B"),
        (1.0, "lines", "1 line"),
        (3.0, "lines", "3 lines"),
        (78.0, "celsius", "78 C"),
        (420.9964, "watts", "421 W"),
        (1980.0, "MHz", "1,980 MHz"),
        (0.27, "ratio", "27 %"),
        (0.0005, "ratio", "0.05 %"),
        (0.5, "s", "500 ms"),
    ],
)
def test_a_number_of_the_evidence_is_told_in_its_unit(value: float, unit: str, words: str) -> None:
    evidence = Evidence(name="it", value=value, unit=unit)
    assert evidence_words(evidence) == f"it: {words}"


@pytest.mark.parametrize(
    ("value", "words"), [(1.2, "120 % (from 95 %)"), (0.95, "95 % (from 95 %)"),
                         (0.85, "85 % (below 95 %)")]
)  # fmt: skip
def test_a_threshold_says_on_which_side_of_it_the_number_lies(value: float, words: str) -> None:
    evidence = Evidence(name="clock", value=value, unit="ratio", threshold=0.95)
    assert evidence_words(evidence) == f"clock: {words}"


def test_a_cost_that_stands_in_another_part_is_named_below_the_sum(make_job: MakeJob) -> None:
    """Else the same report would give one finding two sizes, and no reason."""
    found = build_report(make_job(comm_ms=40).facts())
    (finding,) = found.findings
    less = [
        replace(p, s_per_step=0.015) if p.finding else p for p in found.document.step_budget
    ] + [BudgetPart(part="other_waiting", s_per_step=0.025)]
    cut = replace(found, document=replace(found.document, step_budget=tuple(less)))
    words = "In other parts: 25.0 ms of F1's 40.0 ms."
    renderers = (partial(to_text, everything=True), to_markdown, to_html, report_html)
    for rendered in renderers:
        assert words in escape_free(rendered(cut))
        assert "In other parts" not in rendered(found)
    assert finding.rule == "exposed-communication"


def escape_free(text: str) -> str:
    return html.unescape(text).replace("\xa0", " ").replace("\\", "")
