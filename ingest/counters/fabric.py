"""The map of an InfiniBand fabric: which port leads where.

ibnetdiscover (with or without ``--ports``), iblinkinfo and UFM tell it.

Every cable stands in both of its ends' lists; each end is a row of fabric_link. Ports that lead to
a host are rows of link too, as LLDP gives them for Ethernet, so that counters of switches find
their host. Layouts are those of infiniband-diags 2.1 to 5.x; UFM answers ``/resources/links`` in
JSON, where an adapter is known by how its port is displayed (HCA-1/1) and older versions name no
machine but its GUID; and ``/resources/ports``, a port with its peer (REST API guide 6.22).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile, write_columns
from tracekit.ingest.counters.documents import Document
from tracekit.ingest.counters.net_samples import NetSamples, write_links
from tracekit.ingest.counters.rdma_names import LANE_BITS_S, machine_of, node_and_prefix
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.lines import Line, lines, shape

NAME = "fabric"

MAX_LINKS = 2_000_000
"""Ends of cables of one file: a fabric of 100,000 adapters with three tiers has 600,000."""

_HEADS = re.compile(
    rb"^(?:switchguid|caguid|rtguid)=0x[0-9a-fA-F]"
    rb"|^(?:Switch|Ca|Rt)[ \t]+\d{1,4}[ \t]+\"[SHR]-[0-9a-fA-F]{16}\""
    rb"|\[[ \w]{0,3}\] ==\([^\r\n]{1,80}\)==>"
    rb"|^(?:CA|SW|RT)[ \t]+\d{1,6}[ \t]+\d{1,3}[ \t]+0x[0-9a-fA-F]{16}[ \t]+"
    rb"(?:\d{1,2}x|\?{3})[ \t]",
    re.M,
)
_UFM = re.compile(rb'"(?:source|destination)_guid"\s*:')
_UFM_PORT = re.compile(rb'"peer_port_dname"\s*:')
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?\s*+(?:\[\s*+)?\{")
_GUID = re.compile(r"(?:0x)?([0-9a-fA-F]{16})")
_PORT_NAME = re.compile(r"(?:0x)?([0-9a-fA-F]{16})_(\d{1,4})")
_PORT_LANES = re.compile(r"(\d{1,2})x", re.I)
_LANES = re.compile(r"IB_(\d{1,2})x", re.I)
_NODE = re.compile(
    r'(?:Switch|Ca|Rt)\s+\d{1,4}\s+"([SHR])-([0-9a-f]{16})"\s*#\s*"([^"]{0,200})"', re.I
)
_PORT = re.compile(
    r'\[(\d{1,3})\](?:\([0-9a-f]{1,16}\))?\s+"([SHR])-([0-9a-f]{16})"\[(\d{1,3})\]'
    r"(?:\([0-9a-f]{1,16}\))?\s*#(.{0,500})$",
    re.I,
)
_DESCRIPTION = re.compile(r'"([^"]{0,200})"')
_SPEED = re.compile(r"\b(\d{1,2})x([A-Z]DR(?:10)?)\b")
_OWNER = re.compile(r"(CA|Switch|Router): (?:(0x[0-9a-f]{1,16}) )?(\S.{0,200}):\s*$", re.I)
_INFO = re.compile(
    r"\s*(?P<guid>0x[0-9a-f]{1,16}\s+)?(?P<lid>\d{1,6})\s+(?P<port>\d{1,3})\[[ \w]{0,3}\] "
    r"==\((?P<link>[^)]{1,80})\)==>\s*(?P<peer_guid>0x[0-9a-f]{1,16}\s+)?"
    r'(?:(?P<peer_lid>\d{1,6})\s+(?P<peer_port>\d{1,3}))?\[[ \w]{0,3}\] "(?P<peer>[^"]{0,200})"',
    re.I,
)
"""A line of iblinkinfo. Of the other end it prints the LID, and its GUID on demand."""
_LISTED = re.compile(
    r"(CA|SW|RT)\s+\d{1,6}\s+(\d{1,3})\s+(0x[0-9a-f]{16})\s+(\d{1,2}x|\?{3})\s+(\S{1,10})\s+"
    r"(?:-\s+(CA|SW|RT)\s+\d{1,6}\s+(\d{1,3})\s+(0x[0-9a-f]{16})\s+"
    r"\(\s*'([^\r\n]{0,200}?)'\s+-\s+'([^\r\n]{0,200}?)'\s*\)|'[^\r\n]{0,200}')$",
    re.I,
)
"""A line of ibnetdiscover --ports: both ends of a cable, or a port without one."""
_WIDTH = re.compile(r"\s*(\d{1,2})X\s+([\d.]{1,10}) Gbps\b")
_COULD = re.compile(r"Could be (?:(\d{1,2})X\b|([\d.]{1,10}) Gbps\b)")
"""iblinkinfo's word behind a link that its two ends could run wider or faster."""
_HCA = re.compile(r"([A-Za-z0-9][\w.-]{0,80}) (HCA-\d{1,2})$")
_KINDS = {"S": "switch", "H": "host", "R": "router", "SWITCH": "switch", "CA": "host",
          "HOST": "host",
          "ROUTER": "router", "SW": "switch", "RT": "router"}  # fmt: skip
