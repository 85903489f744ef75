"""Where processes may run, and where their memory lies: /proc, taskset, numastat, cpusets.

``/proc/PID/status`` of several processes, one after the other or as ``grep -H . /proc/*/status``
prints them, is read too; of a status the process, its CPUs and its memory nodes are kept, and
nothing else. What tasks (threads) of a process may is not asked. Of cgroups v2 ``grep -H .
cgroup.procs cpuset.cpus.effective cpuset.mems.effective`` says it for all processes of one;
without ``cgroup.procs`` of nobody.
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from tracekit.ingest.base import Recognition, Sink, SourceFile, write_columns
from tracekit.ingest.counters.names import node_of_path
from tracekit.ingest.lines import lines

NAME = "affinity"
MIB = 1 << 20
MAX_ROWS = 100_000
"""Of one file: more processes than a machine has."""
MAX_MASK_BITS = 1 << 14
MAX_PID_DIGITS = 10

_STATUS = re.compile(
    r"(?:/proc/(\d{1,10})/status:)?(Pid|Cpus_allowed_list|Mems_allowed_list):\s+([\d,-]{1,400})\s*"
)
_TASKSET = re.compile(
    r"pid (\d{1,10})'s (?:current|new) affinity (list|mask): ([\da-f,-]{1,5000})\s*"
)
_MEMORY = re.compile(
    r"Per-node process memory usage \(in MBs\)(?: for PID (\d{1,10}) \(.{0,40}\))?"
)
_NODES = re.compile(r"(?:PID)?\s+Node \d")
_OF_PROCESS = re.compile(r"(\d{1,10}) \(.{0,40}?\)?((?:\s+\d{1,12}\.\d\d)+)\s*")
_TOTAL = re.compile(r"Total((?:\s+\d{1,12}\.\d\d)+)\s*")
_GROUP = re.compile(
    r"(/sys/fs/cgroup/.{0,1000}|)\b"
    r"(cgroup\.procs|cpuset\.cpus\.effective|cpuset\.mems\.effective):([\d,-]{1,5000})\s*"
)
_ANY = re.compile(
    rb"\A\s*(?:(?:/proc/\d{1,10}/status:)?(?:Name|Pid):\t"
    rb"|pid \d{1,10}'s (?:current|new) affinity |Per-node process memory usage \(in MBs\)"
    rb"|(?:/sys/fs/cgroup/[^\n]{0,1000}/)?(?:cgroup\.procs|cpuset\.(?:cpus|mems)\.effective):\d)"
)
_ALONE = re.compile(rb"(?:\s*pid \d{1,10}'s (?:current|new) affinity [^\n]{1,5010}\n)+\s*")
_COLUMNS = ("place", "node", "pid", "cpus", "memory_nodes", "numa_node", "memory_bytes")


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise a file by its first line."""
    del name
    first = _ANY.match(head)
    if first is None or (first[0].endswith(b":\t") and b"_allowed_list:" not in head):
        return None
    if first[0].endswith(b"affinity ") and not _ALONE.fullmatch(head[: head.rfind(b"\n") + 1]):
        return None  # a script's word, before what the job itself prints
    return Recognition(NAME, "where processes may run, and their memory", NAME)


class _Group(Struct):
    """A cgroup: what its processes may, and which they are with their lines."""

    cpus: str | None = None
    memory_nodes: str | None = None
    pids: list[tuple[int, int]] = field(default_factory=list)


