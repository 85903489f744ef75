"""The state of an InfiniBand switch, in both of ibswinfo's outputs, as documented."""

from __future__ import annotations

from typing import Any

from memory_sink import MemorySink, source_of

from tracekit.ingest import ingestor, recognise
from tracekit.ingest.base import IngestOptions

INVENTORY = """\
=================================================
Quantum-2 Mellanox Technologies
=================================================
part number        | MQM9700-NS2F
serial number      | MT0
product name       | Gorilla 64P Q2
ports              | 64
PSID               | MT_0000000611
GUID               | 0xb0cf0e0300d6a000
firmware version   | 31.2010.1202
-------------------------------------------------
uptime (d-h:m:s)   | 14d-03:05:12
-------------------------------------------------
PSU0 status        | OK
     P/N           | MTEF-PSF-AC-M
     DC power      | OK
     fan status    | OK
     power (W)     | 412
PSU1 status        | ERROR
     DC power      | OK
     fan status    | ERROR
     power (W)     |
-------------------------------------------------
temperature (C)    | 52
max temp (C)       | 64
-------------------------------------------------
fan status         | OK
fan#1 (rpm)        | 6355
fan#2 (rpm)        | 5440
"""
VITALS = """\
uptime (sec)       | 1210100
psu0.power (W)     | 144
cur.temp (C)       | 44
max.temp (C)       | 48
fan#1.speed (rpm)  | 5959
"""


def read(text: str, name: str = "leaf01.txt") -> MemorySink:
    source = source_of(text.encode(), name)
    assert recognise(source).ingestor == "ibswinfo", recognise(source)
    sink = MemorySink()
    ingestor("ibswinfo").read(source, sink, IngestOptions())
    return sink


def numbers(sink: MemorySink) -> list[tuple[str, str | None, Any]]:
    return [(r["counter"], r["device"], r["value"]) for r in sink.rows("host_sample")]


def test_power_supplies_fans_and_temperature_of_the_inventory() -> None:
    sink = read(INVENTORY)
    assert numbers(sink) == [
        ("psu_ok", "psu0", 1), ("fan_ok", "psu0", 1), ("psu_power", "psu0", 412),
        ("psu_ok", "psu1", 0), ("fan_ok", "psu1", 0), ("switch_temperature", None, 52),
        ("fan_ok", None, 1), ("fan_rotation", "fan1", 6355), ("fan_rotation", "fan2", 5440),
    ]  # fmt: skip
    # Ports of the switch and its highest temperature are no counters; psu1 says no power.
    assert (sink.counters["other_metric"], sink.counters["no_value"]) == (2, 1)
    assert sink.counters["parsed_from_documentation"] == 1
    assert sink.rows("fabric_link") == []


def test_the_same_in_vitals() -> None:
    assert numbers(read(VITALS)) == [
        ("psu_power", "psu0", 144), ("switch_temperature", None, 44),
        ("fan_rotation", "fan1", 5959),
    ]  # fmt: skip


def test_a_switch_is_named_and_is_no_host_of_the_job() -> None:
    sink = read(INVENTORY, "ibswinfo.out")
    assert {r["node"] for r in sink.rows("host_sample")} == {"0xb0cf0e0300d6a000"}
    assert "host_name" not in sink.facts


def test_a_word_that_nobody_knows_is_no_number() -> None:
    sink = read(INVENTORY.replace("PSU0 status        | OK", "PSU0 status        | ABSENT"))
    assert ("psu_ok", "psu0", 1) not in numbers(sink)
    assert sink.counters["no_value"] + sink.counters.get("bad_number", 0) == 2


def test_what_only_looks_like_it_is_another_file() -> None:
    assert recognise(source_of(b"part number | MQM\nserial number | 1\n", "a.txt")).ingestor is None
    assert recognise(source_of(b"fan#1 (rpm)  | 5959\n", "a.txt")).ingestor is None
