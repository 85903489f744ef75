"""What a user is told of NCCL files alone: real ones where they are at hand, and made ones."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import nccl_logs as logs
import tracekit
from soaks import soak
from tracekit.report.model import Document
from tracekit.simulate import Request, write

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "nccl"
needs_shared = pytest.mark.skipif(not DATA.is_dir(), reason="the shared NCCL logs are not here")
SECRET = "AKIAHUNTER2SECRET"  # noqa: S105  # the point of the test


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))


def real(pattern: str) -> Path:
    return next(iter(sorted(DATA.glob(pattern))))


def told(folder: Path, *paths: Path) -> tuple[str, Document]:
    """The report's text and its document."""
    with tracekit.ingest(list(paths), run=folder / "run") as run:  # type: ignore[operator]
        report = run.diagnose()
    return report.to_text(width=200), report.document


@needs_shared
def test_a_collapse_is_told_with_channels_and_bandwidth(tmp_path: Path) -> None:
    text, document = told(tmp_path, real("18*"), real("19*"))
    (finding,) = document.findings
    assert finding.rule == "channel-collapse"
    assert "uses 2 channels where the same 2 GPUs had 24" in text
    assert "falls from 178 to 28 GB/s (84 % lost)" in text
    assert finding.confidence.level == "likely"


@needs_shared
def test_a_table_without_rows_is_no_conclusion_whatever_its_file_is_called(tmp_path: Path) -> None:
    path = tmp_path / "all-is-well.log"
    shutil.copyfile(real("27*ncclfail*"), path)
    text, document = told(tmp_path, path)
    assert "sendrecv_perf is incomplete (0 of 10 sizes measured), and nothing says why" in text
    assert document.verdict.kind == "not_enough_data"
    assert not document.findings


@needs_shared
def test_nvls_and_ring_of_the_same_gpus(tmp_path: Path) -> None:
    text, document = told(tmp_path, real("17*g6_auto*"), real("17*g6_Ring*"))
    assert "1 host" in text
    assert [f.rule for f in document.findings] == ["unsuitable-algorithm"]
    assert "425.6" in document.findings[0].summary
    assert "358.1" in document.findings[0].summary


@needs_shared
def test_sixteen_ranks_over_libfabric(tmp_path: Path) -> None:
    text, document = told(tmp_path, real("03*"))
    assert "16 ranks (16 seen), 2 hosts, NCCL 2.9.9, AWS Libfabric with GPUDirect" in text
    assert "all_reduce_perf (not named; only it fits busbw / algbw) 11.2 GB/s on average" in (
        " ".join(text.split())
    )
    assert not document.findings


@needs_shared
@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("31*", "Inspector: 1 file, 5 records, up to 678.3 GB/s"),
        ("32*", "Flight Recorder: 1 dump, 1 call"),
    ],
)
def test_records_alone_are_named_and_accuse_nobody(pattern: str, line: str, tmp_path: Path) -> None:
    text, document = told(tmp_path, real(pattern))
    assert line in text
    assert not document.findings
    assert document.verdict.kind == "not_enough_data"
    assert "rules that read traces: no trace was given" in text


@needs_shared
def test_a_process_that_ras_calls_dead_is_named(tmp_path: Path) -> None:
    text, document = told(tmp_path, real("30*"))
    assert "RAS: 1 file, 41 members" in text
    (finding,) = document.findings
    assert "considers process 3487984 on 172.16.64.213 dead" in finding.summary
    assert finding.scope.hosts == ("172.16.64.213",)


def ras(counts: list[int], time: str = "02:41:00") -> str:
    """A snapshot of NCCL's RAS: what each rank launched."""
    ranks = [
        {"rank": rank, "host": f"10.0.0.{rank}", "pid": 10 + rank, "status": {"init_state": 1},
         "collective_counts": {"AllReduce": count, "AllGather": 3}}
        for rank, count in enumerate(counts)
    ]  # fmt: skip
    comm = {"hash": "0xae", "size": len(counts), "ranks": ranks, "missing_ranks": []}
    record = {"nccl_version": "2.29.1", "timestamp": f"2026-07-21 {time}", "communicators": [comm]}
    return json.dumps(record) + "\n"


