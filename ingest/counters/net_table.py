"""CSV of network counters that somebody made, wide or long.

A wide table has a row a port and moment and a column a counter, a long one a row a number with its
counter's name in a column. Headers that are the canonical names are known; all else is as job.toml
says (``[[source]] columns``). Counters are cumulative, as everywhere: what happened since the last
row is no counter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from tracekit.errors import InputError
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import rdma_names, times
from tracekit.ingest.counters.device_headers import column_of
from tracekit.ingest.counters.device_samples import Column
from tracekit.ingest.counters.net_samples import NetSamples, is_missing
from tracekit.ingest.counters.net_words import is_word, meaning
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.status import Reading, by_lines
from tracekit.ingest.counters.table import (
    HOST_WORDS,
    SINCE_WORDS,
    TIME_WORDS,
    UNKNOWN,
    VALUE_WORDS,
    Layout,
    Subject,
    bare_name,
    cells_of,
    count_unread,
    header_line,
    host_of,
    since_unit,
    unit_of,
)
from tracekit.ingest.counters.units import SIZES
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import Line, shape

KIND = "net_csv"

OWN_ROLES = ("port", "device", "priority", "queue", "lane")
"""Those that only a table of the network has."""
_ADAPTER = re.compile(r"(?:mlx|bnxt|irdma|qedr|efa|rdma|roce|rxe|siw|hfi|ib|eth|en[opsx])", re.I)
"""How a device of a host begins, which may stand beside its interface's name."""
_NUMBERS = ("priority", "queue", "lane")

_WORDS = {"up": 1, "down": 0, "yes": 1, "no": 0, "true": 1, "false": 0, "on": 1, "off": 0}
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d{1,25})?(?:\.\d{0,20})?(?:[eE][-+]?\d{1,2})?")


class Counter(NamedTuple):
    """What a column's numbers are, and what they are multiplied by."""

    meaning: Meaning
    """Its scale is 1: ``scale`` has it."""
    scale: int | Fraction
    original: str
    priority: int | None = None
    """Of which priority, where the header says so."""


def counter_of(name: str, unit: str | None, original: str) -> Counter:
    """A canonical counter in a unit. ValueError with the units that there are; KeyError."""
    return _counter(meaning(name), unit, original)


def _counter(what: Meaning, unit: str | None, original: str) -> Counter:
    scales = SIZES.get(what.unit or "", {})
    plain = what._replace(scale=1)
    if unit is None:
        return Counter(plain, round(what.scale), original)
    wanted = {u.lower() if what.unit != "bits/s" else u: s for u, s in scales.items()}
    scale = scales.get(unit) or wanted.get(unit.lower())
    if scale is None:
        raise ValueError(", ".join(scales) or "none")
    return Counter(plain, int(scale) if scale.denominator == 1 else scale, original)


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise a table whose headers are a port and canonical counters."""
    if _known(header_line(head)) is None:
        return None
    return Recognition(KIND, "a table of network counters", KIND)


def recognise(source: SourceFile, head: bytes) -> Recognition:
    """A file whose columns job.toml explains as those of the network."""
    return TABLE.recognise(source, head, KIND, "a table of network counters")


def read(source: SourceFile, sink: Sink) -> None:
    """Every number into net_sample."""
    with by_lines(
        source, sink, lambda reading: _Table(source, sink, NetSamples(sink, source), reading)
    ):
        pass


_SIZED = ("bytes/s", "0..1")
"""Units of which a number alone does not say the size."""
_SNMP = {
    "ifhcinoctets": "rx_bytes", "ifhcoutoctets": "tx_bytes",
    "ifhcinucastpkts": "rx_unicast_packets", "ifhcoutucastpkts": "tx_unicast_packets",
    "ifhcinmulticastpkts": "rx_multicast_packets", "ifhcoutmulticastpkts": "tx_multicast_packets",
    "ifhcinbroadcastpkts": "rx_broadcast_packets", "ifhcoutbroadcastpkts": "tx_broadcast_packets",
    "ifinerrors": "rx_errors", "ifouterrors": "tx_errors",
    "ifindiscards": "rx_dropped_packets", "ifoutdiscards": "tx_dropped_packets",
}  # fmt: skip
"""Objects of IF-MIB (RFC 2863); octets of 32 bits wrap in a third of a second at 100 Gbit/s."""
_OPENCONFIG = {
    f"{said}_{what}": f"{way}_{counter}"
    for said, way in (("in", "rx"), ("out", "tx"))
    for what, counter in (
        ("octets", "bytes"), ("bytes", "bytes"), ("pkts", "packets"), ("packets", "packets"),
        ("errors", "errors"), ("discards", "dropped_packets"), ("drops", "dropped_packets"),
        ("unicast_pkts", "unicast_packets"), ("multicast_pkts", "multicast_packets"),
        ("broadcast_pkts", "broadcast_packets"),
    )
}  # fmt: skip
"""Counters of OpenConfig's interfaces, with underscores for its hyphens, and what is alike."""


