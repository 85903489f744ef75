"""``make demo-fleet``: three small nights from traces with their reports, and a site of thirty
simulated ones."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from fleet_nights import Fleet, FleetLake, day_of
from tracekit.cli.app import main
from tracekit.fleet.lake import make_lake
from tracekit.fleet.rollup import rolled_up
from traces import BASE_NS, write_job

DAY_NS = 86_400 * 10**9


def run(folder: Path) -> None:
    """Everything below a folder that is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    for night in range(3):
        traces = folder / "traces" / str(night)
        write_job(traces, stall_ms=30 * (night == 2), base_ns=BASE_NS + night * DAY_NS)
        make_lake(folder / "lake").add([traces], name=f"job-{night + 1}", workers=1)
    lake = FleetLake(folder / "simulated", Fleet(1), 0)
    make_lake(folder / "simulated")
    for day in range(1, 31):
        lake.days = day
        rolled_up(lake, diagnose=lake.diagnosed)
    for words in (
        ["lake", "ls", str(folder / "lake")],
        ["rollup", str(folder / "lake"), "--workers", "1", "--site", str(folder / "with-reports")],
        # Simulated runs are rows of tables alone: there is nothing to report on.
        [
            *("site", str(folder / "simulated"), "-o", str(folder / "site")),
            *("--date", day_of(30), "--reports", "0"),
        ],
    ):
        print("$ tracekit", *words, flush=True)  # noqa: T201  # a script
        try:
            main(words)
        except SystemExit as ended:
            if ended.code:
                raise


if __name__ == "__main__":
    run(Path(sys.argv[1]))