_IN_SWITCH = "Aggregation Node"
"""In the description of what reduces for SHARP: an adapter by its type, a part of its switch."""


class End(NamedTuple):
    """One end of a cable."""

    place: int
    node: str
    node_kind: str
    port: str
    peer: str
    peer_kind: str | None
    peer_port: str
    lanes_count: int | None
    speed_bits_s: float | None
    possible_lanes_count: int | None = None
    possible_speed_bits_s: float | None = None


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise either by a heading of a node, or by the arrow of a link."""
    if _JSON.match(head):
        is_ufm = b"_port" in head and len(set(_UFM.findall(head))) > 1
        is_ufm = is_ufm or (b'"physical_state"' in head and _UFM_PORT.search(head) is not None)
        return Recognition(NAME, "the links of a fabric (JSON of UFM)", NAME) if is_ufm else None
    if _HEADS.search(head):
        return Recognition(NAME, "the cables of an InfiniBand fabric", NAME)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the lines into fabric_link and link."""
    with source.open() as stream:
        is_json = _JSON.match(stream.read(1 << 12)) is not None
    with source.open() as stream:
        reading = Reading(sink, stream, "UFM" if is_json else "infiniband-diags", "line")
        reading.from_documentation("The map of a fabric")
        parser = _Parser(reading)
        if is_json:
            for document in reading.documents():
                parser.document(document)
        else:
            for line in lines(stream):
                parser.line(line)
        ends = parser.ends
        _write(sink, ends)
        if parser.too_many:
            sink.count(
                "cut_links",
                parser.too_many,
                doc=f"Ends of cables beyond {MAX_LINKS:,} of one file: not read.",
            )
        reading.answer = None if ends else "it lists no cable"
        reading.finish(NetSamples(sink, source), streams.stream_problem(stream))


