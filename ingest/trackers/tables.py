"""Tables of metrics: JSON lines, an array of JSON, CSV; a row is a step, or one value of one.

W&B's history (``scan_history`` as JSON lines, its own CSV download), MLflow's metrics (CSV with
key, value, timestamp and step; the files of its local store, a metric each), TensorBoard's CSV
download (Wall time, Step, Value), the loggers of Lightning and of fairseq, and whatever a program
of your own writes with a column of steps and one of times or of durations.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from tracekit.errors import InputError
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.lines import Line, lines
from tracekit.ingest.steplog.failures import FailureReader
from tracekit.ingest.streams import stream_problem
from tracekit.ingest.traces.names import rank_of_name
from tracekit.ingest.trackers.names import by_role, plain
from tracekit.ingest.trackers.steps import Steps, moment, number, whole

NAME = "step_metrics"
TRACEBACK = "Traceback (most recent call last)"
"""What a logger that writes JSON may have among its texts."""
MAX_ARRAY_BYTES = 256 << 20
"""A JSON array is read whole; JSON lines have no such limit."""
SNIFFED_LINES = 50
SNIFFED_BYTES = 1 << 16
_BOM = b"\xef\xbb\xbf"
MAX_FIELDS = 4000
"""Metrics of one record."""
MAX_DEPTH = 4
"""Objects in objects whose names are joined by ``/``."""
_DELIMITERS = ",\t;"
_RANGE_ENDS = ("__MIN", "__MAX")
"""W&B's download has these beside each metric."""
_STORED = re.compile(r"\d{13} -?[\d.eE+-]{1,30} \d{1,10}(?:\r?\n|$)")
"""A value in MLflow's local store: ms since the epoch, value, step. The file's name is the
metric's."""
_KEYS = ("key", "metric", "tag", "name", "metric_name")
_VALUES = ("value", "metric_value")


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise a table by its columns; None where no step, or nothing of time, stands in it."""
    del name
    if b"\0" in head[:4096]:
        return None
    text = head.removeprefix(_BOM).decode("utf-8", "replace").lstrip()
    if text[:1] in ("{", "["):
        return _sniff_json(text)
    if _STORED.match(text):
        return Recognition("step_metrics", "a metric of MLflow's local store", NAME)
    return _sniff_csv(text, is_whole=len(head) < 4096)


def _sniff_json(text: str) -> Recognition | None:
    if text[:1] == "[":
        records = list(_of_array(text))
    else:
        records = []
        for line in text.splitlines()[:SNIFFED_LINES]:
            record = _record(line)
            if record is not None:
                records.append(record)
    names = list(dict.fromkeys(chain.from_iterable(records)))
    if records and "log_history" in records[0]:
        records = []
    if not _tells(names, records):
        return None
    what = "an array of JSON" if text[:1] == "[" else "JSON lines"
    return Recognition("step_metrics", f"{what} with training steps and times", NAME)


def _sniff_csv(text: str, *, is_whole: bool) -> Recognition | None:
    rows = text.splitlines()[:SNIFFED_LINES]
    if not is_whole and len(rows) < SNIFFED_LINES:
        rows = rows[:-1]
    header = _header(rows[0]) if rows else None
    if header is None or len(rows) < 2:
        return None
    delimiter, columns = header
    names, _ = _own_names(columns)
    cells = [_cells(row, delimiter) for row in rows[1:]]
    records = [dict(zip(names, row, strict=False)) for row in cells if len(row) == len(columns)]
    if _long(columns) is None and not _tells(names, records):
        return None
    return Recognition("step_metrics", "a table with training steps and times", NAME)


def _tells(names: list[str], records: list[dict[str, Any]]) -> bool:
    """Whether a step and something of time stand in records of these names."""
    roles = by_role(names)
    if "step" not in roles:
        return False
    step = roles["step"][0]
    if not any(whole(record.get(step)) is not None for record in records):
        return False
    if "time" in roles and any(moment(r.get(roles["time"][0])) for r in records):
        return True
    return any(
        role in roles and any(number(r.get(roles[role][0])) is not None for r in records)
        for role in ("elapsed", "dur")
    )


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the table into ``job_step``; what is no record of it is counted."""
    with source.open() as stream:
        head = stream.read(SNIFFED_BYTES).removeprefix(_BOM).lstrip()
        start = head[:1]
    if not start:
        sink.fact(status="empty", reason="it holds nothing but white space")
        return
    rank = rank_of_name(source.name)
    with source.open() as stream:
        if start == b"[":
            _read_array(stream.read(MAX_ARRAY_BYTES + 1), sink, rank)
        elif start == b"{":
            _read_lines(lines(stream), sink, rank)
        elif _STORED.match(head[:100].decode("utf-8", "replace")):
            _read_stored(lines(stream), source.name, sink)
        else:
            _read_csv(lines(stream), sink, rank)
        problem = stream_problem(stream)
    if problem:
        sink.fact(status="partial", reason=problem)


