"""``make bench``: every figure that the project claims, with the peers beside it.

    python tests/benchmarks/run.py [--peers PYTHON] [--repeat 3] [--only NAME]... [--work DIR]

``--peers`` is an interpreter that has requirements-bench.txt; without it the peers are left out
and said to be. Traces are built from real events (make_traces.py). Times are the best of
``--repeat`` runs, whole commands with the interpreter's start unless said otherwise; memory is
the peak resident size of the process. Nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


import gpu_day
import mixes

import make_traces
import peers

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"


SOURCE = SHARED / "kineto" / "hta" / "nccl_parser_config_nccl_data.json.gz"
"""Real events that the traces repeat; a recorded fixture stands in where it is absent."""

TRACEKIT = [sys.executable, "-m", "tracekit", "-q"]

STAND_IN = ROOT / "fixtures" / "recorded" / "ddp-healthy" / "rank0.pt.trace.json.gz"


def traces(work: Path, size_mb: int, ranks_count: int = 1) -> Path:
    """A folder of traces of that many decompressed megabytes, one a rank; built once."""
    folder = work / f"traces-{size_mb}mb-{ranks_count}"
    if folder.is_dir():
        return folder
    building = work / "building"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    with gzip.open(SOURCE if SOURCE.exists() else STAND_IN) as stream:
        raw = stream.read()
    for rank in range(ranks_count):
        named = re.sub(rb'"rank": \d+', b'"rank": %d' % rank, raw, count=1)
        if ranks_count > 1:
            named = re.sub(rb'"world_size": \d+', b'"world_size": %d' % ranks_count, named, count=1)
        source = work / "source.json.gz"
        with gzip.open(source, "wb") as packed:
            packed.write(named)
        make_traces.build(source, size_mb, building / f"rank-{rank}.json.gz")
    building.rename(folder)
    return folder


@dataclass(frozen=True)
class Measured:
    """One command: best wall time, its CPU time and peak memory, and what it printed."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    after_imports_s: float | None


@dataclass
class Bench:
    """Where to work, with whom to compare, how often."""

    work: Path
    peers: str | None
    repeat: int

    def run(
        self, command: Sequence[str], *, before: Callable[[], None] | None = None, repeat: int = 0
    ) -> Measured:
        """Run a command several times, each in a fresh state, and keep the best."""
        best: Measured | None = None
        for _ in range(repeat or self.repeat):
            if before:
                before()
            one = self._run_once(command)
            if best is None or one.wall_s < best.wall_s:
                best = one
        assert best is not None
        return best

    def _run_once(self, command: Sequence[str]) -> Measured:
        environment = {**os.environ, "TRACEKIT_CACHE_DIR": str(self.work / "cache")}
        # Installed packages come with bytecode; a checkout must not pay for compiling each time.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with (self.work / "stderr.txt").open("wb") as errors:
            start = time.perf_counter()
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=self.work
            )
            assert process.stdout is not None
            output = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - start
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(
                f"{' '.join(command)[:200]}\nfailed with {process.returncode}:\n"
                + (self.work / "stderr.txt").read_text(errors="replace")[-2000:]
            )
        cpu_s = usage.ru_utime + usage.ru_stime
        return Measured(wall_s, cpu_s, usage.ru_maxrss * 1024, _after_imports(output))

    def clear_cache(self) -> None:
        """So that nothing is served from an earlier run."""
        shutil.rmtree(self.work / "cache", ignore_errors=True)


def _after_imports(output: bytes) -> float | None:
    lines = output.decode(errors="replace").strip().splitlines()
    try:
        return float(json.loads(lines[-1])["after_imports_s"]) if lines else None
    except (ValueError, KeyError, TypeError):
        return None


def say(text: str = "") -> None:
    """A line of the report."""
    print(text, flush=True)  # noqa: T201  # this program's output


def show(name: str, one: Measured) -> None:
    """A measured command."""
    after = f"  after imports {one.after_imports_s:7.2f} s" if one.after_imports_s else ""
    say(
        f"  {name:<44} {one.wall_s:7.2f} s  {one.cpu_s:7.2f} CPU s  "
        f"{one.peak_bytes / 1e6:7.0f} MB{after}"
    )


