"""A job.toml read and checked: what is wrong is refused, with its place."""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args
from zoneinfo import ZoneInfo

import msgspec

from tracekit.errors import InputError
from tracekit.job.model import ENTRIES, SECTIONS, JobDescription, ScheduleKind, keys_of

MAX_BYTES = 8 * 1024 * 1024
"""Largest job.toml that is read: 10,000 ranks with host and device need about 1 MB."""
MAX_LINE = 64 * 1024
"""Longest line that is read; the TOML parser's cost grows with the square of a dotted key."""
MAX_DEPTH = 6
"""Deepest nesting that is read; the deepest that means anything is 3."""
_SCHEDULE_SPELLINGS = {
    "interleaved": "interleaved-1f1b",
    "interleaved1f1b": "interleaved-1f1b",
    "loopedbfs": "looped-bfs",
    "zbh1": "zb-h1",
    "zb1p": "zb-h1",
    "zb2p": "zb-2p",
    "interleavedzerobubble": "interleaved-zero-bubble",
    "zbvzerobubble": "zbv",
}


def is_job_file(path: str, head: bytes) -> bool:
    """Whether a file is a job description, from its name and first bytes.

    ``job.toml`` and ``*.job.toml`` are by name; any other ``.toml`` only if every table that
    its head opens is one of ours (a torchtitan configuration also has ``[model]``).
    """
    name = path.replace("\\", "/").replace("!", "/").rsplit("/", 1)[-1].lower()
    if not name.endswith(".toml"):
        return False
    if name == "job.toml" or name.endswith(".job.toml"):
        return True
    text = head.decode("utf-8", "replace")
    tables = re.findall(r"(?m)^[ \t]*(\[\[?)[ \t]*([A-Za-z0-9_-]+)[ \t]*\]", text)
    ours = [n in (ENTRIES if b == "[[" else SECTIONS) for b, n in tables]
    return bool(ours) and all(ours)


def load_job(path: str | os.PathLike[str]) -> JobDescription:
    """Read one job.toml. Raises InputError (with path and place) if it cannot be used."""
    return parse_job(read_given(path), os.fspath(path))


def read_given(path: str | os.PathLike[str], what: str = "a job description") -> bytes:
    """What a small file that the user named holds: a description, settings, a statement.

    A pipe that nobody writes to is empty, and not waited for. InputError where it cannot be read,
    or holds more than ``MAX_BYTES``.
    """
    shown = os.fspath(path)

    def at_once(name: str, flags: int) -> int:
        opened = os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
        os.set_blocking(opened, True)
        return opened

    try:
        with open(path, "rb", opener=at_once) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{shown}: {what} of more than {MAX_BYTES} bytes is not read")
    return data


def parse_job(data: bytes, path: str) -> JobDescription:
    """A job description from the bytes of a job.toml; ``path`` is where they came from.

    Raises InputError, naming path and place, for anything that is not a job description.
    """
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: a job description of more than {MAX_BYTES} bytes is not read")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8") from error
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MAX_LINE:
            raise InputError(f"{path}: line {number} is longer than {MAX_LINE} characters")
    try:
        # Line ends inside strings are the only thing that splitlines sees differently.
        raw = tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {shown(str(error), 200)}") from error
    except (RecursionError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: not valid TOML: nested too deep or a value too large") from error
    base = _folder(path)
    _check_values(raw, path, "", 0)
    _check_keys(raw, path, text)
    _normalise(raw)
    try:
        job = msgspec.convert(raw, JobDescription)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {_validation_text(str(error))}") from error
    job = msgspec.structs.replace(
        job,
        files=(path,),
        rank=tuple(msgspec.structs.replace(e, base=base) for e in job.rank),
        source=tuple(msgspec.structs.replace(e, base=base) for e in job.source),
    )
    _check_meaning(job, path)
    return job


def place_of(files: Iterable[str], key: str) -> str:
    """Path and line of the only place where job descriptions set a key; "" where unclear."""
    parts = []
    for path in files:
        with contextlib.suppress(OSError):
            text = Path(path).read_bytes()[:MAX_BYTES].decode("utf-8", "replace")
            pattern = re.compile(rf"(?<![\w-])\"?{re.escape(key)}\"?\s*=")
            lines = text.replace("\r\n", "\n").split("\n")
            parts += [
                f"{path}: line {n}: " for n, line in enumerate(lines, 1) if pattern.search(line)
            ]
    return parts[0] if len(parts) == 1 else ""


def shown(text: str, limit: int = 60) -> str:
    """Foreign text made fit for a terminal: printable, short."""
    clean = "".join(c if c.isprintable() else "?" for c in text)
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


def _folder(path: str) -> str:
    """Folder of a job.toml, absolute unless it is a URI."""
    if "://" in path:
        return path.rsplit("/", 1)[0]
    return os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120 - no symlink is followed


def _check_values(value: object, path: str, place: str, depth: int) -> None:
    """Refuse what TOML allows and nothing here means: deep nesting, inf, nan."""
    if depth > MAX_DEPTH:
        raise InputError(f"{path}: {place[:80]}: nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_values(item, path, f"{place}.{shown(key)}".lstrip("."), depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_values(item, path, f"{place}[{index}]", depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{path}: {place}: expected a finite number")


def _check_keys(raw: dict[str, Any], path: str, text: str) -> None:
    """Refuse unknown keys, and tables where there should be lists of tables or values."""
    known = keys_of(JobDescription)
    for key, value in raw.items():
        if key not in known:
            _unknown(path, text, "", key, known)
        if key in SECTIONS:
            if not isinstance(value, dict):
                raise InputError(f"{path}: {key}: expected a table, [{key}]")
            for inner in value:
                if inner not in keys_of(SECTIONS[key]):
                    _unknown(path, text, f"[{key}] ", inner, keys_of(SECTIONS[key]))
        elif key in ENTRIES:
            names = keys_of(ENTRIES[key])
            if not isinstance(value, list) or not all(isinstance(e, dict) for e in value):
                raise InputError(f"{path}: {key}: expected a list of tables, [[{key}]]")
            for index, entry in enumerate(value):
                for inner in entry:
                    if inner not in names:
                        _unknown(path, text, f"[[{key}]] number {index + 1} ", inner, names)


def _unknown(path: str, text: str, where: str, key: str, known: Iterable[str]) -> None:
    names = list(known)
    lines = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if re.match(rf"\s*(\[\[?\s*)?\"?{re.escape(key)}\"?\s*[=\].]", line)
    ]
    line = f"line {lines[0]}: " if len(lines) == 1 else ""
    close = difflib.get_close_matches(key[:60].lower(), names, n=1, cutoff=0.6)
    if not close and not where:
        homes = [s for s, kind in SECTIONS.items() if key in keys_of(kind)]
        hint = f"{key} belongs in [{homes[0]}]" if homes else None
    else:
        hint = f"did you mean {close[0]}?" if close else None
    raise InputError(
        f"{path}: {line}{where}unknown key {shown(key)!r}",
        hint=hint or f"known keys here: {', '.join(names)}",
    )