class _Reader:
    """State of reading one file."""

    def __init__(self, node: str | None) -> None:
        self.node = node
        self.rows: list[tuple[int, str | None, int, str | None, str | None, int | None, int | None]]
        self.rows = []
        self.left_out = 0
        self._pid: int | None = None
        """Whose status is being read, or whose memory the table is of."""
        self._place = 0
        self._nodes: list[int] = []
        self._is_memory = False
        self._status: dict[str, str] = {}
        self._groups: dict[str, _Group] = {}

    def take(self, place: int, text: str) -> None:
        """Look at a line."""
        if said := _STATUS.fullmatch(text):
            pid = int(said[1]) if said[1] else int(said[3]) if said[2] == "Pid" else None
            if said[2] == "Pid" or (pid is not None and pid != self._pid):
                self.flush()
                self._pid, self._place, self._is_memory = pid, place, False
            if said[2] != "Pid":
                self._status[said[2]] = said[3]
        elif of_group := _GROUP.fullmatch(text):
            self._group(place, *of_group.groups())
        elif bound := _TASKSET.fullmatch(text):
            cpus = bound[3] if bound[2] == "list" else _of_mask(bound[3])
            self._add(place, int(bound[1]), cpus=cpus)
        elif memory := _MEMORY.match(text):
            self.flush()
            self._pid, self._is_memory = int(memory[1]) if memory[1] else None, True
        elif self._is_memory:
            self._memory(place, text)

    def _group(self, place: int, folder: str, name: str, said: str) -> None:
        """A line of a cgroup's file."""
        if folder not in self._groups and len(self._groups) >= MAX_ROWS:
            self.left_out += 1
            return
        group = self._groups.setdefault(folder, _Group())
        if name == "cpuset.cpus.effective":
            group.cpus = said
        elif name == "cpuset.mems.effective":
            group.memory_nodes = said
        elif not said.isdecimal() or len(said) > MAX_PID_DIGITS or len(group.pids) >= MAX_ROWS:
            self.left_out += 1
        else:
            group.pids.append((place, int(said)))

    def finish(self) -> None:
        """Keep what is told once all lines are known."""
        self.flush()
        for group in self._groups.values():
            if group.cpus is not None or group.memory_nodes is not None:
                for place, pid in group.pids:
                    self._add(place, pid, cpus=group.cpus, memory_nodes=group.memory_nodes)

    def _memory(self, place: int, text: str) -> None:
        if _NODES.match(text):
            self._nodes = [int(n) for n in re.findall(r"Node (\d{1,4})", text)]
            return
        own = _OF_PROCESS.fullmatch(text)
        whole = None if own or self._pid is None else _TOTAL.fullmatch(text)
        if not own and not whole:
            return
        pid, numbers = (int(own[1]), own[2]) if own else (self._pid, whole[1] if whole else "")
        for node, number in zip(self._nodes, numbers.split(), strict=False):
            if pid is not None:
                self._add(place, pid, numa_node=node, memory_bytes=round(float(number) * MIB))

    def flush(self) -> None:
        """Keep the status that ends here."""
        if self._pid is not None and self._status:
            self._add(
                self._place,
                self._pid,
                cpus=self._status.get("Cpus_allowed_list"),
                memory_nodes=self._status.get("Mems_allowed_list"),
            )
        self._status = {}

    def _add(
        self,
        place: int,
        pid: int,
        *,
        cpus: str | None = None,
        memory_nodes: str | None = None,
        numa_node: int | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        if len(self.rows) < MAX_ROWS:
            row = (place, self.node, pid, cpus, memory_nodes, numa_node, memory_bytes)
            self.rows.append(row)
        else:
            self.left_out += 1


def read(source: SourceFile, sink: Sink) -> None:
    """Write process_place: a row a process, and one a process and memory node."""
    reader = _Reader(node_of_path(source.path))
    with source.open() as stream:
        for line in lines(stream):
            reader.take(line.number, line.text)
    reader.finish()
    sink.fact(place_kind="line", producer="/proc, taskset, numastat", time_basis="none")
    sink.count("process_left_out", reader.left_out, doc="Processes beyond those kept of one file.")
    if not reader.rows:
        sink.fact(status="empty", reason="it tells of no process")
        return
    columns = dict(zip(_COLUMNS, map(list, zip(*reader.rows, strict=True)), strict=True))
    write_columns(sink, "process_place", columns)


def _of_mask(mask: str) -> str | None:
    """A list of CPUs of a hexadecimal mask; None for what is none, or wider than any machine."""
    digits = mask.replace(",", "")
    if re.fullmatch(r"[\da-f]+", digits) is None or len(digits) * 4 > MAX_MASK_BITS:
        return None
    bits, spans, cpu = int(digits, 16), list[str](), 0
    while bits:
        skipped = (bits & -bits).bit_length() - 1
        bits, cpu = bits >> skipped, cpu + skipped
        ones = (~bits & (bits + 1)).bit_length() - 1
        spans.append(str(cpu) if ones == 1 else f"{cpu}-{cpu + ones - 1}")
        bits, cpu = bits >> ones, cpu + ones
    return ",".join(spans) or None