def ratio(name: str, theirs: float | None, ours: float | None, bar: str) -> None:
    """A ratio beside the bar that it is judged by."""
    value = f"{theirs / ours:7.2f}" if theirs and ours else "not measured"
    say(f"    -> {name:<41} {value}   ({bar})")


def overlap_against_hta(bench: Bench) -> None:
    """Ingest plus overlap in one process against HTA 0.5.0, at 50 and 500 MB of raw JSON."""
    ours: dict[int, Measured] = {}
    for size_mb, whole_bar, memory_bar in ((50, 3, 2), (500, 12, 10)):
        folder = traces(bench.work, size_mb)
        trace = next(iter(sorted(folder.glob("*.json.gz"))))
        say(f"\noverlap, {size_mb} MB raw ({trace.stat().st_size / 1e6:.1f} MB gzip)")
        command = [sys.executable, "-m", "tracekit", "-q", "query", str(trace), "overlap"]
        whole = ours[size_mb] = bench.run(command, before=bench.clear_cache)
        show("tracekit query TRACE overlap", whole)
        inside = bench.run(
            [sys.executable, "-c", peers.TRACEKIT_OVERLAP, str(trace)], before=bench.clear_cache
        )
        show("the same from Python", inside)
        if bench.peers:
            hta = bench.run([bench.peers, "-c", peers.HTA_OVERLAP, str(folder)], repeat=1)
            show("HolisticTraceAnalysis 0.5.0", hta)
            ratio("whole command, times faster", hta.wall_s, whole.wall_s, f">= {whole_bar}")
            ratio(
                "after imports, times faster", hta.after_imports_s, inside.after_imports_s, ">= 8"
            )
            ratio("memory, times less", hta.peak_bytes, whole.peak_bytes, f">= {memory_bar}")
            limit = bench.run([bench.peers, "-c", peers.PHYSICAL_LIMIT, str(trace)])
            show("physical limit (isal + simdjson)", limit)
            ratio(
                "ours over the limit", inside.after_imports_s, limit.after_imports_s, "aim <= 2.5"
            )
    ratio("memory at 500 MB over 50 MB", ours[500].peak_bytes, ours[50].peak_bytes, "<= 1.3")
    say(f"    -> peak at 500 MB {ours[500].peak_bytes / 1e6:.0f} MB   (< 400)")


def mixed_trace(bench: Bench, mix: mixes.Mix, size_mb: int) -> Path | None:
    """A trace of a mix, made where it is not there yet; None where its source is not here."""
    say(f"\n{mix.title}, {size_mb} MB raw")
    samples = SHARED / "kineto"
    if not (samples / mix.source).exists():
        say(f"  not measured: {samples / mix.source} is not here")
        return None
    folder = bench.work / f"mix-{mix.name}-{size_mb}mb"
    trace = folder / "rank-0.json.gz"
    if not trace.exists():
        folder.mkdir(exist_ok=True)
        source, building = bench.work / "source.json.gz", bench.work / "building.json.gz"
        mixes.write_source(mix, samples, source)
        make_traces.build(source, size_mb, building)
        building.rename(trace)
    return trace


