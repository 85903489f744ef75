"""Sensors of a machine's controller, as ipmitool prints them: ``sensor``, ``sdr`` and ``-c sdr``.

A sensor is a name, a reading and a unit; ``sensors`` says what it measures.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.host_samples import HostSamples
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.sensors import sensor_of
from tracekit.ingest.counters.status import Reading, by_lines
from tracekit.ingest.lines import Line

NAME = "ipmi"

_UNITS = {"degrees C": "C", "Watts": "W", "RPM": "rpm", "percent": "%"}
_OTHERS = frozenset(("Volts", "Amps", "Joules", "discrete", "CFM"))
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,9})?")
_HEX = re.compile(r"0x[0-9a-f]{1,8}")
_STATUS = re.compile(r"ok|ns|nc|cr|nr|na|lnc|lcr|lnr|unc|ucr|unr|0x[0-9a-f]{2,8}")
MAX_NAME = 60
MAX_LINE = 400
MIN_SENSORS = 3
"""Lines of sensors with a number from which a text is surely one."""


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise a list of sensors by several of them."""
    if b"degrees C" not in head and b"Watts" not in head and b"RPM" not in head:
        return None
    found = (_sensor(line) for line in head.decode("utf-8", "replace").splitlines())
    sure = [s for s in found if s is not None and _NUMBER.fullmatch(s.value or "") and s.unit]
    if len(sure) < MIN_SENSORS:
        return None
    return Recognition(NAME, "sensors of a machine (ipmitool)", NAME)


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the lines into host_sample."""
    with by_lines(source, sink, lambda reading: _Parser(HostSamples(sink, source), reading)) as (
        parser,
        reading,
    ):
        if parser.others:
            count_other_metrics(sink, parser.others)
        reading.from_documentation("The output of ipmitool")


class _Sensor(NamedTuple):
    name: str
    value: str | None
    unit: str | None


class _Parser:
    def __init__(self, samples: HostSamples, reading: Reading) -> None:
        self.samples = samples
        self.others = 0
        """Numbers of sensors that are no counter here: voltages."""
        self._reading = reading

    def line(self, line: Line) -> None:
        text = line.text.rstrip()
        moment = times.of_line(text)
        if moment is not None:
            self.samples.at(moment)
            return
        sensor = _sensor(text)
        if sensor is None:
            return
        self._reading.good()
        if not sensor.value or not sensor.unit or sensor.value == "na":
            return
        unit = _UNITS.get(sensor.unit)
        found = sensor_of(sensor.name, unit) if unit is not None else None
        if found is None:
            self.others += 1
            return
        self.samples.sample(
            line.number, found.meaning, sensor.value, original=sensor.name[:80], cgroup=None,
            device=found.device,
        )  # fmt: skip


def _sensor(text: str) -> _Sensor | None:
    """A line of ``sensor``, of ``sdr`` or of ``-c sdr``; None where it is none."""
    if len(text) > MAX_LINE:
        return None
    is_table = "|" in text
    cells = [cell.strip() for cell in text.split("|" if is_table else ",")]
    name = cells[0]
    if len(cells) < 3 or not name[:1].isascii() or not name[:1].isalnum() or len(name) > MAX_NAME:
        return None
    if is_table and (len(cells) == 3 or not _is_unit(cells[2])):
        value, _, unit = cells[1].partition(" ")
        is_read = _NUMBER.fullmatch(value) is not None and _is_unit(unit)
        is_told = _STATUS.fullmatch(cells[2]) is not None
        return _Sensor(name, *((value, unit) if is_read else (None, None))) if is_told else None
    if len(cells) < 4 or _STATUS.fullmatch(cells[3]) is None:
        return None
    value, unit = cells[1], cells[2]
    is_known = not value or value == "na" or _NUMBER.fullmatch(value) or _HEX.fullmatch(value)
    return _Sensor(name, value, unit) if is_known and (not unit or _is_unit(unit)) else None


def _is_unit(text: str) -> bool:
    return text in _UNITS or text in _OTHERS