class _Parser:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._node: tuple[str, str, str] | None = None
        """Name, prefix of its ports, kind."""
        self._guid: str | None = None
        self._unnamed: tuple[str, str] | None = None
        """Kind and description of a node that neither names its machine nor states its GUID."""
        self._guids: dict[str, str | None] = {}
        """By LID, where a node of iblinkinfo states it."""
        self._kinds: dict[str, str] = {}
        self._ends: list[End] = []
        self.too_many = 0

    @property
    def ends(self) -> list[End]:
        """What was read; the kind and the GUID of a peer may have been said later, in its list."""
        said = (e._replace(peer=_known(e.peer, self._guids)) for e in self._ends)
        return [e._replace(peer_kind=e.peer_kind or self._kinds.get(e.peer)) for e in said]

    def line(self, line: Line) -> None:
        text = line.text.rstrip()
        if node := _NODE.match(text):
            self._owner(node[1], "0x" + node[2].lower(), node[3])
        elif owned := _OWNER.match(text):
            self._owner(owned[1], owned[2], owned[3])
        elif cabled := _PORT.match(text):
            remark = cabled[5]
            descriptions = _DESCRIPTION.findall(remark)
            speed = _SPEED.search(remark)
            description = descriptions[-1] if descriptions else ""
            kind = _kind(cabled[2], description)
            peer = _named(kind, "0x" + cabled[3].lower(), description)
            lanes = int(speed[1]) if speed else None
            lane_bits_s = LANE_BITS_S.get(speed[2]) if speed else None
            self._end(line, cabled[1], peer, kind, cabled[4], lanes, lane_bits_s)
        elif info := _INFO.match(text):
            self._info(line, text, info)
        elif listed := _LISTED.match(text):
            self._listed(line, listed)
        elif "==>" in text or re.match(r"\[\d|(?:CA|SW|RT)\s+\d+\s", text):
            self._reading.bad(line.number, "no link", shape(text))

    def _info(self, line: Line, text: str, info: re.Match[str]) -> None:
        guid = info["guid"].strip().lower() if info["guid"] else None
        self._guids.setdefault(info["lid"], guid or self._guid)
        if self._unnamed is not None:
            self._owner(self._unnamed[0], guid or f"LID {info['lid']}", self._unnamed[1])
        if not info["peer"].strip() or not info["peer_port"]:
            self._reading.good()  # a port without a cable
            return
        speed = _WIDTH.match(info["link"])
        far = info["peer_guid"].strip().lower() if info["peer_guid"] else f"LID {info['peer_lid']}"
        is_unnamed = _lacks_name(info["peer"])
        peer = _named(None, far if is_unnamed else None, info["peer"])
        lanes = int(speed[1]) if speed else None
        lane_bits_s = _nominal(speed[2]) if speed else None
        could = _could_be(text[info.end() :], lanes, lane_bits_s)
        kind = "host" if peer[1] else None  # an adapter's name; switches have none
        self._end(line, info["port"], peer, kind, info["peer_port"], lanes, lane_bits_s, could)

    def _listed(self, line: Line, listed: re.Match[str]) -> None:
        if not listed[6]:
            self._reading.good()  # a port without a cable
            return
        self._owner(listed[1], listed[3].lower(), listed[9])
        kind = _kind(listed[6], listed[10])
        peer = _named(kind, listed[8].lower(), listed[10])
        lanes = int(listed[4][:-1]) if listed[4][0] != "?" else None
        lane_bits_s = LANE_BITS_S.get(listed[5].upper())
        self._end(line, listed[2], peer, kind, listed[7], lanes, lane_bits_s)

    def document(self, document: Document) -> None:
        """UFM's list of links."""
        links = document.value if isinstance(document.value, list) else [document.value]
        for link in links:
            if isinstance(link, dict) and "peer_port_dname" in link:
                self._ufm_port(Line(document.line, ""), link)
                continue
            near = _ufm_end(link, "source")
            far = _ufm_end(link, "destination")
            if near is None or far is None:
                self._reading.bad(document.line, "a link without two ports")
                continue
            width = _LANES.fullmatch(str(link.get("width")))
            self._node = near[:3]
            port, peer, peer_port = near[3], (far[0], far[1]), far[3]
            line = Line(document.line, "")
            self._end(line, port, peer, far[2], peer_port, int(width[1]) if width else None, None)

    def _ufm_port(self, line: Line, port: Mapping[str, Any]) -> None:
        """A port of UFM's list, and the cable that it has."""
        near = _PORT_NAME.fullmatch(str(port.get("name")))
        if near is None:
            self._reading.bad(line.number, "a port without a name")
            return
        kind = "switch" if str(port.get("description")).startswith("Switch") else "host"
        self._owner(kind, "0x" + near[1].lower(), str(port.get("node_description") or ""))
        far = _PORT_NAME.fullmatch(str(port.get("peer")))
        if far is None:
            return  # nothing is plugged in, or nothing answers
        peer = _named(None, "0x" + far[1].lower(), str(port.get("peer_node_description") or ""))
        width = _PORT_LANES.fullmatch(str(port.get("active_width")))
        lane_bits_s = LANE_BITS_S.get(str(port.get("active_speed")).upper())
        lanes = int(width[1]) if width else None
        self._end(line, near[2], peer, None, far[2], lanes, lane_bits_s)

    def _owner(self, kind: str, guid: str | None, description: str) -> None:
        self._reading.good()
        said = _kind(kind, description)
        self._guid = guid
        self._unnamed = (kind, description) if guid is None and _lacks_name(description) else None
        self._node = (*_named(said, guid, description), said)
        self._kinds[self._node[0]] = said

    def _end(
        self, line: Line, port: str, peer: tuple[str, str], peer_kind: str | None, peer_port: str,
        lanes: int | None, lane_bits_s: float | None,
        could: tuple[int | None, float | None] = (None, None),
    ) -> None:  # fmt: skip
        if self._node is None:
            self._reading.bad(line.number, "a link of no node", shape(line.text))
            return
        self._reading.good()
        if len(self._ends) >= MAX_LINKS:
            self.too_many += 1
            return
        name, prefix, kind = self._node
        speed = lane_bits_s * lanes if lane_bits_s is not None and lanes is not None else None
        self._ends.append(
            End(line.number, name, kind, prefix + port, peer[0], peer_kind, peer[1] + peer_port,
                lanes, speed, *could)
        )  # fmt: skip


