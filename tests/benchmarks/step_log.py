"""The reader of a job's output: training logs of three kinds, in one process.

    python tests/benchmarks/step_log.py [MEGABYTES]

Lines of steps (Megatron-LM's), other text with a step now and then, and progress bars that are
drawn again and again behind carriage returns. The bar is 100 MB a second of CPU, and memory that
does not grow with the file: an eighth of it is read first.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from nccl_log import measure, peak_mb

BAR_MB_PER_S = 100


def megatron() -> Iterator[str]:
    """A line a step, with a time."""
    step = 0
    while True:
        step += 1
        clock = f"{step // 3600 % 24:02d}:{step // 60 % 60:02d}:{step % 60:02d}.{step % 1000:03d}"
        yield (
            f" [2024-05-{1 + step // 86400 % 28:02d} {clock}] iteration {step:8d}/ 5000000 | "
            f"consumed samples: {step * 128:12d} | elapsed time per iteration (ms): "
            f"{1000 + step % 97}.5 | throughput per GPU (TFLOP/s/GPU): {400 + step % 13}.0 | "
            "learning rate: 1.500000E-04 | global batch size:   128 | lm loss: "
            f"{6 + step % 11}.912345E+00 | loss scale: 1.0 | grad norm: {1 + step % 7}.250 | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        )


def mixed() -> Iterator[str]:
    """What a program and its libraries say, and a step every five hundred lines."""
    steps, line = megatron(), 0
    while True:
        line += 1
        if line % 500 == 0:
            yield next(steps)
        elif line % 7:
            yield (
                f"2024-05-01 10:{line // 60 % 60:02d}:{line % 60:02d},123 - data.loader - INFO - "
                f"rank {line % 64} read shard {line:08d} of text in 0.{line % 1000:03d} s, 1024 "
                "documents, 12 were too long and are cut\n"
            )
        else:
            yield f"  warnings.warn('argument {line % 13} has no effect here', stacklevel=2)\n"


def bars() -> Iterator[str]:
    """tqdm's bar, a line of 500 drawings."""
    step = 0
    while True:
        step += 1
        filled = "█" * (step % 100 // 10)
        yield (
            f"\r{step % 100:3d}%|{filled:10}| {step}/5000000 "
            f"[{step // 3600:02d}:{step // 60 % 60:02d}:{step % 60:02d}<10:00:00,  1.00it/s]"
            + ("\n" if step % 500 == 0 else "")
        )


def write(path: Path, pieces: Iterator[str], megabytes: int) -> None:
    """So many megabytes."""
    with path.open("w", encoding="utf-8", newline="") as file:
        while file.tell() < megabytes * 1_000_000:
            file.write("".join(next(pieces) for _ in range(10_000)))


def run(megabytes: int = 1000) -> None:
    """Measure and print."""
    kinds: tuple[tuple[str, Callable[[], Iterator[str]]], ...] = (
        ("steps", megatron), ("other text", mixed), ("progress bars", bars),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "train.log"
        for kind, pieces in kinds:
            for size in (megabytes // 8, megabytes):
                write(path, pieces(), size)
                wall_s, cpu_s, rows = measure(path)
                speed = path.stat().st_size / 1e6 / cpu_s
                print(  # noqa: T201  # this program's output
                    f"{size:5d} MB of {kind}  {cpu_s:7.2f} s of CPU  {speed:6.1f} MB/s "
                    f"(>= {BAR_MB_PER_S})  {wall_s:7.2f} s on the clock  {rows} rows  "
                    f"peak {peak_mb():.0f} MB"
                )


if __name__ == "__main__":
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