BEHIND = [7, 7, 6, 7]
RAS_TEXT = """Job summary
===========

Communicators... (0.00s)

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  3 ranks have launched up to operation 6650
  1 rank has launched up to operation 6649
  Rank 2 -- GPU 2 managed by process 4 on node 10.0.0.1
"""


@pytest.mark.parametrize("is_one_file", [True, False])
def test_counts_that_stand_still_are_a_hang(tmp_path: Path, is_one_file: bool) -> None:
    first, second = ras(BEHIND), ras(BEHIND, "02:41:30")
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    paths[0].write_text(first + (second if is_one_file else ""))
    paths[1].write_text(second)
    text, document = told(tmp_path, *paths[: 1 if is_one_file else 2])
    (finding,) = document.findings
    assert document.verdict.kind == "hang"
    assert "0xae stood still for 30.0 s: rank 2 (on 10.0.0.2) launched 9 of the 10" in text
    assert finding.scope.hosts == ("10.0.0.2",)
    assert finding.scope.ranks == ()


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (ras(BEHIND), ras(BEHIND, "02:41:29"), "only 29.0 s apart"),
        (ras(BEHIND), ras([8, 8, 7, 8], "02:42:00"), "no member stood still behind others"),
        (ras(BEHIND), ras([8, 7, 6, 7], "02:42:00"), "no member stood still behind others"),
        (ras([7] * 4), ras([7] * 4, "02:42:00"), "no member stood still behind others"),
        (ras(BEHIND), "", "one RAS snapshot shows no hang"),
        (RAS_TEXT, RAS_TEXT, "They state no times"),
        (RAS_TEXT, RAS_TEXT.replace("66", "67"), "no member stood still behind others"),
    ],
)
def test_other_snapshots_are_no_hang(first: str, second: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "ras.txt"
    path.write_text(first + second)
    text, document = told(tmp_path, path)
    assert not document.findings
    assert said in text.replace("\n          ", " ")


def test_a_secret_in_a_jobs_output_is_nowhere(tmp_path: Path) -> None:
    lines = [
        logs.job("2.27.7"),
        f"export AWS_SECRET_ACCESS_KEY={SECRET}",
        logs.info(f"NCCL_TOKEN set by environment to {SECRET}."),
        f"[rank0]:[E1121 04:26:02.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught {SECRET}",
        f"curl -H 'Authorization: Bearer {SECRET}' https://host/",
        logs.info(f"something that no release says {SECRET}"),
    ]
    path = tmp_path / "job.log"
    path.write_text("\n".join(lines) + "\n")
    text, document = told(tmp_path, path)
    assert SECRET not in text
    assert SECRET not in json.dumps(document, default=str)
    path.unlink()
    kept = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert kept
    assert not [p for p in kept if SECRET.encode() in p.read_bytes()]


@pytest.mark.slow  # sixteen simulated ranks; its rows: tests/rules/test_shm_instead_of_p2p.py
def test_what_the_logs_state_is_priced_by_the_slow_groups_of_that_host(tmp_path: Path) -> None:
    request = Request("shm-instead-of-p2p", 16, 1000, "tp4-sp-m2", 5, decoys=(), counters="none")
    write(request, tmp_path / "job")
    paths = [p for p in sorted((tmp_path / "job").glob("[!.]*")) if p.name != "truth.json"]
    text, document = told(tmp_path, *paths)
    first = document.findings[0]
    assert (first.rule, first.id) == ("shm-instead-of-p2p", document.verdict.finding)
    assert first.impact.s_per_step is not None
    assert first.confidence.level == "likely"
    slow = [f for f in document.findings if f.rule == "link-degraded"]
    assert slow
    assert all(f.explained_by == (first.id,) for f in slow)
    assert all("it runs over SHM" in f.summary for f in slow)
    assert "COST      unknown" not in text


def test_every_call_of_the_trace_is_found_in_the_log(tmp_path: Path) -> None:
    write(Request("none", 4, 4, "tp2-m2", 2, nccl="coll", decoys=()), tmp_path / "job")
    paths = [p for p in sorted((tmp_path / "job").glob("[!.]*")) if p.name != "truth.json"]
    with tracekit.ingest(paths, run=tmp_path / "run") as run:  # type: ignore[operator]
        calls = run.query("nccl_calls").to_dicts()
    best: dict[tuple[str, int], int] = {}
    for row in calls:
        key = (row["group_id"], row["rank"])
        best[key] = max(best.get(key, 0), row["matched_count"])
        assert row["traced_count"] >= row["matched_count"] + row["differing_count"]
    whole = {(r["group_id"], r["rank"]): r["traced_count"] for r in calls}
    assert best == whole
    assert {rank for _, rank in best} == {0, 1, 2, 3}


def inspected(run: Any, slower: float) -> str:
    """What Inspector would have written of a job's calls, with its times so much longer."""
    rows = run.sql(
        "SELECT c.rank, c.sequence, c.op, c.message_bytes, c.dur_ns, g.ranks "
        "FROM collective AS c JOIN comm_group AS g USING (group_id) ORDER BY c.rank, c.sequence"
    ).to_dicts()
    first = min(r["sequence"] for r in rows)
    lines = []
    for row in rows:
        ranks = row["ranks"]
        time_us = round(row["dur_ns"] / 1e3 * slower)
        algbw = row["message_bytes"] / time_us / 1e3
        head = {"id": "0xab", "rank": ranks.index(row["rank"]), "n_ranks": len(ranks), "nnodes": 1}
        perf = {
            "coll": "AllReduce", "coll_sn": row["sequence"] - first, "coll_algobw_gbs": algbw,
            "coll_msg_size_bytes": row["message_bytes"], "coll_exec_time_us": time_us,
            "coll_busbw_gbs": algbw * 2 * (len(ranks) - 1) / len(ranks),
        }  # fmt: skip
        about = {"inspector_output_format_version": "v4.0", "dump_timestamp_us": 1784601666000000}
        lines.append(json.dumps({"header": head, "metadata": about, "coll_perf": perf}))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("slower", "said"),
    soak(
        [
            (1.5, ", whose times disagree with the traces' kernels"),
            (1.0, ", and their times agree"),
        ],
        fast=1,
    ),
)
def test_inspectors_records_stand_beside_the_calls(
    slower: float, said: str, tmp_path: Path
) -> None:
    write(Request("none", 4, 4, "ddp", 2, nccl="none", decoys=()), tmp_path / "job")
    paths = [p for p in sorted((tmp_path / "job").glob("[!.]*")) if p.name != "truth.json"]
    records = tmp_path / "inspector.jsonl"
    with tracekit.ingest(paths, run=tmp_path / "run") as run:  # type: ignore[operator]
        records.write_text(inspected(run, slower))
    text, _ = told(tmp_path, *paths, records)  # added to what was read
    assert f"80 matched with calls of the traces{said}" in " ".join(text.split())


