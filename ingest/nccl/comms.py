"""Which communicator a line belongs to.

A pointer means something within its process only, and is used again after a communicator was
destroyed: its *generation* says which use a line belongs to. Most lines carry no pointer at all.
They are tied to a communicator by the thread that initialises it, by the ranks that they name
where only one live communicator of the process fits, or not at all: null rather than guessed.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field

from tracekit.ingest.nccl.lines import Speaker
from tracekit.ingest.nccl.rows import Rows, as_int, pci, pointer

Process = tuple[str | None, int]

MAX_COMMS = 1_000_000
MAX_LIVING = 1000
"""Communicators of one process that are asked for each line; of more, none is the only one."""
MAX_WAITING = 200_000
"""Edges that wait for the end of an init; more are written without a communicator."""

_WORDS = re.compile(
    rb"\b(comm|rank|nranks|nRanks|cudaDev|nvmlDev|busId|commId|parent|splitCount|childCount"
    rb"|color|key|nNodes|localRanks|localRank|MNNVL) (0x[0-9a-fA-F]+|-?[0-9a-fA-F]+)"
)


def words(text: bytes) -> dict[bytes, bytes]:
    """The named values of a line, by word: their order and number differ between versions."""
    # The first of two equal words counts.
    return dict(reversed(_WORDS.findall(text)))


class Comm(Struct, eq=False):
    """A communicator as one rank of it logged it."""

    process: Process
    pointer: int | None
    generation: int
    number: int
    """Which communicator of its process this is, from 0."""
    place: int
    time_ns: int | None = None
    comm_hash: str | None = None
    parent: Comm | None = None
    group_rank: int | None = None
    world_rank: int | None = None
    group_size: int | None = None
    nodes: int | None = None
    local_ranks: int | None = None
    device: int | None = None
    nvml: int | None = None
    pci: str | None = None
    channels: int | None = None
    init_ns: int | None = None
    state: str | None = None
    """None until it says so: initialising, complete, incomplete or aborted."""
    is_ended: bool = False
    is_stub: bool = False
    """Known only from calls: no line said who it is."""
    tag: tuple[str | None, int] | None = None
    children: int = 0
    ops: int = 0
    others: int = 0
    speaker: Speaker | None = None
    parent_hash: str | None = None

    def next_op(self) -> int:
        """Ordinal of a call."""
        self.ops += 1
        return self.ops - 1

    def next_other(self) -> int:
        """Ordinal of a line that is no call."""
        self.others += 1
        return self.others - 1


class ProcessState(Struct):
    """What is known of one process."""

    comms: int = 0
    has_start: bool = False
    """Whether its NCCL announces the start of an init (2.18 and later)."""
    version: str | None = None
    nics: dict[int, str] = field(default_factory=dict)
    """Names of its network devices, by index."""
    unbound: int = 0
    """Ordinals of lines without a communicator."""


class Comms:
    """All communicators of one file."""

    def __init__(self) -> None:
        self.processes: dict[Process, ProcessState] = {}
        self.current: dict[tuple[Process, int], Comm] = {}
        self.threads: dict[tuple[Process, int], Comm] = {}
        self.by_rank: dict[tuple[Process, int | None], list[Comm]] = {}
        self.waiting: dict[tuple[Process, int], list[list[Any]]] = {}
        self.waiting_count = 0
        self.channels_waiting: dict[tuple[Process, int], int] = {}
        self.all: list[Comm] = []
        self.reused = 0

    def process(self, speaker: Speaker) -> ProcessState:
        """State of the speaker's process."""
        state = self.processes.get(speaker.process)
        if state is None:
            state = self.processes[speaker.process] = ProcessState()
        return state

    # --- lines that carry a pointer -------------------------------------------------------------

    def of_pointer(self, speaker: Speaker, text: bytes, place: int) -> Comm | None:
        """The communicator of a pointer, now; a stub where nothing introduced it."""
        value = pointer(text)
        return None if value is None else self.of_value(speaker, value, place)

    def of_value(self, speaker: Speaker, value: int, place: int) -> Comm:
        """The communicator at an address, now; a stub where nothing introduced it."""
        comm = self.current.get((speaker.process, value))
        if comm is None:
            comm = self._new(speaker, value, place)
            comm.is_stub = True
        return comm

    def mention(
        self, speaker: Speaker, text: bytes, place: int, time_ns: int | None
    ) -> Comm | None:
        """Take in a line that describes a communicator (``comm 0x.. rank R nranks N ..``)."""
        mentioned = words(text)
        value = pointer(mentioned.get(b"comm"))
        if value is None:
            return None
        is_start = text.endswith(b"Init START")
        comm = self.current.get((speaker.process, value))
        if comm is None or self._is_another(comm, mentioned, is_start):
            comm = self._new(speaker, value, place)
        comm.is_stub = False
        comm.time_ns = comm.time_ns if comm.time_ns is not None else time_ns
        self._fill(comm, speaker, mentioned, text)
        key = (speaker.process, speaker.tid)
        if is_start:
            self.process(speaker).has_start = True
            comm.state = "initialising"
        elif text.endswith(b"Init COMPLETE"):
            comm.state = "complete"
            self._settle(key, comm)
        elif text.endswith(b"Destroy COMPLETE"):
            comm.is_ended = True
        elif b"Abort " in text[-16:]:
            comm.is_ended = True
            comm.state = "aborted"
        if comm.is_ended:
            if self.threads.get(key) is comm:
                del self.threads[key]
        else:
            self.threads[key] = comm
        return comm

    def _is_another(self, comm: Comm, mentioned: dict[bytes, bytes], is_start: bool) -> bool:
        """Whether a pointer now means another communicator than before."""
        if comm.is_stub:
            return False
        if is_start and (comm.is_ended or comm.state is not None):
            return True
        if comm.is_ended and b"nranks" in mentioned:
            rank = as_int(mentioned.get(b"rank"))
            return rank != comm.group_rank or as_int(mentioned[b"nranks"]) != comm.group_size
        size = as_int(mentioned.get(b"nranks") or mentioned.get(b"nRanks"))
        if size is not None and comm.group_size is not None and size != comm.group_size:
            return True
        stated = mentioned.get(b"commId")
        return bool(stated and comm.comm_hash and comm.comm_hash != stated.decode().lower())

    def _new(self, speaker: Speaker, value: int, place: int) -> Comm:
        before = self.current.get((speaker.process, value))
        state = self.process(speaker)
        comm = Comm(
            speaker.process,
            value,
            before.generation + 1 if before else 0,
            state.comms,
            place,
            speaker=speaker,
        )
        if speaker.tag is not None:
            comm.tag = (speaker.tag_kind, speaker.tag)
        state.comms += 1
        self.reused += before is not None
        if before is not None:
            before.is_ended = True
        self.current[speaker.process, value] = comm
        if len(self.all) < MAX_COMMS:
            self.all.append(comm)
        return comm

    def _fill(
        self, comm: Comm, speaker: Speaker, mentioned: dict[bytes, bytes], text: bytes
    ) -> None:
        rank = as_int(mentioned.get(b"rank"))
        if comm.group_rank is None and rank is not None:
            comm.group_rank = rank
            self.by_rank.setdefault((comm.process, rank), []).append(comm)
        size = as_int(mentioned.get(b"nranks") or mentioned.get(b"nRanks"))
        comm.group_size = size if size is not None else comm.group_size
        for name, key in (
            ("nodes", b"nNodes"),
            ("local_ranks", b"localRanks"),
            ("device", b"cudaDev"),
            ("nvml", b"nvmlDev"),
        ):
            value = as_int(mentioned.get(key))
            if value is not None:
                setattr(comm, name, value)
        if b"busId" in mentioned:
            comm.pci = pci(mentioned[b"busId"])
        if b"commId" in mentioned:
            comm.comm_hash = mentioned[b"commId"].decode().lower()
        parent = pointer(mentioned.get(b"parent"))
        if parent:
            self._derive_hash(comm, speaker, parent, mentioned)

    def _derive_hash(
        self, comm: Comm, speaker: Speaker, parent: int, mentioned: dict[bytes, bytes]
    ) -> None:
        """Splits since 2.23 state no commId: parent, count and colour tell them apart."""
        above = self.current.get((speaker.process, parent))
        if above is None or above is comm:
            return
        comm.parent = above
        comm.parent_hash = above.comm_hash
        if comm.comm_hash is None and above.comm_hash is not None:
            count = mentioned.get(b"splitCount") or mentioned.get(b"childCount")
            if count is None:  # 2.23: the count is ours to make
                count = b"#%d" % above.children
            above.children += 1
            color = mentioned.get(b"color", b"0").decode()
            comm.comm_hash = f"{above.comm_hash}/{count.decode()}/{color}"

    # --- lines that carry none -------------------------------------------------------------------

    def of_thread(self, speaker: Speaker) -> Comm | None:
        """The communicator that this thread initialises or spoke of last."""
        return self.threads.get((speaker.process, speaker.tid))

    def of_ranks(self, speaker: Speaker, rank: int, other: int) -> Comm | None:
        """The communicator in which this process is rank ``rank`` and ``other`` is a rank."""
        comm = self.of_thread(speaker)
        if comm is not None and _fits(comm, rank, other):
            return comm
        comms = [c for c in self._living(speaker.process, rank) if _fits(c, rank, other)]
        return comms[0] if len(comms) == 1 else None

    def _living(self, process: Process, rank: int) -> list[Comm]:
        """The communicators in which a process is that rank; none where they are too many."""
        known = self.by_rank.get((process, rank), [])
        if any(c.is_ended for c in known[:MAX_LIVING]):
            known[:] = [c for c in known if not c.is_ended]
        return known if len(known) <= MAX_LIVING else []

    def of_root(self, speaker: Speaker) -> Comm | None:
        """The communicator of a line that only rank 0 prints."""
        comm = self.of_thread(speaker)
        if comm is not None and comm.group_rank == 0 and not comm.is_ended:
            return comm
        comms = [c for c in self._living(speaker.process, 0) if not c.is_ended]
        return comms[0] if len(comms) == 1 else None

    def is_before_init(self, speaker: Speaker) -> bool:
        """Whether a line of an init (2.17 and before) waits for its end to name the pointer."""
        return not self.process(speaker).has_start

    def wait(self, speaker: Speaker, row: list[Any]) -> bool:
        """Keep a row until the init of its thread ends; False when too many wait."""
        if self.waiting_count >= MAX_WAITING:
            return False
        self.waiting.setdefault((speaker.process, speaker.tid), []).append(row)
        self.waiting_count += 1
        return True

    def _settle(self, key: tuple[Process, int], comm: Comm) -> None:
        channels = self.channels_waiting.pop(key, None)
        if comm.channels is None:
            comm.channels = channels
        if key not in self.waiting:
            return
        for row in self.waiting[key]:
            if row[0] is None and _fits(comm, row[1], row[2]):
                row[0] = comm

    def drain(self, key: tuple[Process, int] | None = None) -> list[list[Any]]:
        """Take the rows that wait (of one thread, or all)."""
        keys = list(self.waiting) if key is None else [key]
        rows = [row for k in keys for row in self.waiting.pop(k, ())]
        self.waiting_count -= len(rows)
        return rows

    # --- at the end ------------------------------------------------------------------------------

    def finish(self) -> None:
        """Say of unfinished inits that they are."""
        for comm in self.all:
            if comm.state == "initialising":
                comm.state = "incomplete"
        _prove_world_ranks([c for c in self.all if not c.is_stub])

    def write(self, rows: Rows) -> None:
        """Rows of nccl_comm."""
        for c in self.all:
            if c.is_stub:
                continue
            version = self.processes[c.process].version
            rows.add(
                (
                    c.place, c.pointer, c.generation, c.process[1], c.number, c.time_ns,
                    c.process[0], c.comm_hash, c.parent_hash, c.group_rank, c.world_rank,
                    c.group_size, c.nodes, c.local_ranks, c.device, c.nvml, c.pci, c.channels,
                    version, c.init_ns, c.state,
                )
            )  # fmt: skip


