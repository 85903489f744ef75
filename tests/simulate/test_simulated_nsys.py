"""Simulated jobs as Nsight Systems exports: the same fault gives the same diagnosis through either
door, through both at once, and a clock is found to be as wrong in one as in the other."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from soaks import soak
from tracekit import api
from tracekit.simulate import Request, write

Folders = Callable[..., Path]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """The folder of a style and a scenario, once for all tests; who asks leaves it as it is.

    Traces alone: counters and logs are the same files through every door.
    """

    @functools.cache
    def made(style: str, scenario: str, **options: Any) -> Path:
        folder = tmp_path_factory.mktemp("jobs") / style
        write(
            Request(scenario, seed=3, style=style, nccl="none", counters="none", **options), folder
        )
        return folder

    return made


def judged(folder: Path) -> dict[str, Any]:
    """All that a reader is told of a job, whatever its files are."""
    with api.open([folder]) as run:
        document = run.diagnose().document
        matched = run.run.con.execute(
            "SELECT count(*), count(*) FILTER (is_trusted), min(reason) FROM collective_match"
        ).fetchone()
        replayed = asdict(run.whatif())
    return {
        "verdict": document.verdict,
        "findings": [
            (f.id, f.severity, f.confidence, f.summary, f.scope, f.when, f.impact, f.remedy)
            for f in document.findings
        ],
        "evidence": [
            (f.id, e.name, e.value, e.unit, e.threshold)
            for f in document.findings
            for e in f.evidence
        ],
        "budget": document.step_budget,
        "matched": matched,
        "replay": {k: v for k, v in replayed.items() if k != "slowdown_by_optype"},
        "replay by kind": replayed["slowdown_by_optype"],
        "inputs": {i.kind for i in document.inputs if i.status == "ok"},
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "layout", "finding"),
    soak(
        [
            ("dataloader-stall", "fsdp", "dataloader-stall"),
            ("slow-gpu:1.7", "pp2-m4", "slow-gpu"),
            ("gc-pause", "tp2", "gc-pause"),
            ("hot-expert", "ep4", "hot-expert"),
            ("none", "ddp", None),
        ],
        fast=[("slow-gpu:1.7", "pp2-m4", "slow-gpu")],
    ),
)
def test_the_same_fault_through_every_door(
    folder_of: Folders, scenario: str, layout: str, finding: str | None
) -> None:
    # Collections come every few steps: of five one is no rhythm.
    steps_count = 7 if scenario == "gc-pause" else 5
    options = {"ranks": 4, "layout": layout, "steps_count": steps_count, "decoys": ()}
    kineto, nsys, mixed = (
        judged(folder_of(style, scenario, **options)) for style in ("kineto", "nsys", "mixed")
    )
    found = kineto.pop("verdict")
    assert (found.finding or "").partition("/")[0] == (finding or "")
    assert (nsys.pop("verdict"), mixed.pop("verdict")) == (found, found)
    inputs = [door.pop("inputs") for door in (kineto, nsys, mixed)]
    assert inputs == [{"kineto"}, {"nsys"}, {"kineto", "nsys"}]
    assert mixed == kineto
    # Exports do not name the kinds of groups: what is told by kind is told of other kinds.
    del nsys["replay by kind"], kineto["replay by kind"]
    assert nsys == kineto


# What the formats differ in, by table: columns that are not compared, and why.
PLACES = {"place", "gpu_op_place"}
LEFT_OUT = {
    # Kineto notes which operator launched, exports note registers and shared memory; a class
    # comes from a kernel's metadata or from its name. The names of copies are compared below.
    "gpu_op": PLACES
    | {"external_id", "registers_count", "shared_memory_bytes", "class_source", "name"},
    # Kineto's metadata numbers the calls of a group and counts elements; exports know a group by
    # its hash, and a peer by its number within the group. The types of kernels that only move
    # bytes and the instants of asking are compared below.
    "collective": PLACES
    | {"group_id", "group_name", "sequence", "sequence_source", "src_rank", "dst_rank"}
    | {"peer_group_rank", "in_elements_count", "out_elements_count", "is_async"}
    | {"is_cut_start", "is_cut_end", "class_source", "dtype", "enqueue_ns"},
    "collective_match": PLACES | {"group_id", "method"},
    "host_op": PLACES | {"external_id"},
    "step": set(),
}


OF_NCCL = re.compile("nccl[A-Z]")
"""Ranges that NCCL itself sets, which profiler traces do not have."""


def rows_of(con: Any, table: str, columns: str, where: str = "true") -> list[Any]:
    sql = f"SELECT {columns} FROM {table} WHERE {where} ORDER BY ALL"
    found: list[Any] = con.execute(sql).fetchall()
    return found


@pytest.mark.parametrize("layout", soak(["ddp", "fsdp", "tp2", "pp2-m4"], fast=["pp2-m4"]))
def test_both_doors_fill_the_same_rows(folder_of: Folders, layout: str) -> None:
    options = {"ranks": 4, "layout": layout, "steps_count": 5, "decoys": ()}
    folders = [folder_of(s, "slow-gpu:1.7", **options) for s in ("kineto", "nsys")]
    with api.open([folders[0]]) as one, api.open([folders[1]]) as two:
        doors = one.run.con, two.run.con
        for table, skipped in LEFT_OUT.items():
            names = [r[0] for r in doors[0].execute(f"DESCRIBE {table}").fetchall()]
            columns = ", ".join(f'"{n}"' for n in names if n not in skipped)
            # Operators of PyTorch are ranges in an export.
            where = "category IN ('runtime', 'driver')" if table == "host_op" else "true"
            rows = [rows_of(con, table, columns, where) for con in doors]
            assert len(rows[0]) > 10 or table.startswith("step")
            assert rows[0] == rows[1], table
        key = "rank, start_ns, device, stream"
        named = [
            rows_of(c, "gpu_op", f"{key}, if(category = 'memcpy', copy_kind, name)") for c in doors
        ]
        assert named[0] == named[1]
        typed = [rows_of(c, "collective", f"{key}, op, dtype") for c in doors]
        assert [t[:5] for t in typed[0]] == [t[:5] for t in typed[1]]
        pairs = [(a[5], b[5]) for a, b in zip(*typed, strict=True)]
        assert all(b in (a, None) for a, b in pairs) and any(a == b for a, b in pairs)
        # Asked for: the call of PyTorch by one, the launch within it by the other.
        asked = [rows_of(c, "collective", f"{key}, enqueue_ns") for c in doors]
        late = [b[4] - a[4] for a, b in zip(*asked, strict=True)]
        assert all(0 <= ns < 50_000 for ns in late)
        # PyTorch's ranges; the export's steps have other names, and operators are ranges there.
        ranges = [
            rows_of(
                c,
                "annotation",
                "rank, thread, start_ns, dur_ns, domain, step,"
                " if(domain = 'profiler_step', '', regexp_replace(name, ', op_id = .*', ''))",
            )
            for c in doors
        ]
        operators = rows_of(
            doors[0],
            "host_op",
            "rank, thread, start_ns, dur_ns, 'user', NULL, name",
            "category = 'operator' AND name <> 'record_param_comms'",
        )
        said = [r for r in ranges[1] if not OF_NCCL.match(r[6])]
        assert sorted(ranges[0] + operators, key=str) == sorted(said, key=str)


# That both doors fill the same rows, which are all that is drawn, stays, above.
@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "layout"), [("slow-gpu:1.7", "pp2-m4"), ("none", "fsdp")])
def test_every_door_draws_the_same_timeline(
    tmp_path: Path, folder_of: Folders, scenario: str, layout: str
) -> None:
    options = {"ranks": 4, "layout": layout, "steps_count": 5, "decoys": ()}
    drawn = []
    for style in ("kineto", "nsys", "mixed"):
        file = tmp_path / f"{style}.json"
        with api.open([folder_of(style, scenario, **options)]) as run:
            run.timeline(file)
        slices: Counter[tuple[Any, ...]] = Counter()
        for event in json.loads(file.read_text())["traceEvents"]:
            category, name = event.get("cat"), event["name"].partition(", op_id")[0]
            # Named by each format in its own way: operators are ranges, copies have their words.
            category = "user" if category == "operator" else category
            is_own = category == "user" and (OF_NCCL.match(name) or name == "record_param_comms")
            if event["ph"] == "M" or is_own:
                continue
            name = "" if category == "memory" else name
            where = (event["pid"], event["tid"]) if category != "finding" else ()
            args = event.get("args", {})
            more = [args.get(k) for k in ("step", "op", "message_bytes", "wait_us", "severity")]
            key = (event["ph"], category, name, *where, event["ts"], event.get("dur"), *more)
            slices[key] += 1
        drawn.append(slices)
    assert sum(drawn[0].values()) > 1000
    assert {"X", "s", "f"} <= {ph for ph, *_ in drawn[0]}
    assert drawn[0] == drawn[1] == drawn[2]


@pytest.mark.slow  # another job through the same lines
def test_an_all_to_all_is_a_group_of_sends_and_receives(folder_of: Folders) -> None:
    options = {"ranks": 4, "layout": "ep4", "steps_count": 3, "decoys": ()}
    rows = []
    for style in ("kineto", "nsys"):
        with api.open([folder_of(style, "hot-expert", **options)]) as run:
            rows.append(
                run.run.con.execute(
                    "SELECT rank, op, message_bytes, out_bytes, count(*) FROM collective"
                    " GROUP BY ALL ORDER BY ALL"
                ).fetchall()
            )
    assert {r[1] for r in rows[1]} >= {"all_to_all", "all_reduce"}
    assert [(r[0], r[1], r[4]) for r in rows[0]] == [(r[0], r[1], r[4]) for r in rows[1]]
    for one, other in zip(rows[0], rows[1], strict=True):
        assert other[2:4] == pytest.approx(one[2:4], abs=16)  # parts are rounded one by one


@pytest.mark.slow  # another job through the same lines
def test_clocks_are_found_to_be_as_wrong_as_they_are(folder_of: Folders) -> None:
    # Many hosts kept by NTP: the network's faults put four GPUs on a host.
    options = {"ranks": 8, "layout": "fsdp", "steps_count": 2, "decoys": ()}
    offsets = []
    for style in ("kineto", "nsys", "mixed"):
        with api.open([folder_of(style, "link-degraded", **options)]) as run:
            offsets.append(
                run.run.con.execute(
                    "SELECT c.host, o.offset_ns, o.drift_ratio, o.error_ns FROM clock_offset o"
                    " JOIN clock c USING (clock_id) ORDER BY c.host"
                ).fetchall()
            )
    assert [o[0] for o in offsets[0]] == ["gpu-01"]  # against the first host's
    assert abs(offsets[0][0][1]) > 50_000
    for other in offsets[1:]:
        for (host, offset, _, error), (their_host, their_offset, _, their_error) in zip(
            offsets[0], other, strict=True
        ):
            assert host == their_host
            assert abs(offset - their_offset) <= error + their_error + 1


def test_a_step_of_an_export_is_that_of_a_trace(folder_of: Folders) -> None:
    options = {"ranks": 2, "layout": "ddp", "steps_count": 4, "decoys": ()}
    found = []
    for style in ("kineto", "nsys"):
        with api.open([folder_of(style, "none", **options)]) as run:
            steps = run.table("step_time").to_pylist()
            work = run.run.con.execute(
                "SELECT rank, step, category, name, count(*), sum(dur_ns) FROM gpu_op"
                " WHERE category = 'kernel' GROUP BY ALL ORDER BY ALL"
            ).fetchall()
            found.append(([(s["rank"], s["step"], s["dur_ns"]) for s in steps], work))
    assert found[0] == found[1]
    assert len(found[0][0]) == 8


def test_the_same_seed_makes_the_same_bytes(tmp_path: Path) -> None:
    def digests(name: str, seed: int) -> dict[str, str]:
        folder = tmp_path / name
        write(Request("slow-gpu", 4, seed, "ddp", 2, "nsys", decoys=(), nccl="none"), folder)
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.glob("[!.]*")}

    one, two, other = digests("one", 1), digests("two", 1), digests("other", 2)
    assert one == two != other
    assert set(one) == {"job.toml", "truth.json"} | {f"rank{r}.sqlite" for r in range(4)}


def test_the_schema_is_that_of_nsys(folder_of: Folders) -> None:
    folder = folder_of("nsys", "none", ranks=2, layout="ddp", steps_count=2)
    with closing(sqlite3.connect(folder / "rank1.sqlite")) as con:
        assert con.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (version,) = con.execute(
            "SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_SCHEMA_VERSION'"
        ).fetchone()
        dangling = con.execute(
            "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k"
            " LEFT JOIN StringIds s ON s.id = k.demangledName"
            " LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId)"
            " WHERE s.value IS NULL OR r.start IS NULL OR r.start > k.start"
        ).fetchone()
        negative = con.execute("SELECT count(*) FROM NVTX_EVENTS WHERE end < start").fetchone()
    assert (version, dangling, negative) == ("3.25.0", (0,), (0,))
