"""A day of GPU counters: 64 GPUs, 20 fields, a sample a second: 110 million values.

    python tests/benchmarks/gpu_day.py [--share 0.1] [--formats wide,json,long,text] [--work DIR]

Makes the files that such a day leaves, ingests them with two workers, and runs what a night asks of
them. ``--share`` is the part of the day; long CSV holds a tenth of it and scrapes a hundredth, for
their text is ten times as long. Bars: a million values a second on two cores from CSV and from
answers of Prometheus, 200,000 from scrapes; memory that does not grow with the day; the night's
queries in seconds. Prints one JSON object a format.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

HOSTS, GPUS, START_S, DAY_S = 8, 8, 1_784_592_000, 86_400
RANGE_POINTS = 10_800
"""Points of a series in one answer: Prometheus gives at most 11,000."""
SCRAPE_S = 600
"""Seconds of scrapes that one file holds."""

FIELDS: dict[str, tuple[str, float, float, float]] = {
    # name of dcgm-exporter: name of nvidia-smi or a column, least, most, size of a digit
    "DCGM_FI_DEV_SM_CLOCK": ("clocks.sm", 1700, 1980, 15),
    "DCGM_FI_DEV_MEM_CLOCK": ("clocks.mem", 2619, 2619, 1),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature.gpu", 40, 75, 1),
    "DCGM_FI_DEV_MEMORY_TEMP": ("temperature.memory", 45, 90, 1),
    "DCGM_FI_DEV_POWER_USAGE": ("power.draw", 300, 700, 0.001),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy", 0, 0, 1),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": ("clocks_event_reasons.active", 0, 4, 4),
    "DCGM_FI_DEV_FB_USED": ("memory.used", 60000, 80000, 1),
    "DCGM_FI_DEV_GPU_UTIL": ("utilization.gpu", 90, 100, 1),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("utilization.memory", 20, 60, 1),
    "DCGM_FI_DEV_XID_ERRORS": ("xid", 0, 0, 1),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("pcie_replays", 0, 0, 1),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc.errors.uncorrected.volatile.total", 0, 0, 1),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("graphics_active", 0.8, 1, 1e-6),
    "DCGM_FI_PROF_SM_ACTIVE": ("sm_active", 0.5, 0.95, 1e-6),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor_active", 0.3, 0.6, 1e-6),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("dram_active", 0.2, 0.6, 1e-6),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": ("nvlink_tx", 1e9, 2e11, 1),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": ("nvlink_rx", 1e9, 2e11, 1),
    "DCGM_FI_DEV_HW_THERM_TIME": ("hw_thermal_time", 0, 0, 1),
}
"""Twenty fields. The last one is a counter of time; its exporter name is below."""
RENAMED = {"DCGM_FI_DEV_HW_THERM_TIME": "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS"}


def uuid(host: int, gpu: int) -> str:
    """Of one GPU."""
    return f"GPU-{host:08x}-0000-4000-8000-{gpu:012x}"


def values(name: str, host: int, gpu: int, seconds: range) -> Values:
    """What a field reads at these seconds of the day; the same in every format."""
    column, least, most, digit = FIELDS[name]
    at = np.arange(seconds.start, seconds.stop, dtype=np.float64)
    if column == "energy":
        return np.floor(at * (550_000 + 1000 * gpu)) + 10**9
    if column == "hw_thermal_time":  # one GPU of the first host is hot for a quarter of an hour
        return np.clip(at - 3600, 0, 900) * 6e8 if (host, gpu) == (0, 5) else 0 * at
    rng = np.random.default_rng([host, gpu, seconds.start, *name.encode()])
    noise = rng.random(len(at))
    found = np.round((least + (most - least) * noise) / digit) * digit
    return np.asarray(found if digit >= 1 else np.round(found, 6))


def texts(name: str, numbers: Values) -> pl.Series:
    """As exporters print them: whole numbers without a point."""
    import polars as pl

    series = pl.Series(numbers)
    is_whole = FIELDS[name][3] >= 1
    return (series.cast(pl.Int64) if is_whole else series.round(6)).cast(pl.String)


def wide(folder: Path, seconds: range, hosts: int = HOSTS) -> Iterator[int]:
    """A table a host: a row a GPU and second. Yields the values of each file."""
    import polars as pl

    for host in range(hosts):
        with (folder / f"node-{host}.csv").open("wb") as file:
            for hour in range(seconds.start, seconds.stop, 3600):
                part = range(hour, min(hour + 3600, seconds.stop))
                frames = []
                for gpu in range(GPUS):
                    table = {
                        "timestamp": np.arange(part.start, part.stop) + START_S,
                        "hostname": [f"node-{host}"] * len(part),
                        "index": [gpu] * len(part),
                        "uuid": [uuid(host, gpu)] * len(part),
                    }
                    for name, (column, *_) in FIELDS.items():
                        table[column] = texts(name, values(name, host, gpu, part))
                    frames.append(pl.DataFrame(table))
                rows = pl.concat(frames).sort("timestamp", "index")
                rows.write_csv(file, include_header=hour == seconds.start)
        yield GPUS * len(FIELDS) * len(seconds)


def long(folder: Path, seconds: range) -> Iterator[int]:
    """A table a host: a row a number, as a fleet's export has them."""
    import polars as pl

    for host in range(HOSTS):
        with (folder / f"node-{host}-long.csv").open("wb") as file:
            for hour in range(seconds.start, seconds.stop, 600):
                part = range(hour, min(hour + 600, seconds.stop))
                frames = [
                    pl.DataFrame(
                        {
                            "timestamp": np.arange(part.start, part.stop) + START_S,
                            "metric_name": [RENAMED.get(name, name)] * len(part),
                            "gpu_id": [gpu] * len(part),
                            "uuid": [uuid(host, gpu)] * len(part),
                            "Hostname": [f"node-{host}"] * len(part),
                            "value": texts(name, values(name, host, gpu, part)),
                        }
                    )
                    for gpu in range(GPUS)
                    for name in FIELDS
                ]
                rows = pl.concat(frames).sort("timestamp", maintain_order=True)
                rows.write_csv(file, include_header=hour == seconds.start)
        yield GPUS * len(FIELDS) * len(seconds)


