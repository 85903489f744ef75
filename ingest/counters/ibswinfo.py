"""The state of one InfiniBand switch, as ibswinfo prints it: power supplies, fans, temperature.

Rows of host_sample: ``device`` says which power supply or fan it is, and the switch stands in the
machine's place. It is the file's name (``leaf01.txt``), else its GUID; it is never taken for the
file's host. Both of its outputs are read, the whole inventory and ``-o vitals``.
"""

from __future__ import annotations

import re

from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters.host_samples import HostSamples
from tracekit.ingest.counters.host_words import HOST
from tracekit.ingest.counters.net_samples import NetSamples, decimal
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.status import Reading, by_lines
from tracekit.ingest.lines import Line

NAME = "ibswinfo"

_INVENTORY = re.compile(
    rb"^part number +\|[^\r\n]*\r?\n(?:[^\r\n]*\r?\n){1,12}?GUID +\| 0x[0-9a-f]{16}", re.M
)
_VITAL = re.compile(
    rb"^(?:psu\d{1,2}\.power \(W\)|cur\.temp \(C\)|fan#\d{1,2}\S* \(rpm\)) +\|", re.M
)
_ROW = re.compile(r"(\s*)(\S[^|]{0,60}?)\s*\|\s?(.{0,200})")
_PSU = re.compile(r"PSU(\d{1,2}) status")
_VITAL_PSU = re.compile(r"psu(\d{1,2})\.power \(W\)")
_FAN = re.compile(r"fan#(\d{1,2})(?:\.speed)? \(rpm\)")
_GUID = re.compile(r"0x[0-9a-f]{16}", re.I)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_TEMPERATURES = ("temperature (C)", "cur.temp (C)")
_STATUS = {"OK": "1", "ERROR": "0"}


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise the inventory by its first names, the vitals by two of theirs."""
    is_inventory = b"part number" in head and _INVENTORY.search(head) is not None
    if is_inventory or len(set(_VITAL.findall(head))) > 1:
        return Recognition(NAME, "the state of an InfiniBand switch (ibswinfo)", NAME)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the lines into host_sample."""
    with by_lines(source, sink, lambda reading: _Parser(_OfSwitch(sink, source), reading)) as (
        parser,
        reading,
    ):
        if parser.others:
            count_other_metrics(sink, parser.others)
        reading.from_documentation("The output of ibswinfo")


class _OfSwitch(HostSamples):
    """A switch is no machine that ranks run on: the file has no host by it."""

    def finish(self) -> None:
        """Write what is left."""
        NetSamples.finish(self)


class _Parser:
    def __init__(self, samples: HostSamples, reading: Reading) -> None:
        self.samples = samples
        self.others = 0
        """Numbers that are no counter of ours: the highest temperature, time since the start."""
        self._reading = reading
        self._psu: str | None = None
        self._guid: str | None = None
        """What the switch is called where its file's name does not say."""

    def line(self, line: Line) -> None:
        row = _ROW.fullmatch(line.text.rstrip())
        if row is None:
            return
        self._reading.good()
        name, cell = row[2], row[3].strip()
        is_inner = bool(row[1])
        if not is_inner:
            self._psu = None
        if psu := _PSU.fullmatch(name):
            self._psu = f"psu{psu[1]}"
            self._put(line, "psu_ok", self._psu, _STATUS.get(cell), name)
        elif name == "GUID" and self.samples.node is None:
            self._guid = cell.lower() if _GUID.fullmatch(cell) else None
        elif is_inner and self._psu and name == "power (W)":
            self._put(line, "psu_power", self._psu, cell, name)
        elif is_inner and self._psu and name == "fan status":
            self._put(line, "fan_ok", self._psu, _STATUS.get(cell), name)
        elif vital := _VITAL_PSU.fullmatch(name):
            self._put(line, "psu_power", f"psu{vital[1]}", cell, name)
        elif fan := _FAN.fullmatch(name):
            self._put(line, "fan_rotation", f"fan{fan[1]}", cell, name)
        elif name == "fan status":
            self._put(line, "fan_ok", None, _STATUS.get(cell), name)
        elif name in _TEMPERATURES:
            self._put(line, "switch_temperature", None, cell, name)
        else:
            self.others += _NUMBER.fullmatch(cell) is not None

    def _put(
        self, line: Line, counter: str, device: str | None, cell: str | None, name: str
    ) -> None:
        """A number; a word that nobody knows, and an empty cell, are none."""
        printed = decimal(cell) if cell is not None else None
        self.samples.sample(
            line.number, HOST.meaning(counter), "" if printed is None else cell,
            original=name, cgroup=None, device=device,
            other=self._guid,
        )  # fmt: skip
