"""Reports (.nsys-rep): only nsys itself can read them, so the user's own nsys exports them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from tracekit.errors import InputError, UsageError
from tracekit.ingest import streams
from tracekit.ingest.base import SourceFile
from tracekit.ingest.nsys import sniff

EXPORT_LIMIT_S = 3600
"""Longest that one export may take."""
_PR_SET_PDEATHSIG = 1
"""linux/prctl.h: the signal that a process gets when its parent dies."""


def with_exports(sources: Sequence[SourceFile]) -> list[SourceFile]:
    """The sources; of each report whose export is among them, which that is.

    Only an export that was begun after the report was written: an older one is of another report.
    """
    if not any(sniff.is_report(s.name) for s in sources):
        return list(sources)
    written = {s.path.partition("!device=")[0]: s for s in sources if not sniff.is_report(s.name)}

    def export(report: SourceFile) -> str:
        for path in sniff.export_paths(report.path):
            database = written.get(path)
            if (
                database is None
                or database.mtime_ns < report.mtime_ns
                or not sniff.is_whole(database)
            ):
                continue
            return Path(path).name
        return ""

    return [replace(s, export=export(s)) if sniff.is_report(s.name) else s for s in sources]


def export_reports(sources: Sequence[SourceFile], nsys: str, folder: Path) -> list[SourceFile]:
    """The sources, with every report replaced by what its export in ``folder`` holds.

    UsageError where nsys cannot be run, InputError where it refuses a report.
    """
    sources_found: list[SourceFile] = []
    for number, source in enumerate(sources):
        is_exported = bool(source.export)
        if is_exported or not sniff.is_report(source.name) or not Path(source.path).is_file():
            sources_found.append(source)
            continue
        target = folder / f"{number}.sqlite"
        _export(nsys, source.path, target)
        stored = str(target)
        exported = replace(source, stored=stored, open=partial(streams.open_file, stored))
        sources_found += sniff.split(exported)
    return sources_found


def _ends_with_us() -> Callable[[], object] | None:
    """What a child calls, so that it does not outlive a killed parent; only Linux knows how."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl  # looked up here: between fork and exec only called
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _export(nsys: str, report: str, target: Path) -> None:
    for options in (["--include-blobs=true"], []):  # before 2023 it knew no such option
        command = [nsys, "export", "--type=sqlite", *options, f"--output={target}", report]
        try:
            done = subprocess.run(  # noqa: S603  # the program that the user named, without a shell
                command, capture_output=True, text=True, timeout=EXPORT_LIMIT_S, check=False,
                preexec_fn=_ends_with_us(),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise InputError(f"{report}: nsys export took longer than an hour") from None
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise UsageError(
                f"--nsys {nsys}: cannot be run ({why})", hint="--nsys $(command -v nsys)"
            ) from None
        if done.returncode == 0 and target.is_file():
            return
        target.unlink(missing_ok=True)
    said = f"{done.stdout}\n{done.stderr}"
    if "newer than your current version" in said:
        raise InputError(
            f"{report}: it was made by a newer nsys than {nsys}",
            hint="export it with the nsys that made it, or a newer one",
        )
    raise InputError(
        f"{report}: nsys export ended with exit code {done.returncode}",
        hint=f"try it: {sniff.export_command(report)}",
    )
