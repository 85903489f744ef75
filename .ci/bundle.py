"""Wheels of every pin for a machine without network or compiler: check that they exist, pack them.

    python .ci/bundle.py --check                            every Python and architecture
    python .ci/bundle.py --arch aarch64 [--python 3.12]     writes dist/tracekit-*.tar.gz

pip decides what fits a machine and does every download; markers are evaluated here, since pip
evaluates them for the interpreter that runs it and not for the one that `--python-version` names.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
ARCHS = ("x86_64", "aarch64")
# RHEL 8, Debian 10, Ubuntu 20.04 and later; the pins' newest wheels ask for no more than this.
GLIBC = (2, 28)
# The oldest glibc that a manylinux tag of the architecture names (PEP 513, PEP 599).
OLDEST_GLIBC_MINOR = {"x86_64": 5, "aarch64": 17}
LEGACY_TAGS = {"x86_64": ("2014", "2010", "1"), "aarch64": ("2014",)}


class BundleError(Exception):
    """Something that the pins, the index or the caller must put right; one line, no traceback."""


@dataclass(frozen=True)
class Pin:
    """One line of a requirements file: exactly one version, where it applies, what it may be."""

    name: NormalizedName
    version: str
    marker: Marker | None
    hashes: frozenset[str]

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"

    def applies_to(self, target: Target) -> bool:
        return self.marker is None or self.marker.evaluate(target.environment())


@dataclass(frozen=True)
class Target:
    """A machine that tracekit is installed on: CPython on Linux with glibc."""

    python: str
    arch: str

    def __str__(self) -> str:
        return f"Python {self.python} on {self.arch}"

    def environment(self) -> dict[str, str]:
        """The variables that an environment marker can ask for (PEP 508)."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.arch,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }

    def pip_options(self) -> list[str]:
        """Make pip choose for this machine instead of its own, and never from source."""
        major, newest = GLIBC
        tags = [
            f"manylinux_{major}_{minor}_{self.arch}"
            for minor in range(newest, OLDEST_GLIBC_MINOR[self.arch] - 1, -1)
        ]
        tags += [f"manylinux{name}_{self.arch}" for name in LEGACY_TAGS[self.arch]]
        return [
            "--only-binary=:all:",
            "--no-deps",
            "--implementation=cp",
            f"--python-version={self.python}",
            *(f"--platform={tag}" for tag in tags),
        ]


def read_pins(path: Path) -> list[Pin]:
    """The pins of a requirements file.

    Raises BundleError for a line that is not an exact version with a sha256 and nothing else: an
    option, an address, a path or a range.
    """
    pins = []
    lines = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    for line in (line.strip() for line in lines):
        if line and not line.startswith("#"):
            pins.append(_parse_pin(line, path))
    if not pins:
        raise BundleError(f"{path.name} pins nothing")
    return pins


def _parse_pin(line: str, path: Path) -> Pin:
    text, *options = line.split(" --hash=")
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise BundleError(f"{path.name}: {text!r} is no pin: {error}") from error
    specifiers = list(requirement.specifier)
    if requirement.url or len(specifiers) != 1 or specifiers[0].operator != "==":
        raise BundleError(f"{path.name}: {text!r} does not name exactly one version")
    if "*" in specifiers[0].version:
        raise BundleError(f"{path.name}: {text!r} does not name exactly one version")
    kinds = {option.strip().partition(":")[0] for option in options}
    if kinds != {"sha256"}:
        raise BundleError(f"{path.name}: {requirement.name} has no sha256 hash, or another kind")
    return Pin(
        name=canonicalize_name(requirement.name),
        version=specifiers[0].version,
        marker=requirement.marker,
        hashes=frozenset(option.strip().partition(":")[2] for option in options),
    )


def find_faults(pins: Sequence[Pin], target: Target) -> list[str]:
    """What keeps these pins from being installed on the target, in words; asks pip's index.

    A dry run over names alone: with hashes pip would download every wheel only to drop it.
    """
    wanted = [pin for pin in pins if pin.applies_to(target)]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *("install", "--dry-run", "--ignore-installed", "--report=-", f"--target={folder}"),
            *target.pip_options(),
            *map(str, wanted),
        ]
        done = _pip(command)
    if done.returncode:
        # pip stops at the first pin without a wheel; the next run finds the next.
        reason = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        return [f"{target}: {reason[-1] if reason else done.stderr.strip()}"]
    found = {
        canonicalize_name(item["metadata"]["name"]): item["download_info"]
        for item in json.loads(done.stdout)["install"]
    }
    faults = []
    for pin in wanted:
        if pin.name not in found:
            faults.append(f"{target}: pip chose no wheel for {pin}")
        elif found[pin.name]["archive_info"]["hashes"].get("sha256") not in pin.hashes:
            wheel = found[pin.name]["url"].rpartition("/")[2]
            faults.append(f"{target}: the hash of {wheel} is not among the pins; run `make pins`")
    return faults


def download(pins: Sequence[Pin], target: Target, folder: Path) -> None:
    """Fetch the wheels for one target; pip refuses what is not among the hashes."""
    wanted = [pin for pin in pins if pin.applies_to(target)]
    with tempfile.TemporaryDirectory() as scratch:
        listing = Path(scratch, "requirements.txt")
        listing.write_text("".join(_requirement_line(pin) for pin in wanted), encoding="utf-8")
        command = ["download", "--require-hashes", f"--requirement={listing}", f"--dest={folder}"]
        done = _pip([*command, *target.pip_options()])
    if done.returncode:
        raise BundleError(f"{target}: pip download failed\n{done.stderr.strip()}")


