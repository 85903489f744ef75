"""Kernel logs: XIDs, errors of the fabric manager, and what was killed for want of memory."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_files import ingest, real
from memory_sink import MemorySink, source_of

from tracekit.ingest import ingestor, recognise
from tracekit.ingest.base import IngestOptions

S = 10**9


def events(sink: MemorySink) -> list[Any]:
    return sink.rows("log_event", "place", "device_id", "code", "severity", "fields")


def test_xids_of_a_real_log_are_events_and_no_line_is_kept() -> None:
    sink = real("xid/dmesg-with-xid-119.log")
    found = events(sink)
    assert [(e[0], e[1], e[2]) for e in found] == [
        (line, "00000000:9b:00.0", "xid-119") for line in (3, 38, 40, 42, 43)
    ]
    assert sink.facts["time_basis"] == "local"
    for row in sink.rows("log_event"):
        assert "Timeout" not in row["template"]
        assert not any("nvidia-smi" in f for f in row["fields"])


def test_the_fabric_manager_s_errors_are_events() -> None:
    (event,) = events(real("xid/fabricmanager.log"))
    assert event == (
        100,
        "00000000:86:00.0",
        "sxid-12028",
        "warning",
        ["sxid=12028", "severity=non-fatal", "switch=3", "link=61"],
    )


@pytest.mark.parametrize(
    ("line", "basis", "time_ns", "expected"),
    [
        (
            "[ 1234.000001] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU "
            "has fallen off the bus.",
            "relative", 1234000001000, ("00000000:3b:00.0", "xid-79", "error", ["xid=79"]),
        ),
        (
            "2026-07-21T03:01:07+0000 gpu-11 kernel: NVRM: Xid (PCI:0000:3b:00): 13, pid=77, "
            "name=python, Graphics Exception",
            "epoch", 1784602867 * S,
            ("00000000:3b:00.0", "xid-13", "warning", ["xid=13", "pid=77"]),
        ),
        (
            "[12.000000] NVRM: Xid (0000:03:00): 14, Channel 00000001",
            "relative", 12 * S, ("00000000:03:00.0", "xid-14", "info", ["xid=14"]),
        ),
        (
            "[12.000000] NVRM: Xid (PCI:0000:3b:00): 154, pid=1, name=p, GPU recovery action "
            "changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            "relative", 12 * S,
            ("00000000:3b:00.0", "xid-154", "info",
             ["xid=154", "pid=1", "action=GPU Reset Required"]),
        ),
        (
            "[12.000000] NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT Fatal XC1 i0 Link 09",
            "relative", 12 * S,
            ("00000000:3b:00.0", "xid-149", "error", ["xid=149", "link=9"]),
        ),
        (
            "[12.000000] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC "
            "TS crumbstore MCTO (First)",
            "relative", 12 * S,
            ("00000000:c1:00.0", "sxid-28006", "warning",
             ["sxid=28006", "severity=non-fatal", "link=46"]),
        ),
        (
            "[12.000000] nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 20009, Fatal, Link 04 LTSSM",
            "relative", 12 * S,
            ("00000000:85:00.0", "sxid-20009", "error",
             ["sxid=20009", "severity=fatal", "link=4"]),
        ),
    ],
)  # fmt: skip
def test_lines_of_every_age_are_understood(
    line: str, basis: str, time_ns: int, expected: tuple[Any, ...]
) -> None:
    sink = ingest(line + "\n")
    (event,) = events(sink)
    assert event[1:] == expected
    assert sink.facts["time_basis"] == basis
    assert sink.rows("log_event", "time_ns") == [time_ns]


GONE = """\
{0}NVRM: The NVIDIA GPU 0000:b3:00.0
{1}NVRM: (PCI ID: 10de:26b5) installed in this system has
{1}NVRM: fallen off the bus and is not responding to commands.
"""


@pytest.mark.parametrize(
    ("text", "time_ns", "devices"),
    [
        (GONE.format("[ 1843.308145] ", " " * 15), 1843308145000, ["00000000:b3:00.0"]),
        (GONE.format(*["Feb 14 05:03:42 gpu-1 kernel: "] * 2), None, ["00000000:b3:00.0"]),
        ("[7.000000] NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n", 7 * S,
         ["00000000:01:00.0"]),
        # With its number too it is one event; what stands far below a GPU's name is not said of it.
        ("[7.000000] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n"
         "[7.000000] NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n", 7 * S,
         ["00000000:01:00.0"]),
        ("[7.000000] NVRM: The NVIDIA GPU 0000:b3:00.0\n" + "[8.000000] x\n" * 4
         + "[9.000000] NVRM: fallen off the bus\n", 9 * S, [None]),
    ],
)  # fmt: skip
def test_a_gpu_that_is_gone_is_told_without_a_number_too(
    text: str, time_ns: int | None, devices: list[str | None]
) -> None:
    sink = ingest(text)
    found = sink.rows("log_event", "device_id", "code", "severity", "fields")
    assert found == [(device, "xid-79", "error", ["xid=79"]) for device in devices]
    assert sink.rows("log_event", "time_ns") == [time_ns]
    assert sink.facts.get("host_name") == ("gpu-1" if "gpu-1" in text else None)


def test_a_log_without_xids_is_an_answer() -> None:
    sink = ingest("[ 1.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n")
    assert sink.facts["status"] == "ok"
    assert "log_event" not in sink.tables


KILLS = """\
[Mon Nov 23 03:05:40 2026] usb 1-1: new device
[Mon Nov 23 03:05:44 2026] Memory cgroup out of memory: Killed process 4242 (python3) \
total-vm:99kB, anon-rss:2048kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:9kB oom_score_adj:0
[Mon Nov 23 03:05:50 2026] Out of memory: Killed process 77 (api_key) total-vm:9kB
"""


def test_a_kernel_s_kills_for_want_of_memory_are_read_without_names() -> None:
    sink = MemorySink()
    source = source_of(KILLS.encode(), "dmesg.txt")
    recognition = recognise(source)
    assert (recognition.kind, recognition.ingestor) == ("kernel_log", "kernel_log")
    ingestor("kernel_log").read(source, sink, IngestOptions())
    rows = sink.rows("log_event", "place", "code", "fields")
    assert rows == [
        (2, "oom-kill", ["pid=4242", "signal=SIGKILL", "why=out of memory", "of=cgroup",
                         "anonymous_bytes=2097152"]),
        (3, "oom-kill", ["pid=77", "signal=SIGKILL", "why=out of memory", "of=host"]),
    ]  # fmt: skip


def test_a_job_s_output_with_such_a_line_is_no_kernel_log() -> None:
    kill = "Out of memory: Killed process 77 (python3) total-vm:9kB\n"
    step = "iter 100: loss 3.2512, time 135.22ms, mfu 12.50%\n"
    for text in (f"a line\n{kill}", f"{step}[Mon Nov 23 03:05:50 2026] {kill}"):
        assert recognise(source_of(text.encode(), "job.log")).kind == "job_log"
