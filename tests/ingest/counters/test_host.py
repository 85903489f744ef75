"""Counters of hosts: real recordings of sysstat and of the kernel's files, and damaged ones."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from memory_sink import MemorySink
from net_cases import ingest, ingest_path

from tracekit.errors import InputError
from tracekit.ingest import INGESTORS
from tracekit.ingest.counters.host_words import HOST

HOSTS = Path(__file__).resolve().parents[3] / "fixtures" / "hosts"
SAR = HOSTS / "host01-sar.json"
PRESSURE = HOSTS / "host01-pressure.txt"
PLANTED = "hunter2-Passw0rd"
TOTALS = """\
some avg10=1.00 avg60=0.00 avg300=0.00 total=1500000
full avg10=0.00 avg60=0.00 avg300=0.00 total=20
"""


def numbers(sink: MemorySink, *names: str) -> list[tuple[object, ...]]:
    return [
        (
            r["place"],
            r["cgroup"],
            r["counter"],
            r["value"] if r["counted"] is None else r["counted"],
        )
        for r in sink.table("host_sample").to_pylist()
        if not names or r["counter"] in names
    ]


def test_real_sysstat() -> None:
    """Five moments of 2 s on a machine of two CPUs that had more to do than that."""
    sink = ingest_path(SAR, "sadf")
    assert sink.facts["host_name"] == "host01"
    assert (sink.facts["status"], set(sink.counters)) == ("ok", {"other_metric"})
    rows = sink.table("host_sample").to_pylist()
    printed = json.loads(SAR.read_text())["sysstat"]["hosts"][0]["statistics"]
    assert max(r["place"] for r in rows) == len(printed)
    first = {r["original_name"]: r for r in rows if r["place"] == 1}
    assert first["psi-cpu.some_avg"]["value"] == pytest.approx(0.5132)
    assert first["psi-cpu.some_avg"]["counter"] == "cpu_pressure_some"
    assert first["memory.avail"]["value"] == printed[0]["memory"]["avail"] * 1024
    assert first["cpu-load.usr"]["value"] == pytest.approx(0.49)
    assert {r["interval_ns"] for r in rows} == {2 * 10**9}
    assert {r["time_ns"] for r in first.values()} == {1795409235 * 10**9}
    assert all(HOST[r["counter"]][1:3] == (r["unit"], r["kind"]) for r in rows)


def test_local_times_lack_their_zone() -> None:
    text = SAR.read_text().replace('"utc": 1', '"utc": 0')
    sink = ingest(text, "sadf", "sar.json")
    assert sink.facts["time_basis"] == "local"
    assert sink.counters.keys() == {"local_time", "other_metric"}


def test_a_zone_of_newer_releases() -> None:
    text = SAR.read_text().replace('"utc": 1', '"tz": "UTC"')
    assert ingest(text, "sadf", "sar.json").facts["time_basis"] == "epoch"
    odd = SAR.read_text().replace('"utc": 1', '"tz": ["UTC"]')
    assert ingest(odd, "sadf", "sar.json").facts["time_basis"] == "local"


def test_real_pressure_and_a_quota_that_ran_out() -> None:
    """Seven readings; a group of one busy loop with a quota of a quarter of a CPU."""
    sink = ingest_path(PRESSURE, "pressure")
    assert (sink.facts["status"], sink.facts["host_name"]) == ("ok", "host01")
    assert sink.counters == {
        "other_metric": 14 + 126
    }  # bursts and averages of stalls, in all seven
    throttled = numbers(sink, "cpu_throttled_time", "cpu_throttled_periods", "cpu_periods")
    assert throttled[3:6] == [
        (20, "/job", "cpu_periods", 20),
        (21, "/job", "cpu_throttled_periods", 18),
        (22, "/job", "cpu_throttled_time", 1_100_245_545),
    ]
    assert numbers(sink, "cpu_pressure_some_time")[0] == (
        2, None, "cpu_pressure_some_time", 33_324_129_459_000,
    )  # fmt: skip
    times = {r["time_ns"] for r in sink.table("host_sample").to_pylist()}
    assert (len(times), min(times)) == (7, 1795409387267223099)


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("io", TOTALS, [("io_pressure_some_time", None, 1_500_000_000),
                        ("io_pressure_full_time", None, 20_000)]),
        ("memory.pressure", TOTALS, [("memory_pressure_some_time", None, 1_500_000_000),
                                     ("memory_pressure_full_time", None, 20_000)]),
        ("x.txt", "==> /sys/fs/cgroup/a.slice/cpu.pressure <==\n" + TOTALS,
         [("cpu_pressure_some_time", "/a.slice", 1_500_000_000),
          ("cpu_pressure_full_time", "/a.slice", 20_000)]),
    ],
)  # fmt: skip
def test_which_resource_and_group(
    name: str, text: str, wanted: list[tuple[str, str | None, int]]
) -> None:
    sink = ingest(text, "pressure", name)
    assert sink.rows("host_sample", "counter", "cgroup", "counted") == wanted


def test_version_2_is_read_as_documented() -> None:
    text = (
        "/sys/fs/cgroup/kube/cpu.stat:usage_usec 5\n/sys/fs/cgroup/kube/cpu.stat:nr_periods 4\n"
        "/sys/fs/cgroup/kube/cpu.stat:nr_throttled 3\n"
        "/sys/fs/cgroup/kube/cpu.stat:throttled_usec 70\n"
        "/sys/fs/cgroup/kube/memory.events:low 0\n/sys/fs/cgroup/kube/memory.events:max 9\n"
        "/sys/fs/cgroup/kube/memory.events:oom_kill 1\n/sys/fs/cgroup/kube/cpu.max:max 100000\n"
    )
    sink = ingest(text, "pressure", "cgroup.txt")
    assert numbers(sink) == [
        (1, "/kube", "cpu_time", 5000),
        (2, "/kube", "cpu_periods", 4),
        (3, "/kube", "cpu_throttled_periods", 3),
        (4, "/kube", "cpu_throttled_time", 70_000),
        (6, "/kube", "memory_max_events", 9),
        (7, "/kube", "memory_oom_kills", 1),
    ]
    assert sink.counters == {"parsed_from_documentation": 1, "other_metric": 2}
    events = ingest("low 0\nhigh 2\nmax 0\noom 0\noom_kill 0\n", "pressure", "memory.events")
    assert numbers(events)[0] == (2, None, "memory_high_events", 2)


def test_pressure_of_nobody_knows_what_is_no_number() -> None:
    sink = ingest(TOTALS, "pressure", "dump.txt")
    assert sink.facts["status"] == "partial"
    assert sink.counters == {"bad_record": 2}
    assert "host_sample" not in sink.tables


@pytest.mark.parametrize(("path", "family"), [(SAR, "sadf"), (PRESSURE, "pressure")])
def test_one_ingestor_claims_it_and_damage_and_secrets_stay_out(path: Path, family: str) -> None:
    text = path.read_text()
    claims = [i.name for i in INGESTORS if i.sniff(text[:65536].encode(), path.name) is not None]
    assert claims[0] == family
    assert set(claims) <= {family, "job_log"}
    whole = numbers(ingest_path(path, family))
    head, _, rest = text.partition("\n")
    broken = f"{head}\n{rest}password={PLANTED}\nTOKEN {PLANTED}\n\x00\xff"
    sink = ingest(broken, family, path.name)
    assert PLANTED not in repr(sink.__dict__)
    assert numbers(sink) == whole
    assert sink.counters["bad_record"] >= 1
    for cut in range(2000, len(text), 997):
        kept = numbers(ingest(text[: text.rfind("\n", 0, cut) + 1], family, path.name))
        assert 0 < len(kept) < len(whole)
        assert set(kept) <= set(whole)


SAR_TEXT = HOSTS.parent / "sysstat" / "host02-sar.txt"


def test_what_sar_prints_are_the_numbers_of_its_history() -> None:
    """One recording, printed both ways, but for memory_used, which sadf's reader leaves out."""
    text, history = ingest_path(SAR_TEXT, "sar"), ingest_path(SAR_TEXT.with_suffix(".json"), "sadf")
    assert (text.facts["status"], text.facts["host_name"]) == ("ok", "host02")

    def told(sink: MemorySink) -> list[tuple[object, ...]]:
        return sorted(
            (r["time_ns"], r["interval_ns"], r["counter"], round(r["value"], 6))
            for r in sink.table("host_sample").to_pylist()
            if r["counter"] != "memory_used"
        )

    assert told(text) == told(history)
    assert len(told(text)) > 80
    disks = text.table("storage_sample").to_pylist()
    assert {r["counter"] for r in disks} == {
        "busy", "queue_length", "read_throughput", "write_throughput"
    }  # fmt: skip


