"""What a launch that fails leaves in the job's output, as torchrun 2.13 prints it.

One process raises, is killed or exits; the ranks beside it lose their peer or are terminated by
their launcher, and so does a process of each other host, a few seconds later.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

from tracekit.simulate.history.draft import RANKS_PER_HOST, Failure

_API = "torch/distributed/elastic/multiprocessing/api.py"
_CODES = {"raise": 1, "memory": 1, "kill": -9, "exit": 42}
_OWN = {
    "raise": ("train.py", 211, "check_loss", "ValueError: loss is not finite"),
    "memory": ("model.py", 87, "forward",
               "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
}  # fmt: skip
_LOST = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, remote process "
    "exited or there was a network error, ncclRemoteError"
)


def traceback(rank: int, file: str, line: int, function: str, error: str) -> list[str]:
    """A traceback with the prefix that torch puts before each line of a rank's."""
    lines = [
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 402, in <module>',
        "    main()",
        f'  File "/job/{file}", line {line}, in {function}',
        "    work()",
        error,
    ]
    return [f"[rank{rank}]: {text}" for text in lines]


def caught(rank: int) -> list[str]:
    """An exception that the program prints and survives."""
    return traceback(rank, "data.py", 133, "fetch", "OSError: [Errno 5] Input/output error")


def failed(
    failure: Failure, hosts: tuple[str, ...], time_ns: int, rng: np.random.Generator
) -> Iterator[str]:
    """The output from the first exception to the launchers' summaries."""
    first = failure.rank // RANKS_PER_HOST
    pids = rng.integers(2000, 60_000, len(hosts) * RANKS_PER_HOST).tolist()
    agents = rng.integers(1000, 2000, len(hosts)).tolist()
    if failure.kind in _OWN:
        yield from traceback(failure.rank, *_OWN[failure.kind])
    losers = {}
    for at in range(len(hosts)):
        ranks = range(at * RANKS_PER_HOST, (at + 1) * RANKS_PER_HOST)
        losers[at] = [r for r in ranks if r != failure.rank and rng.random() < 0.4]
        if at != first and not losers[at]:
            losers[at] = [ranks[0]]
        for rank in losers[at]:
            yield from traceback(rank, "train.py", 233, "reduce_gradients", _LOST)
    for at in sorted(losers, key=lambda a: a != first):
        later = 0 if at == first else int(rng.integers(2, 9))
        root = failure.rank if at == first else losers[at][0]
        code = _CODES[failure.kind] if at == first else 1
        yield from _agent(hosts[at], at, root, code, time_ns + later * 10**9, agents[at], pids)


def _agent(
    host: str, at: int, root: int, code: int, ns: int, agent: int, pids: list[int]
) -> Iterator[str]:
    when = datetime.fromtimestamp(ns // 10**9, tz=UTC)
    stamp = f"{when:%m%d %H:%M:%S}.{ns % 10**9 // 1000:06d} {agent} {_API}"
    ranks = range(at * RANKS_PER_HOST, (at + 1) * RANKS_PER_HOST)
    others = [r for r in ranks if r != root]
    for rank in others:
        yield f"W{stamp}:1028] Sending process {pids[rank]} closing signal SIGTERM"
    yield (
        f"E{stamp}:1002] failed (exitcode: {code}) local_rank: {root % RANKS_PER_HOST} "
        f"(pid: {pids[root]}) of binary: /venv/bin/python3.11"
    )
    yield "Traceback (most recent call last):"
    yield '  File "/venv/bin/torchrun", line 8, in <module>'
    yield "    sys.exit(main())"
    yield "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    yield "=" * 60
    yield "train.py FAILED"
    yield "-" * 60
    yield "Failures:"
    for number, rank in enumerate(others, 1):
        yield from _entry(number, when, host, rank, -15, pids[rank])
    yield "-" * 60
    yield "Root Cause (first observed failure):"
    yield from _entry(0, when, host, root, code, pids[root])
    yield "=" * 60


def _entry(number: int, when: datetime, host: str, rank: int, code: int, pid: int) -> list[str]:
    names = {-15: "SIGTERM", -9: "SIGKILL"}
    signal = f" ({names[code]})" if code in names else ""
    return [
        f"[{number}]:",
        f"  time      : {when:%Y-%m-%d_%H:%M:%S}",
        f"  host      : {host}",
        f"  rank      : {rank} (local_rank: {rank % RANKS_PER_HOST})",
        f"  exitcode  : {code} (pid: {pid}) {signal}",
        "  error_file: <N/A>",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
    ]
