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


def reports(text: str, name: str = "kern.log") -> list[Any]:
    """Code and fields of what a kernel's log is recognised and read as."""
    sink = MemorySink()
    source = source_of(text.encode(), name)
    recognition = recognise(source)
    assert recognition.ingestor == "kernel_log"
    ingestor("kernel_log").read(source, sink, IngestOptions())
    return sink.rows("log_event", "place", "code", "fields") if "log_event" in sink.tables else []


SYSLOG = "Oct  3 02:{} node17 kernel: {}\n"


@pytest.mark.parametrize(
    ("message", "code", "fields"),
    [
        ("mlx5_core 0000:c1:00.0: poll_health:835:(pid 0): Fatal error 1 detected",
         "kernel-nic-failed", ["device=0000:c1:00.0"]),
        ("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:894)",
         "kernel-gpu-failed", ["device=0000:01:00.0"]),
        ("NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required "
         "[NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:2874",
         "kernel-gpu-failed", ["what=reset required"]),
        ("amdgpu 0000:03:00.0: amdgpu: GPU reset begin!",
         "kernel-gpu-failed", ["device=0000:03:00.0"]),
        ("NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out",
         "kernel-nic-failed", ["device=eth0"]),
        ("mlx5_core 0000:c1:00.0: Port module event[error]: module 0, Cable error, Bus stuck",
         "kernel-cable", ["device=0000:c1:00.0", "what=cable error"]),
        ("pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (x)",
         "kernel-pcie-error", ["device=0000:00:03.0", "what=corrected"]),
        ("nvidia 0000:17:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=x",
         "kernel-pcie-error", ["device=0000:17:00.0", "what=non-fatal"]),
        ("nvidia 0000:17:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible",
         "kernel-pcie-error", ["device=0000:17:00.0", "what=fatal"]),
        ("pcieport 0000:16:01.0: pciehp: Slot(5): Link Down",
         "kernel-pcie-lost", ["device=0000:16:01.0", "what=link down"]),
        ("blk_update_request: critical medium error, dev nvme0n1, sector 7 op 0x0:(READ)",
         "kernel-disk-error", ["device=nvme0n1"]),
        ("nvme nvme1: I/O 512 QID 3 timeout, aborting", "kernel-disk-error", ["device=nvme1"]),
        ("EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2", "kernel-disk-error",
         ["device=sda1"]),
        ("LustreError: 167-0: fs1-MDT0000-mdc-ffff8: This client was evicted by fs1-MDT0000; in",
         "kernel-evicted", ["device=fs1-MDT0000"]),
        ("INFO: task python:188123 blocked for more than 120 seconds.",
         "kernel-stuck-task", ["program=python", "pid=188123", "seconds=120"]),
        ("watchdog: BUG: soft lockup - CPU#23 stuck for 26s! [python:188123]",
         "kernel-lockup", ["seconds=26"]),
        ("rcu: INFO: rcu_preempt self-detected stall on CPU", "kernel-lockup", None),
        ("EDAC MC0: 3 CE memory read error on CPU_SrcID#0 (channel:1 slot:0 page:0x1f2)",
         "kernel-memory-error", ["device=MC0", "what=corrected"]),
        ("Memory failure: 0x12ab: Sending SIGBUS to python:77 due to hardware memory corruption",
         "kernel-memory-error", ["what=uncorrected"]),
        ("CPU5: Core temperature above threshold, cpu clock throttled (total events = 2123)",
         "kernel-heat", ["device=Core"]),
        ("python3[4242]: segfault at 0 ip 00007f00 sp 00007f01 error 4 in libnccl.so.2[7f00+1000]",
         "kernel-crash", ["program=python3", "pid=4242", "library=libnccl.so.2"]),
    ],
)  # fmt: skip
def test_what_a_kernel_reports_of_its_machine(
    message: str, code: str, fields: list[str] | None
) -> None:
    ((_, told, given),) = reports(SYSLOG.format("11:09", message))
    assert told == code
    counted = [f for f in given if not f.startswith(("count=", "lasted_ms="))]
    if fields is not None:
        assert counted == fields
    (count,) = [f for f in given if f.startswith("count=")]
    assert count == ("count=3" if "3 CE" in message else "count=1")
    # No word of the line but names.
    assert not any("SIGBUS" in f or "inode" in f for f in given)


def test_what_a_kernel_reports_often_is_one_event_an_hour_and_device() -> None:
    lines = "".join(
        f"[{7200 + 900 * i}.000000] pcieport 0000:00:0{i % 2}.0: PCIe Bus Error: "
        "severity=Corrected, type=Physical Layer, (Receiver ID)\n"
        for i in range(8)
    )
    assert [(place, fields[2:]) for place, _, fields in reports(lines, "dmesg")] == [
        (1, ["count=2", "lasted_ms=1800000"]), (2, ["count=2", "lasted_ms=1800000"]),
        (5, ["count=2", "lasted_ms=1800000"]), (6, ["count=2", "lasted_ms=1800000"]),
    ]  # fmt: skip


