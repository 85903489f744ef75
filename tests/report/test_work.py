"""What dominates the work of a job in which nobody communicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracekit.report import Report, build_report
from tracekit.report.work import NO_OPERATOR

MakeJob = Callable[..., Any]


def operator(name: str | None, device_ns: int, host_ns: int = 10) -> dict[str, Any]:
    calls = None if name is None else 4
    return {"rank": 0, "name": name, "calls_count": calls, "device_self_ns": device_ns,
            "host_self_ns": host_ns, "attempt": 1}  # fmt: skip


def kernel(name: str, total_ns: int) -> dict[str, Any]:
    return {"rank": 0, "name": name, "class": "compute", "calls_count": 2, "total_ns": total_ns,
            "p50_ns": total_ns / 2, "attempt": 1}  # fmt: skip


def told(make_job: MakeJob, **rows: Any) -> Report:
    job = make_job(ranks_count=1, comm_ms=0)
    job.rows |= rows
    return build_report(job.facts())


OPERATORS = [operator("aten::mm", 6_000_000), operator("aten::add", 3_000_000),
             operator(None, 1_000_000)]  # fmt: skip
KERNELS = [kernel("gemm", 7_000_000), kernel("add", 3_000_000)]


def test_operators_are_told_in_a_line_and_all_of_them_if_asked_for(make_job: MakeJob) -> None:
    report = told(make_job, operator_summary=OPERATORS, kernel_summary=KERNELS)
    text = report.to_text(width=120)
    assert f"WORK      aten::mm 60 %   aten::add 30 %   {NO_OPERATOR} 10 %\n" in text
    rows = report.to_text(everything=True, width=120)
    assert "WORK      3 operators by their share of the device's time\n" in rows
    assert "60 %  6.00 ms  4  1.50 ms each  aten::mm\n" in rows
    assert f"10 %  1.00 ms  -             -  {NO_OPERATOR}\n" in rows


def test_the_line_has_as_many_names_as_fit_it(make_job: MakeJob) -> None:
    long = [operator(f"aten::{'x' * 30}_{i}", 1_000_000 * (9 - i)) for i in range(4)]
    report = told(make_job, operator_summary=long, kernel_summary=KERNELS)
    (line,) = [t for t in report.to_text(width=110).splitlines() if t.startswith("WORK")]
    assert line.count("aten::") == 1 or len(line) <= 110
    assert line.endswith("more operators: --all")


def test_kernels_stand_where_most_work_is_of_no_operator(make_job: MakeJob) -> None:
    rows = [operator("aten::mm", 1_000_000), operator(None, 9_000_000)]
    text = told(make_job, operator_summary=rows, kernel_summary=KERNELS).to_text(width=120)
    assert "WORK      gemm 70 %   add 30 %\n" in text
    text = told(make_job, operator_summary=[], kernel_summary=KERNELS).to_text(width=120)
    assert "WORK      gemm 70 %   add 30 %\n" in text


def test_without_a_device_it_is_the_operators_time_on_the_host(make_job: MakeJob) -> None:
    rows = [operator("aten::mm", 0, 3_000), operator("aten::add", 0, 1_000)]
    report = told(make_job, operator_summary=rows)
    assert "WORK      aten::mm 75 %   aten::add 25 %\n" in report.to_text(width=120)
    assert "share of the operators' time on the host" in report.to_text(everything=True, width=120)


def test_where_ranks_communicate_or_nobody_knows_nothing_is_said(make_job: MakeJob) -> None:
    rows = {"operator_summary": OPERATORS, "kernel_summary": KERNELS}
    calls = [{"rank": 0, "op": "all_reduce", "attempt": 1}]
    assert told(make_job, **rows, comm_summary=calls).notes.work is None
    assert told(make_job).notes.work is None
    job = make_job(ranks_count=1, comm_ms=0)
    job.rows |= rows
    facts = job.facts()
    facts.unavailable["comm_summary"] = "failed"
    assert build_report(facts).notes.work is None