HEAD = """# nThread 1 nGpus 1 minBytes 8 maxBytes 4096 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  100 on  nid001 device  0 [0000:03:00] NVIDIA GH200 120GB
#  Rank  1 Group  0 Pid  200 on  nid002 device  0 [0000:03:00] NVIDIA GH200 120GB
#
#                                                              out-of-place          in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   \
algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  \
(GB/s)  (GB/s)
"""
ROW = "{:12d} {:13d}     float     sum      -1    20.00    0.00    0.00      0    20.00    0.00    0.00      0\n"  # noqa: E501
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {}\n#\n"


def test_a_benchmark_that_broke_off_says_what_its_log_says(tmp_path: Path) -> None:
    log = HEAD + ROW.format(8, 2)
    log += (
        "nid001:100:130 [0] register_mr_buffers:523 NCCL WARN NET/OFI Unable to register memory "
        "(type = 2) for device 0. RC: -22, Error: Invalid argument\n"
    ) * 32
    log += "cxil_map: write error\n" * 64
    log += "nid001: Test NCCL failure common.cu:401 'unhandled system error'\n"
    log += "slurmstepd: error: *** STEP 9.0 ON nid001 CANCELLED AT 2024-05-01T10:00:00 ***\n"
    log += "srun: error: nid002: task 1: Exited with exit code 3\n"
    (tmp_path / "slurm-9.out").write_text(log)
    text, document = told(tmp_path, tmp_path / "slurm-9.out")
    assert "all_reduce" in text or "nccl-tests" in text
    assert "nothing says why" not in text
    sentence = document.verdict.sentence
    assert "incomplete (1 of 10 sizes measured)" in sentence
    assert "64 x a library of the network failed (cxil_map, write error)" in sentence
    assert "32 x NCCL's network plugin could not register memory (type 2, rc -22)" in sentence
    assert "1 x nccl-tests gave up (NCCL)" in sentence
    assert sentence.index("cxil_map") < sentence.index("gave up"), "what follows comes last"
    with tracekit.open(tmp_path / "run") as run:
        rows = run.query("nccl_signals").rows(named=True)
    counts = {r["code"]: r["occurrences_count"] for r in rows}
    assert counts["register_failed"] == 32
    assert counts["library_error"] == 64
    ends = [r["fields"] for r in rows if r["code"] == "job_ended"]
    assert ends == [["by=Slurm", "why=cancelled"], ["by=Slurm", "exit_code=3"]]


