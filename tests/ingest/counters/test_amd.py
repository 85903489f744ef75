"""rocm-smi and amd-smi, in each form that they print."""

from __future__ import annotations

import json

import pytest
from memory_sink import MemorySink, source_of
from net_cases import ingest

from tracekit.ingest import recognise

ROCM_CSV = """\
device,Temperature (Sensor edge) (C),Temperature (Sensor junction) (C),mclk clock speed:,\
sclk clock speed:,sclk clock level:,Average Graphics Package Power (W),GPU use (%)
card0,45.0,71.0,(1300Mhz),(2071Mhz),1,702.0,97
card1,44.0,101.0,(1300Mhz),(1202Mhz),1,410.0,98
"""
ROCM_JSON = json.dumps(
    {
        f"card{g}": {
            "Temperature (Sensor junction) (C)": f"{t}.0", "sclk clock speed:": f"({c}Mhz)",
            "mclk clock speed:": "(1300Mhz)", "GPU use (%)": f"{u}",
            "Current Socket Graphics Package Power (W)": f"{w}.0",
        }
        for g, t, c, u, w in ((0, 71, 2071, 97, 702), (1, 101, 1202, 98, 410))
    } | {"system": {"Driver version": "6.7.0"}}
)  # fmt: skip
ROCM_TABLE = """\
======================== ROCm System Management Interface ========================
================================== Concise Info ==================================
Device  Node  IDs              Temp        Power     Partitions          SCLK     MCLK     Fan  \
Perf  PwrCap  VRAM%  GPU%
==================================================================================
0       2     0x74a1,   28851  71.0°C      702.0W    NPS1, SPX, 0        2071Mhz  1300Mhz  0%   \
auto  750.0W  84%    97%
1       3     0x74a1,   51499  101.0°C     410.0W    NPS1, SPX, 0        1202Mhz  1300Mhz  0%   \
auto  750.0W  84%    98%
============================ End of ROCm SMI Log =================================
"""


def metric(gpu: int, heat: int, clock: int, used: int, watts: int) -> dict[str, object]:
    def of(value: float, unit: str) -> dict[str, object]:
        return {"value": value, "unit": unit}

    return {
        "gpu": gpu,
        "usage": {"gfx_activity": of(used, "%"), "mm_activity": "N/A"},
        "power": {"socket_power": of(watts, "W"), "throttle_status": "THROTTLED"},
        "clock": {"gfx_0": {"clk": of(clock, "MHz"), "max_clk": of(2100, "MHz")},
                  "mem_0": {"clk": of(1300, "MHz")}},
        "temperature": {"edge": "N/A", "hotspot": of(heat, "C")},
    }  # fmt: skip


SMI = [metric(0, 71, 2071, 97, 702), metric(1, 101, 1202, 98, 410)]
SMI_TEXT = "\n".join(
    f"GPU: {g}\n    USAGE:\n        GFX_ACTIVITY: {u} %\n        MM_ACTIVITY: N/A\n    POWER:\n"
    f"        SOCKET_POWER: {w} W\n        THROTTLE_STATUS: THROTTLED\n    CLOCK:\n"
    f"        GFX_0:\n            CLK: {c} MHz\n        MEM_0:\n            CLK: 1300 MHz\n"
    f"    TEMPERATURE:\n        EDGE: N/A\n        HOTSPOT: {t} °C\n"
    for g, t, c, u, w in ((0, 71, 2071, 97, 702), (1, 101, 1202, 98, 410))
)
MONITOR = """\
GPU  POWER   GPU_T   MEM_CLOCK   GFX_CLK   GFX%   ENC%      VRAM_USAGE
  0  702 W   71 °C    1300 MHz  2071 MHz   97 %    N/A  166.3/192.0 GB
  1  410 W  101 °C    1300 MHz  1202 MHz   98 %    N/A  166.3/192.0 GB
"""
ROWS = {
    (gpu, counter, value)
    for gpu, values in enumerate(((71.0, 2071e6, 0.97, 702.0), (101.0, 1202e6, 0.98, 410.0)))
    for counter, value in zip(
        ("gpu_temperature", "sm_clock", "gpu_utilisation", "power"), values, strict=True
    )
} | {(gpu, "memory_clock", 1300e6) for gpu in (0, 1)}
FORMS = {
    "rocm.csv": ROCM_CSV, "rocm.json": ROCM_JSON, "rocm.txt": ROCM_TABLE,
    "amd.json": json.dumps(SMI, indent=4), "amd7.json": json.dumps({"gpu_data": SMI}),
    "amd.txt": SMI_TEXT, "monitor.txt": MONITOR,
}  # fmt: skip


