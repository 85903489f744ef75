"""Machines, ports and GPUs, as paths and formats spell them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tracekit.ingest.base import stated_host

if TYPE_CHECKING:
    from tracekit.ingest.base import SourceFile

_PCI = re.compile(
    r"(?:PCI:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-9a-f]))?", re.I
)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}")
_NODE = re.compile(
    r"(?:switch|leaf|spine|superspine|tor|core|agg|border|sw|host|node|gpu|dgx|hgx|worker|compute)"
    r"(?:[-_]?[a-z]{0,8}[-_]?\d{1,6})(?:[-.][A-Za-z0-9-]{1,40}){0,4}?(?=$|[._ ]|-\D)",
    re.I,
)
_COMMAND = re.compile(
    r"(?:(?:ethtool|perfquery|ibqueryerrors|rdma|mlxlink|nvidia[-_]?smi|amd[-_]smi|rocm[-_]smi|"
    r"dcgmi?|ipmitool|ipmi|redfish|before|after)[-_.]+){1,3}",
    re.I,
)
"""What a capture's name may begin with, before that of its machine."""
_NODE_WITHIN = re.compile(
    r"(?<![A-Za-z0-9])((?:node|host|worker|server|dgx|hgx)[-_]?\d{1,6}"
    r"|(?:node|host)[-_][a-z])(?![A-Za-z0-9])",
    re.I,
)
_TREE = re.compile(r"/(?:sys|class|infiniband)/.*|/[\w.-]+/(?:ports|statistics)/.*")
_PORT_IN_NAME = re.compile(
    r"(?<![A-Za-z0-9])((?:eth|ens|enp|eno|enx|ib|bond|swp|rdma|roce|rocep|mlx5_|bnxt_re|rail)"
    r"[a-z0-9]{0,3}\d[a-z0-9]{0,16}(?:_np\d)?)(?![A-Za-z0-9])"
)
_NODE_LABELS = (
    "hostname", "exported_hostname", "nodename", "node_name", "kubernetes_node", "exported_node",
    "node",
)  # fmt: skip
_CAPTURED = re.compile(r"ethtool(?:-[a-z]{1,8})?\.([\w.@-]{1,60}?)(?:\.\d{9,19})?\.txt$")


def pci_address(text: str) -> str | None:
    """dddddddd:bb:dd.f in lower case, from any spelling; None for what is no PCI address."""
    address = _PCI.fullmatch(text.strip())
    if address is None:
        return None
    domain, bus, device, function = address.groups()
    return f"{int(domain or '0', 16):08x}:{bus}:{device}.{function or '0'}".lower()


def uuid_of(text: str | None) -> str | None:
    """A GPU's or MIG device's UUID; None for what is none."""
    text = (text or "").strip()
    return text if _UUID.fullmatch(text) else None


def node_of_path(path: str) -> str | None:
    """A machine that the file's name, or a folder of it, names; None where none clearly does.

    Only names that begin as machines' do and carry a number count (leaf01, gpu-11, host3); a file
    called switch is one too. Anything looser would turn commands into machines. ``tracekit
    capture`` names its folders after hosts.
    """
    plain = re.sub(r"[\\!]", "/", path)
    tree = _TREE.search(plain)
    parts = [p for p in (plain[: tree.start()] if tree else plain).split("/") if p]
    if len(parts) > 2 and parts[-3].startswith("tracekit-capture"):
        return parts[-2]
    for position, part in enumerate(reversed(parts[-3:])):
        command = _COMMAND.match(part) if position == 0 else None
        node = _NODE.match(part, command.end() if command else 0)
        if node:
            return node[0]
        if position == 0 and re.match(r"switch(?=[._]|$)", part):
            return "switch"
    return None


def node_in_name(name: str) -> str | None:
    """The one machine that a file's name names anywhere, as in telemetry_node0.csv."""
    nodes = {m[1] for m in _NODE_WITHIN.finditer(name)}
    return nodes.pop() if len(nodes) == 1 else None


def node_of_file(source: SourceFile) -> str | None:
    """The machine that a file's name or folder names; what its name names anywhere goes first.

    gpu_node0.csv is what node0's GPUs did: no machine's name has an underscore.
    """
    within, named = node_in_name(source.name), node_of_path(source.path)
    if within is not None and (named is None or named.endswith(f"_{within}")):
        return within
    return named


def node_of_labels(labels: Mapping[str, str]) -> str | None:
    """The machine that a series names. ``instance`` is the scraped address: its host, if a name."""
    for name in _NODE_LABELS:
        stated = stated_host(labels.get(name))
        if stated is not None and not stated.isdecimal():  # node="0" is one of NUMA's
            return stated
    host = labels.get("instance", "").rpartition(":")[0] or labels.get("instance", "")
    return stated_host(host) if re.search(r"[A-Za-z]", host) else None


def port_of_name(name: str) -> str | None:
    """An interface that a file's name names, as in ethtool_eth0.txt."""
    port = _CAPTURED.match(name) or _PORT_IN_NAME.search(name)
    return port[1] if port else None