def test_links_and_servers_are_told_with_how_long_they_were_gone() -> None:
    text = "".join(
        SYSLOG.format(at, message)
        for at, message in (
            ("10:00", "mlx5_core 0000:ab:00.0 ib0: Port: 1 Link DOWN"),
            ("10:01", "mlx5_core 0000:ab:00.0 ib0: Port: 1 Link INIT"),
            ("10:04", "mlx5_core 0000:ab:00.0 ib0: Port: 1 Link ACTIVE"),
            ("11:00", "ice 0000:01:00.0 eth1: NIC Link is Up 100 Gbps Full Duplex"),
            ("12:00", "ice 0000:01:00.0 eth1: NIC Link is Down"),
            ("12:00", "nfs: server 10.0.4.9 not responding, still trying"),
            ("12:30", "nfs: server 10.0.4.9 not responding, still trying"),
            ("14:00", "nfs: server 10.0.4.9 OK"),
            ("15:00", "Lustre: fs1-OST0007-osc-ffff8: Connection to fs1-OST0007 (at 10.1.0.7@o2ib)"
             " was lost; in progress operations using this service will wait"),
            ("15:20", "Lustre: fs1-OST0007-osc-ffff8: Connection restored to 10.1.0.7@o2ib"),
        )
    )  # fmt: skip
    assert reports(text) == [
        (1, "kernel-link-down",
         ["device=ib0", "driver=mlx5_core", "pci=0000:ab:00.0", "is_over=1", "lasted_ms=4000"]),
        (5, "kernel-link-down",
         ["device=eth1", "driver=ice", "pci=0000:01:00.0", "is_over=0", "was_up=1"]),
        (6, "kernel-no-answer", ["device=10.0.4.9", "is_over=1", "lasted_ms=120000"]),
        (9, "kernel-no-answer", ["device=fs1-OST0007", "is_over=1", "lasted_ms=20000"]),
    ]  # fmt: skip


def test_a_link_that_comes_up_behind_a_boot_was_not_lost() -> None:
    down, up = "ice 0000:01:00.0 eth1: NIC Link is Down", "ice 0000:01:00.0 eth1: NIC Link is Up"
    boot = f"[    0.000000] Linux version 6.8.0\n[    9.000000] {down}\n[   12.000000] {up}\n"
    assert reports(boot, "dmesg") == []
    later = f"{boot}[  400.000000] {down}\n[  402.000000] {up}\n"
    assert [place for place, *_ in reports(later, "dmesg")] == [4]
    again = SYSLOG.format("10:00", "Linux version 6.8.0") + SYSLOG.format("10:09", down)
    assert reports(again + SYSLOG.format("10:12", up)) == []


def test_a_program_s_own_output_is_no_kernel_s_log() -> None:
    for text in (
        "[    1.000000] epoch 1\n[    2.000000] epoch 2\n",
        "Oct  3 02:11:09 node17 trainer: Link is Down\n",
        "INFO: task python:188123 blocked for more than 120 seconds.\n",
        # What a job printed, with what somebody appended of the kernel's.
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: x\n'
        "Oct  3 02:11:09 node17 kernel: ice 0000:01:00.0 eth1: NIC Link is Down\n",
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: x\n'
        "[  400.000000] ice 0000:01:00.0 eth1: NIC Link is Down\n",
    ):
        assert recognise(source_of(text.encode(), "notes.txt")).ingestor != "kernel_log"


def test_a_log_of_several_hosts_says_of_each_event_whose_it_is() -> None:
    down, up = "ice 0000:01:00.0 eth1: NIC Link is Down", "ice 0000:01:00.0 eth1: NIC Link is Up"
    xid = "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus"
    text = "".join(
        f"Oct  3 02:10:0{second} {host} kernel: {message}\n"
        for second, host, message in (
            (0, "a", down), (1, "b", down), (3, "b", up), (4, "a", up), (5, "b", xid), (6, "a", xid)
        )
    )  # fmt: skip
    sink = MemorySink()
    ingestor("kernel_log").read(source_of(text.encode(), "messages"), sink, IngestOptions())
    rows = [
        (code, [f for f in fields if f.startswith(("host=", "lasted"))])
        for code, fields in sink.rows("log_event", "code", "fields")
    ]
    assert rows == [
        ("kernel-link-down", ["host=a", "lasted_ms=4000"]),
        ("kernel-link-down", ["host=b", "lasted_ms=2000"]),
        ("xid-79", ["host=b"]),
        ("xid-79", ["host=a"]),
    ]
    assert "host_name" not in sink.facts


def test_a_system_s_log_in_which_the_kernel_says_little_is_a_kernel_s() -> None:
    others = "Oct  3 02:10:00 node17 systemd[1]: Started something.\n" * 30
    down = SYSLOG.format("11:00", "ice 0000:01:00.0 eth1: NIC Link is Down")
    up = SYSLOG.format("11:04", "ice 0000:01:00.0 eth1: NIC Link is Up")
    assert [place for place, *_ in reports(others + down + up, "messages")] == [31]


XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("name", "head", "host"),
    [
        ("dmesg-node1.txt", "[Fri Nov 20 08:50:01 2026]", "node1"),
        ("dmesg.txt", "[Fri Nov 20 08:50:01 2026]", None),
        ("node1.log", "2026-07-21T03:01:07+0000 gpu-11 kernel:", "gpu-11"),
    ],
)
def test_a_log_whose_lines_name_no_host_is_of_the_one_that_its_file_is_named_after(
    name: str, head: str, host: str | None
) -> None:
    assert ingest(f"{head} {XID}\n", name).facts.get("host_name") == host
