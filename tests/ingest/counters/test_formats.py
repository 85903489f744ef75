"""The list of families of counters, and what holds for it as a whole."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tracekit.ingest.counters.formats import FAMILIES

ROOT = Path(__file__).resolve().parents[3]


def test_the_import_contract_names_every_format() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (modules,) = (c["modules"] for c in settings["contracts"] if c["type"] == "independence" and
                  any(".counters." in m for m in c["modules"]))  # fmt: skip
    assert sorted(modules) == sorted(f"tracekit.ingest.counters.{f.module}" for f in FAMILIES)


def test_a_family_has_one_name_one_module_and_formats() -> None:
    assert len({f.name for f in FAMILIES}) == len({f.module for f in FAMILIES}) == len(FAMILIES)
    assert all(f.formats for f in FAMILIES)
