"""The pins, and the archive for machines without network. Nothing here needs a network itself."""

from __future__ import annotations

import ensurepip
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bundle import ARCHS, PYTHONS, BundleError, Target, pack, read_pins

ROOT = Path(__file__).resolve().parent.parent
RUNTIME, DEVELOPMENT = ROOT / "requirements.txt", ROOT / "requirements-dev.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TARGETS = [Target(python, arch) for arch in ARCHS for python in PYTHONS]
HERE = Target("{}.{}".format(*sys.version_info), platform.machine())
DIGEST = "0" * 64


# The pins of this repository.


@pytest.mark.parametrize("path", [RUNTIME, DEVELOPMENT], ids=lambda path: path.name)
def test_pins_are_exact_hashed_and_free_of_addresses(path: Path) -> None:
    pins = read_pins(path)  # refuses ranges, options, addresses and lines without a hash
    assert all(len(digest) == 64 for pin in pins for digest in pin.hashes)
    text = path.read_text(encoding="utf-8")
    for forbidden in ("://", "/", "--index", "--find-links", "--trusted-host"):
        assert forbidden not in text


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_each_dependency_has_one_pin_that_its_range_allows(target: Target) -> None:
    wanted = {
        RUNTIME: PROJECT["project"]["dependencies"],
        DEVELOPMENT: [
            *PROJECT["project"]["dependencies"],
            *PROJECT["dependency-groups"]["dev"],
            *PROJECT["build-system"]["requires"],
        ],
    }
    for path, dependencies in wanted.items():
        pins = [pin for pin in read_pins(path) if pin.applies_to(target)]
        versions = {pin.name: pin.version for pin in pins}
        assert len(versions) == len(pins), f"{path.name} pins a package twice"
        for requirement in map(Requirement, dependencies):
            assert versions[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_development_pins_hold_the_runtime_pins(target: Target) -> None:
    runtime, development = (
        {(pin.name, pin.version, pin.hashes) for pin in read_pins(path) if pin.applies_to(target)}
        for path in (RUNTIME, DEVELOPMENT)
    )
    assert runtime <= development


def test_supported_pythons_begin_where_the_project_does() -> None:
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"


# What counts as a pin.


def pins_of(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "requirements.txt"
    path.write_text(text)
    return [str(pin) for pin in read_pins(path)]


def test_pin_may_run_over_several_lines(tmp_path: Path) -> None:
    text = f"# note\nPolars==2.1.0 \\\n    --hash=sha256:{DIGEST} \\\n    --hash=sha256:{DIGEST}\n"
    assert pins_of(tmp_path, text) == ["polars==2.1.0"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"polars>=2.1 --hash=sha256:{DIGEST}", "exactly one version"),
        (f"polars==2.* --hash=sha256:{DIGEST}", "exactly one version"),
        (f"polars @ https://example.org/p.whl --hash=sha256:{DIGEST}", "exactly one version"),
        ("polars==2.1.0", "no sha256"),
        (f"polars==2.1.0 --hash=md5:{DIGEST}", "no sha256"),
        ("--index-url https://example.org/simple", "is no pin"),
        ("./polars.whl", "is no pin"),
        ("", "pins nothing"),
    ],
)
def test_other_lines_are_refused(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(BundleError, match=reason):
        pins_of(tmp_path, line + "\n")


def test_marker_is_evaluated_for_the_target_and_not_for_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    marker = "python_full_version < '3.12' and platform_machine == 'aarch64'"
    path.write_text(f"contourpy==1.3.3 ; {marker} --hash=sha256:{DIGEST}\n")
    (pin,) = read_pins(path)
    applies = [target for target in TARGETS if pin.applies_to(target)]
    assert applies == [Target("3.11", "aarch64")]


# The archive and its install script.


def make_wheel(folder: Path) -> Path:
    """A stand-in for our wheel that depends on nothing, so that no other wheel is needed."""
    path = folder / "tracekit-1.0-py3-none-any.whl"
    files = {
        "tracekit/__init__.py": "",
        "tracekit-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tracekit\nVersion: 1.0\n",
        "tracekit-1.0.dist-info/WHEEL": (
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    files["tracekit-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def unpack(folder: Path, target: Target) -> Path:
    """An archive that holds only the stand-in and a pip, unpacked as a user would."""
    bundled = Path(ensurepip.__file__).with_name("_bundled")
    pips = list(bundled.glob("pip-*.whl"))
    if not pips:
        pytest.skip("this Python comes without a pip of its own")
    archive = folder / "bundle.tar.gz"
    pack(pips, "", make_wheel(folder), [target], archive)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / f"tracekit-1.0-linux-{target.arch}"


def install(
    folder: Path, target: str, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run install.sh where nothing may be fetched: an index that answers nothing is configured."""
    nowhere = "http://127.0.0.1:9/"
    environment = {**os.environ, "PYTHON": python, "PIP_INDEX_URL": nowhere, "PYTHONPATH": "/none"}
    return subprocess.run(
        ["sh", str(folder / "install.sh"), target],
        cwd=folder.parent,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if platform.system() != "Linux" or HERE not in TARGETS:
        pytest.skip(f"no archive is made for {platform.system()}, {HERE}")
    return unpack(tmp_path_factory.mktemp("bundle"), HERE)


@pytest.mark.slow
def test_archive_installs_without_network(unpacked: Path, tmp_path: Path) -> None:
    done = install(unpacked, str(tmp_path / "with space"))
    assert done.returncode == 0, done.stderr
    assert "is installed:" in done.stderr
    python = tmp_path / "with space" / "bin" / "python"
    code = "import tracekit; print(tracekit.__file__)"
    place = subprocess.run([python, "-I", "-c", code], check=True, capture_output=True, text=True)
    assert place.stdout.startswith(str(tmp_path))


@pytest.mark.slow  # a second installation
def test_damaged_wheel_is_refused_and_nothing_is_left(unpacked: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(unpacked, tmp_path / unpacked.name))
    (wheel,) = damaged.glob("wheels/tracekit-*.whl")
    with wheel.open("ab") as file:
        file.write(b"\0")
    done = install(damaged, str(tmp_path / "target"))
    assert done.returncode == 2
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert "error: the wheels were refused; nothing is installed\nhint: " in done.stderr
    assert not (tmp_path / "target").exists()


def test_existing_folder_is_left_alone(unpacked: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").touch()
    done = install(unpacked, str(tmp_path / "target"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "exists already\nhint: " in done.stderr
    assert (tmp_path / "target" / "mine").exists()


@pytest.mark.parametrize(
    ("placeholder", "other", "message"),
    [
        (f"arch='{HERE.arch}'", "arch='riscv64'", "error: this archive is for riscv64, and this"),
        (
            f"pythons='{HERE.python}'",
            "pythons='3.99'",
            f"cannot be used: it is Python {HERE.python}",
        ),
        ("glibc_minor='28'", "glibc_minor='999'", "and glibc 2.999 or newer is needed"),
    ],
    ids=["architecture", "python", "glibc"],
)
def test_wrong_machine_is_named(
    unpacked: Path, tmp_path: Path, placeholder: str, other: str, message: str
) -> None:
    folder = Path(shutil.copytree(unpacked, tmp_path / unpacked.name))
    script = folder / "install.sh"
    text = script.read_text()
    assert placeholder in text
    script.write_text(text.replace(placeholder, other))
    done = install(folder, str(tmp_path / "target"))
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "target").exists()


def test_missing_interpreter_is_named(unpacked: Path, tmp_path: Path) -> None:
    done = install(unpacked, str(tmp_path / "target"), python="python-that-is-not-there")
    assert done.returncode == 2
    assert "error: there is no 'python-that-is-not-there'" in done.stderr


def test_same_wheels_give_the_same_bytes(unpacked: Path, tmp_path: Path) -> None:
    wheels = sorted((unpacked / "wheels").glob("pip-*.whl"))
    (own_wheel,) = unpacked.glob("wheels/tracekit-*.whl")
    for name in ("first", "second"):
        pack(wheels, "", own_wheel, [HERE], tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