def range_json(folder: Path, seconds: range) -> Iterator[int]:
    """An answer a field and three hours, 64 series each."""
    import polars as pl

    for start in range(seconds.start, seconds.stop, RANGE_POINTS):
        part = range(start, min(start + RANGE_POINTS, seconds.stop))
        stamps = pl.Series(np.arange(part.start, part.stop) + START_S)
        for name in FIELDS:
            with (folder / f"{name}-{start:05d}.json").open("w", encoding="ascii") as file:
                file.write('{"status":"success","data":{"resultType":"matrix","result":[')
                for host in range(HOSTS):
                    for gpu in range(GPUS):
                        labels = {
                            "__name__": RENAMED.get(name, name),
                            "Hostname": f"node-{host}",
                            "UUID": uuid(host, gpu),
                            "gpu": str(gpu),
                            "instance": f"node-{host}:9400",
                            "modelName": "NVIDIA H100 80GB HBM3",
                        }
                        pairs = pl.select(
                            pl.format(
                                '[{},"{}"]', stamps, texts(name, values(name, host, gpu, part))
                            )
                        ).to_series()
                        file.write("," if host or gpu else "")
                        file.write(f'{{"metric":{json.dumps(labels)},"values":[')
                        file.write(",".join(pairs.to_list()))
                        file.write("]}")
                file.write("]}}\n")
            yield HOSTS * GPUS * len(part)


