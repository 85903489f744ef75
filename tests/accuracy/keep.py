"""What the bench has found so far, kept on disk: a run that is stopped goes on where it was.

One JSON line a case, in a file named by a hash of the code that could change the answer. A change
of that code begins a new file; nothing is ever served from an old one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from accuracy.score import Named, Outcome

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".benchmarks" / "accuracy"
JUDGED = ("derive", "ingest", "queries", "report", "rules", "simulate", "store", "whatif", "expect")
"""Packages of tracekit whose code decides what a job's diagnosis is; so do all single modules."""


def code_files() -> Iterator[Path]:
    """The files whose text decides an outcome, in order."""
    package = ROOT / "tracekit"
    found = [*package.glob("*.py"), Path(__file__).with_name("run.py")]
    for name in JUDGED:
        found += [p for p in (package / name).rglob("*") if p.suffix in (".py", ".sql")]
    yield from sorted(p for p in found if p.is_file())


def code_hash() -> str:
    """Twelve digits that change when the code does."""
    digest = hashlib.sha256()
    for path in code_files():
        text = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()[:12]


class Kept:
    """Outcomes by case, in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, Outcome] = {}
        if path.exists():
            text = path.read_text()
            if text and not text.endswith("\n"):
                path.write_text(text + "\n")
            for line in text.splitlines():
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    continue  # the last line of a run that was stopped while it wrote
                self.outcomes[entry["key"]] = _outcome(entry)

    def add(self, key: str, outcome: Outcome) -> None:
        """Keep one more, on disk before this returns."""
        self.outcomes[key] = outcome
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"key": key, **asdict(outcome)}) + "\n"
        with self.path.open("a") as file:
            file.write(line)


def _outcome(entry: dict[str, object]) -> Outcome:
    fields = {k: v for k, v in entry.items() if k != "key"}
    named = fields.pop("named")
    assert isinstance(named, list)
    return Outcome(**fields, named=tuple(_named(n) for n in named))  # type: ignore[arg-type]


def _named(entry: dict[str, object]) -> Named:
    return Named(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})  # type: ignore[arg-type]
