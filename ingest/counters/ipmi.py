"""Sensors of a machine's controller, as ipmitool prints them: ``sensor``, ``sdr`` and ``-c sdr``.

A sensor is a name, a reading and a unit; its name is read as a table's header with that unit would
be (``PSU1 Power In`` in W is psu1's power). GPUs that the controller watches are called by its own
numbers, which need not be NVML's: they are left out, and counted.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.device_headers import column_of
from tracekit.ingest.counters.device_samples import Column
from tracekit.ingest.counters.host_samples import HostSamples
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.status import Reading, by_lines
from tracekit.ingest.lines import Line

NAME = "ipmi"

_UNITS = {"degrees C": "C", "Watts": "W", "RPM": "rpm", "percent": "%"}
_OTHER = r"Volts|Amps|Joules|discrete|CFM"
_UNIT = "|".join((*_UNITS, _OTHER))
_NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?"
_NAME = r"[A-Za-z0-9][^|,\r\n]{0,60}?"
_STATUS = r"ok|ns|nc|cr|nr|na|lnc|lcr|lnr|unc|ucr|unr|0x[0-9a-f]{2,8}"
_SENSOR = re.compile(
    rf"\s*({_NAME})\s*\|\s*({_NUMBER}|na|0x[0-9a-f]{{1,8}})\s*\|\s*({_UNIT})\s*\|\s*(?:{_STATUS})"
    r"\s*(?:\|[^\r\n]{0,200})?"
)
_SDR = re.compile(
    rf"\s*({_NAME})\s*\|\s*(?:({_NUMBER}) ({_UNIT})|[^|]{{1,40}})\s*\|\s*(?:{_STATUS})\s*"
)
_CSV = re.compile(rf"({_NAME}),({_NUMBER})?,({_UNIT})?,(?:{_STATUS})(?:,[^\r\n]{{0,200}})?")
_SURE = re.compile(
    rf"^\s*{_NAME}\s*(?:\|\s*{_NUMBER}\s*\|\s*(?:{_UNIT})\s*\||\|\s*{_NUMBER} (?:{_UNIT})\s*\|"
    rf"|,{_NUMBER},(?:{_UNIT}),)\s*(?:{_STATUS})",
    re.M,
)
MIN_SENSORS = 3
"""Lines of sensors with a number from which a text is surely one."""


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise a list of sensors by several of them."""
    if b"degrees C" not in head and b"Watts" not in head and b"RPM" not in head:
        return None
    if len(_SURE.findall(head.decode("utf-8", "replace"))) < MIN_SENSORS:
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
        """Numbers of sensors that are no counter here: voltages, GPUs' by the board's numbers."""
        self._reading = reading
        self._columns: dict[tuple[str, str], Column | None] = {}

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
        if sensor.value is None or sensor.unit is None or sensor.value == "na":
            return
        unit = _UNITS.get(sensor.unit)
        column = self._column(sensor.name, unit) if unit is not None else None
        if column is None:
            self.others += 1
            return
        self.samples.sample(
            line.number, column.meaning, sensor.value, original=sensor.name[:80], cgroup=None,
            device=column.device or None,
        )  # fmt: skip

    def _column(self, name: str, unit: str) -> Column | None:
        if (name, unit) not in self._columns:
            found = column_of(0, f"{_plain(name)} [{unit}]")
            is_ours = isinstance(found, Column) and found.kind == "host"
            self._columns[name, unit] = found if is_ours and isinstance(found, Column) else None
        return self._columns[name, unit]


def _sensor(text: str) -> _Sensor | None:
    for pattern in (_SENSOR, _SDR, _CSV):
        if found := pattern.fullmatch(text):
            return _Sensor(found[1], found[2], found[3])
    return None


def _plain(name: str) -> str:
    """``PSU1 Power In`` and ``FAN_3`` as headers are written; a part alone is its usual number."""
    text = re.sub(r"(?i)(?<![a-z])(psu|fan|cpu|dimm|nvme)[ _-]?(\d{1,4})", r"\1\2", name)
    return f"{text} speed" if re.fullmatch(r"(?i)fan\d+", text) else text
