"""Simulated jobs as Nsight Systems exports: the same fault gives the same diagnosis through either
door, through both at once, and a clock is found to be as wrong in one as in the other."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tracekit import api
from tracekit.simulate import Request, write


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))


def folder_of(tmp_path: Path, style: str, scenario: str, **options: Any) -> Path:
    folder = tmp_path / style
    if not folder.exists():
        write(Request(scenario, seed=3, style=style, nccl="none", **options), folder)
    return folder


def judged(folder: Path) -> dict[str, Any]:
    """What a reader learns, and how much of it rests on matched calls."""
    with api.open([folder]) as run:
        document = run.diagnose().document
        matched = run.run.con.execute(
            "SELECT count(*), count(*) FILTER (is_trusted), min(reason) FROM collective_match"
        ).fetchone()
    return {
        "verdict": (document.verdict.kind, document.verdict.finding),
        "findings": [(f.id, f.severity) for f in document.findings],
        "costs": [f.impact.s_per_step or 0.0 for f in document.findings],
        "budget": [(p.part, p.finding) for p in document.step_budget],
        "kinds": {i.kind for i in document.inputs if i.status == "ok"},
        "matched": matched,
    }


@pytest.mark.parametrize(
    ("scenario", "layout", "finding"),
    [
        ("slow-gpu:1.7", "ddp", "slow-gpu"),
        ("dataloader-stall", "fsdp", "dataloader-stall"),
        ("slow-gpu:1.7", "pp2-m4", "slow-gpu"),
        ("slow-gpu:1.7", "tp2", "slow-gpu"),
        ("gc-pause", "ddp", "gc-pause"),
        ("none", "ddp", None),
    ],
)
def test_the_same_fault_through_every_door(
    tmp_path: Path, scenario: str, layout: str, finding: str | None
) -> None:
    options = {"ranks": 4, "layout": layout, "steps_count": 7, "decoys": ()}
    kineto, nsys, mixed = (
        judged(folder_of(tmp_path, style, scenario, **options))
        for style in ("kineto", "nsys", "mixed")
    )
    found = kineto["verdict"][1]
    assert (found or "").partition("/")[0] == (finding or "")
    for other in (nsys, mixed):
        for part in ("verdict", "findings", "budget", "matched"):
            assert other[part] == kineto[part]
        # Each door records the host's waits in its own way; the replay sees that, within 1 %.
        assert other["costs"] == pytest.approx(kineto["costs"], rel=0.01)
    assert (kineto["kinds"], nsys["kinds"], mixed["kinds"]) == (
        {"kineto"},
        {"nsys"},
        {"kineto", "nsys"},
    )


def test_an_all_to_all_is_a_group_of_sends_and_receives(tmp_path: Path) -> None:
    options = {"ranks": 4, "layout": "ep4", "steps_count": 3, "decoys": ()}
    rows = []
    for style in ("kineto", "nsys"):
        with api.open([folder_of(tmp_path, style, "hot-expert", **options)]) as run:
            rows.append(
                run.run.con.execute(
                    "SELECT rank, op, message_bytes, count(*) FROM collective GROUP BY ALL"
                    " ORDER BY ALL"
                ).fetchall()
            )
    assert {r[1] for r in rows[1]} >= {"all_to_all", "all_reduce"}
    assert [(r[0], r[1], r[3]) for r in rows[0]] == [(r[0], r[1], r[3]) for r in rows[1]]
    for one, other in zip(rows[0], rows[1], strict=True):
        assert other[2] == pytest.approx(one[2], abs=16)  # parts are rounded one by one


def test_clocks_are_found_to_be_as_wrong_as_they_are(tmp_path: Path) -> None:
    # Many hosts kept by NTP: the network's faults put four GPUs on a host.
    options = {"ranks": 8, "layout": "fsdp", "steps_count": 6, "decoys": ()}
    offsets = []
    for style in ("kineto", "nsys", "mixed"):
        with api.open([folder_of(tmp_path, style, "link-degraded", **options)]) as run:
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


def test_a_step_of_an_export_is_that_of_a_trace(tmp_path: Path) -> None:
    options = {"ranks": 2, "layout": "ddp", "steps_count": 4, "decoys": ()}
    found = []
    for style in ("kineto", "nsys"):
        with api.open([folder_of(tmp_path, style, "none", **options)]) as run:
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
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}

    one, two, other = digests("one", 1), digests("two", 1), digests("other", 2)
    assert one == two != other
    assert set(one) == {"job.toml", "truth.json"} | {f"rank{r}.sqlite" for r in range(4)}


def test_the_schema_is_that_of_nsys(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "nsys", "none", ranks=2, layout="ddp", steps_count=2)
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
