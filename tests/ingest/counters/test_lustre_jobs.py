"""What Lustre's servers count for each job: made files, in the forms of several versions."""

from __future__ import annotations

import pytest
from memory_sink import MemorySink
from net_cases import ingest

SECOND = 10**9
FAMILY = "lustre_jobs"

UNTIMED = """\
obdfilter.scratch-OST0003.job_stats=
job_stats:
- job_id:          4711
  snapshot_time:   1763884800
  read_bytes:      { samples:          40, unit: bytes, min:    4096, max: 1048576, sum:        20971520 }
  write_bytes:     { samples:           3, unit: bytes, min:      10, max:      20, sum:              45 }
  getattr:         { samples:           2, unit:  reqs }
  punch:           { samples:           5, unit:  reqs }
  sync:            { samples:           7, unit:  reqs }
  set_info:        { samples:           9, unit:  reqs }
- job_id:          "cp -r.1000"
  snapshot_time:   1763884790
  read_bytes:      { samples:           1, unit: bytes, min:     512, max:     512, sum:             512 }
obdfilter.scratch-OST0004.job_stats=
job_stats:
- job_id:          4711
  snapshot_time:   1763884801
  read_bytes:      { samples:           2, unit: bytes, min:     100, max:     200, sum:             300 }
"""  # noqa: E501 - as it prints them

TIMED = """\
2026-11-23T08:00:00Z
mdt.scratch-MDT0000.job_stats=
job_stats:
- job_id:          4711
  snapshot_time   : 1896247.780050045 secs.nsecs
  start_time      : 379440.150439687 secs.nsecs
  elapsed_time    : 1516807.629610358 secs.nsecs
  open:            { samples:          10, unit: usecs, min:        8, max:     1541, sum:             4000, sumsq:           19935112 }
  close:           { samples:          10, unit: usecs, min:        8, max:     1541, sum:             1000, sumsq:           19935112 }
  rename:          { samples:           2, unit: usecs, min:        8, max:     1541, sum:              500, sumsq:           19935112 }
  samedir_rename:  { samples:           2, unit: usecs, min:        8, max:     1541, sum:              500, sumsq:           19935112 }
  read_bytes:      { samples:           0, unit:  reqs, min:        0, max:        0, sum:                0 }
obdfilter.scratch-OST0003.job_stats=
job_stats:
- job_id:          4711
  snapshot_time   : 1896240.000000001 secs.nsecs
  read_bytes:      { samples:          50, unit: bytes, min:     4096, max:   475136, sum:          5468160, sumsq:      1071040692224 }
  read:            { samples:          52, unit: usecs, min:       12, max:    40081, sum:           692342, sumsq:        17432258604 }
  sync:            { samples:           1, unit: usecs, min:      300, max:      300, sum:              300, sumsq:              90000 }
"""  # noqa: E501 - as it prints them

OST3, OST4 = "scratch-OST0003 of job 4711", "scratch-OST0004 of job 4711"


def rows(sink: MemorySink) -> list[dict[str, object]]:
    found: list[dict[str, object]] = sink.table("storage_sample").to_pylist()
    return found


def counts(sink: MemorySink) -> dict[tuple[object, object], object]:
    found = {(r["device"], r["counter"]): r["counted"] for r in rows(sink)}
    assert len(found) == len(rows(sink))
    return found


def test_targets_and_jobs_are_kept_apart_at_the_moments_of_their_last_requests() -> None:
    sink = ingest(UNTIMED, FAMILY, "host90-jobs.txt")
    assert (sink.facts["host_name"], sink.facts["status"]) == ("host90", "ok")
    assert sink.counters == {"parsed_from_documentation": 1, "other_metric": 1}
    copying = "scratch-OST0003 of job cp -r.1000"
    assert counts(sink) == {
        (OST3, "read_bytes"): 20971520,
        (OST3, "read_requests"): 40,
        (OST3, "write_bytes"): 45,
        (OST3, "write_requests"): 3,
        (OST3, "flush_requests"): 7,
        (OST3, "metadata_requests"): 7,
        (copying, "read_bytes"): 512,
        (copying, "read_requests"): 1,
        (OST4, "read_bytes"): 300,
        (OST4, "read_requests"): 2,
    }
    assert {(r["device"], r["time_ns"]) for r in rows(sink)} == {
        (OST3, 1763884800 * SECOND),
        (copying, 1763884790 * SECOND),
        (OST4, 1763884801 * SECOND),
    }
    assert {r["filesystem"] for r in rows(sink)} == {"obdfilter"}


