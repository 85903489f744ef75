"""The job description, ``job.toml``: what a user says about a job, typed and checked.

Every field is optional: what is not given is inferred from the traces or reported as unknown.
Units are in the names (``_bytes_per_s``, ``_flops_per_s``); ``[[source]] interval`` is in
seconds. Paths are relative to the file that holds them and never lead outside its folder.

    name = "llama-ft"
    [parallelism]
    tp = 8
    [clocks]
    shared = true               # one machine's clock wrote all files
    [[rank]]
    rank = 0
    host = "gpu-11"
    [[range]]
    name = "prepare shards"     # what ranges of this name are for
    kind = "input"
    [[source]]
    path = "node1/*.json.gz"    # * stays in a folder, ** does not
    host = "gpu-12"
    [[source]]
    path = "gpu.csv"            # a table with headers of its own
    columns = { time = "t", gpu = "card", power = "P [mW]", sm_active = "busy [%]" }
    [[source]]
    path = "ports.csv"
    columns = { time = "t", host = "switch", port = "if", tx_bytes = "out [MB]" }
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import json
import math
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta

from tracekit.errors import InputError
from tracekit.range_kind import RangeKind
from tracekit.values import MAX_RANKS

MAX_BYTES = 8 * 1024 * 1024
"""Largest job.toml that is read: 10,000 ranks with host and device need about 1 MB."""
MAX_LINE = 64 * 1024
"""Longest line that is read; the TOML parser's cost grows with the square of a dotted key."""
MAX_DEPTH = 6
"""Deepest nesting that is read; the deepest that means anything is 3."""

Index = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Large = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Positive = Annotated[float, Meta(gt=0)]
Text = Annotated[str, Meta(min_length=1, max_length=1024)]
Axis = Literal["tp", "pp", "dp", "ep", "cp"]
ScheduleKind = Literal[
    "gpipe",
    "1f1b",
    "interleaved-1f1b",
    "looped-bfs",
    "zb-h1",
    "zb-2p",
    "interleaved-zero-bubble",
    "zbv",
    "dualpipe",
    "dualpipev",
]


