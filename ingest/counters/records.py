"""Records of devices' counters: a moment, a machine, and numbers by names that hold their device.

What is nested below a device (``"gpus": [{"index": 0, "power_w": 690}]``), and what stands beside
its number (``gpu=0``), is called ``gpu0_power_w``; from there on names are read as the headers of
``device_headers``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tracekit.ingest.base import Sink, SourceFile
from tracekit.ingest.counters import open_units, times
from tracekit.ingest.counters.device_headers import column_of, is_second
from tracekit.ingest.counters.device_samples import Column, Devices, tell_unread
from tracekit.ingest.counters.documents import dicts_of
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.table import HOST_WORDS, LABEL_WORDS, TIME_WORDS, host_of, tell_units
from tracekit.ingest.counters.table_heads import printed_unit
from tracekit.ingest.lines import shape

MAX_NAMES = 20_000
"""Different names of a file; those after are counted alone."""
MAX_DEPTH = 4
"""Objects within objects that are looked into."""

GPUS = ("gpu", "gpus", "gpu_id", "gpu_index", "card", "cards", "device", "devices", "gpuid")
PORTS = (
    "port", "ports", "iface", "ifname", "interface", "interfaces", "nic", "nics", "hca", "hcas",
    "device", "dev", "component", "entity",
)  # fmt: skip
_OF_PORTS = ("network", "net", "infiniband", "ib", "ethernet", "links", "roce", "rdma")
"""What holds ports by their names."""
_PORT_NUMBERS = ("port", "port_num", "port_number", "portnum")
_INDICES = ("index", "idx", "id", "gpu", "gpu_id", "gpu_index", "minor_number", "device")
_NAMES = ("name", "port", "iface", "ifname", "interface", "device", "id")
_GPU_NUMBER = re.compile(r"(?:(?:gpu|card|cuda|nvidia|device)[ _:-]?)?(\d{1,4})", re.I)
_GPU_NAME = re.compile(r"(?:gpu|cuda)[ _:-]?\d{1,4}", re.I)
PORT_NAME = re.compile(
    r"(?:ib|eth|mlx5|nic|hca|roce|rdma|port|fan|psu|cpu|dimm|disk|nvme)[_-]?\d{1,4}", re.I
)


class Record(NamedTuple):
    """What was read at a moment."""

    time: str
    host: str | None
    numbers: dict[str, str]
    """Printed numbers and words by their names."""
    port: str = ""
    """The number of the port that they are of, where the device stands in a part of its own."""


def of_object(value: Mapping[str, Any], around: Record | None = None) -> Record | None:
    """The record that an object of JSON is; None where nothing states a time."""
    plain = {key.strip(): v for key, v in value.items()}
    lower = {key.lower(): key for key in plain}
    time = next((plain[lower[w]] for w in TIME_WORDS if w in lower), None)
    if time is None and times.parse(str(plain.get("t"))) is not None:
        time = plain.pop("t")
    host = next((plain[lower[w]] for w in HOST_WORDS if w in lower), None)
    if isinstance(time, bool) or not isinstance(time, int | float | str):
        if around is None:
            return None
        time = around.time
    host = host_of(host) if isinstance(host, str) else (around.host if around else None)
    skip = {lower[w] for w in (*TIME_WORDS, *HOST_WORDS) if w in lower}
    prefix = _device_beside(plain, lower, skip)
    number = next((lower[w] for w in _PORT_NUMBERS if w in lower and lower[w] not in skip), None)
    port = str(plain[number]) if prefix and number is not None else ""
    if number is not None and port.isdecimal() and not prefix.startswith("gpu"):
        skip.add(number)
    else:
        port = ""
    numbers: dict[str, str] = {}
    for key, inner in plain.items():
        if key not in skip:
            _flatten(f"{prefix}{key}", inner, numbers, MAX_DEPTH)
    return Record(str(time), host, numbers, port)


def _device_beside(plain: Mapping[str, Any], lower: Mapping[str, str], skip: set[str]) -> str:
    """``gpu0_`` or ``ib3_`` where a record says in a part of its own whose it is."""
    for words, named in ((GPUS, gpu_named), (PORTS, port_named)):
        for word in words:
            key = lower.get(word)
            if key is None:
                continue
            name = named(plain[key])
            if name is None and _GPU_NAME.fullmatch(str(plain[key]).strip()):
                name = gpu_named(plain[key])  # dev=gpu3 beside dev=mlx5_0
            if name is not None:
                skip.add(key)
                return f"{name}_"
    return ""


def gpu_named(value: object) -> str | None:
    found = _GPU_NUMBER.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    return f"gpu{int(found[1])}" if found else None


def port_named(value: object) -> str | None:
    text = str(value).strip()
    return text if PORT_NAME.fullmatch(text) else None


def _flatten(name: str, value: Any, into: dict[str, str], depth: int) -> None:
    """Numbers and words below a name; elements of a list of devices by their numbers."""
    if isinstance(value, bool) or value is None or not depth:
        return
    if isinstance(value, int | float | str):
        into[name] = str(value)
    elif isinstance(value, dict):
        if "value" in value and value.keys() <= {"value", "unit", "units"}:
            unit = str(value.get("unit") or value.get("units") or "")
            _flatten(f"{name} [{unit}]" if unit else name, value["value"], into, depth - 1)
            return
        for key, inner in value.items():
            within = key.strip()
            if name.lower() in _OF_PORTS and (device := port_named(within)) is not None:
                _flatten(device, inner, into, depth - 1)
            elif name.lower() in (*GPUS, *PORTS):
                device = (gpu_named if name.lower() in GPUS else port_named)(within)
                _flatten(device or f"{name}_{within}", inner, into, depth - 1)
            else:
                _flatten(f"{name}_{within}", inner, into, depth - 1)
    elif isinstance(value, list):
        is_gpu = name.lower() in GPUS
        if not is_gpu and name.lower() not in PORTS:
            return
        for inner in dicts_of(value):
            keys = _INDICES if is_gpu else _NAMES
            named = gpu_named if is_gpu else port_named
            said = {k.lower(): (k, v) for k, v in inner.items()}
            for key in keys:
                if key in said and (device := named(said[key][1])) is not None:
                    rest = {k: v for k, v in inner.items() if k != said[key][0]}
                    _flatten(device, rest, into, depth - 1)
                    break


def column_printed(at: int, name: str, printed: str) -> Column | str:
    """What a name is, by itself or by the unit that its number is printed with; else why not."""
    found = column_of(at, name)
    if isinstance(found, str) and (unit := printed_unit(printed)) is not None:
        return column_of(at, f"{name} [{unit}]")
    return found


def open_column(name: str) -> Column | None:
    """The counter of a name that lacks its unit alone; None for every other."""
    if isinstance(column_of(0, name), Column):
        return None
    found = column_of(0, name, may_be_open=True)
    return found if isinstance(found, Column) and found.is_open else None


class Records:
    """Records of one file on their way into the tables."""

    def __init__(
        self, source: SourceFile, sink: Sink, reading: Reading,
        sizes: Mapping[str, open_units.Sizes] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """``sizes``: what the numbers of the counters are like that have names without a unit."""
        self._sizes = sizes
        self._settled: dict[str, list[str]] = defaultdict(list)
        self.table = Devices(source, sink, reading)
        self._sink = sink
        self._reading = reading
        self._columns: dict[str, Column | None] = {}
        self._meant: dict[tuple[str | None, ...], str] = {}
        self._unread: dict[str, list[str]] = defaultdict(list)

    def add(self, place: int, record: Record | None, text: str = "") -> None:
        """The counters of one record."""
        moment = times.parse(record.time) if record is not None else None
        if record is None or moment is None:
            self._reading.bad(place, "no record with a time", shape(text) if text else None)
            return
        numbers = []
        labels = []
        for name in sorted(record.numbers, key=lambda n: (is_second(n), not n.endswith("_phy"))):
            if name.lower() in LABEL_WORDS:
                labels.append((name, record.numbers[name]))
            elif (column := self._column(name, record.numbers[name])) is not None:
                numbers.append((column, record.numbers[name]))
        self.table.add(place, moment, record.host, numbers, labels, record.port)

    def finish(self) -> None:
        """What is left, and which names were not read."""
        self.table.finish()
        for reason, names in self._unread.items():
            tell_unread(self._sink, names, reason)
        for unit, names in self._settled.items():
            tell_units(self._sink, names, unit)

    def _column(self, name: str, printed: str) -> Column | None:
        if name in self._columns:
            return self._columns[name]
        if len(self._columns) >= MAX_NAMES:
            self._unread[f"the file has more than {MAX_NAMES} names"].append(name)
            return None
        found = column_printed(len(self._columns), name, printed)
        if isinstance(found, str) and (column := open_column(name)) is not None:
            found = self._of_its_size(column, name)
        if isinstance(found, Column) and self._meant.setdefault(found.key, name) != name:
            found = "another column has the same meaning"
        if isinstance(found, str):
            self._unread[found].append(name)
        self._columns[name] = found if isinstance(found, Column) else None
        return self._columns[name]

    def _of_its_size(self, column: Column, name: str) -> Column | str:
        """A counter in the unit that all numbers of the file say; without one, why it is none."""
        counter, unit = column.meaning.counter, column.meaning.unit or ""
        sizes = self._sizes.get(counter)
        told = open_units.told(counter, unit, sizes) if sizes is not None else None
        if told is None:
            return open_units.UNDECIDED
        self._settled[told.unit].append(name)
        meaning = column.meaning._replace(scale=told.scale)
        return column._replace(at=len(self._columns), meaning=meaning, is_open=False)
