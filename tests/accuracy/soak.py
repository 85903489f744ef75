"""Damaged files: nothing raises, nothing hangs, nothing grows, and nobody new is accused.

    python -m accuracy.soak readers --count 20000 [--seed 1]
    python -m accuracy.soak jobs --count 500 [--seed 1]
    python -m accuracy.soak readers --damage field              hostile numbers, field by field
    python -m accuracy.soak readers --only 4711 --seed 1      one input again, with its traceback

``readers`` damages one file of any format that is known here and reads it. ``jobs`` damages one
file of a whole job and diagnoses the job: who is accused must have been accused before, or be
whose file was damaged. Inputs follow from the seed and their number alone. Formats come from the
recorded fixtures, the simulator, and the shared samples where they are.

A child process does the work, so that a hang in native code is seen as well: one that says
nothing for ``STALE_S`` is ended, and its input is a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
RECORDED = ROOT / "fixtures" / "recorded"
BESIDE = tuple(ROOT / "fixtures" / name for name in ("hosts", "logs", "trackers"))
"""What jobs leave beside traces."""

LIMIT_CPU_S = {"readers": 10.0, "jobs": 60.0}
"""Of one input. Undamaged ones of these sizes take less than a second, jobs less than four."""
LIMIT_GROWTH_BYTES = 1 << 30
"""What the process may have grown at its peak since its first inputs: no input is over 1 MB."""
LIMIT_ADDRESS_BYTES = 12 << 30
STALE_S = 180.0
MAX_INPUT_BYTES = 600_000
"""Larger samples are cut to it at a line or an event; it keeps an input near 10 ms."""

SIMULATED = (
    ("thermal-throttle", "ddp", "kineto", "all"),
    ("link-degraded", "fsdp", "kineto-old", "all"),
    ("slow-gpu", "tp2", "gloo", "none"),
    ("gc-pause", "ddp", "nsys", "none"),
)
"""Scenario, layout, style, counters: every format that the simulator writes."""


class TooSlowError(Exception):
    """One input took more CPU time than the limit."""


@dataclass(frozen=True)
class Sample:
    """One undamaged file."""

    name: str
    data: bytes


def plain(path: Path) -> bytes:
    """Decompressed, so that damage reaches what the readers parse; cut where it is large."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    is_text = data[:6] != b"SQLite" and data[:4] != b"PAR1"
    return data[:MAX_INPUT_BYTES] if is_text else data


def simulate(folder: Path) -> None:
    """One small job of every format."""
    for number, (scenario, layout, style, counters) in enumerate(SIMULATED):
        said = (
            f"--layout {layout} --style {style} --counters {counters} --ranks 4 --steps 3 --seed 5"
        )
        command = ["simulate", scenario, "--nccl", "coll", *said.split()]
        where = str(folder / f"sim{number}")
        subprocess.run([sys.executable, "-m", "tracekit", "-q", *command, "-o", where], check=True)


def read_corpus(simulated: Path) -> list[Sample]:
    """One file of each shape: two ranks of a job differ by nothing that a reader would notice."""
    files = [next(iter(sorted(p.glob("*.gz")))) for p in sorted(RECORDED.iterdir())]
    files += sorted(p for p in RECORDED.glob("*/job.toml"))[:2]
    for folder in BESIDE:
        files += sorted(
            p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".md", ".py")
        )
    for job in sorted(simulated.iterdir()):
        files += _distinct(p for p in sorted(job.rglob("*")) if p.is_file())
    if SHARED.is_dir():
        files += sorted(p for p in SHARED.rglob("*") if p.is_file() and p.suffix != ".md")
    return [
        Sample(_shown(p), plain(p))
        for p in files
        if p.stat().st_size < (4 << 20) and p.stat().st_size > 0
    ]


def _distinct(files: Iterator[Path]) -> list[Path]:
    """The first file of each name, numbers aside."""
    kept: dict[str, Path] = {}
    for path in files:
        kept.setdefault("".join("9" if c.isdigit() else c for c in path.name), path)
    return list(kept.values())


def _shown(path: Path) -> str:
    for base in (ROOT, ROOT.parent):
        if path.is_relative_to(base):
            return str(path.relative_to(base))
    return "/".join(path.parts[-3:])


NUMBERS = (
    b"0", b"-1", b"99999", b"2147483647", b"2147483648", b"-2147483649", b"9223372036854775807",
    b"9223372036854775808", b"18446744073709551615", b"5000000000000000000", b"1e308",
    b"-1e400", b"NaN", b"Infinity", b"0x1F", b"1" * 400, b"4.9e-324",
    b'"\\ud800"', b"null", b"{}", b"[[]]", b"true", b'""',
)  # fmt: skip


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _headless(data: bytes, rng: random.Random) -> bytes:
    return data[rng.randrange(len(data)) :]