def _could_be(
    remark: str, lanes: int | None, lane_bits_s: float | None
) -> tuple[int | None, float | None]:
    """Lanes and speed of all lanes that a remark says are possible; of what it leaves out, today's.

    Null where it says nothing, or a speed without lanes.
    """
    found = _COULD.findall(remark)
    if not found:
        return (None, None)
    wide = next((int(w) for w, _ in found if w), lanes)
    fast = next((_nominal(f) for _, f in found if f), lane_bits_s)
    return (wide, wide * fast if wide is not None and fast is not None else None)


def _ufm_end(link: Any, side: str) -> tuple[str, str, str, str] | None:
    """Machine, prefix of its ports, kind and port of one end of a link of UFM."""
    if not isinstance(link, dict):
        return None
    guid = _GUID.fullmatch(str(link.get(f"{side}_guid")))
    port = str(link.get(f"{side}_port"))
    if guid is None or not port.isascii() or not port.isdecimal():
        return None
    shown = str(link.get(f"{side}_port_dname") or "")
    kind = "host" if shown.upper().startswith("HCA") else "switch"
    said = link.get(f"{side}_port_node_description")
    name = said[:200] if isinstance(said, str) else ""
    return (*_named(kind, "0x" + guid[1].lower(), name), kind, port[:10])


def _kind(letter: str, description: str) -> str:
    return "switch" if _IN_SWITCH in description else _KINDS[letter.upper()]


def _named(kind: str | None, guid: str | None, description: str) -> tuple[str, str]:
    """The machine, and what its ports are called, as counters of the fabric name them."""
    text = description.strip()
    if kind != "switch" and (adapter := _HCA.match(text)):
        return machine_of(adapter[1], guid), f"{adapter[2]}/"
    return node_and_prefix(text, guid)


def _lacks_name(description: str) -> bool:
    """Whether a node is an adapter of a machine that nobody named (``localhost mlx5_0``)."""
    text = description.strip()
    return _named(None, "0x0", text)[0].endswith(" 0x0") and bool(_named(None, None, text)[1])


def _known(name: str, guids: Mapping[str, str | None]) -> str:
    """A machine that is known by its port's LID, by the GUID that its own list states."""
    start, mark, lid = name.rpartition(" LID ")
    guid = guids.get(lid) if mark else None
    return f"{start} {guid}" if guid else name


def _nominal(gigabits: str) -> float | None:
    """The lane's speed by name: what iblinkinfo prints counts the code too (53.125 of HDR)."""
    try:
        printed = float(gigabits) * 1e9
    except ValueError:
        return None
    near = min(LANE_BITS_S.values(), key=lambda s: abs(s - printed))
    return near if abs(near - printed) <= 0.07 * near else printed


def _write(sink: Sink, ends: list[End]) -> None:
    if not ends:
        return
    write_columns(
        sink, "fabric_link", {n: [getattr(e, n) for e in ends] for n in End._fields}
    )  # fmt: skip
    write_links(
        sink,
        (
            (e.place, e.node, e.port, e.peer, e.peer_port.partition("/")[0])
            for e in ends
            if e.peer_kind == "host" and e.node_kind == "switch"
        ),
    )
