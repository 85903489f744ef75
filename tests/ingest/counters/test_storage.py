"""Counters of storage: real recordings of a disk that others keep busy, and made files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from memory_sink import MemorySink
from net_cases import ingest, ingest_path

from tracekit.ingest.counters.storage_words import STORAGE

HOSTS = Path(__file__).resolve().parents[3] / "fixtures" / "hosts"
IOSTAT = HOSTS / "host01-iostat.json"
IOSTAT_TEXT = HOSTS / "host01-iostat.txt"
DISKSTATS = HOSTS / "host01-diskstats.txt"
VMSTAT = HOSTS / "host01-vmstat.txt"
SECOND = 10**9

MOUNTSTATS = """\
2026-11-23T08:00:00Z
device rootfs mounted on / with fstype rootfs
device nas7:/export/set mounted on /data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.1,rsize=1048576,addr=10.0.0.7
\tage:\t86400
\tcaps:\tcaps=0xfffbc0bf,wtmult=512,dtsize=1048576,bsize=0,namlen=255
\tsec:\tflavor=1,pseudoflavor=1
\tevents:\t1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27
\tbytes:\t100 200 0 0 5242880 1048576 1280 256
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 766 0 1 0 0 13 13 0 13 0 2 0 0
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 5 6 1 800 5243480 10 2400 2415 0
\t       WRITE: 1 1 0 1048800 136 0 30 31 0
\t      COMMIT: 2 2 0 400 200 0 50 51 0
\t     GETATTR: 7 7 0 1400 1680 1 6 7 0
\t      LOOKUP: 3 3 0 600 800 0 12 13 1
"""

LUSTRE = """\
llite.scratch-ffff9a4f5c3f6000.stats=
snapshot_time             1763884800.500000000 secs.nsecs
start_time                1763800000.100000000 secs.nsecs
elapsed_time              84800.400000000 secs.nsecs
read_bytes                40 samples [bytes] 4096 1048576 20971520 11728124030976
write_bytes               3 samples [bytes] 10 20 45 700
read                      40 samples [usecs] 20 900000 4000000 900000000000
open                      9 samples [usecs] 5 100 450 30000
close                     9 samples [usecs] 1 10 50 400
ioctl                     2 samples [reqs]
osc.scratch-OST0003-osc-ffff9a4f5c3f6000.stats=
snapshot_time             1763884800.600000000 secs.nsecs
req_waittime              50 samples [usec] 60 90000 3000000 1000000000
ost_read                  20 samples [usec] 60 90000 2000000 1000000000
"""


def rows(sink: MemorySink, table: str = "storage_sample") -> list[dict[str, object]]:
    found: list[dict[str, object]] = sink.table(table).to_pylist()
    return found


def numbers(sink: MemorySink) -> dict[tuple[object, object], object]:
    return {
        (r["device"], r["counter"]): r["counted"] if r["value"] is None else r["value"]
        for r in rows(sink)
    }


def test_real_iostat() -> None:
    """Thirteen reports a second apart: the first is of the time since the machine began."""
    sink = ingest_path(IOSTAT, "iostat")
    assert (sink.facts["host_name"], sink.facts["time_basis"]) == ("host01", "epoch")
    assert sink.counters.keys() == {"other_metric", "no_interval"}
    printed = json.loads(IOSTAT.read_text())["sysstat"]["hosts"][0]["statistics"]
    found = rows(sink)
    assert {r["place"] for r in found} == set(range(2, 14))
    assert {r["interval_ns"] for r in found} == {SECOND}
    last = {(r["device"], r["original_name"]): r["value"] for r in found if r["place"] == 13}
    for disk in printed[12]["disk"]:
        name = disk["disk_device"]
        assert last[name, "r_await"] == pytest.approx(disk["r_await"] * 1e6)
        assert last[name, "wkB/s"] == pytest.approx(disk["wkB/s"] * 1024)
        assert last[name, "util"] == pytest.approx(disk["util"] / 100)
    assert all(STORAGE[str(r["counter"])][1:3] == (r["unit"], r["kind"]) for r in found)


def test_real_iostat_for_people() -> None:
    """Eight reports a second apart, of one disk: ten of its columns are kept of seven."""
    sink = ingest_path(IOSTAT_TEXT, "iostat_text")
    assert (sink.facts["host_name"], sink.facts["time_basis"]) == ("host01", "epoch")
    assert sink.counters.keys() == {"other_metric", "no_interval"}
    printed = [x.split() for x in IOSTAT_TEXT.read_text().splitlines()]
    names = next(cells for cells in printed if cells[:1] == ["Device"])
    disks = [dict(zip(names, cells, strict=True)) for cells in printed if cells[:1] == ["vda"]]
    found = rows(sink)
    assert len(found) == 70 == 7 * 10
    assert {r["interval_ns"] for r in found} == {SECOND}
    for name, scale in (("w/s", 1), ("w_await", 1e6), ("wkB/s", 1024), ("%util", 0.01)):
        kept = [r["value"] for r in found if r["original_name"] == name]
        assert kept == pytest.approx([float(disk[name]) * scale for disk in disks[1:]])


OLD_IOSTAT = """\
Linux 3.13.0-49-generic (gpu-7)  2026-11-23  _x86_64_ (32 CPU)

