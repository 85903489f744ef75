"""What PyTorch's own checks of collectives say: monitored barriers, and calls that differ.

``torch.distributed.monitored_barrier`` names who did not reach it, and with
TORCH_DISTRIBUTED_DEBUG=DETAIL every collective begins with one and compares what its members are
about to call. All members then raise an exception; only these lines tell which of them is at fault.

Rows are ``log_event`` of these codes: ``barrier-missed`` (``missed``: ranks in the group whose rank
0 speaks), ``barrier-reached`` (by one that waited for rank 0 in vain) and ``calls-differ`` (two
ranks of a group, with what each calls).
"""

from __future__ import annotations

import re

from tracekit.ingest.base import Sink
from tracekit.ingest.nccl.rows import Rows
from tracekit.ingest.nccl.watchdog import OPS
from tracekit.values import MAX_RANKS

WORDS = (
    b"failed to pass monitoredBarrier", b"successfully reached monitoredBarrier",
    b"mismatch between collectives on ranks",
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


class CheckReader:
    """Takes such lines out of a job's output."""

    def __init__(self, sink: Sink) -> None:
        self._rows = Rows(sink, "log_event", ("place", "code", "severity", "fields"))
        self.count = 0

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
        self._rows.flush()