def _flip(data: bytes, rng: random.Random) -> bytes:
    buffer = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 30))):
        buffer[rng.randrange(len(buffer))] = rng.randrange(256)
    return bytes(buffer)


def _hole(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randrange(1, 5000) :]


def _zeros(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    size = min(rng.randrange(1, 5000), len(data) - start)
    return data[:start] + bytes(size) + data[start + size :]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    piece = data[start : start + rng.randrange(1, 2000)]
    return data[:start] + piece * rng.choice((2, 3, 50)) + data[start:]


def _moved(data: bytes, rng: random.Random) -> bytes:
    start, there = rng.randrange(len(data)), rng.randrange(len(data))
    size = rng.randrange(1, 3000)
    piece, rest = data[start : start + size], data[:start] + data[start + size :]
    return rest[:there] + piece + rest[there:]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    junk = rng.choice((
        rng.randbytes(rng.randrange(1, 300)), b" " * 60_000, b"a" * 60_000, b"[" * 5_000,
        b'{"a":' * 5_000, b"\n" * 60_000, b"\\" * 999, b'"' * 999, b"0123456789abcdef" * 4_000,
        b"a b " * 15_000, b"1 " * 30_000, b"a: " * 20_000, b"<a>" * 9_000, b"\x00\xff" * 400,
    ))  # fmt: skip
    return data[:at] + junk + data[at:]


def _number(data: bytes, rng: random.Random) -> bytes:
    """Numbers after some place become hostile ones."""
    out, position = data, rng.randrange(len(data))
    for _ in range(rng.choice((1, 1, 2, 20))):
        start = position
        while start < len(out) and not 48 <= out[start] <= 57:
            start += 1
        end = start
        while end < len(out) and (48 <= out[end] <= 57 or out[end] in b".eE+-xX"):
            end += 1
        if start == end:
            break
        value = rng.choice(NUMBERS)
        out = out[:start] + value + out[end:]
        position = start + len(value) + rng.randrange(1, 400)
    return out


def _lines(data: bytes, rng: random.Random) -> bytes:
    """Lines in another order, some lost, some twice."""
    lines = data.splitlines(keepends=True)
    if len(lines) < 3:
        return _moved(data, rng)
    start = rng.randrange(len(lines))
    block = lines[start : start + rng.randrange(2, 60)]
    rng.shuffle(block)
    block += block[: rng.randrange(len(block) + 1)]
    return b"".join(lines[:start] + block[rng.randrange(2) :] + lines[start + len(block) :])


DIGITS = re.compile(rb"\d[\dxXeE.+-]*")
WORDS = re.compile(rb"[A-Za-z_][A-Za-z_ ]*")


FIELD_BYTES = 60_000
"""Of an input, where fields are looked for."""


def _field(data: bytes, rng: random.Random) -> bytes:
    """The numbers of one field, some or all of them, become one hostile number.

    A field is what stands before a number: the nearest word of its line, and how many commas lie
    between, or the commas alone where a line has no word.
    """
    fields: dict[tuple[bytes, int], list[tuple[int, int]]] = {}
    window = rng.randrange(max(len(data) - FIELD_BYTES, 0) + 1)
    for found in DIGITS.finditer(data, window, window + FIELD_BYTES):
        line = data.rfind(b"\n", max(found.start() - 1000, 0), found.start()) + 1
        before = data[line or max(found.start() - 80, 0) : found.start()]
        word, after = b"", 0
        for near in WORDS.finditer(before, max(len(before) - 80, 0)):
            word, after = near.group(), near.end()
        fields.setdefault((word, before.count(b",", after)), []).append(found.span())
    if not fields:
        return _flip(data, rng)
    spans = rng.choice(list(fields.values()))
    if rng.random() < 0.5:
        spans = spans[: rng.choice((1, 1, 3))]
    value = rng.choice(NUMBERS)
    out, at = [], 0
    for start, end in spans:
        out += [data[at:start], value]
        at = end
    return b"".join([*out, data[at:]])


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _cut, _headless, _flip, _hole, _zeros, _repeat, _moved, _insert, _number, _number, _lines,
    _field,
)  # fmt: skip


def damaged(data: bytes, rng: random.Random, only: str | None = None) -> tuple[str, bytes]:
    """The names of what was done, and the bytes; ``only`` names the one damage to do."""
    if only is not None:
        return only, next(d for d in DAMAGES if d.__name__ == f"_{only}")(data, rng)
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not data:
            break
        damage = rng.choice(DAMAGES)
        data = damage(data, rng)
        done.append(damage.__name__.strip("_"))
    return "+".join(done), data


