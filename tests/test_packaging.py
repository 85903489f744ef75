"""What is shipped is what is in the tree, and it runs without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NATIVE = "libtracekit_kineto.so"
"""Built beside the package; only wheels that are asked to carry it."""
LINKED = ("ingest", "queries", "dashboards")


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> str:
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PYTHONSAFEPATH": "1"}
    environment["PYTHONPATH"] = str(path) if path else ""
    done = subprocess.run(
        command, cwd=cwd, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of(folder: Path) -> set[Path]:
    """Every file below the folder, relative to it; neither links nor what Python leaves there."""
    found = set()
    for path in folder.iterdir():
        if path.is_symlink() or path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            found |= {path.name / below for below in files_of(path)}
        else:
            found.add(Path(path.name))
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, with the backend that is installed: no network."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    options = ("--no-deps", "--no-index", "--no-compile", "--quiet", "--target", folder)
    run(sys.executable, "-m", "pip", "install", *options, wheel, cwd=folder)
    return folder


@pytest.mark.parametrize("name", LINKED)
def test_link_leads_to_the_folder_beside_the_package(name: str) -> None:
    link = ROOT / "tracekit" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", name)
    assert link.resolve() == ROOT / name


@pytest.mark.slow
def test_wheel_holds_the_tree_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name) for name in archive.namelist() if ".dist-info/" not in name}
    expected = {"tracekit" / path for path in files_of(ROOT / "tracekit")}
    for name in LINKED:
        expected |= {Path("tracekit", name) / path for path in files_of(ROOT / name)}
    assert names == expected - {Path("tracekit", NATIVE)}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cargo") is None, reason="the native reader needs cargo")
def test_a_wheel_carries_the_native_reader_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEKIT_BUILD_NATIVE", "1")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (path,) = tmp_path.glob("*.whl")
    assert "-py3-none-manylinux_2_" in path.name
    options = ("--no-deps", "--no-index", "--no-compile", "--quiet", "--target", tmp_path / "site")
    run(sys.executable, "-m", "pip", "install", *options, path, cwd=tmp_path)
    monkeypatch.setenv("PATH", "")  # no compiler
    said = run(sys.executable, "-m", "tracekit", "--version", cwd=tmp_path, path=tmp_path / "site")
    assert "native" in said


@pytest.mark.slow
def test_nothing_but_the_package_is_at_the_top_of_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    version = wheel.name.split("-")[1]
    assert tops == {"tracekit", f"tracekit-{version}.dist-info"}


@pytest.mark.slow
def test_wheel_carries_its_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/LICENSE")]
        assert archive.read(name) == (ROOT / "LICENSE").read_bytes()


@pytest.mark.slow
def test_packages_come_from_the_wheel_outside_the_checkout(site: Path, tmp_path: Path) -> None:
    code = "import tracekit.{0}; print(tracekit.{0}.__file__)"
    for name in LINKED:
        place = run(sys.executable, "-c", code.format(name), cwd=tmp_path, path=site)
        assert Path(place.strip()) == site / "tracekit" / name / "__init__.py"


@pytest.mark.slow
def test_queries_are_readable_from_the_wheel(site: Path, tmp_path: Path) -> None:
    code = """
from importlib.resources import as_file, files
with as_file(files("tracekit.queries")) as folder:
    print(*sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.sql")), sep="\\n")
"""
    found = run(sys.executable, "-c", code, cwd=tmp_path, path=site).split()
    queries = ROOT / "queries"
    assert found == sorted(path.relative_to(queries).as_posix() for path in queries.rglob("*.sql"))


@pytest.mark.slow
def test_command_runs_outside_the_checkout(site: Path, tmp_path: Path) -> None:
    text = run(sys.executable, site / "bin" / "tracekit", "--help", cwd=tmp_path, path=site)
    assert "diagnose" in text
