"""PyTorch Flight Recorder dumps: as JSON, and as pickles that are read by their opcodes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from tracekit.errors import InputError
from tracekit.ingest.base import IngestOptions, Sink, SourceFile
from tracekit.ingest.nccl import pickles
from tracekit.ingest.nccl.rows import BEYOND, Rows, as_int, is_held
from tracekit.values import group_id

MAX_JSON_BYTES = 256 << 20
MAX_JSON_VALUES = 10_000_000
"""Values in a document: up to 200 bytes of memory each, of two or three in the file."""
MAX_FRAMES = 30

CALL = (
    "place", "group_id", "group_name", "sequence", "p2p_sequence", "op", "state", "created_ns",
    "started_ns", "completed_ns", "message_bytes", "dtype", "stack", "world_rank", "group_size",
    "dur_ns", "is_retired",
)  # fmt: skip
GROUP = (
    "group_id", "group_source", "name", "description", "backend", "group_size", "ranks",
    "is_ranks_complete",
)  # fmt: skip
SNAPSHOT = (
    "place", "group_name", "last_enqueued", "last_started", "last_completed", "status",
    "world_rank",
)  # fmt: skip
_RANK_OF_NAME = re.compile(r"(\d{1,7})(?:\.(?:json|pickle|pkl|bin))?$")
_SIZE_OF = {
    "Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Int": 4, "Long": 8, "Char": 1, "Byte": 1,
    "Bool": 1, "Short": 2, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "ComplexFloat": 8,
}  # fmt: skip
_WORD = re.compile(r"[\w.:+-]{1,60}")


def read(source: SourceFile, sink: Sink, options: IngestOptions) -> None:
    """Read one dump into the sink."""
    with source.open() as stream:
        head = stream.read(2)
    is_pickle = head[:1] == b"\x80"
    dump = _load_pickle(source) if is_pickle else _load_json(source)
    if not isinstance(dump, dict) or not isinstance(dump.get("entries", []), (list, tuple)):
        raise InputError(f"{source.path}: not a Flight Recorder dump")
    _Dump(source, sink, dump, is_pickle=is_pickle).write()


def _load_pickle(source: SourceFile) -> Any:
    with source.open() as stream:
        try:
            return pickles.load(stream)
        except pickles.RefusedPickleError as refused:
            raise InputError(
                f"{source.path}: the pickle was refused, nothing of it was run ({refused})",
                hint="a dump holds plain values only; write it as JSON, or do not trust this file",
            ) from None


def _load_json(source: SourceFile) -> Any:
    with source.open() as stream:
        data = _read_capped(stream)
    try:
        return loads(data)
    except TooManyValuesError:
        raise InputError(
            f"{source.path}: a dump of more than {MAX_JSON_VALUES} values is not read"
        ) from None
    except (ValueError, RecursionError):
        raise InputError(f"{source.path}: a Flight Recorder dump that breaks off") from None


class TooManyValuesError(ValueError):
    """A document that would take far more memory than its size."""


def loads(data: bytes) -> Any:
    """JSON whose values are counted before they are made.

    Raises TooManyValuesError, and ValueError or RecursionError as ``json.loads`` does.
    """
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MAX_JSON_VALUES:
        raise TooManyValuesError
    return json.loads(data)


def _read_capped(stream: BinaryIO) -> bytes:
    data = stream.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise InputError(f"a dump of more than {MAX_JSON_BYTES >> 20} MiB is not read")
    return data


class _Dump:
    """One dump on its way into tables."""

    def __init__(
        self, source: SourceFile, sink: Sink, dump: dict[Any, Any], *, is_pickle: bool
    ) -> None:
        self.source = source
        self.sink = sink
        self.dump = dump
        self.is_pickle = is_pickle
        named = _RANK_OF_NAME.search(source.name)
        self.rank = int(named[1]) if named else None
        self.members: dict[str, tuple[str | None, int]] = {}
        """Hash and size of each group, made once and not for each call."""
        self.times: list[int] = []
        self.odd = 0

    def write(self) -> None:
        """Groups, progress, entries."""
        self._groups()
        self._progress()
        rows = Rows(self.sink, "comm_call", CALL)
        for place, entry in enumerate(self.dump.get("entries") or ()):
            if isinstance(entry, dict):
                self._entry(rows, place, entry)
            else:
                self.odd += 1
        rows.flush()
        self.sink.count("odd_entry", self.odd, doc="Entries of the dump that are no records.")
        stated = self.dump.get("version")
        self.sink.fact(
            producer="PyTorch Flight Recorder",
            schema_version=word(stated),
            place_kind="event",
            time_basis="epoch" if self.times else "none",
            window_start_ns=min(self.times, default=None),
            window_end_ns=max(self.times, default=None),
            name_rank=self.rank,
        )
        if not rows.count:
            self.sink.fact(status="empty", reason="a dump without entries")

    def _groups(self) -> None:
        config = self.dump.get("pg_config")
        rows = Rows(self.sink, "process_group", GROUP)
        for key, group in _items(config):
            if not isinstance(group, dict):
                continue
            ranks = _ranks(group.get("ranks"))
            name = word(group.get("name")) or word(key) or ""
            if ranks is not None:
                self.members[name] = (_hash(ranks), len(ranks))
            rows.add(
                (
                    _hash(ranks), "file" if ranks else None, name, word(group.get("desc")),
                    "nccl", len(ranks) if ranks else None, ranks, bool(ranks),
                )
            )  # fmt: skip
        rows.flush()

    def _progress(self) -> None:
        rows = Rows(self.sink, "comm_snapshot", SNAPSHOT)
        for place, (key, status) in enumerate(_items(self.dump.get("pg_status"))):
            if not isinstance(status, dict):
                continue
            values = [
                _count(status.get(f"last_{word}_collective"))
                for word in ("enqueued", "started", "completed")
            ]
            rows.add((place, word(key), *values, "flight_recorder", self.rank))
        rows.flush()

    def _entry(self, rows: Rows, place: int, entry: dict[Any, Any]) -> None:
        group = entry.get("process_group")
        name = word(group[0]) if isinstance(group, (list, tuple)) and group else None
        group_hash, group_size = self.members.get(name or "", (None, None))
        created = whole(entry.get("time_created_ns"))
        completed = whole(entry.get("time_discovered_completed_ns"))
        self.times += [t for t in (created, completed) if t and is_held(t)]
        if len(self.times) > 10_000:
            self.times = [min(self.times), max(self.times)]
        duration = entry.get("duration_ms")
        is_number = isinstance(duration, (int, float)) and 0 <= duration < 1e9
        dtype, size = _payload(entry)
        is_p2p = bool(entry.get("is_p2p")) and str(entry.get("is_p2p")).lower() != "false"
        rows.add(
            (
                place, group_hash, name,
                None if is_p2p else whole(entry.get("collective_seq_id")),
                whole(entry.get("p2p_seq_id")) if is_p2p else None,
                _op(entry.get("profiling_name")), word(entry.get("state")), created,
                whole(entry.get("time_discovered_started_ns")), completed, size, dtype,
                _stack(entry.get("frames")), self.rank, group_size,
                round(float(str(duration)) * 1e6) if is_number else None,
                _flag(entry.get("retired")),
            )
        )  # fmt: skip


def _items(value: object) -> Sequence[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else []


def word(value: object) -> str | None:
    """A short name; None for anything that is not one."""
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    return None


def whole(value: object) -> int | None:
    """A whole number, also where it is written as text; None for anything else.

    What no column holds comes as BEYOND, and is counted where rows are written.
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        return as_int(value) if re.fullmatch(r"-?\d++", value) else None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    return max(-BEYOND, min(value, BEYOND)) if isinstance(value, int) else None


