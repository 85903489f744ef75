"""Sensors as Redfish answers them: Thermal, Power, Sensors, MetricReports."""

from __future__ import annotations

import json
from typing import Any

import pytest
from memory_sink import MemorySink, source_of
from net_cases import ingest

from tracekit.ingest import recognise

OK = {"Status": {"State": "Enabled", "Health": "OK"}}
THERMAL = {
    "@odata.type": "#Thermal.v1_7_0.Thermal",
    "Temperatures": [
        {"MemberId": "0", "Name": "Inlet Temp", "ReadingCelsius": 24, **OK},
        {"MemberId": "1", "Name": "CPU2 Temp", "ReadingCelsius": 58.5, **OK},
        {"MemberId": "2", "Name": "TEMP_GPU_GB_1", "ReadingCelsius": 66, **OK},
        {"MemberId": "3", "Name": "PCH Temp", "ReadingCelsius": None},
    ],
    "Fans": [
        {"MemberId": "0", "Name": "FAN1", "Reading": 8400, "ReadingUnits": "RPM", **OK},
        {"MemberId": "1", "Name": "Fan Tray 3", "Reading": 50, "ReadingUnits": "Percent",
         "Status": {"Health": "Warning"}},
    ],
}  # fmt: skip
POWER = {
    "@odata.type": "#Power.v1_7_1.Power",
    "PowerControl": [{"Name": "Chassis Power Control", "PowerConsumedWatts": 6123,
                      "PowerMetrics": {"AverageConsumedWatts": 6010}}],
    "PowerSupplies": [{"MemberId": "0", "Name": "PSU0", "PowerInputWatts": 1043.5,
                       "PowerOutputWatts": 998, **OK},
                      {"MemberId": "1", "Name": "PSU1", "PowerOutputWatts": 0,
                       "Status": {"Health": "Critical"}}],
    "Voltages": [{"Name": "P12V", "ReadingVolts": 12.1}],
}  # fmt: skip


def sensor(name: str, number: float, type_: str, units: str) -> dict[str, Any]:
    about = {"@odata.type": "#Sensor.v1_7_0.Sensor", "ReadingTime": "2026-07-14T08:12:38+00:00"}
    return about | {"Name": name, "Reading": number, "ReadingType": type_, "ReadingUnits": units}


SENSORS = {"Members": [
    sensor("HGX GPU SXM 1 Power 0", 688.125, "Power", "W"),
    sensor("HGX GPU SXM 1 Energy 0", 192030945.5, "EnergyJoules", "J"),
    sensor("HGX GPU SXM 1 DRAM 0 Temp 0", 80, "Temperature", "Cel"),
    sensor("PSU3 Input Power", 1011, "Power", "W"),
]}  # fmt: skip


def metric(name: str, number: str, **more: object) -> dict[str, Any]:
    return {"MetricId": name, "MetricValue": number, "Timestamp": "2026-07-14T03:12:38-05:00",
            **more}  # fmt: skip


REPORT = {"@odata.type": "#MetricReport.v1_4_2.MetricReport", "MetricValues": [
    metric("x", "57.25", MetricProperty="/redfish/v1/Chassis/C/Sensors/HGX_GPU_SXM_2_TEMP_0"),
    metric("Fan_3_Speed", "8400", MetricProperty="/redfish/v1/Chassis/C/Sensors/FAN3_RPM"),
    metric("SystemPowerConsumption", "6050", Oem={"Dell": {"FQDD": "System.Embedded.1"}}),
    metric("LinkUtilisation", "3"),
]}  # fmt: skip
TIME_NS = 1784016758 * 10**9


def read(document: object) -> MemorySink:
    source = source_of(json.dumps(document, indent=1).encode(), "node7-bmc.json")
    found = recognise(source)
    assert (found.ingestor, found.status) == ("redfish", "ok")
    return ingest(source, "redfish")


@pytest.mark.parametrize(
    ("document", "rows", "others"),
    [
        (THERMAL, {(None, "inlet_temperature", 24.0), ("cpu2", "cpu_temperature", 58.5),
                   ("GPU_GB_1", "board_gpu_temperature", 66.0), ("fan1", "fan_rotation", 8400.0),
                   ("fan1", "fan_ok", 1.0), ("fan3", "fan_speed", 0.5), ("fan3", "fan_ok", 0.0)},
         0),
        (POWER, {(None, "system_power", 6123.0), ("psu0", "psu_power", 1043.5),
                 ("psu0", "psu_ok", 1.0), ("psu1", "psu_power", 0.0), ("psu1", "psu_ok", 0.0)}, 0),
        (SENSORS, {("GPU_SXM_1", "board_gpu_power", 688.125), ("psu3", "psu_power", 1011.0),
                   ("GPU_SXM_1", "board_gpu_energy", None)}, 1),
        (REPORT, {("GPU_SXM_2", "board_gpu_temperature", 57.25), ("fan3", "fan_rotation", 8400.0),
                  (None, "system_power", 6050.0)}, 1),
    ],
)  # fmt: skip
def test_each_resource(document: object, rows: set[tuple[object, ...]], others: int) -> None:
    sink = read(document)
    found = sink.rows("host_sample")
    assert {(r["device"], r["counter"], r["value"]) for r in found} == rows
    assert sink.counters.get("other_metric", 0) == others
    assert not sink.rows("gpu_sample")
    assert sink.facts["host_name"] == "node7"


def test_times_are_those_of_the_readings() -> None:
    assert {r["time_ns"] for r in read(SENSORS).rows("host_sample")} == {TIME_NS}
    assert {r["time_ns"] for r in read(REPORT).rows("host_sample")} == {TIME_NS}
    energy = next(r for r in read(SENSORS).rows("host_sample") if r["unit"] == "mJ")
    assert energy["counted"] == 192030945500


@pytest.mark.parametrize("text", ['{"Reading": 3, "Name": "x"}', '{"MetricValue": "3"}', "[]"])
def test_other_json_is_not_taken(text: str) -> None:
    assert recognise(source_of(text.encode(), "x.json")).ingestor != "redfish"


def test_a_number_that_is_none_and_a_broken_file() -> None:
    sensors = {"Members": [sensor("CPU1 Temp", 61, "Temperature", "Cel")] * 2}
    text = json.dumps(sensors).replace("61", '"hot"', 1)
    sink = ingest(source_of(text.encode(), "x.json"), "redfish")
    assert [r["value"] for r in sink.rows("host_sample")] == [61.0]
    sink = ingest(source_of(text[:-40].encode(), "x.json"), "redfish")
    assert sink.facts["status"] == "partial"
