"""SMART logs of NVMe disks: made files, after the programs' own documentation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from memory_sink import MemorySink
from net_cases import ingest

SECOND = 10**9

LOG: dict[str, Any] = {
    "critical_warning": 0, "temperature": 318, "avail_spare": 97, "spare_thresh": 10,
    "percent_used": 103, "endurance_grp_critical_warning_summary": 0,
    "data_units_read": 2_000_000, "data_units_written": "3000000",
    "host_read_commands": 7_000, "host_write_commands": 9_000, "controller_busy_time": 11,
    "power_cycles": 12, "power_on_hours": 13, "unsafe_shutdowns": 14, "media_errors": 2,
    "num_err_log_entries": 5, "warning_temp_time": 3, "critical_comp_time": 1,
    "temperature_sensor_1": 319, "thm_temp1_trans_count": 4, "thm_temp2_trans_count": 5,
    "thm_temp1_total_time": 60, "thm_temp2_total_time": 7,
}  # fmt: skip
SMARTCTL: dict[str, Any] = {
    "json_format_version": [1, 0],
    "smartctl": {"version": [7, 3], "argv": ["smartctl", "-j", "-a", "/dev/nvme1"],
                 "exit_status": 0},
    "local_time": {"time_t": 1_763_884_860, "asctime": "Sun Nov 23 08:01:00 2025 UTC"},
    "device": {"name": "/dev/nvme1", "info_name": "/dev/nvme1", "type": "nvme",
               "protocol": "NVMe"},
    "serial_number": "S3CR3T", "model_name": "a disk",
    "nvme_smart_health_information_log": {
        "critical_warning": 0, "temperature": 45, "available_spare": 100,
        "available_spare_threshold": 10, "percentage_used": 1, "data_units_read": 5,
        "data_units_written": 6, "host_reads": 70, "host_writes": 80, "controller_busy_time": 2,
        "power_cycles": 1, "power_on_hours": 1, "unsafe_shutdowns": 0, "media_errors": 0,
        "num_err_log_entries": 0, "warning_temp_time": 0, "critical_comp_time": 0,
        "temperature_sensors": [45, 51],
    },
}  # fmt: skip


def rows(sink: MemorySink) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sink.table("storage_sample").to_pylist()
    return found


def numbers(sink: MemorySink) -> dict[str, object]:
    return {r["counter"]: r["counted"] if r["value"] is None else r["value"] for r in rows(sink)}


def test_a_log_of_nvme_cli_is_of_the_disk_that_the_file_names() -> None:
    text = f"2025-11-23T08:00:00Z\n{json.dumps(LOG, indent=2)}\n"
    sink = ingest(text, "nvme", "host01-nvme0.json")
    assert numbers(sink) == {
        "temperature": 45.0, "spare": pytest.approx(0.97), "wear": pytest.approx(1.03),
        "read_bytes": 2_000_000 * 512_000, "write_bytes": 3_000_000 * 512_000,
        "read_commands": 7_000, "write_commands": 9_000, "controller_busy_time": 660 * SECOND,
        "media_errors": 2, "logged_errors": 5, "hot_time": 180 * SECOND,
        "too_hot_time": 60 * SECOND, "light_throttled_time": 60 * SECOND,
        "heavy_throttled_time": 7 * SECOND,
    }  # fmt: skip
    assert {(r["device"], r["time_ns"]) for r in rows(sink)} == {("nvme0", 1_763_884_800 * SECOND)}
    assert sink.facts["host_name"] == "host01"
    assert sink.counters["other_metric"] == 9


def test_smartctl_says_its_disk_and_its_time() -> None:
    sink = ingest(json.dumps(SMARTCTL), "nvme", "disk.json")
    assert {(r["device"], r["time_ns"]) for r in rows(sink)} == {("nvme1", 1_763_884_860 * SECOND)}
    said = numbers(sink)
    assert (said["temperature"], said["wear"]) == (45.0, pytest.approx(0.01))
    assert (said["read_commands"], said["write_bytes"]) == (70, 6 * 512_000)
    assert "S3CR3T" not in repr((rows(sink), sink.facts))


def test_several_readings_of_one_disk_are_one_series() -> None:
    later = {**LOG, "data_units_read": 2_000_010}
    texts = [f"2025-11-23T08:0{i}:00Z\n{json.dumps(d)}\n" for i, d in enumerate((LOG, later))]
    sink = ingest("".join(texts), "nvme", "host01-nvme0.json")
    read = [r for r in rows(sink) if r["counter"] == "read_bytes"]
    assert [(r["place"], r["counted"] - read[0]["counted"]) for r in read] == [
        (2, 0), (4, 10 * 512_000)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "log",
    [
        {**LOG, "temperature": "hot", "data_units_read": 10**30, "media_errors": None},
        {**LOG, "temperature": True, "data_units_read": [1], "media_errors": -1},
    ],
)
def test_numbers_that_are_none_cost_themselves(log: dict[str, Any]) -> None:
    said = numbers(ingest(json.dumps(log), "nvme", "nvme0.json"))
    assert not said.keys() & {"temperature", "read_bytes", "media_errors"}
    assert said["write_commands"] == 9_000


def test_a_disk_that_is_no_nvme_and_a_broken_document_are_bad_records() -> None:
    other = {"smartctl": {"version": [7, 3]}, "device": {"protocol": "NVMe"}}
    sink = ingest(f'{json.dumps(other)}\n{json.dumps(LOG)}\n{{"percent_used": \n', "nvme")
    assert sink.counters["bad_record"] == 2
    assert (sink.facts["status"], numbers(sink)["media_errors"]) == ("partial", 2)
