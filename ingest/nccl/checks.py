"""What frameworks say of who stayed away: of a job's start, and by their own checks of collectives.

``torch.distributed.monitored_barrier`` names who did not reach it, and with
TORCH_DISTRIBUTED_DEBUG=DETAIL every collective begins with one and compares what its members are
about to call. All members then raise an exception; only these lines tell which of them is at fault.
Before the first collective processes meet in a store: rank 0, which holds it, waits for so many
clients (``TCPStore``), older releases and TORCH_DIST_INIT_BARRIER count who came
(``store_based_barrier``), and Gloo's members wait for the address of each of the others. Before
that the agents of torchrun meet in a rendezvous, whose timeout says no number.
Horovod's coordinator warns of tensors that some ranks have handed in and others not, in a form that
changed twice, as its sources print it:

    ... are waiting for remainder of ranks for more than 60 seconds. ...
    Missing ranks:                  Stalled ranks:          Stalled ops:
    3: [allreduce.fc.bias, ...]     3!: [allreduce.fc]      allreduce.fc [missing ranks: 3, 5]

Rows are ``log_event`` of these codes: ``barrier-missed`` (``missed``: ranks in the group whose rank
0 speaks), ``barrier-reached`` (by one that waited for rank 0 in vain), ``calls-differ`` (two
ranks of a group, with what each calls), ``join-short`` (``joined`` of ``members`` came in time;
``of_store`` where rank 0 says so, ``of_agents`` where torchrun does), ``join-awaited`` (``awaited``
did not come to its group, the job's first or another) and ``call-awaited`` (Horovod's ``missed``,
one event a warning).
"""

from __future__ import annotations

import re

from tracekit.ingest.base import Sink
from tracekit.ingest.nccl.rows import Rows
from tracekit.ingest.nccl.watchdog import OPS
from tracekit.values import MAX_RANKS

WORDS = (
    b"failed to pass monitoredBarrier", b"successfully reached monitoredBarrier",
    b"mismatch between collectives on ranks", b" clients joined", b"store based barrier on rank",
    b"DistStoreError: wait timeout after ", b"waiting for remainder of ranks for more than ",
    b"failed to join the rendezvous", b"RendezvousTimeoutError",
)  # fmt: skip
KEY = re.compile(b"|".join(map(re.escape, WORDS)))
_SPEAKER = re.compile(rb"\[rank(\d{1,7})\]")
_MISSED = re.compile(
    rb"Ranks? (\d{1,7}(?:, ?\d{1,7})*) failed to pass monitoredBarrier in (\d{1,12}) ms"
)
_REACHED = re.compile(rb"Rank (\d{1,7}) successfully reached monitoredBarrier")
_CALL = re.compile(
    rb"Rank (\d{1,7}) is running collective: CollectiveFingerPrint\(SequenceNumber=(\d{1,18}),? ?"
    rb"OpType=(\w{1,40})(?:, TensorShape=\[([\d, ]{0,200})\])?"
)
_CLIENTS = re.compile(
    rb"Timed out after (\d{1,9}) seconds waiting for clients\. (\d{1,7})/(\d{1,7}) clients joined"
)
_STORE_BARRIER = re.compile(
    rb"in store based barrier on rank:? (\d{1,7}), for key: store_based_barrier_key:(\w{1,80}) "
    rb"\(world_size=(\d{1,7}), (?:worker_count|num_workers_joined)=(\d{1,7})\b"
)
_NO_KEY = re.compile(
    rb"DistStoreError: wait timeout after (\d{1,12})ms, keys: "
    rb"/default_pg/0//(?:(\w{1,80})//)?cpu//\d{1,9}/(\d{1,7})\s*$"
)
"""Where Gloo's members leave their addresses: the job's first group has no name of its own."""


_NEVER_MET = re.compile(rb"failed to join the rendezvous|RendezvousTimeoutError\s*$")
"""torchrun's agents, which meet before any process starts."""
_AWAITED = re.compile(rb"waiting for remainder of ranks for more than (\d{1,9}) seconds")
_OF_RANK = re.compile(rb"(?:^|>: ?)(\d{1,7})!?: \[")
_OF_TENSOR = re.compile(rb" \[missing ranks: ?(\d{1,7}(?:, \d{1,7}){0,9999})\]")
MAX_BETWEEN = 4
"""Lines of others within a warning of Horovod's, beyond which it has ended."""