def test_times_of_operations_at_the_moment_of_the_dump() -> None:
    """These snapshots count from the start of the server; renames are counted twice."""
    sink = ingest(TIMED, FAMILY, "host90-jobs.txt")
    assert sink.facts["status"] == "ok"
    assert sink.counters == {"parsed_from_documentation": 1, "other_metric": 2}
    mdt = "scratch-MDT0000 of job 4711"
    assert counts(sink) == {
        (mdt, "metadata_requests"): 22,
        (mdt, "metadata_time"): 5_500_000,
        (OST3, "read_bytes"): 5468160,
        (OST3, "read_requests"): 52,
        (OST3, "read_time"): 692_342_000,
        (OST3, "flush_requests"): 1,
        (OST3, "flush_time"): 300_000,
    }
    assert {r["time_ns"] for r in rows(sink)} == {1795420800 * SECOND}
    assert {r["filesystem"] for r in rows(sink)} == {"mdt", "obdfilter"}


def test_a_line_of_time_goes_before_snapshots_and_dumps_follow_one_another() -> None:
    later = UNTIMED.replace("sum:              45", "sum:              65")
    sink = ingest(
        f"2026-11-23T08:00:00Z\n{UNTIMED}2026-11-23T08:00:10Z\n{later}", FAMILY, "host90-jobs.txt"
    )
    written = [(r["time_ns"], r["counted"]) for r in rows(sink) if r["counter"] == "write_bytes"]
    assert written == [(1795420800 * SECOND, 45), (1795420810 * SECOND, 65)]


def test_where_some_operations_lack_their_times_no_sum_of_times_is_told() -> None:
    text = TIMED.replace(
        "close:           { samples:          10, unit: usecs",
        "close:           { samples:          10, unit: reqs",
    )
    told = counts(ingest(text, FAMILY, "host90-jobs.txt"))
    mdt = "scratch-MDT0000 of job 4711"
    assert told[mdt, "metadata_requests"] == 22
    assert (mdt, "metadata_time") not in told


@pytest.mark.parametrize(
    "heading",
    ["- job_id:          " + "x" * 400, "osd.scratch-OST0009.job_stats=", "- another: list"],
)
def test_what_follows_an_unknown_heading_is_not_given_to_the_job_before(heading: str) -> None:
    head, tail = UNTIMED.split('- job_id:          "cp -r.1000"')
    sink = ingest(head + heading + tail, FAMILY, "host90-jobs.txt")
    assert sink.facts["status"] == "partial"
    assert counts(sink)[OST3, "read_bytes"] == 20971520
    assert {r["device"] for r in rows(sink)} == {OST3, OST4}


def test_a_list_of_no_target_is_refused() -> None:
    """Two targets' lists, one after another, could not be told apart."""
    text = "\n".join(line for line in UNTIMED.splitlines() if not line.endswith("=")) + "\n"
    sink = ingest(text, FAMILY, "host90-jobs.txt")
    assert not sink.tables.get("storage_sample")
    assert (sink.facts["status"], sink.counters) == ("partial", {"bad_record": 8})


def test_damage_is_counted_and_nothing_of_it_is_shown() -> None:
    torn = UNTIMED[: UNTIMED.rindex("sum:") + 8]
    sink = ingest(torn + "\nhunter2-Passw0rd\n" + "\x00\xff" * 50 + "\n", FAMILY, "host90-jobs.txt")
    assert sink.counters["bad_record"] == 3
    assert sink.facts["status"] == "partial"
    assert OST4 not in {r["device"] for r in rows(sink)}
    assert "hunter2" not in repr(sink.__dict__)
