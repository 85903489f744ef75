"""Headers that name a device, a metric and a unit: ``gpu0_power_w``, ``tx_bytes_eth0``.

A kind of device with its number stands in front or behind; the machine itself has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tracekit.ingest.counters import fields, open_units, rdma_names
from tracekit.ingest.counters.device_samples import Column
from tracekit.ingest.counters.ethtool_names import ethtool_meaning
from tracekit.ingest.counters.gpu_words import GPU
from tracekit.ingest.counters.host_words import HOST
from tracekit.ingest.counters.names import node_in_name, node_of_labels
from tracekit.ingest.counters.net_words import is_word
from tracekit.ingest.counters.net_words import meaning as meaning_of
from tracekit.ingest.counters.table import unit_of, without_unit
from tracekit.ingest.counters.units import MEMORY, SIZES, symbol
from tracekit.ingest.counters.vocabulary import Meaning

_PORTS = ("ib", "eth", "mlx5", "nic", "hca", "roce", "rdma", "port")
_SENSED = {
    "nvswitch": "nvswitch", "cpu": "cpu", "disk": "disk", "nvme": "disk", "fan": "fan",
    "psu": "psu", "dimm": "dimm",
}  # fmt: skip
"""Parts of a machine, by how headers call them."""
_MACHINE = frozenset(("sys", "system", "chassis", "node", "host", "server", "machine"))
"""Words for all of it."""
_DEVICE = rf"(gpu|g(?=\d)|{'|'.join((*_PORTS, *_SENSED, 'nvlink'))})[_ .-]?(\d{{1,4}})"
_BETWEEN = "_.:/ -"
_FRONT = re.compile(rf"(?:^|(?<=[{_BETWEEN}])){_DEVICE}(?:[{_BETWEEN}]|(?=[A-Z][a-z]))", re.I)
_PORT_OF = re.compile(rf"(?:p|port)[{_BETWEEN}]?(\d{{1,2}})[{_BETWEEN}]", re.I)
"""Which of an adapter's ports: ``mlx5_0_p1_rx_gbps``."""
_AROUND = frozenset(
    ("system", "metrics", "metric", "values", "data", "readings", "sensors", "telemetry", "stats",
     "counters", "dcgm", "nvml", "smi", "ipmi", "hw", "hardware", "devices", "fields")
)  # fmt: skip
"""Words before a device that say where it was read, not what it is."""
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=\d)(?=[A-Z][a-z])")
"""Where a word begins within another: ``powerWatts``."""
_BEHIND = re.compile(rf"[{_BETWEEN}]{_DEVICE}\Z", re.I)
_WITHIN = re.compile(rf"(?<=\w)[{_BETWEEN}]{_DEVICE}(?=[{_BETWEEN}]\w)", re.I)
"""A device before the unit of its metric: ``power_gpu0_w``."""
_LABELLED = re.compile(r"([A-Za-z_:]\w*)?\{(.{1,2000})\}")
_LABEL = re.compile(r'(?<!\w)(\w++)="([^"]*)"')
_SENSORS = frozenset(("bmc", "oob", "ipmi", "redfish", "board", "gpu"))
"""Words that say who read a number, not what it is."""

_NOT_UNITS = {"errors", "events", "times", "frames", "b"}
"""Words that say what is counted, however many of them there are."""
_SIZED = ("bytes/s", "packets/s", "bytes", "packets", "0..1", "Hz", "mJ")
"""Units in which people write several sizes, so that a header must say which."""


def _measures() -> dict[str, tuple[str, float]]:
    measures = {}
    for unit in (*_SIZED, "W", "degrees Celsius", "rpm", "count"):
        sizes = MEMORY if unit == "bytes" else SIZES[unit]
        for spelling in reversed(sizes):  # bytes stand before bits, and count
            end = spelling.lower().replace("/s", "_s")
            if end not in _NOT_UNITS:
                measures[end] = (unit, float(sizes[spelling]))
    return measures


