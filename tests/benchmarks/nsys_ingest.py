"""Speed and memory on a large Nsight Systems export.

    python tests/benchmarks/nsys_ingest.py [--ranges N] [--launches N] [--kernels N] [--work DIR]

Makes an export of 2 million nested ranges, 400 thousand launches and 1 million kernels, ingests
it as the command does, and times the attribution of launches to ranges by itself. Target: under
60 s and 1 GB on two cores, and under 5 s for the attribution.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from nsys_exports import big_export

from tracekit.ingest.nsys.sweep import Launched, project


def attribution_s(ranges: int, launches: int) -> float:
    """Seconds that the sweep takes: ten nested ranges on each of five threads at a time."""
    index = np.arange(ranges, dtype=np.int64)
    group, level = index // 10, index % 10
    thread, slot = group % 5, group // 5
    start = slot * 1_000_000 + level * 1000
    end = (slot + 1) * 1_000_000 - 1000 * (level + 1)
    a_group = max(1, launches // max(1, ranges // 10))
    call = np.arange(launches, dtype=np.int64)
    owner = call // a_group
    at = owner // 5 * 1_000_000 + 100_000 + call % a_group * 1000
    calls = Launched(owner % 5, at, at + 500, at + 10_000, at + 11_000)
    begin = time.perf_counter()
    found = project(thread, start, end, calls)
    taken = time.perf_counter() - begin
    if int(found.launches[level == 9].sum()) != launches:
        raise SystemExit("the sweep lost launches")
    return taken


def ingest(export: Path, run: Path) -> tuple[float, int, float]:
    """Seconds, peak resident bytes and CPU seconds of the command and its programs.

    The bytes are a bound: the command's peak and the largest program's, as if at one moment.
    """
    code = (
        "import resource, sys; from tracekit.cli import main\n"
        "kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "finally:\n"
        "    used = [resource.getrusage(k) for k in kinds]\n"
        "    cpu = sum(u.ru_utime + u.ru_stime for u in used)\n"
        "    print(sum(u.ru_maxrss for u in used) * 1024, cpu)\n"
    )
    command = [sys.executable, "-c", code, "ingest", str(export), "--run", str(run)]
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    peak, used = done.stdout.split()[-2:]
    return time.perf_counter() - begin, int(peak), float(used)


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranges", type=int, default=2_000_000)
    parser.add_argument("--launches", type=int, default=400_000)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--work", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        export = big_export(
            Path(folder, "big.sqlite"),
            ranges=given.ranges,
            launches=given.launches,
            kernels=given.kernels,
        )
        taken, peak, cpu = ingest(export, Path(folder, "run"))
        result = {
            "export_bytes": export.stat().st_size,
            "ingest_s": round(taken, 2),
            "ingest_cpu_s": round(cpu, 2),
            "peak_bytes": peak,
            "attribution_s": round(attribution_s(given.ranges, given.launches), 2),
        }
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