def every_mix(bench: Bench) -> None:
    """Ingest plus overlap against HTA, and ingest against the limit, on several mixes of events."""
    for mix in mixes.MIXES:
        trace = mixed_trace(bench, mix, 500)
        if trace is None:
            continue
        overlap = bench.run([*TRACEKIT, "query", str(trace), "overlap"], before=bench.clear_cache)
        show("tracekit query TRACE overlap", overlap)
        reference = bench.run(
            ["env", "TRACEKIT_NATIVE=0", *TRACEKIT, "query", str(trace), "overlap"],
            before=bench.clear_cache,
        )
        show("the same with TRACEKIT_NATIVE=0", reference)
        if bench.peers:
            hta = bench.run([bench.peers, "-c", peers.HTA_OVERLAP, str(trace.parent)], repeat=1)
            show("HolisticTraceAnalysis 0.5.0", hta)
            ratio("CPU, times less", hta.cpu_s, overlap.cpu_s, "aim >= 20")
            ratio("CPU with the reference, times less", hta.cpu_s, reference.cpu_s, "aim >= 10")
            ratio("memory, times less", hta.peak_bytes, overlap.peak_bytes, ">= 10")
            run = bench.work / "run"
            ingest = bench.run(
                [*TRACEKIT, "ingest", str(trace), "--run", str(run), "--workers", "1"],
                before=partial(shutil.rmtree, run, ignore_errors=True),
            )
            show("tracekit ingest", ingest)
            limit = bench.run([bench.peers, "-c", peers.BATCHED_LIMIT, str(trace)])
            show("limit: isal and simdjson in batches", limit)
            ratio("ingest's CPU over the limit", ingest.cpu_s, limit.cpu_s, "aim <= 5")


def ingest_against_json_load(bench: Bench) -> None:
    """Ingest to Parquet against json.load of the same file."""
    for size_mb in (50, 500):
        trace = next(iter(sorted(traces(bench.work, size_mb).glob("*.json.gz"))))
        say(f"\ningest, {size_mb} MB raw")
        run = bench.work / "run"
        ingest = bench.run(
            [sys.executable, "-c", peers.TRACEKIT_INGEST, str(trace), str(run)],
            before=partial(shutil.rmtree, run, ignore_errors=True),
        )
        show("tracekit.ingest", ingest)
        load = bench.run([sys.executable, "-c", peers.JSON_LOAD, str(trace)], repeat=1)
        show("json.load", load)
        ratio("json.load over ingest", load.after_imports_s, ingest.after_imports_s, "> 1")


def two_workers(bench: Bench) -> None:
    """Two workers on eight files against one: start-up weighs less as files grow."""
    for size_mb in (50, 150):
        folder = traces(bench.work, size_mb, ranks_count=8)
        say(f"\neight files of {size_mb} MB raw")
        run = bench.work / "run"
        walls = []
        for workers in (1, 2):
            command = [sys.executable, "-m", "tracekit", "-q", "ingest", str(folder)]
            one = bench.run(
                [*command, "--run", str(run), "--workers", str(workers)],
                before=partial(shutil.rmtree, run, ignore_errors=True),
            )
            show(f"tracekit ingest --workers {workers}", one)
            walls.append(one.wall_s)
        ratio("one worker over two", walls[0], walls[1], ">= 1.7")


def start_up(bench: Bench) -> None:
    """Commands that must feel instant."""
    say("\nstart")
    trace = next(iter(sorted(traces(bench.work, 50).glob("*.json.gz"))))
    for arguments in (["--help"], ["explain", "dataloader-stall"], ["sources", str(trace)]):
        one = bench.run([sys.executable, "-m", "tracekit", *arguments])
        show(f"tracekit {arguments[0]}", one)
        say(f"    -> {one.wall_s:.2f} s   (< 0.3)")


def whole_diagnosis(bench: Bench) -> None:
    """The whole diagnosis from raw files with a cold cache; about 2 s is the aim for either."""
    megatron = SHARED / "kineto" / "megatron-tp8"
    say("\nthe whole diagnosis, cold cache")
    command = [sys.executable, "-m", "tracekit", "-q", "diagnose"]
    trace = next(iter(sorted(traces(bench.work, 54).glob("*.json.gz"))))
    for name, path in (("megatron-tp8", megatron), ("one 54 MB trace", trace)):
        if path.exists():
            one = bench.run([*command, str(path)], before=bench.clear_cache)
            show(f"tracekit diagnose, {name}", one)