def test_a_benchmark_without_rows_on_one_gpu_is_not_broken(tmp_path: Path) -> None:
    head = "".join(line + "\n" for line in HEAD.splitlines() if "Rank  1" not in line)
    (tmp_path / "a.out").write_text(head + END.format(0))
    text, _ = told(tmp_path, tmp_path / "a.out")
    assert "incomplete" not in text
    assert "ran to its end and measured nothing: it ran on one GPU" in text


def test_wrong_elements_come_before_how_fast_it_was(tmp_path: Path) -> None:
    rows = "".join(ROW.format(8 << i, 2 << i).replace(" 0.00 ", " 3.00 ") for i in range(10))
    wrong = re.sub(r"(?m)^(.* )0( .* )0$", r"\g<1>4\g<2>6", rows, count=1)
    assert wrong != rows
    (tmp_path / "a.out").write_text(HEAD + wrong + END.format("3.0"))
    _, document = told(tmp_path, tmp_path / "a.out")
    assert "wrong elements in 1 size." in document.verdict.sentence
    (tmp_path / "a.out").write_text(HEAD + rows + END.format("3.0"))
    assert "wrong" not in told(tmp_path, tmp_path / "a.out")[1].verdict.sentence


def test_no_rows_of_two_gpus_are_incomplete(tmp_path: Path) -> None:
    (tmp_path / "a.out").write_text(HEAD)
    text, _ = told(tmp_path, tmp_path / "a.out")
    assert "incomplete (0 of 10 sizes measured), and nothing says why" in text


def test_a_whole_benchmark_is_not_told_to_profile_steps(tmp_path: Path) -> None:
    rows = "".join(ROW.format(8 << i, 2 << i).replace(" 0.00 ", " 3.00 ") for i in range(10))
    (tmp_path / "a.out").write_text(HEAD + rows + END.format("3.0"))
    text, document = told(tmp_path, tmp_path / "a.out")
    assert "five or more steps" not in text
    assert (
        "1 benchmark measured 3.0 GB/s at most, and the rules that read it found"
        in document.verdict.sentence
    )
    assert "diagnose both logs at once" in " ".join(text.split())


def curve(*bus: str | tuple[str, str]) -> str:
    """Rows of doubling sizes from 8 B on with these bus bandwidths, out of place and in place."""
    rows = ""
    for power, value in enumerate(bus):
        out, place = (value, value) if isinstance(value, str) else value
        first, zero, rest = ROW.format(8 << power, 2 << power).partition("20.00    0.00    0.00")
        second = rest.replace("20.00    0.00    0.00", f"20.00    0.00    {place}")
        rows += f"{first}{zero[:-4]}{out}{second}"
    return rows


@pytest.mark.parametrize(
    ("bus", "falls"),
    [
        (["0.01", "0.02", "9.00", "20.0", "15.0", "19.0"], True),
        (["0.01", "0.02", "9.00", "20.0", "15.1", "19.0"], False),  # just above three quarters
        (["9.00", "20.0", ("8.00", "19.0"), "20.0"], False),  # out of place only
        (["5.00", "1.00", "20.0", "20.0"], False),  # far below the peak: latency rules there
        (["0.09", "0.01", "0.09"], False),  # figures of a hundredth are rounding
    ],
)
def test_a_benchmark_whose_bandwidth_falls_says_where(
    bus: list[str | tuple[str, str]], falls: bool, tmp_path: Path
) -> None:
    count = f"maxBytes {8 << (len(bus) - 1)} "
    head = re.sub(r"maxBytes \d+ ", count, HEAD)
    (tmp_path / "a.out").write_text(head + curve(*bus) + END.format("9.0"))
    text, document = told(tmp_path, tmp_path / "a.out")
    sentence = document.verdict.sentence
    assert ("falls" in sentence) == ("falls" in text) == falls
    if falls:
        assert "bus bandwidth falls from 20.0 GB/s at 64 B to 15.0 at 128 B" in sentence
        assert "the table cannot tell" in sentence
        assert document.verdict.kind == "not_enough_data"


