"""What a night of ten new runs costs in a lake of 10, 100, 1,000 and more that were seen before.

    python tests/benchmarks/lake_age.py NEW_FOLDER [10 100 1000]

One small job (two ranks of two steps) is ingested, and stands in the lake under as many names, 40 a
date; what the tables hold of these is its diagnosis, made once. The ten new ones are diagnosed. A
night is a process of its own; printed are its CPU seconds (user and system), its most memory, and
how many files Python opened below the lake's runs, for a night of ten runs and for the next, which
has nothing to do.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tracekit.fleet.diagnosed import Tables, diagnosed
from tracekit.fleet.lake import CARD, RUN_MARK, Entry, Lake, make_lake
from tracekit.fleet.night import judged
from tracekit.fleet.rollup import rolled_up
from tracekit.fleet.store import FleetStore
from traces import write_job

A_DATE_COUNT = 40
NEW_COUNT = 10
LAST = date(2026, 7, 20)


def main() -> None:
    """Make the lakes, and print a line a night."""
    if sys.argv[1] == "--night":
        _night(Path(sys.argv[2]))
        return
    folder = Path(sys.argv[1])
    folder.mkdir()
    write_job(folder / "job", steps_count=2)
    (folder / "job" / "job.toml").write_text('name = "train"\n[model]\nlayers = 4\n')
    seed = make_lake(folder / "seed")
    seed.add([folder / "job"], name="seed", workers=1)
    rows = diagnosed(seed.entry("seed"), memory_bytes=None, config=None)
    sys.stdout.write("runs seen  new  CPU s  most MB  files opened\n")
    for count in map(int, sys.argv[2:] or ("10", "100", "1000")):
        lake = make_lake(folder / f"lake{count}")
        _filled(lake, seed, rows, count)
        for _ in range(2):
            words = [sys.executable, __file__, "--night", str(lake.root)]
            told = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
            sys.stdout.write(
                f"{count:9,} {told['done']:4} {told['cpu_s']:6.2f} {told['most_mb']:8.0f} "
                f"{told['opened']:13}\n"
            )
            sys.stdout.flush()


def _filled(lake: Lake, seed: Lake, rows: Tables, count: int) -> None:
    """A lake that has seen so many runs, and then got ten more."""
    for index in range(count):
        at = LAST - timedelta(days=1 + (count - 1 - index) // A_DATE_COUNT)
        _stands(lake, seed, f"run{index:06d}", at)

    def kept(entry: Entry) -> Tables:
        own = {"run": entry.name, "date": entry.card.date if entry.card else None}
        return {name: [{**row, **own} for row in found] for name, found in rows.items()}

    days = sorted({e.card.date for e in lake.entries() if e.card})
    for day in days:
        rolled_up(lake, date=day, diagnose=kept)
    for index in range(NEW_COUNT):
        _stands(lake, seed, f"new{index}", LAST)


def _stands(lake: Lake, seed: Lake, name: str, at: date) -> None:
    """The seed's run under another name and date."""
    run = lake.path(name)
    shutil.copytree(seed.path("seed"), run, copy_function=os.link)
    own = {
        RUN_MARK: {"lake": json.loads((lake.root / "tracekit-lake.json").read_text())["id"]},
        CARD: {"date": at.isoformat(), "seal": None},
    }
    for file, changes in own.items():
        said = {**json.loads((run / file).read_text()), "name": name, **changes}
        (run / file).unlink()
        (run / file).write_text(json.dumps(said))


def _night(root: Path) -> None:
    opened = 0
    below = str(root / "runs")

    def heard(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal opened
        opened += event == "open" and str(arguments[0]).startswith(below)

    sys.addaudithook(heard)
    lake = Lake(root)
    rolled = rolled_up(lake)
    judged(FleetStore(lake.fleet), LAST.isoformat(), rolled)
    used = resource.getrusage(resource.RUSAGE_SELF)
    sys.stdout.write(
        json.dumps(
            {
                "done": len(rolled.done),
                "opened": opened,
                "cpu_s": used.ru_utime + used.ru_stime,
                "most_mb": used.ru_maxrss / 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
