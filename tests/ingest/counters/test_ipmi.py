"""Sensors as ipmitool prints them."""

from __future__ import annotations

import pytest
from memory_sink import source_of
from net_cases import ingest

from tracekit.ingest import recognise

SENSOR = """\
Inlet Temp       | 23.000     | degrees C  | ok    | na        | 3.000     | 5.000     | 38.000
PSU1 Power In    | 1210.000   | Watts      | ok    | na        | na        | na        | na
FAN_1            | 8400.000   | RPM        | ok    | 1000.000  | na        | na        | na
GPU0 Temp        | 55.000     | degrees C  | ok    | na        | na        | na        | 85.000
Sys Power        | 5300.000   | Watts      | ok    | na        | na        | na        | na
P12V             | 12.100     | Volts      | ok    | na        | na        | na        | na
Watchdog2        | 0x0        | discrete   | 0x0080| na        | na        | na        | na
CPU0 Temp        | na         | degrees C  | na    | na        | na        | na        | na
"""
SDR = """\
2026-07-14T08:12:38Z
Inlet Temp       | 23 degrees C      | ok
PSU1 Power In    | 1210 Watts        | ok
FAN_1            | 8400 RPM          | ok
Sys Power        | 5300 Watts        | ok
SEL              | Not Readable      | ns
2026-07-14T08:12:48Z
FAN_1            | 8500 RPM          | ok
"""
CSV = """\
Inlet Temp,23,degrees C,ok
PSU1 Power In,1210,Watts,ok
FAN_1,8400,RPM,ok
Sys Power,5300,Watts,ok
SEL,,,ns
"""
ROWS = {
    (None, "inlet_temperature", 23.0), ("psu1", "psu_power", 1210.0),
    ("fan1", "fan_rotation", 8400.0), (None, "system_power", 5300.0),
}  # fmt: skip


@pytest.mark.parametrize("text", [SENSOR, SDR, CSV])
def test_each_form_is_the_same_sensors(text: str) -> None:
    found = recognise(source_of(text.encode(), "node7-bmc.txt"))
    assert (found.ingestor, found.status) == ("ipmi", "ok")
    sink = ingest(text, "ipmi", "node7-bmc.txt")
    rows = sink.rows("host_sample")
    assert {(r["device"], r["counter"], r["value"]) for r in rows} >= ROWS
    assert sink.facts["status"] == "ok"
    assert not sink.rows("gpu_sample")


def test_readings_have_the_times_that_stand_between_them() -> None:
    rows = ingest(SDR, "ipmi", "node7-bmc.txt").rows("host_sample")
    fans = [(r["time_ns"] // 10**9, r["value"]) for r in rows if r["device"] == "fan1"]
    assert fans == [(1784016758, 8400.0), (1784016768, 8500.0)]


def test_voltages_are_counted_and_gpus_stay_the_boards_own() -> None:
    sink = ingest(SENSOR, "ipmi", "node7-bmc.txt")
    rows = sink.rows("host_sample", "device", "counter", "value")
    assert len(rows) == 5 and ("GPU0", "board_gpu_temperature", 55.0) in rows
    assert sink.counters["other_metric"] == 2


@pytest.mark.parametrize(
    "text",
    [
        "Inlet Temp | 23 degrees C | ok\n",
        "a | b | c\nd | e | f\n",
        "power,5,Watts\ntemp,6,Watts\nfan,7,RPM\n",
        "GPU0 GPU1 NIC0\nGPU0 X NV18 SYS\nGPU1 NV18 X SYS\n",
    ],
)
def test_what_is_no_list_of_sensors_is_none(text: str) -> None:
    assert recognise(source_of(text.encode(), "x.txt")).ingestor != "ipmi"
