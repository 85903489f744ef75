"""What `diagnose` says of every sample: written to a file, and compared with an earlier one.

    python -m accuracy.verdicts write -o before.json [PATH...]
    python -m accuracy.verdicts compare before.json after.json

Without paths: the recorded fixtures, the shared samples where they are (each file alone, and each
folder that is one job). Costs are kept as printed, so a change of a digit is a difference; use
this before and after a change that should not, or should, move what people are told.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"


def samples() -> Iterator[Path]:
    """Every recorded job, every shared folder that holds files, every shared file alone."""
    yield from sorted(p.parent for p in (ROOT / "fixtures" / "recorded").glob("*/truth.json"))
    if not SHARED.is_dir():
        return
    folders = sorted({p.parent for p in SHARED.rglob("*") if p.is_file()})
    yield from (f for f in folders if "sysfs_ib" not in f.parts)
    yield SHARED / "counters" / "sysfs_ib"
    for folder in folders:
        if "sysfs_ib" not in folder.parts:
            yield from sorted(p for p in folder.iterdir() if p.is_file())


def said_of(path: Path) -> dict[str, Any]:
    """What diagnose says of one path, without what differs between two calls."""
    from tracekit import api
    from tracekit.errors import TracekitError

    try:
        with api.open(path) as run:
            told = json.loads(run.diagnose().to_json())
    except TracekitError as error:
        return {"error": type(error).__name__, "message": str(error).replace(str(path), "PATH")}
    except Exception as error:  # a fault of ours is a difference like any other
        return {"error": type(error).__name__, "message": "internal: " + str(error)}
    return {
        "verdict": told["verdict"]["kind"],
        "sentence": told["verdict"]["sentence"],
        "inputs": {str(i["kind"]): i["status"] for i in told["inputs"]},
        "findings": {
            f["id"]: " | ".join(
                str(part)
                for part in (
                    f["severity"],
                    f["confidence"]["level"],
                    f["impact"]["s_per_step"],
                    f["scope"]["ranks"],
                    f["summary"],
                )
            )
            for f in told["findings"]
        },
        "not_checked": {n["rule"]: n["needs"] for n in told["not_checked"]},
    }


def _one(path: Path) -> tuple[str, dict[str, Any]]:
    base = ROOT if path.is_relative_to(ROOT) else ROOT.parent
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path), said_of(path)


def write(paths: Sequence[Path], output: Path, workers: int) -> None:
    """Diagnose every path with an empty cache, and write what was said, by path."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRACEKIT_CACHE_DIR"] = cache
        with ProcessPoolExecutor(workers) as pool:
            said = dict(pool.map(_one, paths or list(samples())))
    output.write_text(json.dumps(said, indent=1, sort_keys=True))


def compare(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """A line for each difference: the path, what it is of, both sides."""
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            yield f"{path}: {'new' if old is None else 'gone'}"
            continue
        for key in sorted(old.keys() | new.keys()):
            left, right = old.get(key), new.get(key)
            if left == right:
                continue
            if not (isinstance(left, dict) and isinstance(right, dict)):
                yield f"{path}: {key}\n  - {left}\n  + {right}"
                continue
            for name in sorted(left.keys() | right.keys()):
                if left.get(name) != right.get(name):
                    yield f"{path}: {key} {name}\n  - {left.get(name)}\n  + {right.get(name)}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("paths", nargs="*", type=Path)
    writing.add_argument("-o", "--output", type=Path, required=True)
    writing.add_argument("--workers", type=int, default=2)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "write":
        write([p.resolve() for p in given.paths], given.output, given.workers)
        return
    for line in compare(json.loads(given.before.read_text()), json.loads(given.after.read_text())):
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
