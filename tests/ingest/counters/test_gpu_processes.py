"""Processes on GPUs, from nvidia-smi's XML, CSV and pmon: how many compute, and no command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_sink import MemorySink, source_of

from tracekit.ingest import files, ingestor, recognise
from tracekit.ingest.base import IngestOptions
from tracekit.ingest.counters.processes import executable, is_compute

SHARED = Path(__file__).resolve().parents[4] / "shared/data/counters/nvidia_smi"
SECRET = "hunter2-Passw0rd"  # noqa: S105 - planted


def read(text: str, name: str, family: str) -> MemorySink:
    source = source_of(text.encode(), name)
    assert recognise(source).ingestor == family
    sink = MemorySink()
    ingestor(family).read(source, sink, IngestOptions())
    assert SECRET not in repr([sink.table(t).to_pylist() for t in sink.tables])
    assert SECRET not in repr(sink.__dict__)
    return sink


def counts(sink: MemorySink) -> list[tuple[object, ...]]:
    if "gpu_sample" not in sink.tables:
        return []
    return [
        (r["device_id"] or r["nvml_index"], r["value"], r["place"])
        for r in sink.rows("gpu_sample")
        if r["counter"] == "compute_processes"
    ]


def names(sink: MemorySink) -> list[tuple[object, ...]]:
    return sink.rows("gpu_process", "pid", "kind", "name", "readings_count", "memory_bytes")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("python3", "python3"),
        (f"/opt/conda/bin/python3.11 train.py --token={SECRET}", "python3.11"),
        ("C:\\bin\\app.exe -k 1", "app.exe"),
        (f"TOKEN={SECRET} python", None),
        ("[Not Found]", None),
        ("-", None),
        ("", None),
        (None, None),
        ("x" * 65, None),
    ],
)
def test_a_name_is_that_of_a_file(text: str | None, name: str | None) -> None:
    assert executable(text) == name


def test_types_that_compute() -> None:
    assert [t for t in ("C", "G", "C+G", "M+C", "M", "-") if is_compute(t)] == ["C", "C+G", "M+C"]


# --- --query-compute-apps -------------------------------------------------------------------------

APPS = f"""\
timestamp, gpu_name, gpu_uuid, pid, process_name, used_gpu_memory [MiB]
2026/11/21 02:12:35.100, H100, GPU-a, 11, /usr/bin/python3 a.py, --key {SECRET}, 2048 MiB
2026/11/21 02:12:35.103, H100, GPU-b, 12, python, 1024 MiB
2026/11/21 02:12:35.104, H100, GPU-b, 13, ffmpeg, [N/A]
2026/11/21 02:12:40.100, H100, GPU-a, 21, python, 512 MiB
2026/11/21 02:12:40.103, H100, GPU-b, 12, python, 4096 MiB
"""


def test_apps_count_by_reading() -> None:
    """Process 21 follows process 11: they never were two."""
    sink = read(APPS, "apps.csv", "gpu_text")
    assert counts(sink) == [("GPU-a", 1, 2), ("GPU-b", 2, 3), ("GPU-a", 1, 5), ("GPU-b", 1, 6)]
    assert names(sink) == [
        (11, None, "python3", 1, 2048 << 20),
        (12, None, "python", 2, 4096 << 20),
        (13, None, "ffmpeg", 1, None),
        (21, None, "python", 1, 512 << 20),
    ]
    first, *_, last = sink.rows("gpu_sample", "time_ns", "time_source")
    assert last[0] - first[0] == 5_003_000_000
    assert first[1] == "content"
    assert sink.facts["time_basis"] == "local"


def test_a_capture_that_says_its_time_says_the_zone_of_apps_too() -> None:
    """02:12 local beside 00:12 UTC: two hours ahead. Without times, apps have the capture's."""
    at_ns = 1_795_219_955_000_000_000  # 2026-11-21T00:12:35Z
    sink = read(f"date: 2026-11-21T00:12:35Z\n{APPS}", "apps.txt", "gpu_text")
    assert sink.facts["time_basis"] == "epoch"
    times_ns = [t for t, _ in sink.rows("gpu_sample", "time_ns", "time_source")]
    assert (times_ns[0], times_ns[-1]) == (at_ns + 100_000_000, at_ns + 5_103_000_000)
    untimed = "date: 2026-11-21T00:12:35Z\ngpu_uuid, pid, process_name\nGPU-a, 1, x\n"
    sink = read(untimed, "apps.txt", "gpu_text")
    assert sink.rows("gpu_sample", "time_ns", "time_source") == [(at_ns, "content")]


