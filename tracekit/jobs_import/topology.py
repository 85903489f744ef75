"""Which NIC is near which GPU: ``nvidia-smi topo -m`` and NCCL's topology XML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree

from tracekit.job import JobDescription
from tracekit.jobs_import.values import described, whole

_NEARNESS = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4}
"""nvidia-smi's words, near to far: one switch, several, the host bridge, the socket, beyond."""
MBIT = 1e6 / 8


@dataclass(frozen=True)
class Topology:
    """GPUs and NICs of one host."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    nearest: Mapping[str, tuple[str, ...]]
    """GPU -> the NICs that are nearest (several where they are equally near)."""
    nic_bytes_per_s: float | None = None
    nvlink_peers: Mapping[str, int] = field(default_factory=dict)
    """GPU -> NVLink lanes that leave it, where the source counts them."""
    nvlink_domain: int | None = None


def read_topology(text: str) -> Topology | None:
    """A topology of either kind; None where the text is neither."""
    if "<system" in text[:4096]:
        return _from_xml(text)
    if re.search(r"(?m)^\s*(?:\x1b\[\d*m)?\s*GPU0\s.*\bGPU|^GPU0\s+X", text):
        return _from_matrix(text)
    return None


def as_job(text: str) -> JobDescription | None:
    """What a topology says of the hardware, as a job description."""
    found = read_topology(text)
    if found is None:
        return None
    near = "; ".join(f"{g}: {', '.join(n)}" for g, n in found.nearest.items() if n)
    shared = _shared(found)
    notes = [f"nearest NIC: {near}"] if near else []
    if shared:
        notes.append(f"GPUs that share their nearest NIC: {shared}")
    return described(
        {
            "hardware": {
                "gpus_per_node": len(found.gpus) or None,
                "nics_per_node": len(found.nics) or None,
                "nic_bytes_per_s": found.nic_bytes_per_s,
                "nvlink_domain": found.nvlink_domain,
            }
        },
        tuple(notes),
    )


def _shared(found: Topology) -> str:
    by_nic: dict[tuple[str, ...], list[str]] = {}
    for gpu, nics in found.nearest.items():
        by_nic.setdefault(nics, []).append(gpu)
    groups = [g for nics, g in by_nic.items() if len(g) > len(nics) > 0]
    return "; ".join(" ".join(g) for g in groups)


# --- NCCL's XML -----------------------------------------------------------------------------------


def _from_xml(text: str) -> Topology | None:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        return None  # nothing that NCCL writes declares entities; such a file is an attack
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - without entities nothing can expand
    except (ElementTree.ParseError, RecursionError):
        return None
    if root.tag != "system":
        return None
    gpus: list[tuple[str, tuple[int, ...]]] = []
    nics: list[tuple[str, tuple[int, ...], float | None]] = []
    lanes: dict[str, int] = {}
    stack: list[tuple[ElementTree.Element, tuple[int, ...], str]] = [(root, (), "")]
    while stack:
        element, path, busid = stack.pop()
        busid = element.get("busid", busid)
        if element.tag == "gpu":
            name = f"GPU{element.get('dev', len(gpus))}"
            gpus.append((name, path))
            links = (whole(link.get("count")) or 0 for link in element.iter("nvlink"))
            lanes[name] = sum(links)
        elif element.tag == "net":
            speed = whole(element.get("speed"))
            nics.append((element.get("name") or busid, path, speed * MBIT if speed else None))
        for index, child in enumerate(element):
            stack.append((child, (*path, index), busid))
    gpus.sort(key=lambda g: _natural(g[0]))
    nics.sort(key=lambda n: _natural(n[0]))
    nearest = {gpu: _nearest(path, nics) for gpu, path in gpus}
    speeds = {speed for _, _, speed in nics if speed}
    linked = sum(1 for count in lanes.values() if count)
    return Topology(
        gpus=tuple(name for name, _ in gpus),
        nics=tuple(dict.fromkeys(name for name, _, _ in nics)),
        nearest=nearest,
        nic_bytes_per_s=speeds.pop() if len(speeds) == 1 else None,
        nvlink_peers=lanes if linked else {},
        nvlink_domain=linked or None,
    )


def _nearest(
    gpu: tuple[int, ...], nics: list[tuple[str, tuple[int, ...], float | None]]
) -> tuple[str, ...]:
    """The NICs whose path through the tree parts latest from the GPU's."""

    def shared(path: tuple[int, ...]) -> int:
        count = 0
        for a, b in zip(gpu, path, strict=False):
            if a != b:
                break
            count += 1
        return count

    depths = {name: shared(path) for name, path, _ in nics}
    best = max(depths.values(), default=0)
    return tuple(name for name, depth in depths.items() if depth == best)


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    parts = re.split(r"(\d+)", text)
    return tuple((1, int(p), "") if p.isdecimal() else (0, 0, p) for p in parts)


# --- nvidia-smi topo -m ---------------------------------------------------------------------------


def _from_matrix(text: str) -> Topology | None:
    lines = [re.sub(r"\x1b\[\d*m", "", line) for line in text.splitlines()]
    # The header names the columns: its second word is a column too, not a cell such as X.
    header = next(
        (
            i
            for i, line in enumerate(lines)
            if line.split()[:1] == ["GPU0"]
            and line.split()[1:2] not in (["X"], [])
            and not re.fullmatch(r"NV\d+|SYS|NODE|PHB|PXB|PIX", line.split()[1])
        ),
        None,
    )
    if header is None:
        return None
    columns = [c for c in lines[header].split() if re.fullmatch(r"(GPU|NIC)\d+|mlx\w+|\w+_\d+", c)]
    rows: dict[str, list[str]] = {}
    for line in lines[header + 1 :]:
        cells = line.split()
        if cells and cells[0] in columns:
            rows[cells[0]] = cells[1 : 1 + len(columns)]
    legend = dict(re.findall(r"(?m)^\s*(NIC\d+):\s*(\S+)", text))
    gpus = [c for c in columns if c.startswith("GPU") and c in rows]
    nics = [c for c in columns if not c.startswith("GPU")]
    if not gpus:
        return None
    nearest: dict[str, tuple[str, ...]] = {}
    lanes: dict[str, int] = {}
    for gpu in gpus:
        words = dict(zip(columns, rows[gpu], strict=False))
        far = {n: _NEARNESS[words[n]] for n in nics if words.get(n) in _NEARNESS}
        best = min(far.values(), default=None)
        nearest[gpu] = tuple(legend.get(n, n) for n in nics if n in far and far[n] == best)
        links = [int(c[2:]) for c in words.values() if re.fullmatch(r"NV\d+", c)]
        lanes[gpu] = sum(links)
    linked = sum(1 for count in lanes.values() if count)
    return Topology(
        gpus=tuple(gpus),
        nics=tuple(legend.get(n, n) for n in nics),
        nearest=nearest,
        nvlink_peers=lanes if linked else {},
        nvlink_domain=linked or None,
    )