def rows(sink: MemorySink) -> set[tuple[int, str, float]]:
    return {
        (r["nvml_index"], r["counter"], round(r["value"], 6)) for r in sink.rows("gpu_sample")
        if r["value"] is not None
    }  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_each_form_says_the_same(name: str) -> None:
    source = source_of(FORMS[name].encode(), f"node7-{name}")
    found = recognise(source)
    assert (found.ingestor, found.status) == ("amd", "ok")
    sink = ingest(source, "amd")
    assert rows(sink) >= ROWS
    assert {r["node"] for r in sink.rows("gpu_sample")} == {"node7"}
    assert sink.counters["parsed_from_documentation"] == 1


def test_memory_bus_and_errors_of_amd_smi() -> None:
    more = {"pcie": {"width": 8, "speed": {"value": 16, "unit": "GT/s"}, "replay_count": 44},
            "ecc": {"total_correctable_count": 90, "total_uncorrectable_count": 1},
            "energy": {"total_energy_consumption": {"value": 13405523.207, "unit": "J"}},
            "mem_usage": {"used_vram": {"value": 170333, "unit": "MB"}}}  # fmt: skip
    sink = ingest(source_of(json.dumps([metric(0, 1, 2, 3, 4) | more]).encode(), "x.json"), "amd")
    said = {r["counter"]: r["value"] if r["counted"] is None else r["counted"]
            for r in sink.rows("gpu_sample")}  # fmt: skip
    assert said["pcie_width"] == 8 and said["pcie_generation"] == 4 and said["pcie_replays"] == 44
    assert said["ecc_sbe_volatile"] == 90 and said["ecc_dbe_volatile"] == 1
    assert said["energy"] == 13405523207 and said["memory_used"] == 170333 * 1048576


def test_readings_after_each_other_have_the_times_between_them_or_none() -> None:
    stamped = f"2026-07-14T08:12:38Z\n{MONITOR}2026-07-14T08:12:48Z\n{MONITOR}"
    found = ingest(source_of(stamped.encode(), "x.txt"), "amd").rows("gpu_sample", "time_ns")
    assert set(found) == {1784016758 * 10**9, 1784016768 * 10**9}
    sink = ingest(source_of((MONITOR + MONITOR).encode(), "x.txt"), "amd")
    assert set(sink.rows("gpu_sample", "time_ns")) == {None} and sink.counters["no_time"] == 1


def test_a_loop_of_ones_own_puts_a_time_before_each_row_of_rocm_smi() -> None:
    header, *cards = ROCM_CSV.splitlines()
    lines = [f"timestamp,{header}"] + [
        f"{at},{c}" for at in (1784016758, 1784016768) for c in cards
    ]
    text = "\n".join(lines) + "\n"
    source = source_of(text.encode(), "x.csv")
    assert recognise(source).ingestor == "amd"
    sink = ingest(source, "amd")
    assert rows(sink) >= ROWS and "bad_record" not in sink.counters
    assert set(sink.rows("gpu_sample", "time_ns")) == {1784016758 * 10**9, 1784016768 * 10**9}
    damaged = source_of(text.replace("1784016768,card1", "soon,card1").encode(), "x.csv")
    assert ingest(damaged, "amd").counters["bad_record"] == 1


def test_what_breaks_off_is_partial_and_words_are_no_numbers() -> None:
    sink = ingest(source_of(ROCM_CSV[:-9].encode(), "x.csv"), "amd")
    assert sink.facts["status"] == "partial" and len(rows(sink)) == 5
    sink = ingest(source_of(ROCM_CSV.replace("702.0", "hot").encode(), "x.csv"), "amd")
    assert (0, "power", 702.0) not in rows(sink)


@pytest.mark.parametrize(
    "text", ['{"card0": {"name": "x"}}', "device,value\ncard0,3\n", "GPU: 0\n"]
)
def test_other_texts_are_not_taken(text: str) -> None:
    assert recognise(source_of(text.encode(), "x.txt")).ingestor != "amd"


def test_a_row_of_the_monitor_that_lost_its_gpu_is_a_bad_record() -> None:
    text = MONITOR.replace("  1  410 W", "  9 W  410 W")
    sink = ingest(source_of(text.encode(), "x.txt"), "amd")
    assert sink.counters["bad_record"] == 1
    assert {r["nvml_index"] for r in sink.rows("gpu_sample")} == {0}