_MEASURES = _measures()
"""How a header ends, in lower case: its unit, and the size of it. MB/s and Mb/s differ in the case
of one letter, which people leave out: what is written ``bps`` is bits, and ``b/s`` bytes."""
_BYTES_PS = re.compile(r"(?<![A-Za-z])((?:[kKMGT]i?)?B)ps\Z")
"""MBps are bytes; of mbps, whose letters are all small, nobody knows, and bits are meant mostly."""
_BITS = {unit: SIZES["bytes/s"][unit] for unit in SIZES["bits/s"]}
"""Mb/s as it is spelled in brackets, where case is not lost."""
_DIRECTIONS = {
    "tx": "tx", "xmit": "tx", "sent": "tx", "send": "tx", "out": "tx", "transmit": "tx",
    "rx": "rx", "rcv": "rx", "recv": "rx", "received": "rx", "in": "rx", "receive": "rx",
}  # fmt: skip
_RATES = {"bytes/s": "rate", "packets/s": "packet_rate"}
_TOTALS = {"bytes": "bytes", "packets": "packets"}


def is_second(name: str) -> bool:
    """Whether somebody else than the device reads it (its board's controller)."""
    return not _SENSORS.isdisjoint(re.split(r"[^a-z]+", name.lower())[1:])


def column_of(at: int, name: str, *, may_be_open: bool = False) -> Column | str:
    """What a header names; else why it is not read.

    ``may_be_open``: whether a share, clock or memory of a GPU may lack its unit (``open_units``).
    """
    if labelled := _LABELLED.fullmatch(name.strip()):
        labels = {k.lower(): v for k, v in _LABEL.findall(labelled[2])}
        return _of_metric(at, labelled[1], labels, name, may_be_open=may_be_open)
    plain = without_unit(name)
    node = None
    if (device_match := _FRONT.search(plain)) and (
        whose := _whose(plain[: device_match.start()])
    ) is not None:
        node, metric = whose or None, plain[device_match.end() :]
    elif device_match := _BEHIND.search(plain):
        metric = plain[: device_match.start()]
    elif device_match := _WITHIN.search(plain):
        metric = plain[: device_match.start()] + plain[device_match.end() :]
    else:
        words, unit, scale = _measured(plain, unit_of(name))
        meaning = _of_machine(words, unit, scale, name)
        if meaning is None:
            return "it names no device with a number: a total, or what nobody knows"
        return Column(at, "host", "", meaning, name)
    kind, number = device_match[1].lower(), device_match[2]
    kind = "gpu" if kind == "g" else kind
    port_of = _PORT_OF.match(metric) if kind in ("mlx5", "hca", "roce", "rdma") else None
    if port_of:
        metric = metric[port_of.end() :]
    if kind == "nvlink":
        return "whose GPU's link it is, it does not say"
    words, unit, scale = _measured(metric, unit_of(name))
    if kind in _SENSED:
        meaning = _sensor(_SENSED[kind], words, unit, scale, name)
        if meaning is None:
            return "no counter of such a device has that name and unit"
        return Column(at, "host", f"{kind}{number}", meaning, name, node)
    is_gpu = kind == "gpu"
    if is_gpu and fields.is_of_lost_case(re.split(r"[^A-Za-z]+", name.rstrip(") ]"))[-1]):
        return "bits or bytes: the case of its unit is lost, and a GPU's tools count bytes"
    # nvidia-smi's own names (utilization.gpu) have units that are known.
    queried = _of_tools(plain, metric.strip(), unit_of(name)) if is_gpu else None
    meaning = (
        queried or _gpu(words, unit, scale, name) if is_gpu else _port(words, unit, scale, name)
    )
    is_open = meaning is None and is_gpu and may_be_open and unit is None
    if is_open:
        meaning = _gpu_of_any_unit(words, name)
    if meaning is None:
        return "nobody knows what it counts, or its unit does not fit"
    device = str(int(number)) if is_gpu else f"{kind}{'_' if kind == 'mlx5' else ''}{number}"
    if port_of:  # as sysfs and RDMA's tools name it
        device += f"/{port_of[1]}"
    return Column(at, "gpu" if is_gpu else "port", device, meaning, name, node, is_open)


def _of_tools(plain: str, metric: str, unit: str | None) -> Meaning | None:
    """A metric of a GPU by a tool's own name for it."""
    if plain.startswith("system.gpu.") and (known := fields.of_wandb(metric)) is not None:
        return known
    return fields.of_dcgm(metric) or (fields.of_smi(metric, unit) if "." in metric else None)


def _whose(before: str) -> str | None:
    """The machine that the words before a device name; empty: none; None: they say more."""
    text = before.strip(_BETWEEN)
    if not text or all(w in _AROUND for w in re.split(r"[^a-z]+", text.lower()) if w):
        return ""
    return text if node_in_name(text) == text else None