_PFC = re.compile(
    r"(?:(rx|tx)_)?(?:pfc_?(?:prio_?)?|prio_?)([0-7])(?:_(rx|tx))?"
    r"(?:_(?:pause|pfc|frames|packets|pkts)){0,2}"
)
"""Pause frames of one priority: ``pfc3_rx``, ``rx_prio3_pause``."""


def _by_header(name: str) -> Counter | None:
    """The counter that a header is by itself; InfiniBand's own names are known too."""
    word = bare_name(name)
    if is_word(word):
        if unit_of(name) is None and meaning(word).unit in _SIZED:
            return None  # 8.0 of what a second, nobody knows
        try:
            return counter_of(word, unit_of(name), name.strip())
        except ValueError:
            return None
    if (known := _SNMP.get(word) or _OPENCONFIG.get(word.replace("-", "_"))) is not None:
        return counter_of(known, None, name.strip())
    if (pause := _PFC.fullmatch(word)) is not None and (pause[1] is None) != (pause[3] is None):
        counter = counter_of(f"{pause[1] or pause[3]}_pfc_packets", None, name.strip())
        return counter._replace(priority=int(pause[2]))
    if rdma_names.is_port_counter(name.strip()):
        return _counter(rdma_names.port_meaning(name.strip()), None, name.strip())
    # A way and a unit say enough: xmit_MBps.
    rate = column_of(0, f"eth0_{name.strip()}")
    if not isinstance(rate, Column) or rate.meaning.unit not in ("bytes/s", "packets/s"):
        return None
    return Counter(rate.meaning._replace(scale=1), Fraction(rate.meaning.scale), name.strip())


TABLE = Subject(
    {
        "time": (*TIME_WORDS, *SINCE_WORDS),
        "host": (*HOST_WORDS, "switch"),
        "port": (
            "port",
            "interface",
            "ifname",
            "iface",
            "if_name",
            "port_name",
            "portname",
            "nic",
            "ifdescr",
        ),
        "device": ("device", "hca", "ca", "ibdev", "hca_id", "rdma_device"),
        "priority": ("priority", "prio"),
        "queue": ("queue",),
        "lane": ("lane",),
        "metric": ("metric_name", "metric", "__name__", "counter"),
        "value": VALUE_WORDS,
    },
    lambda key, unit, text, header: counter_of(key, unit, header),
    _by_header,
    lambda counter: f"{counter.meaning.counter} {counter.priority}",
    'port = "if", tx_bytes = "out [MB]"',
)


def _known(line: str) -> Layout[Counter] | None:
    """The layout that a header declares by itself."""
    layout = TABLE.layout(line)
    is_of_ports = layout is not None and not layout.roles.keys().isdisjoint(("port", "device"))
    return layout if layout is not None and is_of_ports and layout.is_wide else None