def scrapes(folder: Path, seconds: range) -> Iterator[int]:
    """Scrapes of each host, one after the other, with a line that says when."""
    for host in range(HOSTS):
        heads = [
            [
                f'{RENAMED.get(name, name)}{{gpu="{gpu}",UUID="{uuid(host, gpu)}",pci_bus_id='
                f'"00000000:{16 + gpu:02X}:00.0",device="nvidia{gpu}",modelName='
                f'"NVIDIA H100 80GB HBM3",Hostname="node-{host}"}} '
                for gpu in range(GPUS)
            ]
            for name in FIELDS
        ]
        for start in range(seconds.start, seconds.stop, SCRAPE_S):
            part = range(start, min(start + SCRAPE_S, seconds.stop))
            numbers = [
                [texts(name, values(name, host, gpu, part)).to_list() for gpu in range(GPUS)]
                for name in FIELDS
            ]
            with (folder / f"node-{host}-{start:05d}.prom").open("w", encoding="ascii") as file:
                for i, second in enumerate(part):
                    lines = [f"# {START_S + second}"]
                    for name, head, number in zip(FIELDS, heads, numbers, strict=True):
                        lines.append(f"# TYPE {RENAMED.get(name, name)} gauge")
                        lines += [h + n[i] for h, n in zip(head, number, strict=True)]
                    file.write("\n".join(lines) + "\n")
            yield GPUS * len(FIELDS) * len(part)


FORMATS: dict[str, tuple[Callable[[Path, range], Iterator[int]], float, float]] = {
    "wide": (wide, 1.0, 1e6),
    "json": (range_json, 1.0, 1e6),
    "long": (long, 0.1, 1e6),
    "text": (scrapes, 0.01, 2e5),
}
"""What makes the files, the part of the day that it makes, and the bar in values a second."""

NIGHT = ("gpu_counters", "gpu_throttle", "gpu_growth", "gpu_events")
"""What a night asks: every GPU beside its peers, what held its clock, what its counters grew by."""

_COMMAND = """
import json, resource, sys
kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
try:
    from tracekit.cli import main
    main(sys.argv[2:])
finally:
    used = [resource.getrusage(k) for k in kinds]
    with open(sys.argv[1], "w") as file:
        json.dump({"cpu_s": round(sum(u.ru_utime + u.ru_stime for u in used), 2),
                   "peak_mb": [round(u.ru_maxrss / 1024) for u in used]}, file)
"""


def command(*words: str) -> dict[str, object]:
    """Seconds, CPU seconds and peak of this command and of the largest of its workers."""
    with tempfile.NamedTemporaryFile("r") as used:
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", _COMMAND, used.name, *words],
            check=True, stdout=subprocess.DEVNULL, env=os.environ,
        )  # fmt: skip
        return {"s": round(time.perf_counter() - begin, 2), **json.load(used)}


def measure(name: str, share: float, work: Path) -> dict[str, object]:
    """Make the files of one format, ingest them, ask what a night asks, remove them."""
    make, part, bar = FORMATS[name]
    seconds = range(int(DAY_S * share * part))
    raw, run = work / f"{name}-raw", work / f"{name}-run"
    raw.mkdir(parents=True)
    try:
        count = sum(make(raw, seconds))
        raw_bytes = sum(p.stat().st_size for p in raw.iterdir())
        taken = command("ingest", str(raw), "--run", str(run), "--workers", "2")
        stored = sum(p.stat().st_size for p in run.rglob("*.parquet"))
        shutil.rmtree(raw)
        night = {query: command("query", str(run), query) for query in NIGHT}
        speed = count / float(str(taken["s"]))
        return {
            "format": name,
            "values": count,
            "raw_bytes": raw_bytes,
            "stored_bytes_per_value": round(stored / count, 2),
            "ingest": taken,
            "values_per_s": round(speed),
            "values_per_cpu_s": round(count / float(str(taken["cpu_s"]))),
            "bar_values_per_s": bar,
            "night": night,
        }
    finally:
        shutil.rmtree(raw, ignore_errors=True)
        shutil.rmtree(run, ignore_errors=True)


def main() -> None:
    """Print one JSON object a format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--formats", default="wide,json,long,text")
    parser.add_argument("--work", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        for name in given.formats.split(","):
            print(json.dumps(measure(name, given.share, Path(folder))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
