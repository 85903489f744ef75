"""One finding whole, and the report as Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from tracekit.report import Report, build_report
from tracekit.report.markdown import to_markdown
from tracekit.report.show import show_finding
from tracekit.target import Target

MakeJob = Callable[..., Any]


def stalled(make_job: MakeJob, **known: Any) -> Report:
    job = make_job(comm_ms=10, steps_count=4).stall("input_stall", [1], range(1, 5), 50)
    return build_report(job.facts(**known))


def about(path: str, report: Report) -> Report:
    return replace(report, notes=replace(report.notes, target=Target((path,))))


SHOWN = """\
dataloader-stall/1   critical   owner: data

SAYS      Rank 1 waits 50.0 ms for input in every step, with nothing else running: the data loader
          is too slow.
WHERE     rank 1   hosts h0   steps 1-4   (identity from file)
WHEN      2026-07-21T03:01:07.000000Z to 2026-07-21T03:01:07.600000Z
COST      50.0 ms of every 150 ms step (33 %): 32 GPU-hours a day while it lasts. By comparison
          with other ranks, 0 to 50.0 ms.
SURE      likely: the rank's own input wait ranges, its GPU idle meanwhile and other ranks waiting
          for it agree, 4 of 4 steps. Against: nothing found.
EXPLAINS  exposed-communication/all

EVIDENCE  longest exposed input wait of a stalled step, mean: 50.0 ms (from 4.50 ms)  [query
          input_stall]
             r1.json  at 1
             r1.json  at 2
             r1.json  at 3
             r1.json  at 4
          delay of the job, mean of all steady steps: 50.0 ms (from 1.50 ms)  [query input_stall]
          stalled steps, share of the steady ones: 100 % (from 20 %)  [query input_stall]

CONFIRM   train 50 steps on one batch kept in memory: is the stall gone?
ACT       raise num_workers and prefetch_factor; persistent_workers=True, pin_memory=True
          cache or pre-decode what is read every epoch; pack sequences offline
          check the storage that these ranks read from, and the CPU cores they may use
MORE      tracekit query run1 input_stall
          tracekit explain dataloader-stall
"""


def test_a_finding_is_shown_down_to_its_records(make_job: MakeJob) -> None:
    report = stalled(make_job)
    assert show_finding(about("run1", report), report.findings[0], width=99) == SHOWN


def test_an_explained_finding_with_candidates_says_both(make_job: MakeJob) -> None:
    report = stalled(make_job, world_size=6)
    symptom = next(f for f in report.findings if f.rule == "exposed-communication")
    text = show_finding(report, symptom)
    assert "BECAUSE   dataloader-stall/1" in text
    assert "MAYBE     4-5: 2 ranks left no trace" in text
    assert "CAPTURE   profile ranks 4-5" in text


def test_markdown_says_everything(make_job: MakeJob) -> None:
    text = to_markdown(stalled(make_job))
    assert text.startswith("# job\n\n- steps 1-4; 2026-07-21 03:01:07-03:01:07 UTC; 4 of 4 ranks")
    assert "**Verdict: culprit.** Rank 1 waits 50.0 ms" in text
    assert "## F1 dataloader-stall/1 (critical, 50.0 ms a step)" in text
    assert "- Explained by: dataloader-stall/1" in text
    needs = "NIC or switch counters | `tracekit capture --what nic` |"
    assert any("pfc-storm" in line and line.endswith(needs) for line in text.splitlines())
    assert "- `tracekit explain dataloader-stall`\n" in text


def test_markdown_of_a_foreign_name_is_text_only(make_job: MakeJob) -> None:
    evil = "](http://x)<script>|\n# heading\x1b[0m"
    text = to_markdown(build_report(make_job().facts(name=evil, layout=evil)))
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "\n# heading" not in text
    assert "\x1b" not in text


def test_a_target_from_the_command_line_is_escaped_too(make_job: MakeJob) -> None:
    report = stalled(make_job)
    finding = replace(report.findings[0], summary="a\x1b[2Jb")
    assert "\x1b" not in show_finding(about("run\x1b[2J", report), finding)