def test_readings_that_nothing_separates_are_not_counted() -> None:
    text = "gpu_uuid, pid, process_name\n" + "".join(f"GPU-a, {p}, x\n" for p in (1, 1, 2, 2))
    same = text.replace("2, x", "1, x")  # whoever repeats himself follows nobody
    assert counts(read(same, "apps.csv", "gpu_text")) == [("GPU-a", 1, n) for n in (2, 3, 4, 5)]
    sink = read(text, "apps.csv", "gpu_text")
    assert counts(sink) == []
    assert sink.counters["reading_without_time"] == 1
    assert [row[0] for row in names(sink)] == [1, 2]
    # A header that comes again separates them; one reading alone is whole.
    again = text.replace("GPU-a, 2", "gpu_uuid, pid, process_name\nGPU-a, 2", 1)
    once = "gpu_uuid, pid, process_name\nGPU-a, 1, x\nGPU-a, 2, y\n"
    apart = counts(read(again, "a.csv", "gpu_text"))
    assert apart == [("GPU-a", 1, n) for n in (2, 3, 5, 6)]
    assert counts(read(once, "apps.csv", "gpu_text")) == [("GPU-a", 2, 2)]
    two = once + once.replace("GPU-a, 2, y\n", "")
    assert counts(read(two, "apps.csv", "gpu_text")) == [("GPU-a", 2, 2), ("GPU-a", 1, 5)]


def test_bad_rows_of_apps_lose_nothing_else() -> None:
    sink = read(
        APPS + "2026/11/21 02:12:45.1, H100, GPU-a\nx, y, z, pid, n, 1\n", "a.csv", "gpu_text"
    )
    assert len(counts(sink)) == 4
    assert sink.counters["bad_row"] == 2
    assert sink.facts["status"] == "partial"
    assert read("pid, gpu_uuid, name\n", "a.csv", "gpu_text").counters == {}


# --- pmon -----------------------------------------------------------------------------------------

PMON = f"""\
# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command 
# Idx           #    C/G      %      %      %      %      %      %    name 
    0       1234     C     98     50      -      -      -      -    python3        
    0       1300   C+G      1      0      -      -      -      -    /x/ffmpeg --k={SECRET}
    0       1400     G      1      0      -      -      -      -    Xorg
    1          -     -      -      -      -      -      -      -    -              
    0       1234     C     97     50      -      -      -      -    python3        
    1       1500     C      9      5      -      -      -      -    python3        
"""  # noqa: W291 - as nvidia-smi prints it


def test_pmon_counts_what_computes() -> None:
    sink = read(PMON, "pmon.txt", "gpu_text")
    assert counts(sink) == [(0, 2, 3), (1, 0, 6), (0, 1, 7), (1, 1, 8)]
    assert [row[:4] for row in names(sink)] == [
        (1234, "C", "python3", 2),
        (1300, "C+G", "ffmpeg", 1),
        (1400, "G", "Xorg", 1),
        (1500, "C", "python3", 1),
    ]
    assert sink.facts["time_basis"] == "ticks"
    assert {r["time_ns"] for r in sink.rows("gpu_sample")} == {0, 1}


def test_pmon_with_times() -> None:
    text = (
        "#Date       Time        gpu        pid   type    sm   mem   command\n"
        "#YYYYMMDD   HH:MM:SS    Idx          #    C/G     %     %   name\n"
        " 20261121   02:12:35      0       1234     C    98    50   python\n"
        " 20261121   02:12:36      0       5678     C    98    50   python\n"
        " 20261121   02:12:36      0        bad     C    98    50   python\n"
    )
    sink = read(text, "pmon.txt", "gpu_text")
    assert counts(sink) == [(0, 1, 3), (0, 1, 4)]
    assert sink.facts["time_basis"] == "local"
    assert sink.counters["bad_row"] == 1