def test_a_benchmark_that_broke_off_after_a_fall_says_both(tmp_path: Path) -> None:
    (tmp_path / "a.out").write_text(HEAD + curve("20.0", "20.0", "4.00"))
    _, document = told(tmp_path, tmp_path / "a.out")
    assert "incomplete (3 of 10 sizes measured). Its bus bandwidth falls from 20.0" in (
        document.verdict.sentence
    )


def test_a_table_alone_is_read_without_what_stood_before_it(tmp_path: Path) -> None:
    """People paste the table; how many sizes were asked for, it does not say."""
    table = HEAD[HEAD.index("#       size") :]
    (tmp_path / "busbw.txt").write_text(table + curve("9.00", "20.0", "20.0", "19.0"))
    text, document = told(tmp_path, tmp_path / "busbw.txt")
    assert "a table alone: 4 sizes, 20.0 GB/s at most" in text
    assert "incomplete" not in text
    assert "1 benchmark measured 20.0 GB/s at most" in document.verdict.sentence
    (tmp_path / "busbw.txt").write_text(table)
    text, _ = told(tmp_path, tmp_path / "busbw.txt")
    assert "is incomplete (0 sizes measured)" in text


def test_rows_whose_parts_a_launcher_tagged_are_read(tmp_path: Path) -> None:
    """`mpirun` of some platforms writes the tag before whatever is flushed at once."""
    rows = curve("20.0", "20.0").replace("-1 ", "-1[0] ").replace("      0    20", "      0[0] 20")
    tagged = "".join(f"[0] {row}\n" for row in rows.splitlines())
    (tmp_path / "a.out").write_text(HEAD + tagged)
    text, _ = told(tmp_path, tmp_path / "a.out")
    assert "incomplete: 2 of 10 sizes measured" in text
    with tracekit.open(tmp_path / "run") as run:
        found = run.sql("SELECT count(*) AS n, min(bus_bytes_per_s) AS low FROM bench_result")
    assert found.rows() == [(4, 20e9)]


def test_errors_of_nccl_without_a_communicator_are_told(tmp_path: Path) -> None:
    line = (
        "n1:7400:7642 [1] include/alloc.h:125 NCCL WARN Cuda failure 700 'an illegal memory access "
        "was encountered'\n"
    )
    (tmp_path / "a.out").write_text(2 * line)
    _, document = told(tmp_path, tmp_path / "a.out")
    assert "NCCL's log names errors on n1: 2 x CUDA failed (number 700" in document.verdict.sentence
    (tmp_path / "b.out").write_text("n1:7:7 [0] NCCL INFO Using network Socket\n")
    _, document = told(tmp_path / "other", tmp_path / "b.out")
    assert document.verdict.sentence == (
        "Cannot tell: what NCCL logged names no communicator and no error; its network is TCP "
        "sockets, slow where the job spans machines."
    )


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["Failed to open libibverbs.so[.1]", "Using network Socket"], "(libibverbs could not be"),
        (["NET/IB : No device found.", "Using network Socket"], "(no InfiniBand or RoCE device"),
        (["Using network Socket", "Using network IB"], None),
        (["Failed to open libibverbs.so[.1]", "Using network AWS Libfabric"], None),
    ],
)
def test_a_network_of_sockets_is_said_without_a_communicator(
    tmp_path: Path, lines: list[str], says: str | None
) -> None:
    text = "".join(f"n1:7:{at} [0] NCCL INFO {line}\n" for at, line in enumerate(lines, 7))
    (tmp_path / "a.out").write_text(text)
    _, document = told(tmp_path, tmp_path / "a.out")
    assert (says or "no error.") in document.verdict.sentence