def _requirement_line(pin: Pin) -> str:
    return (
        " ".join([str(pin), *(f"--hash=sha256:{digest}" for digest in sorted(pin.hashes))]) + "\n"
    )


def _pip(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # -qq also silences warnings about the machine's own pip configuration; errors still come out.
    command = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", "--no-input"]
    return subprocess.run(  # noqa: S603 - arguments are our own, and no shell reads them
        [*command, *arguments], check=False, capture_output=True, text=True
    )


def build_wheel(folder: Path) -> Path:
    """Our own wheel, by way of the sdist: straight from the tree it would take in stray files."""
    done = subprocess.run(  # noqa: S603 - as above
        [sys.executable, "-m", "build", "--no-isolation", f"--outdir={folder}", str(ROOT)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise BundleError(f"the wheel does not build\n{done.stdout}{done.stderr}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def pack(
    wheels: Iterable[Path], pins: str, own_wheel: Path, targets: Sequence[Target], archive: Path
) -> None:
    """Write the archive: install.sh, requirements.txt and wheels/.

    The same wheels give the same bytes: no times, owners or folder order of this machine.
    """
    version = own_wheel.name.split("-")[1]
    (arch,) = {target.arch for target in targets}
    script = (ROOT / ".ci" / "install.sh").read_text(encoding="utf-8")
    values = {
        "@VERSION@": version,
        "@ARCH@": arch,
        "@PYTHONS@": " ".join(target.python for target in targets),
        "@GLIBC_MINOR@": str(GLIBC[1]),
    }
    for name, value in values.items():
        script = script.replace(name, value)
    requirements = f"{pins}tracekit=={version} --hash=sha256:{_sha256(own_wheel)}\n"

    root = f"tracekit-{version}-linux-{arch}"
    partial = archive.with_name(archive.name + ".partial")
    # Wheels are compressed already: the fastest level loses nothing.
    with (
        partial.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        _add(tar, f"{root}/install.sh", script.encode(), mode=0o755)
        _add(tar, f"{root}/requirements.txt", requirements.encode())
        for wheel in sorted([*wheels, own_wheel], key=lambda path: path.name):
            _add(tar, f"{root}/wheels/{wheel.name}", wheel.read_bytes())
    partial.replace(archive)


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = mode
    tar.addfile(entry, io.BytesIO(content))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check() -> None:
    """Raise BundleError unless every pin has a wheel for every machine that we support."""
    pins = read_pins(ROOT / "requirements.txt")
    faults = []
    for target in (Target(python, arch) for arch in ARCHS for python in PYTHONS):
        found = find_faults(pins, target)
        faults += found
        count = sum(pin.applies_to(target) for pin in pins)
        print(f"{target}: {'FAULTY' if found else f'{count} wheels'}", flush=True)
    if faults:
        raise BundleError("\n".join(["not every pin can be installed everywhere", *faults]))


def bundle(arch: str, pythons: Sequence[str]) -> None:
    """Check every target of the archive, then fetch, verify and pack."""
    pins_path = ROOT / "requirements.txt"
    pins = read_pins(pins_path)
    targets = [Target(python, arch) for python in pythons]
    faults = [fault for target in targets for fault in find_faults(pins, target)]
    if faults:
        raise BundleError("\n".join(["not every pin can be installed", *faults]))

    with tempfile.TemporaryDirectory() as scratch:
        folder, built = Path(scratch, "wheels"), Path(scratch, "built")
        folder.mkdir()
        for target in targets:
            download(pins, target, folder)
            print(f"{target}: downloaded", flush=True)
        # With its own pip the archive also installs where Python comes without ensurepip.
        dev_pins = read_pins(ROOT / "requirements-dev.txt")
        pip_pin = [pin for pin in dev_pins if pin.name == "pip"]
        download(pip_pin, targets[0], folder)

        wheels = sorted(folder.iterdir())
        known = {digest for pin in [*pins, *pip_pin] for digest in pin.hashes}
        for wheel in wheels:
            if _sha256(wheel) not in known:
                raise BundleError(f"the hash of {wheel.name} is not among the pins")

        own_wheel = build_wheel(built)
        version = own_wheel.name.split("-")[1]
        # An archive for one Python says so: it must not pass for the whole one.
        suffix = "" if tuple(pythons) == PYTHONS else "-py" + "-".join(pythons)
        archive = ROOT / "dist" / f"tracekit-{version}-linux-{arch}{suffix}.tar.gz"
        archive.parent.mkdir(exist_ok=True)
        pack(wheels, pins_path.read_text(encoding="utf-8"), own_wheel, targets, archive)
    digest = _sha256(archive)
    archive.with_name(archive.name + ".sha256").write_text(
        f"{digest}  {archive.name}\n", encoding="utf-8"
    )
    size = archive.stat().st_size / 1e6
    print(f"{archive.relative_to(ROOT)}: {len(wheels) + 1} wheels, {size:.0f} MB, sha256 {digest}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="only ask whether every wheel exists")
    parser.add_argument("--arch", help="|".join(ARCHS))
    parser.add_argument("--python", choices=PYTHONS, help="for this Python only")
    arguments = parser.parse_args()
    try:
        if arguments.check:
            check()
        elif arguments.arch in ARCHS:
            bundle(arguments.arch, (arguments.python,) if arguments.python else PYTHONS)
        else:
            raise BundleError(
                f"ARCH is {arguments.arch or 'not given'}: it takes {'|'.join(ARCHS)}"
            )
    except BundleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
