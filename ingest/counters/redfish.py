"""Sensors of a machine's controller in JSON, as Redfish answers them (DMTF DSP0268).

Read are ``Thermal``, ``Power``, sensors and collections of them, and metric reports of the
TelemetryService, alone or in a list, a line each, or below one another as ``$expand`` nests them.
Each sensor is a name, a number and a unit; ``sensors`` says what it measures. A report states no
units: a sensor's name ends with what it is (``_TEMP_0``, ``_Power_0``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.documents import dict_of, dicts_of, text_of
from tracekit.ingest.counters.host_samples import HostSamples
from tracekit.ingest.counters.host_words import HOST
from tracekit.ingest.counters.net_samples import decimal
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.sensors import sensor_of
from tracekit.ingest.counters.status import Reading

NAME = "redfish"

_HEAD = re.compile(
    rb'"(?:ReadingCelsius|PowerConsumedWatts|PowerInputWatts|MetricValue|ReadingUnits|ReadingType)"'
    rb"\s*:"
)
_ABOUT = re.compile(
    rb'"@odata\.(?:type|id)"|"MemberId"|"MetricProperty"|"MetricId"|"PhysicalContext"'
)
_UNITS = {
    "cel": "C", "celsius": "C", "degrees celsius": "C", "w": "W", "watts": "W", "rpm": "rpm",
    "{rev}/min": "rpm", "percent": "%", "%": "%", "j": "J",
}  # fmt: skip
_TYPES = {"temperature": "C", "power": "W", "rotational": "rpm", "energyjoules": "J"}
_OF_NAME = (
    (re.compile(r"(?i)(?<!sys)temp"), "C"),
    (re.compile(r"(?i)energy"), "J"),
    (re.compile(r"(?i)power(?!factor)"), "W"),
    (re.compile(r"(?i)rpm|fan.{0,20}speed"), "rpm"),
)
"""How a metric report says a unit, by the name of its metric."""
_SYSTEM = re.compile(
    r"(?i)(?:system|chassis|server|node|total)[ _]*(?:board[ _]*)?(?:total[ _]*)?"
    r"(?:pwr|power)(?:[ _]*(?:consumption|control|input|in))?(?:[ _]*\d)?|power[ _]*control"
)
"""A sensor of the whole machine's power."""
_PLACE = re.compile(r"(?i)(?:^|[ _])(inlet|intake|ambient|outlet|exhaust)(?:[ _]|$)")
_MAX_DEPTH = 12


class _Number(NamedTuple):
    name: str
    number: object
    unit: str | None
    time: str | None
    health: str | None = None


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise what Redfish calls its readings, beside what it says about them."""
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in (b"{", b"["):
        return None
    if _HEAD.search(head) is None or _ABOUT.search(head) is None:
        return None
    return Recognition(NAME, "sensors of a machine (Redfish)", NAME)


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the answers into host_sample."""
    with source.open() as stream:
        reading = Reading(sink, stream, None, "line")
        samples = HostSamples(sink, source)
        others = 0
        for document in reading.documents():
            reading.good()
            for number in _numbers(document.value, None, _MAX_DEPTH):
                moment = times.parse(number.time) if number.time else document.stamp_ns
                samples.at(moment if isinstance(moment, int) else None)
                others += not _put(samples, document.line, number)
        if others:
            count_other_metrics(sink, others)
        reading.from_documentation("The answers of Redfish")
        reading.answer = None if samples.rows_count else "it holds no sensor that is read"
        reading.finish(samples, streams.stream_problem(stream))


def _put(samples: HostSamples, place: int, number: _Number) -> bool:
    """One reading; False where nothing here means it."""
    if number.unit is None:
        return False
    said = _said(number)
    if said is None:
        return False
    device, meaning = said
    printed = number.number
    if meaning.kind == "cumulative" and (counted := decimal(printed)) is not None:
        printed, meaning = round(counted * meaning.scale), meaning._replace(scale=1)  # 45.5 J
    samples.sample(place, meaning, printed, original=number.name[:80], cgroup=None, device=device)
    if number.health is not None and device is not None and device[:3] in ("psu", "fan"):
        samples.sample(
            place, HOST.meaning(f"{device[:3]}_ok"), int(number.health == "OK"),
            original=f"{number.name[:70]} Health", cgroup=None, device=device,
        )  # fmt: skip
    return True


def _said(number: _Number) -> tuple[str | None, Any] | None:
    unit = number.unit or ""
    if unit == "W" and _SYSTEM.fullmatch(number.name):
        return None, HOST.meaning("system_power")
    place = _PLACE.search(number.name) if unit == "C" else None
    if place is not None and "gpu" not in number.name.lower():
        is_inlet = place[1].lower() in ("inlet", "intake", "ambient")
        return None, HOST.meaning("inlet_temperature" if is_inlet else "outlet_temperature")
    plain = re.sub(r"(?i)[ _]?(?:tray|module|sensor)[ _]?(?=\d)|[ _]rpm$", "", number.name)
    found = sensor_of(plain.replace("_", " ")[:100], unit)
    return (found.device, found.meaning) if found is not None else None


def _numbers(value: Any, time: str | None, depth: int) -> Iterator[_Number]:
    """What is measured within a value, at any depth."""
    if depth <= 0:
        return
    if isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, time, depth - 1)
        return
    if not isinstance(value, dict):
        return
    time = text_of(value.get("Timestamp")) or text_of(value.get("ReadingTime")) or time
    if "MetricValue" in value and ("MetricProperty" in value or "MetricId" in value):
        yield _of_report(value, time)
        return
    name = text_of(value.get("Name")) or text_of(value.get("FanName")) or ""
    name = name or text_of(value.get("Id")) or ""
    health = text_of(dict_of(value.get("Status")).get("Health"))
    for key, unit in (("ReadingCelsius", "C"), ("PowerConsumedWatts", "W"),
                      ("PowerInputWatts", "W"), ("Reading", _unit(value))):  # fmt: skip
        if name and decimal(value.get(key)) is not None:
            label = f"{name} input power" if key == "PowerInputWatts" else name
            yield _Number(label, value[key], unit, time, health)
            break
    else:
        if name and "PowerSupplies" not in value:
            for key in ("PowerOutputWatts", "LastPowerOutputWatts"):
                if decimal(value.get(key)) is not None:
                    yield _Number(f"{name} power", value[key], "W", time, health)
                    break
    for inner in value.values():
        if isinstance(inner, dict | list):
            yield from _numbers(inner, time, depth - 1)


def _of_report(value: dict[str, Any], time: str | None) -> _Number:
    """A number of a metric report, named by the sensor that its property leads to."""
    path = text_of(value.get("MetricProperty")) or ""
    name = path.partition("#")[0].rstrip("/").rpartition("/Sensors/")[2]
    name = name if path and "/" not in name and name else text_of(value.get("MetricId")) or path
    within = dicts_of(list(dict_of(value.get("Oem")).values()))
    part = next((p for o in within if (p := text_of(o.get("FQDD")))), None)
    if part is not None and not part.startswith("System."):
        name = f"{part.partition('.')[0]}{part[-1]} {name}" if part[-1].isdigit() else name
    unit = next((unit for pattern, unit in _OF_NAME if pattern.search(name)), None)
    return _Number(name.removesuffix("_0"), value["MetricValue"], unit, time)


def _unit(value: dict[str, Any]) -> str | None:
    """What a sensor's reading is in."""
    said = text_of(value.get("ReadingUnits"))
    if said is not None:
        return _UNITS.get(said.lower())
    return _TYPES.get((text_of(value.get("ReadingType")) or "").lower())