def long_traces(bench: Bench) -> None:
    """A first diagnosis of one trace, and of one three times as long: what grows with the square of
    its events, steps or pauses shows here first."""
    for mix in mixes.MIXES:
        if mix.name not in ("mixed", "epoch", "rocm"):
            continue
        taken: list[float] = []
        for size_mb in (500, 1500):
            trace, run = mixed_trace(bench, mix, size_mb), bench.work / "run"
            if trace is None:
                break
            shutil.rmtree(run, ignore_errors=True)
            bench.run([*TRACEKIT, "ingest", str(trace), "--run", str(run)], repeat=1)
            first = partial(shutil.rmtree, run / "answers", ignore_errors=True)
            diagnosed = bench.run([*TRACEKIT, "diagnose", str(run)], before=first)
            show("tracekit diagnose", diagnosed)
            taken.append(diagnosed.cpu_s)
        if len(taken) > 1:
            ratio("CPU of three times as much", taken[1], taken[0], "3 is as many events")


def many_ranks(bench: Bench) -> None:
    """A job of 1,024 ranks: what grows with the square of ranks shows here first."""
    ratios = []
    for ranks, most_ingest_s, most_diagnose_s in ((256, None, None), (1024, 25, 10)):
        job, run = bench.work / f"ranks-{ranks}", bench.work / "run"
        say(f"\n{ranks} ranks")
        if not job.is_dir():
            wanted = ["simulate", "slow-gpu", "--ranks", str(ranks), "--steps", "3"]
            bench.run([*TRACEKIT, *wanted, "--layout", "ddp", "-o", str(job)], repeat=1)
        ingest = [*TRACEKIT, "ingest", str(job), "--run", str(run), "--workers", "1"]
        ingested = bench.run(
            ingest, before=partial(shutil.rmtree, run, ignore_errors=True), repeat=1
        )
        show("tracekit ingest --workers 1", ingested)
        first = partial(shutil.rmtree, run / "answers", ignore_errors=True)
        diagnosed = bench.run([*TRACEKIT, "diagnose", str(run)], before=first, repeat=1)
        show("tracekit diagnose", diagnosed)
        if most_ingest_s and most_diagnose_s:
            say(f"    -> ingest {ingested.cpu_s:.1f} CPU s   (aim <= {most_ingest_s})")
            say(f"    -> diagnose {diagnosed.cpu_s:.1f} CPU s   (aim <= {most_diagnose_s})")
        ratios.append(diagnosed.cpu_s)
    ratio("diagnose, CPU of 1,024 ranks over 256", ratios[1], ratios[0], "4 is as many ranks")


def many_gpus(bench: Bench) -> None:
    """Ten minutes of 4,096 GPUs, 20 counters a second: 49 million values."""
    say("\n4,096 GPUs")
    folder, run = bench.work / "gpus-4096", bench.work / "run"
    if not folder.is_dir():
        folder.mkdir()
        sum(gpu_day.wide(folder, range(600), hosts=512))
    ingest = [*TRACEKIT, "ingest", str(folder), "--run", str(run), "--workers", "1"]
    show(
        "tracekit ingest --workers 1",
        bench.run(ingest, before=partial(shutil.rmtree, run, ignore_errors=True), repeat=1),
    )
    diagnosed = bench.run([*TRACEKIT, "diagnose", str(run)], repeat=1)
    show("tracekit diagnose", diagnosed)
    say(f"    -> diagnose {diagnosed.cpu_s:.1f} CPU s   (aim <= 15)")


PARTS = {
    "overlap": overlap_against_hta,
    "mixes": every_mix,
    "ingest": ingest_against_json_load,
    "workers": two_workers,
    "start": start_up,
    "diagnose": whole_diagnosis,
    "long": long_traces,
    "ranks": many_ranks,
    "gpus": many_gpus,
}


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="interpreter that has requirements-bench.txt")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", action="append", choices=list(PARTS))
    parser.add_argument("--work", type=Path, help="keep the traces here between runs")
    given = parser.parse_args()
    say(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    if not given.peers:
        say("peers are not measured: give --peers an interpreter with requirements-bench.txt")
    with tempfile.TemporaryDirectory() as temporary:
        work = (given.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        # Commands run in the folder of the traces.
        peers_python = given.peers and os.path.abspath(given.peers)  # noqa: PTH100  # keeps links
        bench = Bench(work, peers_python, given.repeat)
        for name in given.only or PARTS:
            PARTS[name](bench)


if __name__ == "__main__":
    main()