COMM_COLUMNS = (
    "place", "comm_pointer", "comm_generation", "pid", "ordinal", "time_ns", "node", "comm_hash",
    "parent_hash", "group_rank", "world_rank", "group_size", "nodes_count", "local_ranks_count",
    "device", "nvml_index", "pci", "channels_count", "nccl_version", "init_dur_ns", "state",
)  # fmt: skip


def _fits(comm: Comm, rank: int | None, other: int | None) -> bool:
    if comm.group_rank != rank or comm.is_ended:
        return False
    size = comm.group_size
    return size is None or max(rank or 0, other or 0) < size


def _prove_world_ranks(comms: list[Comm]) -> None:
    """A launcher's task number is a rank if every process has its own and it leads one.

    Only where the largest communicator agrees: its ranks are the tasks' numbers.
    """
    tagged = [c for c in comms if c.tag is not None]
    size = max((c.group_size or 0 for c in tagged), default=0)
    world = [c for c in tagged if c.group_size == size]
    if size < 2 or len({c.tag for c in world}) < 2:
        return
    if any(c.tag is None or c.tag[1] != c.group_rank for c in world):
        return
    by_process = {c.process: c.group_rank for c in world}
    if len(by_process) != len({c.process for c in tagged}):
        return
    for comm in tagged:
        comm.world_rank = by_process[comm.process]