def read_one(samples: Sequence[Sample], number: int, seed: int, only: str | None) -> Iterator[str]:
    """Damage a sample and read it; what is wrong with what came of it."""
    from memory_sink import MemorySink, source_of

    from tracekit.errors import InputError
    from tracekit.ingest import IngestOptions, ingestor, recognise

    rng = random.Random(f"{seed}/{number}")  # noqa: S311
    sample = rng.choice(samples)
    what, data = damaged(sample.data, rng, only)
    yield f"{sample.name} {what}"
    name = Path(sample.name).name.removesuffix(".gz")
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        if sample.data[:6] == b"SQLite" or sample.data[:4] == b"PAR1":
            from tracekit.ingest import files

            path = Path(folder) / name
            path.write_bytes(data)
            sources = files.expand([path])
        else:
            if rng.random() < 0.1:
                packed = bytearray(gzip.compress(data))
                packed[rng.randrange(len(packed))] ^= 1 << rng.randrange(8)
                data = bytes(packed)
            sources = [source_of(data, name)]
        for source in sources:
            found = recognise(source)
            if found.ingestor is None:
                continue
            # These are said, by path and reason, where files become a run.
            with contextlib.suppress(InputError, OSError):
                ingestor(found.ingestor).read(source, MemorySink(), IngestOptions(stacks=True))


@dataclass(frozen=True)
class Job:
    """A whole job and whom its undamaged files accuse."""

    name: str
    folder: Path
    files: tuple[Path, ...]
    accused: frozenset[str]


def jobs(simulated: Path) -> Iterator[Job]:
    """Recorded, shared and simulated jobs of several files."""
    folders = [p.parent for p in sorted(RECORDED.glob("*/truth.json"))]
    folders += [p for p in sorted(SHARED.glob("lab/*")) if p.is_dir()]
    folders += sorted(simulated.iterdir())
    for folder in folders:
        files = tuple(
            p for p in sorted(folder.rglob("*"))
            if p.is_file() and p.name not in ("README.md", "truth.json", "job.toml")
        )  # fmt: skip
        yield Job(_shown(folder), folder, files, frozenset(accused(folder)[0]))


def accused(folder: Path) -> tuple[set[str], list[str]]:
    """Ranks, hosts and links that findings of a culprit name, where not all are named; faults."""
    from tracekit import api
    from tracekit.errors import TracekitError
    from tracekit.rules import RULES

    naming = {rule.name for rule in RULES if rule.names_culprit}
    try:
        with api.open(folder, workers=1) as run:
            report = run.diagnose()
    except TracekitError:
        return set(), []
    broken = [
        f"{Path(i.path).name}: {i.reason}"
        for i in report.document.inputs
        if "internal error" in str(getattr(i, "reason", ""))
    ]
    broken += [
        f"{Path(i.path).name}: {issue.name} at {issue.place}"
        for i in report.document.inputs
        for issue in i.issues
        if issue.name == "ingestor_failed"
    ]
    names: set[str] = set()
    everyone = len(report.document.run.ranks) if report.document.run.ranks else 0
    for finding in report.findings:
        if finding.rule not in naming or finding.severity.weight < 2:
            continue
        if len(finding.scope.ranks) < max(everyone, 2):
            names |= {f"rank {r}" for r in finding.scope.ranks}
        names |= {f"link {link}" for link in finding.scope.links}
    return names, broken