def test_pmon_of_one_gpu_without_times_cannot_be_counted() -> None:
    rows = [f"    0  {pid}  C  1  1  python\n" for pid in (1, 1, 2, 2)]
    text = "# gpu   pid  type  sm  mem  command\n# Idx     #   C/G   %   %  name\n" + "".join(rows)
    sink = read(text, "pmon.txt", "gpu_text")
    assert counts(sink) == []
    assert sink.counters["reading_without_time"] == 1


# --- XML ------------------------------------------------------------------------------------------


def dump(processes: str, stamp: str = "Sat Nov 21 02:12:35 2026") -> str:
    return (
        '<?xml version="1.0" ?>\n<nvidia_smi_log>'
        f"<timestamp>{stamp}</timestamp>"
        f'<gpu id="00000000:17:00.0"><uuid>GPU-a</uuid>{processes}</gpu></nvidia_smi_log>\n'
    )


def process(pid: int, kind: str = "C", instance: str = "N/A") -> str:
    return (
        f"<process_info><gpu_instance_id>{instance}</gpu_instance_id><pid>{pid}</pid>"
        f"<type>{kind}</type><process_name>/bin/py{pid} --key {SECRET}</process_name>"
        "<used_memory>100 MiB</used_memory></process_info>"
    )


def test_xml_counts_each_document_by_itself() -> None:
    text = (
        dump(f"<processes>{process(1)}{process(2)}{process(3, 'G')}</processes>")
        + dump(f"<processes>{process(4)}</processes>", "Sat Nov 21 02:12:36 2026")
        + dump("<processes />", "Sat Nov 21 02:12:37 2026")
        + dump("<processes>N/A</processes>", "Sat Nov 21 02:12:38 2026")
        + dump("", "Sat Nov 21 02:12:39 2026")
    )
    sink = read(text, "smi.xml", "nvidia_smi_xml")
    assert counts(sink) == [("GPU-a", 2, 1), ("GPU-a", 1, 2), ("GPU-a", 0, 3)]
    assert [row[:3] for row in names(sink)] == [
        (1, "C", "py1"),
        (2, "C", "py2"),
        (3, "G", "py3"),
        (4, "C", "py4"),
    ]
    assert names(sink)[0][4] == 100 << 20


def test_instances_of_a_gpu_are_not_the_whole() -> None:
    parts = f"<processes>{process(1, 'C', '1')}{process(2, 'C', '2')}</processes>"
    assert counts(read(dump(parts), "smi.xml", "nvidia_smi_xml")) == []


def test_recorded_h100_under_load() -> None:
    """Two programs that hold memory and one that burns, as nvidia-smi 590 lists them four times."""
    path = SHARED / "linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt"
    if not path.exists():
        pytest.skip("the captures of nvidia-smi are not here (../shared/data/counters)")
    sink = MemorySink()
    (source,) = files.expand([path])
    ingestor("gpu_text").read(source, sink, IngestOptions())
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    assert counts(sink) == [
        ("00000000:00:09.0", 0.0, 1461),
        (uuid, 0.0, 1487),
        *((0, 0.0, place) for place in range(1773, 1778)),
        ("00000000:00:09.0", 3.0, 1815),
        (uuid, 3.0, 1833),
        (uuid, 3.0, 2113),
        *((0, 3.0, place) for place in range(2140, 2155, 3)),
    ]
    listed = [
        ("memhog", 1, 2566 << 20),
        ("memhog", 1, 1542 << 20),
        ("gpu_burn", 1, 15690 << 20),
    ]
    assert [row[2:] for row in names(sink)] == [
        *listed,
        *listed,
        *listed,
        ("memhog", 5, None),
        ("memhog", 5, None),
        ("gpu_burn", 5, None),
    ]