class _Section(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts: immutable, every field by name."""


class Parallelism(_Section, frozen=True, kw_only=True):
    """Sizes of the parallel dimensions; their product (ep apart) is the world size."""

    tp: Count | None = None
    """Tensor parallel."""
    pp: Count | None = None
    """Pipeline parallel."""
    dp: Count | None = None
    """Data parallel (all of it: replicate times shard)."""
    dp_replicate: Count | None = None
    """Replicas of the shards (HSDP); divides dp."""
    ep: Count | None = None
    """Expert parallel."""
    cp: Count | None = None
    """Context parallel."""
    vpp: Count | None = None
    """Virtual pipeline stages (model chunks) a rank."""
    zero_stage: Annotated[int, Meta(ge=0, le=3)] | None = None
    """ZeRO stage; FSDP that reshards is 3."""
    order: tuple[Axis, ...] | None = None
    """Dimensions from the one whose ranks are neighbours to the one farthest apart."""


class Schedule(_Section, frozen=True, kw_only=True):
    """How the pipeline runs."""

    kind: ScheduleKind | None = None
    microbatches: Count | None = None
    """Microbatches a step and replica."""
    recompute: Literal["none", "selective", "full"] | None = None
    """Activations that the backward computes again: of attention, or of whole layers."""


class Model(_Section, frozen=True, kw_only=True):
    """The model's shape."""

    layers: Count | None = None
    hidden: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    ffn: Count | None = None
    """Width of the feed-forward layer."""
    vocabulary: Count | None = None
    sequence: Count | None = None
    """Tokens a sample."""
    parameters: Large | None = None
    experts: Count | None = None
    """Routed experts a layer."""
    top_k: Count | None = None
    """Experts a token."""
    dtype: Text | None = None


class Batch(_Section, frozen=True, kw_only=True):
    """Samples a step."""

    global_: Count | None = msgspec.field(default=None, name="global")
    """Samples a step over all replicas."""
    micro: Count | None = None
    """Samples a microbatch."""


class Hardware(_Section, frozen=True, kw_only=True):
    """What the job runs on."""

    gpu: Text | None = None
    gpus_per_node: Count | None = None
    nics_per_node: Count | None = None
    nic_bytes_per_s: Positive | None = None
    """One NIC, one direction."""
    nvlink_domain: Count | None = None
    """GPUs that reach each other over NVLink."""
    nvlink_bytes_per_s: Positive | None = None
    """One GPU, one direction."""
    peak_flops_per_s: Positive | None = None
    """One GPU, dense, in the model's dtype."""
    gpu_memory_bytes: Large | None = None
    sharp: bool | None = None
    """Whether switches reduce."""
    rails: Count | None = None
    oversubscription: Annotated[float, Meta(ge=1)] | None = None
    """Downlink over uplink bandwidth of a leaf switch."""
    leaf_gpus: Count | None = None
    """GPUs below one leaf switch (or scalable unit): among them nothing is over-subscribed."""
    spine_oversubscription: Annotated[float, Meta(ge=1)] | None = None
    """The same of the level above the leaves."""
    spine_gpus: Count | None = None
    """GPUs below one switch of that level: among them its over-subscription costs nothing."""


class Prices(_Section, frozen=True, kw_only=True):
    """What time costs."""

    gpu_hour: Positive | None = None
    kilowatt_hour: Positive | None = None
    currency: Text | None = None


class Clocks(_Section, frozen=True, kw_only=True):
    """What is known of the clocks."""

    shared: bool | None = None
    """Whether one machine's clock wrote all files."""


class RankEntry(_Section, frozen=True, kw_only=True):
    """A rank: where it ran."""

    rank: Index
    host: Text | None = None
    device: Text | None = None
    """UUID or PCI address of its GPU."""
    path: Text | None = None
    """Its file or files (glob)."""
    base: str = ""
    """Folder of the job.toml that says so; not a key of the file."""


class HostEntry(_Section, frozen=True, kw_only=True):
    """A host: what it shares with its neighbours."""

    host: Text
    rack: Text | None = None
    leaf: Text | None = None
    """Switch that all its NICs lead to; where they lead to several, say it by port."""


class PortEntry(_Section, frozen=True, kw_only=True):
    """Where a switch port or NIC leads."""

    node: Text
    """Switch (or host) that has the port."""
    port: Text
    host: Text | None = None
    rank: Index | None = None
    nic: Text | None = None
    """The host's NIC on the other side."""


class RangeEntry(_Section, frozen=True, kw_only=True):
    """What ranges of a name are for, beside the names that tracekit knows."""

    name: Text
    """A word or words of the name, in any case: ``prepare shards``."""
    kind: RangeKind | None = None


class SourceEntry(_Section, frozen=True, kw_only=True):
    """What a file does not say about itself."""

    path: Text
    """The file or files (glob)."""
    host: Text | None = None
    timezone: Text | None = None
    """IANA name or offset such as +02:00 of its times."""
    start: datetime | None = None
    """Time of its first record."""
    interval: Positive | None = None
    """Seconds between its records."""
    rank: Index | None = None
    attempt: Count | None = None
    columns: Annotated[dict[Text, Text], Meta(min_length=1, max_length=1000)] | None = None
    """What the columns of a table of counters are: time, gpu (NVML index), uuid, pci, host, pod,
    model, port, priority, queue, lane, metric, value or a counter's name, and the header, with its
    unit in brackets where the header does not state it. In a table with a number a row, a counter's
    name in its metric column.
    """
    base: str = ""
    """Folder of the job.toml that says so; not a key of the file."""


class JobDescription(_Section, frozen=True, kw_only=True):
    """One job as described by the user, by the traces, or by both."""

    name: Text | None = None
    id: Text | None = None
    """The scheduler's id."""
    world_size: Annotated[int, Meta(ge=1, le=MAX_RANKS)] | None = None
    backend: Text | None = None
    """Collective backend: nccl, gloo, ..."""
    framework: Text | None = None
    parallelism: Parallelism = Parallelism()
    schedule: Schedule = Schedule()
    model: Model = Model()
    batch: Batch = Batch()
    hardware: Hardware = Hardware()
    prices: Prices = Prices()
    clocks: Clocks = Clocks()
    rank: tuple[RankEntry, ...] = ()
    host: tuple[HostEntry, ...] = ()
    port: tuple[PortEntry, ...] = ()
    range: tuple[RangeEntry, ...] = ()
    source: tuple[SourceEntry, ...] = ()
    files: tuple[str, ...] = ()
    """The files that it was read from; not a key of the file."""
    notes: tuple[str, ...] = ()
    """Contradictions found while merging, in words; not a key of the file."""

    def digest(self) -> str:
        """Hash (hex) of what it says, for run keys.

        Equal for equal content: order of entries, comments and where the file lies do not count.
        """
        content = _plain(self)
        for name in _ENTRIES:
            if name in content:
                content[name] = sorted(content[name], key=lambda e: json.dumps(e, sort_keys=True))
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


_INTERNAL = frozenset({"base", "files", "notes"})
"""Fields that are no keys of the file."""
_SECTIONS: dict[str, type[_Section]] = {
    "parallelism": Parallelism,
    "schedule": Schedule,
    "model": Model,
    "batch": Batch,
    "hardware": Hardware,
    "prices": Prices,
    "clocks": Clocks,
}
_ENTRIES: dict[str, type[_Section]] = {
    "rank": RankEntry,
    "host": HostEntry,
    "port": PortEntry,
    "range": RangeEntry,
    "source": SourceEntry,
}
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

_S = TypeVar("_S", bound=_Section)


def _keys(kind: type[_Section]) -> dict[str, str]:
    """Key in the file -> name of the field."""
    return {
        f.encode_name: f.name
        for f in msgspec.structs.fields(kind)
        if f.encode_name not in _INTERNAL
    }


def _plain(value: Any) -> Any:
    """The content as plain data: without what is unset, empty or internal."""
    if isinstance(value, msgspec.Struct):
        items = (
            (f.encode_name, _plain(getattr(value, f.name)))
            for f in msgspec.structs.fields(value)
            if f.encode_name not in _INTERNAL
        )
        return {k: v for k, v in items if v is not None and v != {} and v != []}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value


# --- reading ------------------------------------------------------------------------------------


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
    ours = [n in (_ENTRIES if b == "[[" else _SECTIONS) for b, n in tables]
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
        raise InputError(f"{path}: not valid TOML: {_shown(str(error), 200)}") from error
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


def _shown(text: str, limit: int = 60) -> str:
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
            _check_values(item, path, f"{place}.{_shown(key)}".lstrip("."), depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_values(item, path, f"{place}[{index}]", depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{path}: {place}: expected a finite number")


def _check_keys(raw: dict[str, Any], path: str, text: str) -> None:
    """Refuse unknown keys, and tables where there should be lists of tables or values."""
    known = _keys(JobDescription)
    for key, value in raw.items():
        if key not in known:
            _unknown(path, text, "", key, known)
        if key in _SECTIONS:
            if not isinstance(value, dict):
                raise InputError(f"{path}: {key}: expected a table, [{key}]")
            for inner in value:
                if inner not in _keys(_SECTIONS[key]):
                    _unknown(path, text, f"[{key}] ", inner, _keys(_SECTIONS[key]))
        elif key in _ENTRIES:
            names = _keys(_ENTRIES[key])
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
        homes = [s for s, kind in _SECTIONS.items() if key in _keys(kind)]
        hint = f"{key} belongs in [{homes[0]}]" if homes else None
    else:
        hint = f"did you mean {close[0]}?" if close else None
    raise InputError(
        f"{path}: {line}{where}unknown key {_shown(key)!r}",
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
    return f"{_shown(place, 120)}: {what}" if place else what


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
            raise InputError(f"{path}: [[{name}]] {_shown(twice[0])!r} appears more than once")
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
            f"{place}: {_shown(pattern)!r} is absolute",
            hint="paths are relative to the folder of the job description",
        )
    if ".." in parts:
        raise InputError(
            f"{place}: {_shown(pattern)!r} leads outside the folder of the job description",
            hint="put the job description into a folder that holds all its files",
        )


def _check_timezone(name: str, place: str) -> None:
    if re.fullmatch(r"[+-]([01]\d|2[0-3]):[0-5]\d", name):
        return
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise InputError(
            f"{place}.timezone: {_shown(name)!r} is no known time zone",
            hint="an IANA name such as Europe/Berlin, or an offset such as +02:00",
        ) from error


# --- merging ------------------------------------------------------------------------------------


def load_jobs(paths: Sequence[str | os.PathLike[str]]) -> JobDescription:
    """Read several job descriptions as one: later files win; contradictions are in ``notes``.

    Without paths: an empty description. Raises InputError as ``load_job``.
    """
    return functools.reduce(merge_jobs, (load_job(p) for p in paths), JobDescription())


def merge_jobs(first: JobDescription, second: JobDescription) -> JobDescription:
    """Both as one: what the second says wins, field by field, and contradictions are noted."""
    notes: list[str] = []
    where = f"{', '.join(first.files) or 'before'}, {', '.join(second.files) or 'after'}"

    def fields(a: _S, b: _S, place: str) -> _S:
        changes: dict[str, Any] = {}
        for key, name in _keys(type(a)).items():
            old, new = getattr(a, name), getattr(b, name)
            is_table = isinstance(a, JobDescription) and key in _ENTRIES
            if isinstance(old, msgspec.Struct) or is_table or new is None or new == old:
                continue
            if old is not None:
                notes.append(f"{place}{key}: {old!r} against {new!r} ({where}); the later is used")
            changes[name] = new
        return msgspec.structs.replace(a, **changes) if changes else a

    def entries(a: tuple[_S, ...], b: tuple[_S, ...], label: str, *by: str) -> tuple[_S, ...]:
        merged = {tuple(getattr(e, k) for k in by): e for e in a}
        for entry in b:
            key = tuple(getattr(entry, k) for k in by)
            place = f"{label} {' '.join(str(k) for k in key[-2:] if k not in (None, ''))}: "
            old = merged.get(key)
            merged[key] = entry if old is None else fields(old, entry, place)
        return tuple(merged.values())

    result = fields(first, second, "")
    sections = {s: fields(getattr(first, s), getattr(second, s), f"{s}.") for s in _SECTIONS}
    return msgspec.structs.replace(
        result,
        **sections,
        rank=entries(first.rank, second.rank, "rank", "path", "rank"),
        host=entries(first.host, second.host, "host", "host"),
        port=entries(first.port, second.port, "port", "node", "port"),
        range=entries(first.range, second.range, "range", "name"),
        source=entries(first.source, second.source, "source", "base", "path"),
        files=(*first.files, *second.files),
        notes=(*first.notes, *second.notes, *notes),
    )


# --- matching paths -----------------------------------------------------------------------------

_E = TypeVar("_E", RankEntry, SourceEntry)


def said_of(matcher: PathMatcher[SourceEntry], path: str) -> SourceEntry | None:
    """All that the job description says of a file, by the strongest entry that says it."""
    entries = matcher.all(path)
    if not entries:
        return None
    said: dict[str, Any] = {}
    for entry in entries:
        for name in SourceEntry.__struct_fields__:
            if said.get(name) is None:
                said[name] = getattr(entry, name)
    return SourceEntry(**said)


class PathMatcher(Generic[_E]):
    """Which entry speaks of which file.

    A path without wildcards wins over one with; of several with wildcards the one whose folder is
    deeper wins, then the last. ``*`` and ``?`` stay within a folder, ``**`` does not. Paths are
    compared as text, made absolute; nothing is opened and no link is followed.
    """

    def __init__(self, entries: Iterable[_E]) -> None:
        self._literal: dict[str, _E] = {}
        self._globs: dict[str, list[tuple[re.Pattern[str], _E]]] = {}
        self._used: set[int] = set()
        self._entries: list[_E] = [e for e in entries if e.path is not None]
        for entry in self._entries:
            pattern = _absolute(f"{entry.base}/{entry.path}" if entry.base else str(entry.path))
            if not re.search(r"[*?]", entry.path or ""):
                self._literal[pattern] = entry
                continue
            folder = re.split(r"[*?]", pattern, maxsplit=1)[0].rsplit("/", 1)[0]
            self._globs.setdefault(folder, []).append((_glob(pattern), entry))

    def find(self, path: str) -> _E | None:
        """The entry that speaks of this file, of several the strongest; None if none does."""
        return next(iter(self.all(path)), None)

    def all(self, path: str) -> list[_E]:
        """The entries that speak of this file, the strongest first."""
        full = _absolute(path)
        entries = [self._literal[full]] if full in self._literal else []
        folder = full
        while "/" in folder:
            folder = folder.rsplit("/", 1)[0]
            entries += [
                e for regex, e in self._globs.get(folder, ())[::-1] if regex.fullmatch(full)
            ]
        self._used |= {id(e) for e in entries}
        return entries

    def unused(self) -> list[_E]:
        """Entries that spoke of no file that was asked for."""
        return [e for e in self._entries if id(e) not in self._used]


def _absolute(path: str) -> str:
    if "://" in path:
        return path
    return os.path.abspath(path).replace(os.sep, "/")  # noqa: PTH100 - no link is followed


def _glob(pattern: str) -> re.Pattern[str]:
    """A wildcard takes the first place where what follows it fits, for good: no later place could
    do more, and to try them all takes the power of the number of wildcards. Only the last of each
    kind has an end to reach."""
    first, *others = re.split(r"((?<![^/])\*\*/|\*\*+)", pattern)
    text = _within(first, is_last=not others)
    for stars, chunk in zip(others[::2], others[1::2], strict=True):
        is_last = chunk is others[-1]
        skip = "(?:.*?/)??" if stars.endswith("/") else ".*?"
        text += ("(?:{})" if is_last else "(?>{})").format(skip + _within(chunk, is_last=is_last))
    return re.compile(text, re.DOTALL)


def _within(chunk: str, *, is_last: bool) -> str:
    """The part of a pattern between two ``**``."""
    text, *others = ("[^/]".join(map(re.escape, p.split("?"))) for p in chunk.split("*"))
    for left, piece in zip(range(len(others) - 1, -1, -1), others, strict=True):
        text += f"[^/]*{piece}" if is_last and not left else f"(?>[^/]*?{piece})"
    return text


# --- writing ------------------------------------------------------------------------------------


def to_toml(job: JobDescription, provenance: Mapping[str, str]) -> str:
    """The description as a job.toml that loads to the same content.

    Every line ends with where its value came from: ``provenance`` maps places such as
    ``parallelism.tp``, ``rank.3.host``, ``port.switch.lv0.host`` to words; what it does not name
    is "given". What is unknown is a commented-out line, so that a user sees what could be said.
    """
    lines = [
        "# Job description: correct it and keep it; give it with --job.",
        "# Each line says where its value came from; unknown ones are commented out.",
        "",
    ]
    lines += _section_lines(job, "", provenance, skip=(*_SECTIONS, *_ENTRIES))
    for name in _SECTIONS:
        lines += ["", f"[{name}]", *_section_lines(getattr(job, name), f"{name}.", provenance)]
    for name, entry, place in _entries(job):
        lines += ["", f"[[{name}]]", *_section_lines(entry, place, provenance, unknown=False)]
    return "\n".join(lines) + "\n"


def places(job: JobDescription) -> Iterator[str]:
    """Where the description says something, as ``to_toml`` names it: ``parallelism.tp``."""
    parts: list[tuple[_Section, str]] = [(job, "")]
    parts += [(getattr(job, name), f"{name}.") for name in _SECTIONS]
    parts += [(entry, place) for _, entry, place in _entries(job)]
    for section, place in parts:
        for key, name in _keys(type(section)).items():
            is_part = section is job and (key in _SECTIONS or key in _ENTRIES)
            if not is_part and getattr(section, name) is not None:
                yield place + key


def _entries(job: JobDescription) -> Iterator[tuple[str, _Section, str]]:
    """Every [[entry]]: its table, itself, and the start of its places."""
    for rank in job.rank:
        yield "rank", rank, f"rank.{rank.rank}."
    for host in job.host:
        yield "host", host, f"host.{host.host}."
    for port in job.port:
        yield "port", port, f"port.{port.node}.{port.port}."
    for named in job.range:
        yield "range", named, f"range.{named.name}."
    for source in job.source:
        yield "source", source, f"source.{source.path}."


def _section_lines(
    section: _Section,
    place: str,
    provenance: Mapping[str, str],
    *,
    skip: Sequence[str] = (),
    unknown: bool = True,
) -> Iterator[str]:
    for key, name in _keys(type(section)).items():
        if key in skip:
            continue
        value = getattr(section, name)
        origin = provenance.get(place + key)
        if value is not None:
            yield f"{key} = {_toml(value)}  # {_shown(origin or 'given', 200)}"
        elif unknown:
            reason = f"unknown: {_shown(origin, 200)}" if origin else "unknown"
            yield f"# {key} = ?  # {reason}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON escapes are TOML's, but for lone surrogates, which UTF-8 input cannot hold.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(v) for v in value)}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    return value.isoformat() if isinstance(value, datetime) else repr(value)