def _count(value: object) -> int | None:
    """Progress; -1 is "none yet"."""
    count = whole(value)
    return count if count is not None and count >= 0 else None


def _flag(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(str(value).lower())


def _ranks(value: object) -> list[int] | None:
    """The members, which PyTorch writes as a list, or as the text of one. Nothing evaluates it."""
    if isinstance(value, str):
        if not re.fullmatch(r"\s*\[[\d,\s]*\]\s*", value) or len(value) > 10_000_000:
            return None
        value = [int(v) for v in re.findall(r"\d{1,9}", value)]
    if not isinstance(value, (list, tuple)):
        return None
    ranks = [v for v in value if isinstance(v, int) and not isinstance(v, bool)]
    return sorted(ranks) if ranks and len(ranks) == len(value) else None


def _hash(ranks: list[int] | None) -> str | None:
    """As the Kineto ingestor names a group: a hash of its sorted global ranks."""
    if not ranks:
        return None
    return group_id(ranks)


def _op(value: object) -> str | None:
    """``nccl:all_reduce`` as all_reduce; ``nccl:send 0->1`` as send."""
    if not isinstance(value, str):
        return None
    name = value.rpartition(":")[2].split(" ")[0].lower().lstrip("_")
    aliases = {
        "all_gather_into_tensor": "all_gather", "allgather_base": "all_gather",
        "reduce_scatter_tensor": "reduce_scatter", "reduce_scatter_base": "reduce_scatter",
        "reduce_scatter_tensor_coalesced": "reduce_scatter",
        "all_gather_into_tensor_coalesced": "all_gather", "all_to_all_single": "all_to_all",
        "allreduce_coalesced": "all_reduce", "all_reduce_barrier": "barrier",
    }  # fmt: skip
    return aliases.get(name, name) if _WORD.fullmatch(name) else None


def _payload(entry: dict[Any, Any]) -> tuple[str | None, int | None]:
    """Element type and input bytes; null where they are not recorded."""
    types, sizes = entry.get("input_dtypes"), entry.get("input_sizes")
    if not isinstance(types, (list, tuple)) or not isinstance(sizes, (list, tuple)):
        return None, None
    names = {word(t) for t in types}
    dtype = names.pop() if len(names) == 1 else None
    width = _SIZE_OF.get(dtype or "")
    total = 0
    for shape in sizes:
        if not isinstance(shape, (list, tuple)):
            return dtype, None
        count = 1
        for extent in shape:
            value = whole(extent)
            if value is None or value < 0:
                return dtype, None
            count = min(count * value, BEYOND)
        total += count
    return dtype, min(total * width, BEYOND) if width else None


def _stack(frames: object) -> list[str] | None:
    if not isinstance(frames, (list, tuple)):
        return None
    kept = []
    for frame in frames[:MAX_FRAMES]:
        if isinstance(frame, dict):
            file, name = str(frame.get("filename"))[-120:], str(frame.get("name"))[:80]
            kept.append(f"{file}:{whole(frame.get('line'))} {name}")
    return kept or None