def _read_lines(texts: Iterator[Line], sink: Sink, rank: int | None) -> None:
    steps, bad, at = Steps(sink, "json_lines", rank), 0, None
    failures = FailureReader(sink)
    for line in texts:
        if not line.text.strip():
            continue
        if TRACEBACK in line.text:
            failures.take(line.text.encode(), line.number)
        record = _record(line.text)
        if record is None:
            bad += 1
            at = at or line.number
        else:
            steps.add(line.number, record)
    _tell_bad(sink, bad, at)
    steps.finish("line")
    failures.finish(keeps_times=False)


def _read_array(data: bytes, sink: Sink, rank: int | None) -> None:
    if len(data) > MAX_ARRAY_BYTES:
        raise InputError(
            "a JSON array of more than 256 MiB is not read; write one record a line (JSON lines), "
            "which has no such limit"
        )
    text = data.removeprefix(_BOM).decode("utf-8", "replace").strip()
    steps, count = Steps(sink, "json", rank), 0
    for count, record in enumerate(_of_array(text), 1):
        steps.add(count, record)
    if not text.endswith("]"):
        sink.count("json_cut", severity="error", place=count,
                   doc="The array breaks off: records after this one are missing.")  # fmt: skip
        sink.fact(status="partial", reason="the array breaks off")
    steps.finish("record")


def _read_csv(texts: Iterator[Line], sink: Sink, rank: int | None) -> None:
    first = next((line for line in texts if line.text.strip()), None)
    header = _header(first.text) if first else None
    if header is None:
        raise InputError("the first line is no header of a table")
    delimiter, columns = header
    names, runs = _own_names(columns)
    if len(runs) > 1:
        raise InputError(
            f"the table holds the metrics of {len(runs)} runs; download those of one run"
        )
    long = _long(columns)
    steps = Steps(sink, "csv", rank)
    values = _Values(steps) if long else None
    bad, at = 0, None
    # No cell of a table of metrics holds a line feed, so a line is a row.
    for line in texts:
        if not line.text.strip():
            continue
        cells = _cells(line.text, delimiter)
        if len(cells) != len(columns):
            bad += 1
            at = at or line.number
        elif long and values:
            values.add(line.number, *("" if i is None else cells[i] for i in long))
        else:
            steps.add(line.number, dict(zip(names, cells, strict=True)))
    if values:
        values.finish()
    _tell_bad(sink, bad, at)
    steps.finish("line")


def _read_stored(texts: Iterator[Line], metric: str, sink: Sink) -> None:
    steps, bad, at = Steps(sink, "mlflow"), 0, None
    for line in texts:
        cells = line.text.split(" ")
        if len(cells) != 3:
            bad += 1
            at = at or line.number
        else:
            steps.add(line.number, {"timestamp": cells[0], metric: cells[1], "step": cells[2]})
    _tell_bad(sink, bad, at)
    steps.finish("line")


