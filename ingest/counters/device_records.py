"""Records of devices' counters, as collectors of one's own write them in JSON, points or rows.

A record is a moment: an object of JSON (a line, an element of a list, or the columns of an object
of lists), a point of InfluxDB's line protocol, or a row of a table that has a column for the
device (``records``).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from tracekit.ingest import files, streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import line_protocol, open_units, times
from tracekit.ingest.counters.device_headers import (
    NO_COUNT,
    column_of,
    title_of,
    with_title,
)
from tracekit.ingest.counters.device_samples import Column
from tracekit.ingest.counters.documents import Document, documents
from tracekit.ingest.counters.net_samples import decimal
from tracekit.ingest.counters.records import (
    GPUS,
    MAX_NAMES,
    PORT_NAME,
    PORTS,
    Record,
    Records,
    column_printed,
    gpu_named,
    of_object,
    open_column,
)
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.table import (
    HOST_WORDS,
    LABEL_WORDS,
    TIME_WORDS,
    UNIT_WORDS,
    VALUE_WORDS,
    bare_name,
    cells_of,
    header_line,
    refuse_rows_told_apart,
    rows_of,
)
from tracekit.ingest.counters.table_heads import HEAD_LINES, Head, heads
from tracekit.ingest.lines import lines

KIND = "device_records"
MIN_COUNTERS = 2
"""Known counters of a record from which its file is surely one of devices."""
FIRST_ROWS = 64
"""Lines of a table with a row a number that tell whether it is one of devices."""

_OF_TRAINING = frozenset(("loss", "lr", "iteration", "global_step", "learning_rate", "perplexity"))
"""Names of what a training log reports: its lines are another reader's."""


# --- from what is written to records --------------------------------------------------------------


def of_document(value: Any) -> Iterator[Record | None]:
    """The records of a value of JSON: an object, a list of them, or an object of columns."""
    if isinstance(value, list):
        for inner in value:
            yield of_object(inner) if isinstance(inner, dict) else None
        return
    if not isinstance(value, dict):
        yield None
        return
    value = _of_pandas(value)
    columns = {k: v for k, v in value.items() if isinstance(v, list)}
    lengths = {len(v) for v in columns.values()}
    is_of_columns = len(lengths) == 1 and any(k.strip().lower() in TIME_WORDS for k in columns)
    if is_of_columns:
        beside = {k: v for k, v in value.items() if k not in columns}
        for row in range(lengths.pop()):
            yield of_object({**beside, **{k: v[row] for k, v in columns.items()}})
        return
    own = of_object(value)
    if own is not None:
        yield own
        return
    lists = [v for v in value.values() if isinstance(v, list) and v and isinstance(v[0], dict)]
    said = {key.strip().lower(): inner for key, inner in value.items()}
    host = next((said[w] for w in HOST_WORDS if isinstance(said.get(w), str)), None)
    for inner in lists if len(lists) == 1 else [[None]]:
        for element in inner:
            record = of_object(element) if isinstance(element, dict) else None
            yield record._replace(host=record.host or host) if record is not None else None


def _of_pandas(value: dict[str, Any]) -> dict[str, Any]:
    """An object of lists, where a data frame was written as split or columns; else as it is."""
    names, rows = value.get("columns"), value.get("data")
    if isinstance(names, list) and isinstance(rows, list) and names and rows:
        if all(isinstance(row, list) and len(row) == len(names) for row in rows):
            return dict(zip(map(str, names), map(list, zip(*rows, strict=True)), strict=True))
        return value
    is_of_columns = len(value) > 1 and all(isinstance(v, dict) and v for v in value.values())
    if is_of_columns and any(name.strip().lower() in TIME_WORDS for name in value):
        (first, *others) = value.values()
        if all(other.keys() == first.keys() for other in others):
            return {name: [column[key] for key in first] for name, column in value.items()}
    return value


def of_point(text: str) -> Record | None:
    """The record that a line of the line protocol is."""
    read = line_protocol.point(text)
    if read is None or read.is_of_telegraf:
        return None
    tags = {k.lower(): v for k, v in read.tags.items()}
    if "index" in tags and not tags.keys() & set(GPUS) and "gpu" in read.measurement.lower():
        tags["gpu"] = tags.pop("index")
    return of_object({**tags, "time": read.stamp, **{k: v for k, v in read.fields() if v}})