2026-11-23T08:00:00Z
Device:   rrqm/s   wrqm/s     r/s     w/s    rkB/s    wkB/s avgrq-sz avgqu-sz   await  svctm  %util
xvda        0.00     0.23    9.00    9.00     9.00     9.00    34.37     9.00    9.98   2.44   9.00

2026-11-23T08:00:05Z
Device:   rrqm/s   wrqm/s     r/s     w/s    rkB/s    wkB/s avgrq-sz avgqu-sz   await  svctm  %util
xvda        0.00     0.23    2.00    1.00     4.00     2.00    34.37     0.50    9.98   2.44   7.00
"""


def test_iostat_of_old_systems(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(OLD_IOSTAT)
    found = rows(ingest_path(path, "iostat_text"))
    assert {str(r["counter"]): r["value"] for r in found} == {
        "read_rate": 2, "write_rate": 1, "read_throughput": 4096, "write_throughput": 2048,
        "queue_length": 0.5, "busy": 0.07,
    }  # fmt: skip
    assert {r["interval_ns"] for r in found} == {5 * SECOND}


@pytest.mark.parametrize("stamp", ["", "11/23/26 23:00:01\n", "23.11.2026 23:00:01\n"])
def test_iostat_without_times_that_name_their_zone_has_no_numbers(
    tmp_path: Path, stamp: str
) -> None:
    path = tmp_path / "a.txt"
    text = OLD_IOSTAT.replace("2026-11-23T08:00:00Z\n", stamp)
    path.write_text(text.replace("2026-11-23T08:00:05Z\n", stamp))
    sink = ingest_path(path, "iostat_text")
    assert not rows(sink)
    assert "S_TIME_FORMAT=ISO iostat -x -t" in str(sink.facts)


def test_other_lines_in_iostat_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(OLD_IOSTAT + "sd 1 2\nhunter2 was here\n")
    sink = ingest_path(path, "iostat_text")
    assert len(rows(sink)) == 6
    assert "hunter" not in str(sink.counters)


def test_real_diskstats_agree_with_iostat() -> None:
    """Both were read in the same seconds: the reads of the busy ones differ by little."""
    sink = ingest_path(DISKSTATS, "storage")
    assert sink.facts["status"] == "ok"
    found = rows(sink)
    assert len({r["time_ns"] for r in found}) == 13
    total = {(r["counter"], r["place"]): r["counted"] for r in found if r["device"] == "loop0"}
    places = sorted({int(str(r["place"])) for r in found if r["device"] == "loop0"})
    first, last = places[0], places[-1]

    def growth(counter: str) -> int:
        return int(str(total[counter, last])) - int(str(total[counter, first]))

    mean_ns = growth("read_time") / growth("read_requests")
    reports = json.loads(IOSTAT.read_text())["sysstat"]["hosts"][0]["statistics"][1:]
    disks = [next(d for d in r["disk"] if d["disk_device"] == "loop0") for r in reports]
    told = sum(d["r/s"] * d["r_await"] for d in disks) / sum(d["r/s"] for d in disks)
    assert mean_ns / 1e6 == pytest.approx(told, rel=0.1)
    assert growth("write_bytes") == pytest.approx(sum(d["wkB/s"] for d in disks) * 1024, rel=0.1)


def test_real_vmstat() -> None:
    sink = ingest_path(VMSTAT, "vmstat")
    assert sink.facts["time_basis"] == "epoch"
    found = rows(sink, "host_sample")
    assert {r["place"] for r in found} == set(range(4, 16))
    last = {r["original_name"]: r["value"] for r in found if r["place"] == 15}
    assert (last["r"], last["b"], last["us"]) == (11.0, 0.0, pytest.approx(0.66))


def test_vmstat_without_times_says_so() -> None:
    lines = [line.rsplit(None, 2)[0] for line in VMSTAT.read_text().splitlines()[2:]]
    head = VMSTAT.read_text().splitlines()[:2]
    plain = "\n".join([head[0][:80], head[1].rsplit(None, 1)[0], *lines]) + "\n"
    sink = ingest(plain, "vmstat", "vmstat.txt")
    assert not sink.tables.get("host_sample")
    assert "vmstat -t" in str(sink.facts["reason"])


def test_nfs_by_mount() -> None:
    sink = ingest(MOUNTSTATS, "storage", "host07-mountstats.txt")
    assert (sink.facts["host_name"], sink.facts["status"]) == ("host07", "ok")
    assert sink.counters == {"parsed_from_documentation": 1}
    assert numbers(sink) == {
        ("/data", "read_bytes"): 5242880,
        ("/data", "write_bytes"): 1048576,
        ("/data", "read_requests"): 5,
        ("/data", "read_time"): 2415 * 10**6,
        ("/data", "read_timeouts"): 1,
        ("/data", "write_requests"): 1,
        ("/data", "write_time"): 31 * 10**6,
        ("/data", "write_timeouts"): 0,
        ("/data", "flush_requests"): 2,
        ("/data", "flush_time"): 51 * 10**6,
        ("/data", "metadata_requests"): 10,
        ("/data", "metadata_time"): 20 * 10**6,
    }
    assert {r["filesystem"] for r in rows(sink)} == {"nfs4"}
    assert {r["time_ns"] for r in rows(sink)} == {1795420800 * SECOND}


def test_lustre_by_mount_and_target_at_its_own_moments() -> None:
    sink = ingest(LUSTRE, "storage", "host07-lustre.txt")
    assert sink.counters == {"parsed_from_documentation": 1, "other_metric": 2}
    assert numbers(sink) == {
        ("scratch", "read_bytes"): 20971520,
        ("scratch", "write_bytes"): 45,
        ("scratch", "read_requests"): 40,
        ("scratch", "read_time"): 4 * SECOND,
        ("scratch", "metadata_requests"): 18,
        ("scratch", "metadata_time"): 500_000,
        ("scratch-OST0003", "read_requests"): 20,
        ("scratch-OST0003", "read_time"): 2 * SECOND,
    }
    assert {r["time_ns"] for r in rows(sink)} == {
        1763884800 * SECOND + 500_000_000, 1763884800 * SECOND + 600_000_000,
    }  # fmt: skip


def test_a_lustre_snapshot_that_counts_from_the_start_is_no_time_of_day() -> None:
    text = LUSTRE.replace("1763884800.500000000", "1964295.787757337").replace(
        "1763884800.600000000", "1964295.887757337"
    )
    sink = ingest("2026-11-23T08:00:00Z\n" + text, "storage", "host07-lustre.txt")
    assert sink.facts["status"] == "ok"
    assert {r["time_ns"] for r in rows(sink)} == {1795420800 * SECOND}
    plain = ingest(text, "storage", "host07-1795420900.txt")
    assert {r["time_ns"] for r in rows(plain)} == {1795420900 * SECOND}


def test_a_second_dump_begins_anew() -> None:
    again = MOUNTSTATS.replace("08:00:00Z", "08:00:10Z").replace("LOOKUP: 3", "LOOKUP: 5")
    sink = ingest(MOUNTSTATS + again, "storage", "host07-mountstats.txt")
    counts = [r["counted"] for r in rows(sink) if r["counter"] == "metadata_requests"]
    assert counts == [10, 12]


def test_other_mounts_and_damage_are_counted_and_nothing_ends() -> None:
    text = MOUNTSTATS + "\tgarbage of hunter2-Passw0rd\n\t  READ: 1 2 x\n" + "\x00\xff" * 50 + "\n"
    sink = ingest(text, "storage", "host07-mountstats.txt")
    assert sink.counters["bad_record"] == 3
    assert sink.facts["status"] == "partial"
    assert "hunter2" not in repr(sink.__dict__)


def test_an_iostat_without_times_says_so() -> None:
    document = json.loads(IOSTAT.read_text())
    for report in document["sysstat"]["hosts"][0]["statistics"]:
        del report["timestamp"]
    sink = ingest(json.dumps(document), "iostat", "iostat.json")
    assert "iostat -t" in str(sink.facts["reason"])
    document["sysstat"]["hosts"][0]["statistics"] = [7, {"timestamp": ["x"]}, {"disk": {}}]
    assert (
        ingest(json.dumps(document) + '"disk_device": 1', "iostat", "iostat.json").facts["status"]
        == "partial"
    )


NFSIOSTAT = """\
2026-11-23T08:00:00Z

