"""A coarse replay of jobs without a pipeline (DDP, FSDP, tensor and expert parallel).

What a rank does by itself takes the time that it took; whom it waits for follows from the
matched collectives:

    enter(c, r) = max(time at r's own progress, leave(call before c in the communicator, r)) + lag
    leave(c, r) = max(enter(c, m) for the members m that r needs) + transfer(c, r)

A rank stops where it computed nothing while a matched collective was running, and goes on when
that collective has ended. Own time is all other time: computation, idle host, unmatched
communication. The transfer is the measured end less the last start that the call had to wait
for, so the replay of what was measured gives the measured time back; by how much it does not is
the simulation error.

On the host a send goes out when its receiver asks for it, and what a rank asks for behind a send
ends, in the record, when it was asked: where a receiver asked while the sender stood still, the
sender needs it, and nothing that ended behind that counts as a transfer of so long.

On a busy host a call's range may end some ms after whoever waited for it went on, because the
thread that records it was put aside for the one that it woke. Where a stall ends so, the call ends
with it.

The ideal own time of a rank between two calls is the median of its peers', ranks whose calls in
that step have the same operations and sizes; where calls come in another order, of the whole
step. The ideal transfer is the median of calls with the same operation, size and members.

Not known: what a hidden collective would hold up if it took longer. So the replay says what a
step would take without a delay, and must not be asked for more delay than there was.
"""

from tracekit.whatif.collectives.scenarios import CollectiveReplay

__all__ = ["CollectiveReplay"]