def _cells(line: str, delimiter: str) -> list[str]:
    """The cells of a row; none where it is no row."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _tell_bad(sink: Sink, bad: int, place: int | None) -> None:
    if bad:
        sink.count(
            "bad_record", bad, place=place,
            doc="Lines that are no record of the table: broken off, or another's.",
        )  # fmt: skip


class _Values:
    """Records of one value each, in any order: those of a step are one record.

    A table of values is sorted by metric as often as by step, so they are gathered by step; what
    is kept of each is the few metrics that have a role.
    """

    MAX_STEPS = 5_000_000

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._found: dict[int, tuple[int, dict[str, str]]] = {}
        self._kept: dict[str, bool] = {}

    def add(self, place: int, key: str, value: str, step: str, time: str) -> None:
        """One value."""
        number_ = whole(step)
        if number_ is None:
            self._steps.stepless += 1
            return
        key = key or "value"
        is_kept = self._kept.get(key)
        if is_kept is None:
            is_kept = self._kept[key] = key == "value" or bool(by_role([key]))
        if not is_kept:
            return
        if number_ not in self._found:
            if len(self._found) >= self.MAX_STEPS:
                raise InputError("a table of more than 5 million steps is not read")
            self._found[number_] = (place, {"step": step, "timestamp": time})
        self._found[number_][1].setdefault(key, value)

    def finish(self) -> None:
        """Hand the records on, by step."""
        for _, (place, record) in sorted(self._found.items()):
            self._steps.add(place, record)


def _header(line: str) -> tuple[str, list[str]] | None:
    """Delimiter and columns of a table's first line; None where it is none."""
    delimiter = max(_DELIMITERS, key=line.count)
    if not line.count(delimiter):
        return None
    columns = [c.strip() for c in _cells(line, delimiter)]
    if len(columns) > MAX_FIELDS or len(columns) < 2 or any(number(c) is not None for c in columns):
        return None
    return delimiter, columns


def _long(columns: list[str]) -> tuple[int | None, int, int, int] | None:
    """Columns of key, value, step and time where each row is one value; None where not."""
    names = [plain(c) for c in columns]

    def at(*wanted: str) -> int | None:
        return next((names.index(w) for w in wanted if w in names), None)

    key, value = at(*_KEYS), at(*_VALUES)
    step, time = at("step"), at("timestamp", "wall_time")
    if value is None or step is None or time is None:
        return None
    # TensorBoard's download is of one metric, which it does not name.
    return (key, value, step, time) if key is not None or len(columns) == 3 else None


def _own_names(columns: list[str]) -> tuple[list[str], set[str]]:
    """Names of metrics, and the runs that W&B's download puts before each."""
    split = [c.rpartition(" - ") for c in columns]
    runs = {run for run, dash, name in split if dash and not name.endswith(_RANGE_ENDS)}
    # The ends of a range are no metric of any role.
    return [f"_{name}" if name.endswith(_RANGE_ENDS) else name for _, _, name in split], runs


def _record(line: str) -> dict[str, Any] | None:
    """A record of a line of JSON; None where it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return _flat(value) if isinstance(value, dict) else None


def _flat(value: Mapping[str, Any]) -> dict[str, Any]:
    """Names and values of a record, those of objects in it as ``outer/inner``."""
    flat: dict[str, Any] = {}
    open_: list[tuple[str, Mapping[str, Any], int]] = [("", value, 0)]
    while open_ and len(flat) < MAX_FIELDS:
        before, inner, depth = open_.pop(0)
        for key, field in inner.items():
            if isinstance(field, dict) and depth < MAX_DEPTH:
                open_.append((f"{before}{key}/", field, depth + 1))
            elif len(flat) < MAX_FIELDS:
                flat[f"{before}{key}"] = field
    return flat


def _of_array(text: str) -> Iterator[dict[str, Any]]:
    """The objects of a JSON array, as far as they are whole."""
    decoder, at = json.JSONDecoder(), 1
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at >= len(text) or text[at] != "{":
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        yield _flat(value)
