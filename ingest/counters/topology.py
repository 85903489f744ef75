"""What connects the GPUs and NICs of one host: ``nvidia-smi topo -m`` and NCCL's topology XML.

``NCCL_TOPO_DUMP_FILE`` writes the XML. Both are read without a job or a run: as a table of the
store, and as a job description's hardware.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from xml.etree import ElementTree

from msgspec import Struct, field

from tracekit.ingest.base import Sink, write_columns
from tracekit.ingest.counters.names import pci_address
from tracekit.wording import natural

READ_CHARACTERS = 1 << 16
MAX_DEPTH = 64
"""Nesting: a bridge below a bridge is one level, and real trees have ten."""
MAX_ELEMENTS = 100_000
MAX_DEVICES = 1_024
"""GPUs, and ports of NICs, of one machine: each pair is a row."""
MBIT = 1e6 / 8
SOCKET_DEFAULT_MBIT_S = 10_000
"""What NCCL writes for an interface whose speed it cannot read (net_socket.cc)."""

NEARNESS = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4}
"""nvidia-smi's words, near to far: one switch, several, the host bridge, the socket, beyond."""
_HEADER = re.compile(r"(?m)^[ \t]*+(?:\x1b\[\d*m)?[ \t]*+GPU0\s.*\bGPU|^GPU0\s+X")
_WORD = re.compile(r"NV\d+|SYS|NODE|PHB|PXB|PIX|X")
_ANSI = re.compile(r"\x1b\[\d*m")


class Cell(NamedTuple):
    """What lies between a GPU and another device of its host."""

    place: int
    gpu: str
    peer: str
    is_nic: bool
    connection: str
    """nvidia-smi's word: X (itself), NV and the lanes, PIX, PXB, PHB, NODE or SYS."""


class NicPort(NamedTuple):
    """A port of a NIC by which the host joins a network."""

    place: int
    name: str
    """As counters of a host name it: mlx5_0/1, or the interface alone where it has no number."""
    speed_bits_s: float | None


class Topology(Struct, frozen=True):
    """GPUs and NICs of one host."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    nearest: Mapping[str, tuple[str, ...]]
    """GPU -> the NICs that are nearest (several where they are equally near)."""
    nic_bytes_per_s: float | None = None
    nvlink_domain: int | None = None
    cells: tuple[Cell, ...] = ()
    """Every pair that the source names, each GPU with itself first."""
    pci: Mapping[str, str] = field(default_factory=dict)
    """GPU -> PCI address, where the source states it."""
    cpus: Mapping[str, str] = field(default_factory=dict)
    """GPU -> CPUs beside it, as nvidia-smi prints them."""
    numa: Mapping[str, int] = field(default_factory=dict)
    """GPU -> NUMA node."""
    ports: tuple[NicPort, ...] = ()
    """Ports of NICs, where the source lists them."""


def read_topology(text: str) -> Topology | None:
    """A topology of either kind; None where the text is neither."""
    if "<system" in text[:4096]:
        return from_xml(text)
    if _HEADER.search(text):
        return from_matrix(text)
    return None


def write_links(sink: Sink, topology: Topology, node: str | None) -> None:
    """Rows of host_link."""
    if not topology.cells:
        return
    cells = topology.cells

    def of(each: Mapping[str, str | int]) -> list[str | int | None]:
        return [each.get(c.gpu) for c in cells]

    lanes = [int(c.connection[2:]) if c.connection.startswith("NV") else None for c in cells]
    near = [c.peer in topology.nearest.get(c.gpu, ()) if c.is_nic else None for c in cells]
    write_columns(
        sink,
        "host_link",
        {
            "place": [c.place for c in cells],
            "node": [node] * len(cells),
            "gpu": [c.gpu for c in cells],
            "nvml_index": [_index(c.gpu) for c in cells],
            "pci": of(topology.pci),
            "peer": [c.peer[:200] for c in cells],
            "peer_kind": ["nic" if c.is_nic else "gpu" for c in cells],
            "connection": [c.connection for c in cells],
            "nvlinks_count": lanes,
            "is_nearest": near,
            "cpu_affinity": of(topology.cpus),
            "numa_node": of(topology.numa),
        },
    )


def write_ports(sink: Sink, topology: Topology, node: str | None) -> None:
    """Rows of fabric_link: the host's ends of its cables. Where they lead, its topology does not
    say; without the host's name nobody could tell whose they are."""
    ports = topology.ports
    if node is None or not ports:
        return
    count = len(ports)
    write_columns(
        sink,
        "fabric_link",
        {
            "place": [p.place for p in ports],
            "node": [node] * count,
            "node_kind": ["host"] * count,
            "port": [p.name for p in ports],
            "peer": [None] * count,
            "peer_kind": [None] * count,
            "peer_port": [None] * count,
            "lanes_count": [None] * count,
            "speed_bits_s": [p.speed_bits_s for p in ports],
        },
    )