class _Rows(NamedTuple):
    """A table with a row a device, a metric or a number."""

    head: Head
    names: tuple[str, ...]
    """Headers; of words that say what a column is, in lower case and without a unit."""
    roles: Mapping[str, int]
    """The columns of metric, value, unit, labels and series."""
    title: str = ""
    """What the file's name says of series that name a device alone."""

    def record(self, line: str) -> Record | None:
        """What a line says; None where it has other cells or no time."""
        cells = [c.strip() for c in cells_of(line, self.head.delimiter)]
        if len(cells) != len(self.names):
            return None
        if self.head.delimiter == ";":
            cells = [_DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in cells]
        said = dict(zip(self.names, cells, strict=True))
        if "series" in self.roles:
            series = said.pop(self.names[self.roles["series"]])
            is_metric = not _is_device(series) and not series.startswith("{")
            name = series if is_metric else with_title(series, self.title)
            of_title = None if is_metric else column_of(0, name)
            if isinstance(of_title, Column) and of_title.meaning.kind == "cumulative":
                name = f"{series}: {NO_COUNT}"
            return of_object({**said, name: said.pop(self.names[self.roles["value"]])})
        if "labels" in self.roles:
            labels = _labels(said.pop(self.names[self.roles["labels"]]))
            if labels is None:
                return None
            said = {**labels, **said}
        if "metric" not in self.roles:
            return of_object(said)
        metric = said.pop(self.names[self.roles["metric"]])
        unit = said.pop(self.names[self.roles["unit"]], "") if "unit" in self.roles else ""
        metric = f"{metric} [{unit}]" if unit else metric
        if "value" in self.roles:
            said[metric] = said.pop(self.names[self.roles["value"]])
            return of_object(said)
        # A column a device, whose numbers are of the row's metric.
        return of_object({f"{n}_{metric}" if _is_device(n) else n: c for n, c in said.items()})


_DECIMAL_COMMA = re.compile(r"\A(-?\d{1,18}),(\d{1,18})\Z")
_PAIR = re.compile(r"([A-Za-z_][\w.-]*)\s*[:=]\s*\"?([^,\"]*)\"?")
_LABEL_COLUMNS = ("group", "tags", "labels", "scope", "series")
_METRICS = (
    "metric", "metric_name", "name", "counter", "field", "sensor", "measurement", "item", "key",
    "__name__",
)  # fmt: skip


def _labels(text: str) -> dict[str, str] | None:
    """``gpu:0,host:n1`` as names and words; None where it is no such list."""
    pairs = [_PAIR.fullmatch(part.strip()) for part in text.strip("{}[] ").split(",")]
    return {p[1]: p[2].strip() for p in pairs if p} if all(pairs) else None


def _is_device(name: str) -> bool:
    return gpu_named(name) is not None or PORT_NAME.fullmatch(name) is not None


def _named(head: Head, at: int) -> str:
    """A header; with the unit of its cells, where it is a counter with that alone."""
    name = head.names[at]
    is_known = isinstance(column_of(0, f"gpu0_{name}"), Column)
    return name if is_known else head.printed(at)


def _rows_of(first: Sequence[str], name: str) -> _Rows | None:
    """How the rows of a table read, by its first lines; None where its headers say another."""
    head = next(heads(first), None)
    if head is None or head.delimiter == " ":
        return None
    bare = [bare_name(n) for n in head.names]
    if not set(bare) & set(TIME_WORDS) or len({*bare}) < len(bare):
        return None
    roles = {
        role: at
        for role, words in (
            ("metric", _METRICS), ("value", VALUE_WORDS), ("unit", UNIT_WORDS),
            ("labels", _LABEL_COLUMNS),
        )
        if (at := next((bare.index(w) for w in words if w in bare), None)) is not None
    }  # fmt: skip
    has_devices = any(_is_device(n) for n in bare)
    if "metric" in roles and "value" not in roles and not has_devices:
        del roles["metric"]
    if "labels" in roles and (not head.first or _labels(head.first[roles["labels"]]) is None):
        del roles["labels"]
    if bare[0] == "series" and not {"metric", "labels"} & roles.keys() and "value" in roles:
        roles["series"] = 0
    if not {"metric", "labels", "series"} & roles.keys() and not set(bare) & {*GPUS, *PORTS}:
        return None
    # Words that say what a column is lose their unit; those of counters keep it.
    known = {*TIME_WORDS, *HOST_WORDS, *GPUS, *PORTS}
    places = {*roles.values()}
    names = [b if b in known or at in places else _named(head, at) for at, b in enumerate(bare)]
    return _Rows(head, tuple(names), roles, title_of(name))