def diagnose_one(made: Sequence[Job], number: int, seed: int, only: str | None) -> Iterator[str]:
    """Damage one file of a job and diagnose it; what is wrong with what was said."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311
    job = rng.choice(made)
    victim = rng.choice(job.files)
    what, data = damaged(plain(victim), rng, only)
    yield f"{job.name}/{victim.name} {what}"
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        copy = Path(folder) / job.folder.name
        shutil.copytree(job.folder, copy)
        there = copy / victim.relative_to(job.folder)
        there.chmod(0o644)
        there.write_bytes(gzip.compress(data, 1) if victim.suffix == ".gz" else data)
        os.environ["TRACEKIT_CACHE_DIR"] = str(Path(folder) / "cache")
        names, broken = accused(copy)
    yield from broken
    digits = "".join(c if c.isdigit() else " " for c in victim.name.split(".")[0]).split()
    own = {f"rank {d}" for d in digits}
    new = names - job.accused - own
    if new:
        yield f"newly accused: {', '.join(sorted(new))}"


def _alarm(_: int, __: FrameType | None) -> None:
    raise TooSlowError


def child(options: argparse.Namespace, simulated: Path) -> None:
    """Work from a number on; a line of JSON before and after each input."""
    signal.signal(signal.SIGPROF, _alarm)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_ADDRESS_BYTES, LIMIT_ADDRESS_BYTES))
    work: Any
    with tempfile.TemporaryDirectory(prefix="soak-cache-") as cache:
        os.environ["TRACEKIT_CACHE_DIR"] = cache
        if options.what == "readers":
            corpus: Any = read_corpus(simulated)
            work = read_one
        else:
            corpus = []
            for job in jobs(simulated):
                corpus.append(job)
                _say(number=options.start - options.stride)  # a sign of life
            work = diagnose_one
        first_peak = 0
        for number in range(options.start, options.stop, options.stride):
            _say(number=number)
            lines: list[str] = []
            began = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, LIMIT_CPU_S[options.what])
            try:
                lines += work(corpus, number, options.seed, options.damage)
            except TooSlowError:
                lines.append(f"over {LIMIT_CPU_S[options.what]:.0f} s of CPU")
                lines.append(traceback.format_exc(limit=-6))
            except Exception:
                lines.append(traceback.format_exc(limit=-6))
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            if number < options.start + 50 * options.stride:
                first_peak = max(first_peak, min(peak, LIMIT_GROWTH_BYTES))
            elif peak > first_peak + LIMIT_GROWTH_BYTES:
                lines.append(f"the process has grown to {peak >> 20} MiB")
                first_peak = peak
            _say(number=number, lines=lines, cpu_s=time.process_time() - began)


def _say(**told: object) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def parent(options: argparse.Namespace, simulated: Path) -> int:
    """Run a child a worker, end those that hang, and report."""
    failures: list[str] = []
    slowest: Counter[str] = Counter()
    done = 0
    stops = [options.only + 1] if options.only is not None else [options.count] * options.workers
    for worker, stop in enumerate(stops):
        start = options.only if options.only is not None else worker
        stride = 1 if options.only is not None else options.workers
        workers.append(Worker(options, simulated, start, stop, stride))
    while any(w.is_running for w in workers):
        time.sleep(0.2)
        for w in workers:
            for told in w.poll():
                if "lines" not in told:
                    continue
                done += 1
                name, *wrong = told["lines"] or ["?"]
                slowest[f"{told['number']}: {name}"] = int(told["cpu_s"] * 1000)
                if wrong:
                    failures.append(f"#{told['number']} {name}\n    " + "\n    ".join(wrong))
                    sys.stderr.write(failures[-1] + "\n")
    for w in workers:
        failures += w.hung
    sys.stdout.write("\n".join(failures) + ("\n\n" if failures else ""))
    sys.stdout.write("slowest, ms of CPU:\n")
    for name, ms in slowest.most_common(5):
        sys.stdout.write(f"  {ms:6d}  {name}\n")
    sys.stdout.write(f"{done} inputs, {len(failures)} failures\n")
    return 1 if failures else 0


class Worker:
    """A child process, started again behind the input that it hung or died at."""

    def __init__(
        self, options: argparse.Namespace, simulated: Path, start: int, stop: int, stride: int
    ) -> None:
        self.options, self.simulated, self.stop, self.stride = options, simulated, stop, stride
        self.hung: list[str] = []
        self.is_running = True
        self._start(start)

    def _start(self, number: int) -> None:
        self.number = number - self.stride
        self.log = tempfile.NamedTemporaryFile("r", suffix=".jsonl")  # noqa: SIM115
        self.heard = time.monotonic()
        with Path(self.log.name).open("w") as out:
            numbers = f"--start {number} --stop {self.stop} --stride {self.stride}"
            command = [self.options.what, "--child", "--seed", str(self.options.seed)]
            command += [*numbers.split(), "--simulated", str(self.simulated)]
            command += ["--damage", self.options.damage] if self.options.damage else []
            self.process = subprocess.Popen(
                [sys.executable, "-m", "accuracy.soak", *command], stdout=out
            )

    def poll(self) -> Iterator[dict[str, Any]]:
        """What the child said since the last call."""
        ended = self.process.poll() is not None
        for line in () if self.log.closed else self.log:
            told = json.loads(line)
            self.number = told["number"]
            self.heard = time.monotonic()
            yield told
        is_stale = time.monotonic() - self.heard > STALE_S
        if ended or is_stale:
            self.process.kill()
            self.process.wait()
            self.log.close()
            if self.process.returncode == 0:
                self.is_running = False
                return
            how = "hung" if is_stale else f"ended with {self.process.returncode}"
            self.hung.append(f"#{self.number} {how}")
            sys.stderr.write(self.hung[-1] + "\n")
            if self.number + self.stride < self.stop and len(self.hung) < 50:
                self._start(self.number + self.stride)
            else:
                self.is_running = False


workers: list[Worker] = []


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("readers", "jobs"))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int)
    names = sorted({d.__name__.strip("_") for d in DAMAGES})
    parser.add_argument("--damage", choices=names, help="one kind of damage alone")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--stop", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--stride", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--simulated", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options, options.simulated)
        return 0
    with tempfile.TemporaryDirectory(prefix="soak-sim-") as folder:
        simulate(Path(folder))
        return parent(options, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
