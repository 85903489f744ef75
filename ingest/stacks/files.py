"""Files that hold stacks and nothing else: text as ``reader`` takes it, and py-spy's JSON."""

from __future__ import annotations

import json
from typing import Any

from tracekit.ingest import streams
from tracekit.ingest.base import Sink, SourceFile, write_columns
from tracekit.ingest.lines import lines
from tracekit.ingest.stackdumps.frames import MAX_FRAMES, frame
from tracekit.ingest.stackdumps.reader import COLUMNS, MAX_THREADS, StackReader, tell
from tracekit.ingest.stacks import sniff
from tracekit.ingest.traces.names import rank_of_name

MAX_JSON_BYTES = 32 << 20
"""A process with a thousand threads is a tenth of it."""
MAX_LINE_BYTES = 64 << 10


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the threads into thread_stack. Never raises for what a file holds."""
    with source.open() as stream:
        is_json = sniff.is_json(stream.read(1 << 12))
    if is_json:
        count, problem = _json(source, sink)
    else:
        count, problem = _text(source, sink)
    sink.fact(
        place_kind="event" if is_json else "line",
        time_basis="none",
        name_rank=rank_of_name(source.name),
        is_truncated_end=problem is not None,
    )
    if problem is not None:
        sink.fact(status="partial", reason=f"it breaks off ({problem})")
    elif not count:
        sink.fact(status="empty", reason="it has no thread with a frame")


def _text(source: SourceFile, sink: Sink) -> tuple[int, str | None]:
    other = 0
    with source.open() as stream:
        reader = StackReader(sink, source.path)
        for number, text in lines(stream, MAX_LINE_BYTES):
            raw = text.encode("utf-8", "replace")
            other += not reader.take(raw, number) and bool(text.strip())
        reader.finish()
        problem = streams.stream_problem(stream)
    sink.count("other_line", other, severity="info", doc="Lines that belong to no thread.")
    return reader.count, problem


def _json(source: SourceFile, sink: Sink) -> tuple[int, str | None]:
    """Lists of threads, one behind the other where several processes were dumped into a file."""
    with source.open() as stream:
        raw = stream.read(MAX_JSON_BYTES + 1)
        problem = streams.stream_problem(stream)
    if len(raw) > MAX_JSON_BYTES:
        problem = f"only its first {MAX_JSON_BYTES >> 20} MB are looked at"
    text = raw[:MAX_JSON_BYTES].decode("utf-8", "replace").removeprefix("\ufeff")
    decoder = json.JSONDecoder()
    rows: list[tuple[object, ...]] = []
    at = number = odd = left_out = place = 0
    while (at := _start(text, at)) < len(text):
        try:
            threads, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            problem = problem or f"what stands at character {at} is no JSON: {type(error).__name__}"
            break
        numbers: dict[object, int] = {}
        for thread in threads if isinstance(threads, list) else [threads]:
            place += 1
            row = _thread(thread)
            if row is None:
                odd += 1
            elif len(rows) >= MAX_THREADS:
                left_out += 1
            else:
                if row[0] not in numbers:
                    number += 1
                    numbers[row[0]] = number
                pid, is_main, state, frames = row
                rows.append(
                    (place, "py-spy", numbers[pid], pid, None, None, is_main, state, frames)
                )
    if rows:
        columns = map(list, zip(*rows, strict=True))
        write_columns(sink, "thread_stack", dict(zip(COLUMNS, columns, strict=True)))
    tell(sink, len(rows), left_out)
    sink.count("odd_thread", odd, doc="Threads without frames, or that are none.")
    return len(rows), problem


def _start(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


def _thread(given: Any) -> tuple[int | None, bool, str | None, list[str]] | None:
    """Process, whether it is its main thread, state and frames; None for what has no frames."""
    if not isinstance(given, dict) or not isinstance(given.get("frames"), list):
        return None
    frames = [f for f in map(_frame, given["frames"][:MAX_FRAMES]) if f is not None]
    if not frames:
        return None
    pid, thread = _whole(given.get("pid")), _whole(given.get("os_thread_id"))
    active = given.get("active")
    state = None if not isinstance(active, bool) else "active" if active else "idle"
    is_main = given.get("thread_name") == "MainThread" or (pid is not None and pid == thread)
    return pid, is_main, state, frames


def _frame(given: Any) -> str | None:
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        return None
    path = next((p for k in ("short_filename", "filename") if isinstance(p := given.get(k), str)),
                None)  # fmt: skip
    line = _whole(given.get("line"))
    return frame(given["name"], path, line if line is not None and line < 10**9 else None)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
