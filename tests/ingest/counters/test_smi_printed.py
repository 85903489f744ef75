"""What nvidia-smi prints for people, alone and among other outputs of one capture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from memory_sink import MemorySink, source_of

from tracekit.ingest import ingestor, recognise
from tracekit.ingest.base import IngestOptions

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
SECOND_NS = 10**9
AT_NS = 1_784_016_758 * SECOND_NS
"""2026-07-14 08:12:38 UTC."""

TABLE = """\
Tue Jul 14 08:12:38 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 590.48.01              Driver Version: 590.48.01      CUDA Version: 13.1     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:00:09.0 Off |                    2 |
| N/A   41C    P0             69W /  700W |       7MiB /  81559MiB |     37%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA A100-SXM4-80...         On  |   00000000:00:0A.0 Off |                  N/A |
| 30%   59C    P2            629W /  700W |   19818MiB /  81559MiB |    100%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    1   N/A  N/A           11327      C   /root/tools/memhog --token=abc          2566MiB |
|    1   N/A  N/A           11345      C   ./gpu_burn                            15690MiB |
+-----------------------------------------------------------------------------------------+
"""

LOG = """\

==============NVSMI LOG==============

Timestamp                                              : Tue Jul 14 08:12:38 2026
Driver Version                                         : 535.1

Attached GPUs                                          : 2
GPU 00000000:00:09.0
    Product Name                                       : NVIDIA A100-SXM4-80GB
    GPU UUID                                           : GPU-aaaa
    MIG Mode
        Current                                        : Disabled
    PCI
        GPU Link Info
            PCIe Generation
                Max                                    : 5
                Current                                : 4
            Link Width
                Max                                    : 16x
                Current                                : 8x
        Replays Since Reset                            : 9
        Tx Throughput                                  : 352 KB/s
    Fan Speed                                          : N/A
    Clocks Throttle Reasons
        Idle                                           : Not Active
        HW Slowdown                                    : Active
            HW Thermal Slowdown                        : Active
            HW Power Brake Slowdown                    : Not Active
    FB Memory Usage
        Total                                          : 81920 MiB
        Used                                           : 3 MiB
    BAR1 Memory Usage
        Total                                          : 131072 MiB
    Utilization
        Gpu                                            : 25 %
    ECC Errors
        Volatile
            SRAM Correctable                           : 1
            SRAM Uncorrectable Parity                  : 2
            SRAM Uncorrectable SEC-DED                 : 3
            DRAM Correctable                           : 10
        Aggregate
            DRAM Uncorrectable                         : 5
    Temperature
        GPU Current Temp                               : 41 C
        GPU Shutdown Temp                              : 92 C
    Power Readings
        Power Draw                                     : 69.85 W
        Enforced Power Limit                           : 400.00 W
    Clocks
        SM                                             : 345 MHz
    Processes
        GPU instance ID                                : N/A
        Compute instance ID                            : N/A
        Process ID                                     : 7
            Type                                       : C
            Name                                       : /opt/python train.py --api-key=hush
            Used GPU Memory                            : 2 MiB
        GPU instance ID                                : N/A
        Compute instance ID                            : N/A
        Process ID                                     : 8
            Type                                       : G
            Name                                       : Xorg
            Used GPU Memory                            : 1 MiB

GPU 00000000:00:0A.0
    GPU UUID                                           : GPU-bbbb
    Processes                                          : None