nas7:/export/set mounted on /data:

           ops/s       rpc bklog
           9.016           0.000

read:              ops/s            kB/s           kB/op         retrans    avg RTT (ms)    avg exe (ms)  avg queue (ms)          errors
                   7.001        3584.512         512.000        0 (0.0%)          90.200          99.400           0.010        0 (0.0%)
write:             ops/s            kB/s           kB/op         retrans    avg RTT (ms)    avg exe (ms)  avg queue (ms)          errors
                   0.000           0.000           0.000        0 (0.0%)           0.000           0.000           0.000        0 (0.0%)
2026-11-23T08:00:05Z

nas7:/export/set mounted on /data:

           ops/s       rpc bklog
          11.000           0.000

read:              ops/s            kB/s           kB/op         retrans    avg RTT (ms)    avg exe (ms)
                  10.000        1024.000         102.400        2 (4.0%)           1.500           2.500
write:             ops/s            kB/s           kB/op         retrans    avg RTT (ms)    avg exe (ms)
                   1.000           4.000           4.000        0 (0.0%)           8.000           9.000
"""  # noqa: E501 - as it prints them


def test_nfsiostat_tells_rates_and_latencies_of_the_time_since_the_report_before() -> None:
    sink = ingest(NFSIOSTAT, "nfsiostat", "nfsiostat.txt")
    found = {str(r["counter"]): r for r in rows(sink)}
    assert {r["device"] for r in found.values()} == {"/data"}
    assert {r["interval_ns"] for r in found.values()} == {5 * SECOND}
    assert {name: r["value"] for name, r in found.items()} == {
        "read_rate": 10.0, "read_throughput": 1024 * 1024.0, "read_latency": 2_500_000.0,
        "write_rate": 1.0, "write_throughput": 4096.0, "write_latency": 9_000_000.0,
    }  # fmt: skip


def test_nfsiostat_without_times_says_what_it_lacks() -> None:
    text = "\n".join(line for line in NFSIOSTAT.splitlines() if "T08" not in line) + "\n"
    sink = ingest(text, "nfsiostat", "nfsiostat.txt")
    assert rows(sink) == []
    assert "line of time" in str(sink.facts["reason"])


def test_a_torn_table_of_nfsiostat_is_counted() -> None:
    sink = ingest(NFSIOSTAT.replace("10.000        1024.000", "10.000   x"), "nfsiostat", "n.txt")
    assert {r["counter"] for r in rows(sink)} == {
        "write_rate", "write_throughput", "write_latency",
    }  # fmt: skip
    assert sink.facts["status"] == "partial"