_OF_PANEL = re.compile(r"-data(?:-[a-z]{1,20}){0,4}-\d{4}-\d\d-\d\d[ _T]")
"""What Grafana puts behind a panel's title, in the names of files."""


def title_of(name: str) -> str:
    """What a file's name says: of a panel's export its title; of others, without their machine."""
    stem = name.rpartition(".")[0] or name
    if panel := _OF_PANEL.search(stem):
        return stem[: panel.start()]
    node = node_in_name(stem)
    if node is None:
        return stem
    before, _, behind = stem.partition(node)
    return "_".join(part for part in (before.strip(_BETWEEN), behind.strip(_BETWEEN)) if part)


NO_COUNT = "a panel's title names a count, of which panels show rates as a rule"


def with_title(legend: str, title: str) -> str:
    """The header of a column that names a device alone, where the file's title names the metric."""
    if legend.startswith("{"):
        return re.sub(r"\W+", "_", title).strip("_") + legend
    return f"{legend}_{title}"


def _of_metric(
    at: int, metric: str, labels: Mapping[str, str], header: str, *, may_be_open: bool
) -> Column | str:
    """A metric of a GPU with its labels, as dashboards export them."""
    metric = metric or labels.get("__name__", "")
    if not re.fullmatch(r"\d{1,4}", labels.get("gpu", "")):
        return "its labels name no GPU by its number"
    words, unit, scale = _measured(metric, None)
    meaning = fields.of_dcgm(metric) or _gpu(words, unit, scale, header)
    is_open = meaning is None and may_be_open and unit is None
    if is_open:
        meaning = _gpu_of_any_unit(words, header)
    if meaning is None:
        return "no metric of a GPU that is known"
    return Column(at, "gpu", labels["gpu"], meaning, header, node_of_labels(labels), is_open)


def _measured(metric: str, bracket: str | None) -> tuple[list[str], str | None, float]:
    """The words of a metric, and the unit and its size that stand at its end, or in brackets: one
    that nobody knows fits no counter."""
    plain = re.sub(r"(?:/|_?per_?)s(?:ec(?:ond)?)?$", "_s", metric.strip(), flags=re.I)
    plain = _BYTES_PS.sub(lambda said: f"{said[1].lower()}_s", plain)
    words = [w for w in re.split(r"[^A-Za-z0-9%]+", _CAMEL.sub("_", plain).lower()) if w]
    if words[-1:] in (["sec"], ["second"]) and f"{words[-2:][0]}_s" in _MEASURES:
        words[-1] = "s"  # bytes_sec
    if bracket is not None:
        bracket = symbol(bracket)
        words = _without_its_unit(words, bracket)
        said = bracket.strip()
        if said != said.lower() and (size := _BITS.get(said)):
            return words, "bytes/s", float(size)
        unit, scale = _MEASURES.get(said.lower().replace("/s", "_s"), (said, 1.0))
        return words, unit, scale
    for length in (2, 1):
        if len(words) > length and (known := _MEASURES.get("_".join(words[-length:]))):
            # "tx_bytes": what is counted is its unit too.
            return words[:-length] or words, *known
    return words, None, 1.0


def _without_its_unit(words: list[str], bracket: str) -> list[str]:
    """Words of a metric whose last ones repeat the unit in brackets: ``power_w [W]``."""
    meant = _MEASURES.get(bracket.strip().lower().replace("/s", "_s"))
    for length in (2, 1):
        end = "_".join(words[-length:])
        if meant and len(words) > length and _MEASURES.get(end) == meant and end != "bytes":
            return words[:-length]
    return words


def _gpu(words: Sequence[str], unit: str | None, scale: float, header: str) -> Meaning | None:
    for said in (words, [w for w in words if w not in _SENSORS and w not in _AROUND]):
        counter = fields.counter_of_words(said)
        if counter is not None:
            word = GPU[counter]
            # Bytes or MiB, 0.99 or 99: of these no number says its unit itself.
            if word.unit == unit or (unit is None and word.unit not in _SIZED):
                return GPU.meaning(counter, scale, header[:80])
            return None
    return None


def _gpu_of_any_unit(words: Sequence[str], header: str) -> Meaning | None:
    """A counter whose numbers may say their unit, as if they were in its own."""
    for said in (words, [w for w in words if w not in _SENSORS and w not in _AROUND]):
        counter = fields.counter_of_words(said)
        if counter is not None and GPU[counter].unit in open_units.UNITS:
            return GPU.meaning(counter, 1.0, header[:80])
    return None