"""


def read(text: str, name: str = "smi.txt") -> MemorySink:
    source = source_of(text.encode(), name)
    found = recognise(source)
    assert (found.ingestor, found.kind) == ("gpu_text", "nvidia_smi"), found
    sink = MemorySink()
    ingestor("gpu_text").read(source, sink, IngestOptions())
    return sink


def numbers(sink: MemorySink, gpu: int | None = 0) -> dict[str, Any]:
    return {
        r["counter"]: r["value"] if r["value"] is not None else r["counted"]
        for r in sink.rows("gpu_sample")
        if r["nvml_index"] == gpu
    }


def test_the_table_is_read_two_lines_a_gpu() -> None:
    sink = read(TABLE)
    mib = 2**20
    assert numbers(sink) == {
        "ecc_dbe_volatile": 2, "gpu_temperature": 41, "performance_state": 0, "power": 69,
        "power_limit": 700, "memory_used": 7 * mib, "memory_total": 81559 * mib,
        "gpu_utilisation": 0.37, "compute_processes": 0,
    }  # fmt: skip
    second = numbers(sink, 1)
    assert (second["fan_speed"], second["performance_state"], second["power"]) == (0.3, 2, 629)
    assert second["compute_processes"] == 2
    assert [(d["pci"], d["model"]) for d in sink.rows("device")] == [
        ("00000000:00:09.0", "NVIDIA H100 80GB HBM3"), ("00000000:00:0a.0", None),
    ]  # a name that is cut is no name  # fmt: skip
    assert {r["time_ns"] for r in sink.rows("gpu_sample")} == {AT_NS}
    assert sink.facts["time_basis"] == "local"
    names = [(p["name"], p["memory_bytes"]) for p in sink.rows("gpu_process")]
    assert names == [("memhog", 2566 * mib), ("gpu_burn", 15690 * mib)]


def test_tables_that_follow_each_other_have_times_of_their_own() -> None:
    sink = read(TABLE + "\n" + TABLE.replace("08:12:38", "08:12:40"))
    times = [r["time_ns"] for r in sink.rows("gpu_sample") if r["counter"] == "power"]
    assert times == [AT_NS, AT_NS, AT_NS + 2 * SECOND_NS, AT_NS + 2 * SECOND_NS]


def test_a_table_of_an_older_driver_has_no_instances() -> None:
    old = TABLE.replace("   N/A  N/A  ", "  ").replace("0W / ", "0W/ ")
    assert numbers(read(old), 1)["compute_processes"] == 2


def test_the_log_is_read_by_its_headings() -> None:
    sink = read(LOG)
    mib = 2**20
    assert numbers(sink) == {
        "pcie_generation": 4, "pcie_generation_max": 5, "pcie_width": 8, "pcie_width_max": 16,
        "pcie_replays": 9, "pcie_tx": 352e3, "clock_event.gpu_idle": 0,
        "clock_event.hw_slowdown": 1, "clock_event.hw_thermal": 1, "clock_event.hw_power_brake": 0,
        "memory_total": 81920 * mib, "memory_used": 3 * mib, "gpu_utilisation": 0.25,
        "gpu_temperature": 41, "power": 69.85, "power_limit": 400, "sm_clock": 345e6,
        "ecc_sbe_volatile": 11, "ecc_dbe_volatile": 5, "ecc_dbe_aggregate": 5,
        "compute_processes": 1,
    }  # fmt: skip
    assert {r["device_id"] for r in sink.rows("gpu_sample")} == {"GPU-aaaa", "GPU-bbbb"}
    assert numbers(sink, 1) == {"compute_processes": 0}
    text = repr([sink.rows("gpu_process"), sink.rows("device"), sink.rows("gpu_sample")])
    assert "hush" not in text
    assert [p["name"] for p in sink.rows("gpu_process")] == ["python", "Xorg"]


@pytest.mark.parametrize(
    ("average", "power", "others"), [("N/A", 1012.44, 1), ("990.1 W", 990.1, 2)]
)
def test_power_at_once_counts_where_there_is_no_average(
    average: str, power: float, others: int
) -> None:
    """As drivers of 550 to 580 print it; the module's power is not the GPU's."""
    sink = read(
        "=====NVSMI LOG=====\n\nAttached GPUs : 1\nGPU 00000008:01:00.0\n"
        f"    GPU Power Readings\n        Average Power Draw : {average}\n"
        "        Instantaneous Power Draw : 1012.44 W\n"
        "    Module Power Readings\n        Instantaneous Power Draw : 1310.73 W\n"
    )
    assert numbers(sink) == {"power": power}
    assert sink.counters["other_metric"] == others


def test_chosen_gpus_have_no_index() -> None:
    sink = read(LOG.replace("Attached GPUs                                          : 2", "Attached GPUs                                          : 8"))  # fmt: skip  # noqa: E501
    assert numbers(sink) == {}
    assert {r["device_id"] for r in sink.rows("gpu_sample")} == {"GPU-aaaa", "GPU-bbbb"}


def test_processes_that_are_not_listed_are_not_nobody() -> None:
    unknown = LOG.replace("Processes                                          : None",
                          "Processes                                          : N/A")  # fmt: skip
    assert "compute_processes" not in numbers(read(unknown), 1)


def test_rows_of_a_query_stand_among_other_outputs() -> None:
    rows = (
        "timestamp, index, uuid, power.draw [W], clocks.current.sm [MHz], memory.used [MiB]\n"
        "2026/07/14 08:12:38.500, 0, GPU-aaaa, 69.85 W, 345 MHz, 3 MiB\n"
        "2026/07/14 08:12:38.510, 1, GPU-bbbb, [N/A], 1980, 4\n"
    )
    sink = read(TABLE + "\n" + rows + "\n" + LOG)
    queried = [
        (r["nvml_index"], r["counter"], r["value"], r["time_ns"] - AT_NS)
        for r in sink.rows("gpu_sample")
        if re.fullmatch(r"nvidia-smi [\w.]+\.[\w.]+", r["original_name"])
    ]
    assert queried == [
        (0, "power", 69.85, 500_000_000),
        (0, "sm_clock", 345e6, 500_000_000),
        (0, "memory_used", 3 * 2.0**20, 500_000_000),
        (1, "sm_clock", 1980e6, 510_000_000),
        (1, "memory_used", 4 * 2.0**20, 510_000_000),
    ]


def test_a_stated_time_with_a_zone_says_the_zone_of_the_others() -> None:
    head = "collected_at:   2026-07-14T06:12:30Z\n\n"  # local times are two hours ahead
    sink = read(head + TABLE)
    assert {r["time_ns"] for r in sink.rows("gpu_sample")} == {AT_NS - 7200 * SECOND_NS}
    assert sink.facts["time_basis"] == "epoch"
    # Seven minutes off every quarter of an hour: it says nothing of the zone.
    sink = read("collected_at:   2026-07-14T06:05:30Z\n\n" + TABLE)
    assert {r["time_ns"] for r in sink.rows("gpu_sample")} == {AT_NS}
    assert sink.facts["time_basis"] == "local"


@pytest.mark.parametrize("share", [0.1, 0.35, 0.6, 0.9])
@pytest.mark.parametrize("text", [TABLE, LOG], ids=["table", "log"])
def test_what_breaks_off_keeps_what_came_before(text: str, share: float) -> None:
    whole = numbers(read(text))
    source = source_of(text[: int(len(text) * share)].encode(), "smi.txt")
    if recognise(source).ingestor is None:
        return
    sink = MemorySink()
    ingestor("gpu_text").read(source, sink, IngestOptions())
    kept = numbers(sink) or numbers(sink, None)
    assert kept.keys() - {"ecc_sbe_volatile", "ecc_dbe_volatile"} <= whole.keys()
    assert all(whole[k] == v for k, v in kept.items() if not k.startswith("ecc"))


def test_every_number_that_a_real_log_prints_is_kept_or_counted() -> None:
    """Of the shared capture, idle and under load; counted by no code of the reader's."""
    path = SHARED / "counters/nvidia_smi/linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt"
    if not path.exists():
        pytest.skip("shared/data is not here")
    text = path.read_text()
    logs = ["=" * 14 + "NVSMI LOG" + b.split("\n####")[0] for b in text.split("=NVSMI LOG")[1:]]
    assert len(logs) == 2
    for log in logs:
        sink = read(log, path.name)
        gpu = log[log.index("\nGPU ") : log.rindex("    Processes")]
        printed = len(re.findall(r" : P?-?\d+(?:\.\d+)?(?:x| ?[A-Za-z%/]{1,6})?$", gpu, re.M))
        words = len(re.findall(r" : (?:Not )?Active$", gpu, re.M))
        ecc = len(re.findall(r"[SD]RAM (?:Un)?[Cc]orrectable", gpu))
        kept = [r for r in sink.rows("gpu_sample") if r["counter"] != "compute_processes"]
        sums = [r for r in kept if r["counter"].startswith("ecc_")]
        flags = {"row_remap_pending", "row_remap_failure"}
        others = [r for r in kept if r not in sums and r["counter"] not in flags]
        # Each printed number is a row, part of one of the four sums of errors, or counted.
        assert len(sums) == 4
        not_ours = words - sum(r["counter"].startswith("clock_event.") for r in kept)
        assert len(others) - (words - not_ours) + ecc + sink.counters["other_metric"] == printed
    power = [
        r["value"]
        for r in read(text, path.name).rows("gpu_sample")
        if (r["counter"], r["original_name"]) == ("power", "nvidia-smi")
    ]
    assert power == [69.0, 629.0]