def _index(gpu: str) -> int | None:
    digits = gpu.removeprefix("GPU")
    return int(digits) if digits.isdecimal() and len(digits) < 6 else None


# --- NCCL's XML -----------------------------------------------------------------------------------


class _Found(NamedTuple):
    """A GPU or a port of a NIC in the tree."""

    name: str
    bridges: tuple[int, ...]
    """Identities of the PCI elements above it, from the host bridge down to its own."""
    cpu: int | None
    """Identity of the CPU (a NUMA node) above it."""
    place: int
    speed: float | None = None


_Frame = tuple[ElementTree.Element, tuple[int, ...], int | None, str, str]
"""An element, the PCI elements above it, its CPU, its bus address, its NUMA node."""


def from_xml(text: str) -> Topology | None:
    """NCCL's topology; None for anything else, damaged XML and entities among it."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        return None  # nothing that NCCL writes declares entities; such a file is an attack
    root = _root(text)
    if root is None or root.tag != "system":
        return None
    gpus: list[_Found] = []
    nics: list[_Found] = []
    ports: dict[str, NicPort] = {}
    lanes: dict[str, int] = {}
    switched: dict[str, int] = {}
    direct: dict[tuple[str, str], int] = {}
    pci: dict[str, str] = {}
    numa: dict[str, int] = {}
    stack: list[_Frame] = [(root, (), None, "", "")]
    place = 0
    while stack:
        element, bridges, cpu, busid, node = stack.pop()
        place += 1
        if element.tag == "pci":
            busid = element.get("busid", busid)
            bridges = (*bridges, place)
        elif element.tag == "cpu":
            cpu, node = place, element.get("numaid", "")
        elif element.tag == "gpu":
            name = f"GPU{element.get('dev', len(gpus))}"[:40]
            gpus.append(_Found(name, bridges, cpu, place))
            links = [(link, _whole(link.get("count")) or 0) for link in element.iter("nvlink")]
            lanes[name] = sum(count for _, count in links)
            for link, count in links:
                target = pci_address(link.get("target", ""))
                if link.get("tclass", "").startswith("0x0302") and target:
                    direct[name, target] = direct.get((name, target), 0) + count
                else:
                    switched[name] = switched.get(name, 0) + count
            if address := pci_address(busid):
                pci[name] = address
            if node.isdecimal() and len(node) < 6:
                numa[name] = int(node)
        elif element.tag == "net":
            speed = _whole(element.get("speed"))
            name = (element.get("name") or busid)[:200]
            rate = speed * MBIT if speed else None
            nics.append(_Found(name, bridges, cpu, place, rate))
            if port := _nic_port(element, place, speed):
                ports.setdefault(port.name, port)
        stack += [(child, bridges, cpu, busid, node) for child in reversed(element)]
    if max(len(gpus), len(nics)) > MAX_DEVICES:
        return None
    gpus.sort(key=lambda g: natural(g.name))
    nics.sort(key=lambda n: natural(n.name))
    speeds = {nic.speed for nic in nics if nic.speed}
    linked = sum(1 for count in lanes.values() if count)
    once = {nic.name: nic for nic in nics}
    nearest: dict[str, tuple[str, ...]] = {}
    cells = []
    for gpu in gpus:
        for peer in gpus:
            word = "X" if peer is gpu else _pci_word(gpu, peer)
            count = direct.get((gpu.name, pci.get(peer.name, "")), 0) or min(
                switched.get(gpu.name, 0), switched.get(peer.name, 0)
            )
            if peer is not gpu and count:
                word = f"NV{count}"
            cells.append(Cell(gpu.place, gpu.name, peer.name, False, word))
        words = {name: _pci_word(gpu, nic) for name, nic in once.items()}
        best = min((NEARNESS[w] for w in words.values()), default=None)
        nearest[gpu.name] = tuple(n for n, w in words.items() if NEARNESS[w] == best)
        cells += [Cell(gpu.place, gpu.name, n, True, w) for n, w in words.items()]
    return Topology(
        gpus=tuple(gpu.name for gpu in gpus),
        nics=tuple(once),
        nearest=nearest,
        nic_bytes_per_s=speeds.pop() if len(speeds) == 1 else None,
        nvlink_domain=linked or None,
        cells=tuple(dict.fromkeys(cells)),
        pci=pci,
        numa=numa,
        ports=tuple(ports.values()),
    )


def _nic_port(net: ElementTree.Element, place: int, speed_mbit_s: int | None) -> NicPort | None:
    """The port of a ``net`` element; None where it names none, or stands for several merged."""
    name = (net.get("name") or "")[:200]
    if not name or "+" in name:
        return None
    number = _whole(net.get("port"))
    # A socket has no port number, and where its speed is unknown NCCL writes a default.
    is_default = not number and speed_mbit_s == SOCKET_DEFAULT_MBIT_S
    speed = speed_mbit_s * 1e6 if speed_mbit_s and not is_default else None
    return NicPort(place, f"{name}/{number}" if number else name, speed)


def _root(text: str) -> ElementTree.Element | None:
    """The root of a tree; None where it is damaged, or deeper or larger than any machine's."""
    depth = count = 0
    parser: Any = ElementTree.XMLPullParser(("start", "end"))
    root: ElementTree.Element | None = None
    try:
        for i in range(0, len(text), READ_CHARACTERS):
            parser.feed(text[i : i + READ_CHARACTERS])
            for event, element in parser.read_events():
                is_start = event == "start"
                depth += 1 if is_start else -1
                count += is_start
                root = element if root is None else root
                if depth > MAX_DEPTH or count > MAX_ELEMENTS:
                    return None
        parser.close()
    except ElementTree.ParseError:
        return None
    return root