class _Table:
    def __init__(
        self, source: SourceFile, sink: Sink, samples: NetSamples, reading: Reading
    ) -> None:
        self.samples = samples
        self._source = source
        self._sink = sink
        self._reading = reading
        self._layout: Layout[Counter] | None = None
        self._named: dict[str, Counter | None] = {}
        self._is_elapsed: bool | None = None
        self._since_unit = "s"

    def line(self, line: Line) -> None:
        if not line.text.strip():
            return
        if self._layout is None:
            first = line.text
            is_mapped = bool(self._source.columns)
            self._layout = TABLE.mapped(first, self._source) if is_mapped else _known(first)
            if self._layout is None:
                raise InputError(f"{self._source.path}: its first line names no network counter")
            if (time_at := self._layout.roles.get("time")) is not None:
                self._since_unit = since_unit(self._layout.header[time_at])
            self._layout.refuse_rows_told_apart(self._source)
            if self._layout.is_wide:
                count_unread(self._sink, self._layout.unread, UNKNOWN)
            return
        cells = cells_of(line.text, self._layout.delimiter)
        if len(cells) != len(self._layout.header):
            self._reading.bad(line.number, "another number of cells", shape(line.text))
        elif [c.strip() for c in cells] != [h.strip() for h in self._layout.header]:
            self._row(line.number, cells, self._layout)

    def _moment(self, text: str) -> int | None:
        """A time: all of a file are moments, or all count from its beginning, as its first does."""
        moment = None if self._is_elapsed else times.parse(text)
        if moment is None and self._is_elapsed is not False:
            moment = times.elapsed(text, self._since_unit)
        if self._is_elapsed is None and moment is not None:
            self._is_elapsed = isinstance(moment, times.Elapsed)
        return moment

    def _row(self, place: int, cells: Sequence[str], layout: Layout[Counter]) -> None:
        roles = layout.roles
        if "time" in roles:
            moment = self._moment(cells[roles["time"]])
            if moment is None:
                self._reading.bad(place, "no time", shape(cells[roles["time"]]))
                return
            self.samples.at(moment)
        if "host" in roles:
            self.samples.of_row(host_of(cells[roles["host"]]))
        said = [cells[roles[r]].strip() for r in ("device", "port") if r in roles]
        # Ports of an HCA are numbers: mlx5_0/1, as in sysfs. Who has named ports is a switch.
        is_of_device = len(said) > 1 and bool(said[0]) and said[1].isdecimal()
        has_names = len(said) > 1 and bool(said[0]) and not is_of_device
        if has_names and "host" not in roles and not _ADAPTER.match(said[0]):
            self.samples.of_row(said[0])
        port = ("/".join(said) if is_of_device else said[-1] if said else None) or None
        which: dict[str, int] = {}
        for role in _NUMBERS:
            if role in roles:
                index_match = re.search(r"(\d{1,4})\s*$", cells[roles[role]])
                if index_match:
                    which[role] = int(index_match[1])
        for text, counter in self._numbers(cells, layout):
            number = _number(text, counter)
            if isinstance(number, str):
                self._sink.count(
                    "bad_number",
                    doc="A cell that should hold a number does not, or one that no counter can "
                    "reach.",
                    place=place,
                    shape=shape(text),
                )
                continue
            self.samples.add(
                place,
                port,
                counter.meaning,
                number,
                original=counter.original,
                priority=which.get("priority", counter.priority),
                queue=which.get("queue"),
                lane=which.get("lane"),
            )

    def _numbers(
        self, cells: Sequence[str], layout: Layout[Counter]
    ) -> Iterator[tuple[str, Counter]]:
        if not layout.is_long:
            for at, counter in layout.counters:
                yield cells[at], counter
            return
        name = cells[layout.roles["metric"]].strip()[:200]
        if name not in self._named and len(self._named) < 10_000:
            self._named[name] = layout.metrics.get(name) or _by_header(name)
        named = self._named.get(name)
        if named is not None:
            yield cells[layout.roles["value"]], named
            return
        count_other_metrics(self._sink)


def _number(text: str, counter: Counter) -> int | float | str | None:
    """A cell in the counter's unit; None where it says that there is none, the text if it is bad.

    Counts are multiplied as fractions: a float of 10^16 bytes is off by some.
    """
    bare = text.strip()
    if bare.isdecimal() and bare.isascii() and len(bare) < 20 and type(counter.scale) is int:
        counted = int(bare) * counter.scale
        return counted if counted < 2**64 else bare
    if is_missing(bare):
        return None
    if counter.meaning.unit == "1 or 0" and bare.lower() in _WORDS:
        return _WORDS[bare.lower()]
    if not bare or not _NUMBER.fullmatch(bare) or not any(c.isdigit() for c in bare):
        return bare
    exact = Fraction(bare.replace(",", "")) * counter.scale
    if counter.meaning.kind == "cumulative":
        return round(exact) if 0 <= exact < 2**64 else bare
    return float(exact)
