"""The import contract of pyproject.toml catches what it is there to catch."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from soaks import soak
from tracekit.ingest import INGESTORS

ROOT = Path(__file__).resolve().parent.parent
# As `lint-imports` the command does, which is installed beside this interpreter.
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources, where every layer of the contract exists."""
    for name in ("tracekit", "ingest", "queries", "dashboards"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("report", "rules", "derive", "job", "store", "simulate", "schema"):
        package = tmp_path / "tracekit" / name
        if not package.exists() and not package.with_suffix(".py").exists():
            package.with_suffix(".py").write_text("")
    return tmp_path


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LINT, "--no-logo", "--no-cache"],
        cwd=tree,
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tree), "COLUMNS": "200"},
    )


def plant(tree: Path, importer: str, imported: str) -> None:
    """Let one layer import another, in a function as the heavy imports are."""
    path = tree / "tracekit" / importer
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    with path.open("a") as file:
        file.write(f"\n\ndef planted() -> None:\n    import {imported}\n")


def test_the_tree_as_it_is_keeps_the_contract(tree: Path) -> None:
    done = lint(tree)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("importer", "imported"),
    soak(
        [
            ("ingest", "rules"),  # through a link
            ("ingest", "job"),  # siblings
            ("rules", "report"),
            ("schema", "store"),
            ("simulate", "derive"),  # the judge knows nothing of the judged
            ("report", "catalog"),  # a renderer opens no database
            ("dashboards", "duckdb"),
            ("ingest/nsys", "ingest.kineto"),
            ("ingest/traces", "ingest.kineto"),
        ],
        # One of each kind of contract; `make check` holds the tree itself to all of them.
        fast=[("ingest", "rules"), ("dashboards", "duckdb"), ("ingest/nsys", "ingest.kineto")],
    ),
)
def test_a_planted_import_is_reported(tree: Path, importer: str, imported: str) -> None:
    imported = imported if imported == "duckdb" else f"tracekit.{imported}"
    plant(tree, importer, imported)
    done = lint(tree)
    assert done.returncode == 1, done.stdout + done.stderr
    importer = importer.replace("/", ".")
    assert f"tracekit.{importer} is not allowed to import {imported}" in done.stdout


def test_the_contract_of_ingestors_names_each_of_them() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (c for c in settings["contracts"] if "containers" in c)
    named = {f"tracekit.ingest.{name}" for name in contract["layers"][0].split(" | ")}
    assert named == {".".join(type(i).__module__.split(".")[:3]) for i in INGESTORS}