# --- recognition ----------------------------------------------------------------------------------


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise a file by its first record: a time, and two counters of devices or more."""
    found = _first(head, name)
    if found is None or times.parse(found.time) is None:
        return None
    numbers = [n for n in found.numbers if n.lower().rpartition("_")[2] not in LABEL_WORDS]
    if {n.lower() for n in numbers} & _OF_TRAINING:
        return None
    named = (column_printed(0, name, found.numbers[name]) for name in numbers)
    columns = [column for column in named if isinstance(column, Column)]
    if len(columns) < MIN_COUNTERS:
        return None
    devices = len({(c.kind, c.device) for c in columns})
    what = f"records of devices: {len(columns)} counters of {devices} in the first"
    return Recognition(KIND, what, KIND)


def _first(head: bytes, name: str) -> Record | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return _first_of_json(text)
    first = text.decode("utf-8", "replace").split("\n")
    rows = _rows_of(first[:HEAD_LINES], name)
    if rows is not None:
        return _together(rows, [t.rstrip("\r") for t in first[rows.head.lines : FIRST_ROWS]])
    line = header_line(head)
    return of_point(line) if line[:1] not in ("<", "#") else None


def _together(rows: _Rows, texts: Sequence[str]) -> Record | None:
    """The first rows as one record, for a table with a row a number."""
    records = [r for text in texts if text and (r := rows.record(text)) is not None]
    numbers = {name: text for r in reversed(records) for name, text in r.numbers.items()}
    return records[0]._replace(numbers=numbers) if records else None


def _first_of_json(text: bytes) -> Record | None:
    decoder = json.JSONDecoder(parse_float=str, parse_constant=str)
    plain = text.decode("utf-8", "replace")
    try:
        value, _ = decoder.raw_decode(plain)
    except (ValueError, RecursionError):
        # Longer than what is looked at: the first element of a list tells as much.
        try:
            value, _ = decoder.raw_decode(plain[1:].lstrip()) if plain[:1] == "[" else (None, 0)
        except (ValueError, RecursionError):
            return None
    return next(of_document(value), None)


# --- reading --------------------------------------------------------------------------------------


def read(source: SourceFile, sink: Sink) -> None:
    """Every number that has a meaning into gpu_sample, net_sample or host_sample."""
    head = files.read_head(source)
    is_json = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")
    rows = None
    if is_json:
        _refuse_records_told_apart(head, source.path)
    else:
        rows = _rows_of(head.decode("utf-8", "replace").split("\n")[:HEAD_LINES], source.name)
        if rows is not None:
            _refuse_rows_told_apart(rows, head, source.path)
    first = _first(head, source.name)
    sizes: dict[str, open_units.Sizes] = {}
    if first is not None and any(open_column(name) is not None for name in first.numbers):
        sizes = _sizes(source, is_json, rows)
    with source.open() as stream:
        reading = Reading(sink, stream, None, "line")
        table = Records(source, sink, reading, sizes)
        whole = _of_json(reading.documents()) if is_json else _of_lines(stream, rows)
        for place, record, text in whole:
            table.add(place, record, text)
        table.finish()
        reading.finish(table.table.ports, streams.stream_problem(stream))


def _of_json(values: Iterable[Document]) -> Iterator[tuple[int, Record | None, str]]:
    for document in values:
        for record in of_document(document.value):
            yield document.line, record, ""


def _of_lines(stream: BinaryIO, rows: _Rows | None) -> Iterator[tuple[int, Record | None, str]]:
    for line in lines(stream):
        if rows is not None and line.number <= rows.head.lines:
            continue
        if line.text.strip() and not line.text.startswith("#"):
            record = rows.record(line.text) if rows else of_point(line.text.strip())
            yield line.number, record, line.text


def _sizes(source: SourceFile, is_json: bool, rows: _Rows | None) -> dict[str, open_units.Sizes]:
    """What the numbers are like, by counter, of the names that lack their unit."""
    sizes: dict[str, open_units.Sizes] = defaultdict(open_units.Sizes)
    counters: dict[str, str | None] = {}
    with source.open() as stream:
        values = (d for d in documents(stream) if not d.problem)
        for _, record, _ in _of_json(values) if is_json else _of_lines(stream, rows):
            for name, text in record.numbers.items() if record is not None else ():
                if name not in counters and len(counters) < MAX_NAMES:
                    column = open_column(name)
                    counters[name] = column.meaning.counter if column is not None else None
                counter = counters.get(name)
                number = decimal(text) if counter is not None else None
                if counter is not None and number is not None:
                    sizes[counter].add(number)
    return dict(sizes)


def _refuse_rows_told_apart(rows: _Rows, head: bytes, path: str) -> None:
    """InputError where columns that nobody reads tell rows of one device and time apart."""
    named = {*HOST_WORDS, *GPUS, *PORTS}
    used = {rows.roles[r] for r in ("metric", "labels", "series") if r in rows.roles}
    times_at = [at for at, name in enumerate(rows.names) if name in TIME_WORDS][:1]
    devices = [at for at, name in enumerate(rows.names) if name in named or at in used]
    read = {*times_at, *devices, *rows.roles.values()}
    rest = [
        at for at, name in enumerate(rows.names)
        if at not in read and not _is_device(name)
        and not any(isinstance(column_of(0, f"{of}_{name}"), Column) for of in ("gpu0", "eth0"))
    ]  # fmt: skip
    texts = head.decode("utf-8", "replace").splitlines()[rows.head.lines :]
    cells = rows_of(texts, rows.head.delimiter, len(rows.names))
    refuse_rows_told_apart(path, rows.head.shown, cells, [*times_at, *devices], rest)


def _refuse_records_told_apart(head: bytes, path: str) -> None:
    """The same of records of JSON a line: those of one device have the same names."""
    of_names: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for line in head.decode("utf-8", "replace").splitlines():
        try:
            value = json.loads(line, parse_float=str, parse_constant=str)
        except (ValueError, RecursionError):
            continue
        for record in of_document(value):
            if record is not None:
                names = tuple(sorted(record.numbers))
                numbers = (record.numbers[name] for name in names)
                of_names[names].append([record.time, record.host or "", record.port, *numbers])
    for names, rows in of_names.items():
        header = ("time", "host", "port", *names)
        rest = [at for at, n in enumerate(header) if at > 2 and isinstance(column_of(0, n), str)]
        refuse_rows_told_apart(path, header, rows, (0, 1, 2), rest)