def _normalise(raw: dict[str, Any]) -> None:
    """Accept the usual spellings: an order as text, a schedule by its framework's name, 8e9."""
    for table in raw.values():
        for key, value in table.items() if isinstance(table, dict) else ():
            if isinstance(value, float) and value.is_integer():
                table[key] = int(value)  # where fractions mean something, whole numbers do too
    parallelism = raw.get("parallelism", {})
    if isinstance(parallelism.get("order"), str):
        parallelism["order"] = re.split(r"[-,\s]+", parallelism["order"].strip().lower())
    schedule = raw.get("schedule", {})
    if isinstance(schedule.get("kind"), str):
        word = schedule["kind"].strip().lower().replace("_", "-")
        schedule["kind"] = _SCHEDULE_SPELLINGS.get(word.replace("-", ""), word)


def _validation_text(message: str) -> str:
    """The place first, as a user would write it: `rank[3].host: expected str, got int`."""
    what, _, place = message.partition(" - at `$")
    place = place.rstrip("`").lstrip(".")
    what = what.replace("`", "").replace("Object missing", "missing").replace(" | null", "")
    what = what[0].lower() + what[1:]
    if "enum value" in what and place.endswith("kind"):
        what = f"expected one of {', '.join(get_args(ScheduleKind))}"
    return f"{shown(place, 120)}: {what}" if place else what


def _check_meaning(job: JobDescription, path: str) -> None:
    """What types cannot say: paths that stay inside, no entry twice, times with a zone."""
    patterns = {f"rank[{i}]": e.path for i, e in enumerate(job.rank)}
    patterns |= {f"source[{i}]": e.path for i, e in enumerate(job.source)}
    for place, pattern in patterns.items():
        if pattern is not None:
            _check_path(pattern, f"{path}: {place}.path")
    for name, keys in (
        ("rank", [str(e.rank) for e in job.rank if e.path is None]),
        ("host", [e.host for e in job.host]),
        ("port", [f"{e.node} {e.port}" for e in job.port]),
        ("range", [e.name for e in job.range]),
        ("source", [e.path for e in job.source]),
    ):
        twice = sorted(k for k, n in Counter(keys).items() if n > 1)
        if twice:
            raise InputError(f"{path}: [[{name}]] {shown(twice[0])!r} appears more than once")
    for index, source in enumerate(job.source):
        place = f"{path}: source[{index}]"
        if source.timezone is not None:
            _check_timezone(source.timezone, place)
        elif source.start is not None and source.start.tzinfo is None:
            raise InputError(
                f"{place}.start: a time without offset",
                hint="end it with Z or an offset, or give timezone beside it",
            )
    order = job.parallelism.order
    if order is not None and len(set(order)) < len(order):
        raise InputError(f"{path}: parallelism.order: a dimension appears more than once")


def _check_path(pattern: str, place: str) -> None:
    parts = pattern.replace("\\", "/").split("/")
    if "\x00" in pattern or "://" in pattern:
        raise InputError(f"{place}: expected a path relative to the file")
    if pattern[0] in "/\\~" or re.match(r"[A-Za-z]:", pattern):
        raise InputError(
            f"{place}: {shown(pattern)!r} is absolute",
            hint="paths are relative to the folder of the job description",
        )
    if ".." in parts:
        raise InputError(
            f"{place}: {shown(pattern)!r} leads outside the folder of the job description",
            hint="put the job description into a folder that holds all its files",
        )


def _check_timezone(name: str, place: str) -> None:
    if re.fullmatch(r"[+-]([01]\d|2[0-3]):[0-5]\d", name):
        return
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise InputError(
            f"{place}.timezone: {shown(name)!r} is no known time zone",
            hint="an IANA name such as Europe/Berlin, or an offset such as +02:00",
        ) from error