def sar(*lines: str, day: str = "11/20/2026") -> MemorySink:
    head = f"Linux 6.1.0 (node07) \t{day} \t_x86_64_\t(96 CPU)\n\n"
    return ingest(head + "\n".join(lines) + "\n", "sar", "sar.txt")


def clocks(sink: MemorySink) -> list[str]:
    moments = [r["time_ns"] for r in sink.table("host_sample").to_pylist()]
    return [f"{datetime.fromtimestamp(ns / 1e9, UTC):%d %H:%M:%S}" for ns in moments]


HEADER = "CPU     %iowait"


def test_hours_of_twelve_and_a_table_that_goes_past_midnight() -> None:
    sink = sar(
        f"11:50:01 PM     {HEADER}",
        "11:59:01 PM     all     1.00",
        "12:09:01 AM     all     2.00",
        "Average:        all     1.50",
        "",
        "11:50:01 PM  runq-sz   blocked",
        "11:59:01 PM        3         1",
    )
    assert clocks(sink) == ["20 23:59:01", "21 00:09:01", "20 23:59:01", "20 23:59:01"]
    spans = [r["interval_ns"] // 10**9 for r in sink.table("host_sample").to_pylist()]
    assert spans == [540, 600, 540, 540]
    assert sink.facts["status"] == "ok"


@pytest.mark.parametrize(
    ("day", "is_known"),
    [("2026-11-20", True), ("11/20/26", True), ("20/11/2026", True), ("20.11.2026", True),
     ("13/13/2026", False)],
)  # fmt: skip
def test_days_as_locales_print_them(day: str, is_known: bool) -> None:
    rows = f"08:00:01     {HEADER}", "08:10:01     all     1.00"
    if not is_known:
        with pytest.raises(InputError, match="a date that is not known"):
            sar(*rows, day=day)
        return
    assert clocks(sar(*rows, day=day)) == ["20 08:10:01"]


def test_tables_of_which_nothing_is_kept() -> None:
    sink = sar("08:00:01     IFACE   rxpck/s", "08:10:01      eth0   1000.00")
    assert sink.facts["reason"] == "it has no table of CPUs, tasks, memory, pressure or disks"


def test_a_header_that_is_printed_again_and_a_restart() -> None:
    sink = sar(
        f"08:00:01     {HEADER}",
        "08:10:01     all     1.00",
        f"08:10:01     {HEADER}",
        "08:20:01     all     2.00",
        "08:25:00  LINUX RESTART (96 CPU)",
        f"09:00:01     {HEADER}",
        "09:05:01     all     3.00",
        "09:05:01       0     9.00",
        "nothing that is known",
    )
    rows = sink.table("host_sample").to_pylist()
    assert [r["interval_ns"] // 10**9 for r in rows] == [600, 600, 300]
    assert sink.counters["bad_record"] == 1
    assert sink.counters["other_metric"] == 1  # one core alone