def _pci_word(device: _Found, other: _Found) -> str:
    """nvidia-smi's word for the way over PCIe, from the tree: SYS between NUMA nodes."""
    shared = [b for b in device.bridges if b in other.bridges]
    if not shared:
        return "PHB" if device.cpu == other.cpu else "SYS"
    deepest = max(len(device.bridges), len(other.bridges)) - len(shared)
    return "PIX" if deepest <= 1 else "PXB"


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 16 else None


# --- nvidia-smi topo -m ---------------------------------------------------------------------------


_COLUMN = re.compile(r"(?:GPU|NIC)\d+|mlx\w+|\w+_\d+|CPU")


def is_matrix_header(line: str) -> bool:
    """Whether a line names the columns: its second word is a column too, no cell such as X."""
    words = _ANSI.sub("", line).split()
    return words[:1] == ["GPU0"] and len(words) > 1 and _COLUMN.fullmatch(words[1]) is not None


def from_matrix(text: str, first_line: int = 1) -> Topology | None:
    """The matrix in a text; ``first_line`` is the number of its first line in the file."""
    lines = [_ANSI.sub("", line) for line in text.splitlines()]
    header = next((i for i, line in enumerate(lines) if is_matrix_header(line)), None)
    if header is None:
        return None
    columns = [c for c in lines[header].split() if re.fullmatch(r"(GPU|NIC)\d+|mlx\w+|\w+_\d+", c)]
    rows: dict[str, list[str]] = {}
    places: dict[str, int] = {}
    for number, line in enumerate(lines[header + 1 :], first_line + header + 1):
        cells = line.split()
        if cells and cells[0] in columns and cells[0] not in rows:
            rows[cells[0]] = cells[1:]
            places[cells[0]] = number
    legend = dict(re.findall(r"(?m)^\s*(NIC\d+):\s*(\S{1,100})", text))
    gpus = [c for c in columns if c.startswith("GPU") and c in rows]
    nics = [c for c in columns if not c.startswith("GPU")]
    if not gpus:
        return None
    nearest: dict[str, tuple[str, ...]] = {}
    lanes: dict[str, int] = {}
    read_cells: list[Cell] = []
    cpus: dict[str, str] = {}
    numa: dict[str, int] = {}
    for gpu in gpus:
        row = rows[gpu]
        words = dict(zip(columns, row, strict=False))
        far = {n: NEARNESS[words[n]] for n in nics if words.get(n) in NEARNESS}
        best = min(far.values(), default=None)
        nearest[gpu] = tuple(legend.get(n, n) for n in nics if n in far and far[n] == best)
        links = [int(c[2:]) for c in words.values() if re.fullmatch(r"NV\d+", c)]
        lanes[gpu] = sum(links)
        read_cells += [
            Cell(places[gpu], gpu, legend.get(peer, peer), peer in nics, word)
            for peer, word in words.items()
            if _WORD.fullmatch(word)
        ]
        affinity = row[len(columns) :]
        if affinity and re.fullmatch(r"\d[\d,-]{0,200}", affinity[0]):
            cpus[gpu] = affinity[0]
            if len(affinity) > 1 and affinity[1].isdecimal() and len(affinity[1]) < 6:
                numa[gpu] = int(affinity[1])
    linked = sum(1 for count in lanes.values() if count)
    return Topology(
        gpus=tuple(gpus),
        nics=tuple(legend.get(n, n) for n in nics),
        nearest=nearest,
        nvlink_domain=linked or None,
        cells=tuple(read_cells),
        cpus=cpus,
        numa=numa,
    )
