"""The NCCL log reader on calls (SUBSYS COLL): speed in one process, memory, and refusing binaries.

    python tests/benchmarks/nccl_log.py [MEGABYTES]

Ranks interleave as in a job's output; every line is another call. The bars are 30 MB/s in one
process, memory that does not grow with the file, and a binary file refused within a second. On a
machine that others use, seconds of CPU count: the clock then measures them.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

OPS = ("AllReduce", "AllGather", "ReduceScatter")


def write_log(path: Path, megabytes: int, ranks_count: int = 8) -> None:
    """A log of calls, in the words of 2.27."""
    with path.open("w", encoding="ascii") as file:
        for rank in range(ranks_count):
            file.write(
                f"node-1:{900 + rank}:{950 + rank} [{rank}] NCCL INFO ncclCommInitRankConfig comm "
                f"0x55b6aa64{rank:04x} rank {rank} nranks {ranks_count} cudaDev {rank} nvmlDev "
                f"{rank} busId {16 + rank:x}000 commId 0x54fe282d32a87d85 - Init COMPLETE\n"
            )
        count = 0
        while file.tell() < megabytes * 1_000_000:
            lines = []
            for _ in range(10_000):
                rank = count % ranks_count
                lines.append(
                    f"node-1:{900 + rank}:{950 + rank} [{rank}] NCCL INFO {OPS[count % 3]}: "
                    f"opCount {count // 8:x} sendbuff 0x7f{count:010x} recvbuff 0x7e{count:010x} "
                    f"count {1024 + count % 977} datatype 9 op 0 root 0 comm 0x55b6aa64{rank:04x} "
                    f"[nranks={ranks_count}] stream 0x55b6a98daaf0\n"
                )
                count += 1
            file.write("".join(lines))


class CountingSink:
    """Throws rows away, as a writer would pass them on."""

    def __init__(self) -> None:
        self.rows_count = 0

    def write(self, name: str, rows: Any) -> None:
        """Count them."""
        self.rows_count += rows.num_rows

    def count(self, counter: str, n: int = 1, **about: object) -> None:
        """Nothing."""

    def fact(self, **columns: object) -> None:
        """Nothing."""


def peak_mb() -> float:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(path: Path) -> tuple[float, float, int]:
    """Seconds of the clock, seconds of CPU, and rows of one file."""
    from tracekit.ingest import IngestOptions, files
    from tracekit.ingest.nccl import log

    (source,) = files.expand([path])
    sink = CountingSink()
    start, start_cpu = time.perf_counter(), time.process_time()
    log.read(source, sink, IngestOptions())
    cpu_s = time.process_time() - start_cpu
    return time.perf_counter() - start, cpu_s, sink.rows_count


def refuse_binary(folder: Path) -> float:
    """Seconds until 64 MB of noise are refused."""
    from tracekit.ingest import files, recognise

    path = folder / "nccl.log"
    path.write_bytes(os.urandom(1 << 20) * 64)
    start = time.perf_counter()
    (source,) = files.expand([path])
    found = recognise(source)
    wall_s = time.perf_counter() - start
    if found.ingestor is not None:
        raise SystemExit("the binary file was not refused")
    return wall_s


def run(megabytes: int = 1000) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in (megabytes // 10, megabytes):
            path = folder / f"{size}.log"
            write_log(path, size)
            wall_s, cpu_s, rows = measure(path)
            megabytes_read = path.stat().st_size / 1e6
            print(  # noqa: T201  # this program's output
                f"{size:5d} MB of calls  {cpu_s:7.2f} s of CPU  {megabytes_read / cpu_s:6.1f} MB/s "
                f"(>= 30)  {wall_s:7.2f} s on the clock  {rows} rows  peak {peak_mb():.0f} MB"
            )
            path.unlink()
        print(f"64 MB of noise refused in {refuse_binary(folder):.3f} s (< 1)")  # noqa: T201


if __name__ == "__main__":
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