def _port(words: Sequence[str], unit: str | None, scale: float, header: str) -> Meaning | None:
    ways = [_DIRECTIONS[w] for w in words if w in _DIRECTIONS]
    rest = [w for w in words if w not in _DIRECTIONS and w not in ("data", "rate", "throughput")]
    if len(ways) == 1 and not rest and unit is not None:
        end = _RATES.get(unit) or _TOTALS.get(unit)
        return _scaled(f"{ways[0]}_{end}", scale) if end is not None else None
    if (end := "_".join(words)).endswith("_phy"):
        # What ethtool counts at the physical port: RDMA too, which the driver's own leave out.
        known, priority, ring = ethtool_meaning(end, has_physical=True)
        return known if is_word(known.counter) and priority is ring is None else None
    if rdma_names.is_port_counter(own := "_".join(words)):
        return rdma_names.port_meaning(own)
    name = "_".join([*ways, *rest]) if len(ways) == 1 else "_".join(words)
    for said in (name, f"{name}_packets", f"{name}_bytes"):
        if rest and is_word(said):
            known = meaning_of(said)
            fits = unit is None or known.unit in (unit, "packets" if unit == "count" else unit)
            return _scaled(said, scale) if fits else None
    return None


def _sensor(
    device: str, words: Sequence[str], unit: str | None, scale: float, header: str
) -> Meaning | None:
    """Power and temperature of a part, and how fast a fan turns; each with its unit."""
    if unit is None and len(words) == 1 and words[0] in _MEASURES:
        (unit, scale), words = _MEASURES[words[0]], ()  # fan1_rpm
    said = {_FULL.get(w, w) for w in words} - _SENSORS - {"speed", "input", "in"}
    if device == "fan" and not said - {"rotation", "duty", "pwm"}:
        counter = {"rpm": "fan_rotation", "0..1": "fan_speed"}.get(unit or "")
        return HOST.meaning(counter, scale, header[:80]) if counter else None
    # What a header repeats in its unit it may leave out: psu0_w is its power.
    named = {"W": "power", "degrees Celsius": "temperature"}.get(unit or "")
    counter = f"{device}_{named}"
    if named is None or said - {named} or counter not in HOST:
        return None
    return HOST.meaning(counter, scale, header[:80])


def _of_machine(
    words: Sequence[str], unit: str | None, scale: float, header: str
) -> Meaning | None:
    """Power of all of the machine, the temperature of its air, and what its CPUs and memory do."""
    said = [w for word in words if (w := _FULL.get(word, word)) not in _SENSORS]
    counter = None
    if unit == "W" and set(said) <= {*_MACHINE, "power", "total"} and _MACHINE & set(said):
        counter = "system_power"
    elif unit == "0..1" and words[:1] == ["cpu"]:
        counter = _CPU_SHARES.get("_".join(words[1:]))
    elif unit == "bytes" and len(words) == 2 and words[0] in _MEMORY:
        counter = {"available": "memory_available", "used": "memory_used"}.get(words[1])
    elif unit == "degrees Celsius" and said in (
        ["inlet", "temperature"],
        ["outlet", "temperature"],
    ):
        counter = "_".join(said)
    return HOST.meaning(counter, scale, header[:80]) if counter else None


_CPU_SHARES = {
    **dict.fromkeys(("", "busy", "util", "utilization", "usage", "used", "total"), "cpu_busy"),
    "user": "cpu_user", "usr": "cpu_user", "us": "cpu_user", "nice": "cpu_nice",
    "system": "cpu_system", "sys": "cpu_system", "sy": "cpu_system", "kernel": "cpu_system",
    "iowait": "cpu_iowait", "io_wait": "cpu_iowait", "wait": "cpu_iowait", "wa": "cpu_iowait",
    "steal": "cpu_steal", "st": "cpu_steal", "idle": "cpu_idle", "id": "cpu_idle",
}  # fmt: skip
"""What all CPUs do, by what follows ``cpu_`` in front of a share's unit."""
_MEMORY = ("mem", "memory", "ram")
_FULL = {"temp": "temperature", "pwr": "power", "ambient": "inlet", "exhaust": "outlet"}
"""Words that people shorten, or say otherwise."""


def _scaled(counter: str, scale: float) -> Meaning:
    known = meaning_of(counter)
    whole = round(scale)
    return known._replace(scale=whole if whole == scale else scale)