class CheckReader:
    """Takes such lines out of a job's output; ``rank`` is what the file's name says."""

    def __init__(self, sink: Sink, rank: int | None = None) -> None:
        self._rank = rank
        self._rows = Rows(sink, "log_event", ("place", "code", "severity", "fields"))
        self.count = 0
        self._warned: tuple[int, int] | None = None
        """Place of a warning of Horovod's that goes on, and for how many seconds it has waited."""
        self._missed: set[int] = set()
        self._between = 0

    @property
    def is_open(self) -> bool:
        """Whether a warning has begun that further lines belong to."""
        return self._warned is not None

    def look(self, line: bytes, place: int) -> None:
        """Look at a line for Horovod's warnings; it consumes none."""
        if self._warned is not None:
            self._continue(line)
        if awaited := _AWAITED.search(line):
            self._end()
            self._warned, self._between = (place, int(awaited[1])), 0
            self._continue(line)

    def _continue(self, line: bytes) -> None:
        ranks = [int(one[1]) for one in _OF_RANK.finditer(line)]
        ranks += [int(r) for one in _OF_TENSOR.finditer(line) for r in one[1].split(b",")]
        self._missed.update(rank for rank in ranks if rank < MAX_RANKS)
        self._between = 0 if ranks else self._between + 1
        if self._between > MAX_BETWEEN:
            self._end()

    def _end(self) -> None:
        if self._warned is not None and self._missed:
            place, waited_s = self._warned
            told = " ".join(map(str, sorted(self._missed)))
            self._add(place, "call-awaited", [f"missed={told}", f"ms={1000 * waited_s}"])
        self._warned, self._missed = None, set()

    def take(self, line: bytes, place: int) -> bool:
        """A line that may be one of these; False if it is not."""
        speaker = _SPEAKER.search(line)
        fields = [f"world_rank={int(speaker[1])}"] if speaker else []
        if missed := _MISSED.search(line):
            ranks = sorted({int(r) for r in missed[1].split(b",")})
            told = " ".join(str(r) for r in ranks if r < MAX_RANKS)
            self._add(place, "barrier-missed", [*fields, f"missed={told}", f"ms={int(missed[2])}"])
            return True
        if reached := _REACHED.search(line):
            self._add(place, "barrier-reached", [*fields, f"rank={int(reached[1])}"])
            return True
        if joining := _joining(line, int(speaker[1]) if speaker else self._rank):
            self._add(place, *joining)
            return True
        calls = _CALL.findall(line)
        if len(calls) < 2:
            return False
        for side, (rank, sequence, op, shape) in zip(("", "other_"), calls, strict=False):
            name = OPS.get(op.decode(), "unknown")
            fields += [f"{side}rank={int(rank)}", f"{side}op={name}"]
            fields += [f"{side}shape={shape.decode()}"] if shape else []
            fields += [f"{side}sequence={int(sequence)}"]
        self._add(place, "calls-differ", fields)
        return True

    def _add(self, place: int, code: str, fields: list[str]) -> None:
        self.count += 1
        self._rows.add((place, code, "error", fields))

    def finish(self) -> None:
        """Write what is held."""
        self._end()
        self._rows.flush()


def _joining(line: bytes, rank: int | None) -> tuple[str, list[str]] | None:
    """What a line says of processes that did not come when the job, or a group, began."""
    by = [] if rank is None else [f"rank={rank}"]
    if clients := _CLIENTS.search(line):
        waited_s, joined, members = (int(number) for number in clients.groups())
        counts = [f"joined={joined}", f"members={members}", f"ms={waited_s * 1000}"]
        return "join-short", [*by, *counts, "of_store=1"]
    if barrier := _STORE_BARRIER.search(line):
        counts = [f"joined={int(barrier[4])}", f"members={int(barrier[3])}"]
        # Of a group whose members alone meet the name is a hash; all ranks come to the others.
        return "join-short", [
            f"rank={int(barrier[1])}", *counts, *(["of_all=1"] if barrier[2].isdigit() else []),
        ]  # fmt: skip
    if _NEVER_MET.search(line):
        return "join-short", ["of_all=1", "of_agents=1"]
    if awaited := _NO_KEY.search(line):
        told = [*by, f"awaited={int(awaited[3])}", f"ms={int(awaited[1])}"]
        return "join-awaited", [*told, *([] if awaited[2] else ["of_all=1"])]
    return None
