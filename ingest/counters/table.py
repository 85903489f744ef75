"""Tables that somebody made: which column is what, by their header and by job.toml.

A wide table has a column a counter, a long one a row a number with its counter's name in a column.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from tracekit.errors import InputError
from tracekit.ingest import files
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters.units import MEMORY, SIZES, with_slash

MAX_COLUMNS = 1000
_TIME_BASES = (
    "timestamp", "time", "datetime", "date_time", "ts", "epoch", "date", "unix_time", "unixtime",
    "unix_timestamp", "unix", "time_unix", "time_epoch", "epoch_time", "timestamp_unix", "unix_ts",
    "query_time", "sample_time", "collected_at", "sampled_at", "@timestamp", "_timestamp",
)  # fmt: skip
TIME_WORDS = tuple(
    base + unit
    for unit in ("", "_s", "_sec", "_seconds", "_ms", "_millis", "_us", "_ns")
    for base in _TIME_BASES
)
"""Headers of times; how many digits a number has tells its unit."""
SINCE_WORDS = tuple(
    base + unit
    for unit in ("", "_s", "_sec", "_seconds", "_ms")
    for base in ("elapsed", "elapsed_time", "relative_time", "time_since_start", "since_start")
)
"""Headers of times that count from a beginning; those of moments may count so too."""
HOST_WORDS = (
    "hostname", "host", "host_name", "node", "node_name", "nodename", "server", "machine",
    "instance",
)  # fmt: skip
LABEL_WORDS = frozenset(
    ("phase", "label", "stage", "state", "marker", "workload", "activity", "mode")
)
"""Headers of columns that say in words what went on."""
VALUE_WORDS = ("value", "metric_value", "val")
UNIT_WORDS = ("unit", "units", "metric_unit")
"""Headers that say what a column is, whatever the table counts."""


def header_line(head: bytes) -> str:
    """The first line of a text file."""
    line = head.lstrip(b"\xef\xbb\xbf\r\n \t").split(b"\n", 1)[0]
    return line[:65536].decode("utf-8", "replace").rstrip("\r")


def header_of(line: str) -> tuple[str, list[str]] | None:
    """Delimiter and names of a header line; None where it is none."""
    delimiter = max(",;\t|", key=line.count)
    if not line.count(delimiter):
        return None
    try:
        header = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
    except (csv.Error, StopIteration):
        return None
    return (delimiter, header) if 2 <= len(header) <= MAX_COLUMNS else None


def cells_of(text: str, delimiter: str) -> list[str]:
    """The cells of a row; none where its quotes do not pair. A blank parts them however wide."""
    if delimiter == " ":
        return text.split()
    if '"' not in text:
        return text.split(delimiter)
    try:
        return next(csv.reader([text], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        return []


_SCRAPED = re.compile(r"([\w.-]+):\d{1,5}")


def host_of(cell: str) -> str:
    """The machine that a cell names, without the port at which it was asked."""
    scraped = _SCRAPED.fullmatch(cell.strip())
    return scraped[1] if scraped else cell


def refuse_rows_told_apart(
    path: str, header: Sequence[str], rows: Sequence[Sequence[str]],
    keys: Sequence[int], rest: Sequence[int],
) -> None:  # fmt: skip
    """InputError where columns that nobody reads tell rows of one device and time apart.

    Such a column (a process, a machine, whether it is the least or the most) has few words, which
    come again at other times; those of one device and time never repeat, as a counter's numbers
    would. ``keys``: columns of the time and of the device, in this order; ``rest``: those that are
    not read.
    """
    groups: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for row in rows:
        groups[tuple(row[at].strip() for at in keys)].add(tuple(row))
    several = [group for group in groups.values() if len(group) > 1]
    if 2 * len(several) < len(groups):
        return  # here and there two readings within the resolution of the times
    is_of_times = len({key[0] for key in groups}) > 1
    few = []
    for at in rest:
        words = {row[at].strip() for row in rows}
        seen = {(row[at].strip(), row[keys[0]]) for row in rows}
        if 1 < len(words) <= len(rows) / 2 and (not is_of_times or len(seen) >= 2 * len(words)):
            few.append(at)
    if few and all(len({tuple(r[at] for at in few) for r in group}) == len(group)
                   for group in several):  # fmt: skip
        names = ", ".join(header[at].strip()[:60] for at in few)
        raise InputError(
            f"{path}: rows of one device and time differ in columns that are not read ({names}): "
            "what they are of is not known",
            hint="[[source]] columns may say which column is the host",
        )


def rows_of(lines: Sequence[str], delimiter: str, width: int) -> list[list[str]]:
    """The cells of the lines that have as many as they should."""
    return [row for line in lines if len(row := cells_of(line, delimiter)) == width]


def bare_name(name: str) -> str:
    """A header in lower case, without its unit in brackets, its words joined by underscores."""
    return without_unit(name).lower().replace(" ", "_")


def without_unit(name: str) -> str:
    """A header without its unit in brackets."""
    named = name.partition("[")[0].strip()
    said = _PARENTHESES.search(named)
    return named[: said.start()].strip() if said and with_slash(said[1]) in _UNITS else named


def unit_of(text: str) -> str | None:
    """The unit in brackets at the end of a header; in parentheses where it is surely one."""
    if text.rstrip().endswith("]"):
        return with_slash(text.rpartition("[")[2].rstrip("] "))
    said = _PARENTHESES.search(text)
    unit = with_slash(said[1]) if said else None
    return unit if unit in _UNITS else None


def since_unit(header: str) -> str:
    """The unit of times that count from a beginning, by their header: in brackets or behind it."""
    return unit_of(header) or ("ms" if bare_name(header).endswith("_ms") else "s")


def column_of(header: Sequence[str], text: str) -> tuple[int | None, str | None]:
    """The column that a text of job.toml means, and the unit that it adds in brackets."""
    names = [h.strip() for h in header]
    unit = unit_of(text)
    if text.strip() in names:
        return names.index(text.strip()), unit
    bare = text.rpartition("[")[0].strip() if unit is not None else None
    return (names.index(bare) if bare in names else None), unit


_PARENTHESES = re.compile(r"\(([^()\[\]]{1,16})\)\s*\Z")
_UNITS = (
    frozenset(unit for sizes in SIZES.values() for unit in sizes) | set(MEMORY) | {"s", "ms", "UTC"}
)


C = TypeVar("C")
"""What a subject knows of a column of numbers."""


MAX_LISTED = 20
"""Names of columns that are listed as not read; the rest is a number."""


UNKNOWN = (
    "no known counter of such a device, or second to one; job.toml's [[source]] columns may say"
)


def count_unread(sink: Sink, names: Sequence[str], reason: str, of: str = "") -> None:
    """List once the columns that were not read, where there are any; ``of`` tells reasons apart."""
    named = [name[:80] for name in names if name]
    if named:
        more = f" and {len(named) - MAX_LISTED} more" if len(named) > MAX_LISTED else ""
        sink.count(
            f"column_not_read{of}",
            len(named),
            severity="info",
            doc=f"Not read: {', '.join(named[:MAX_LISTED])}{more}; {reason}.",
            place=1,
        )


def tell_units(sink: Sink, names: Sequence[str], unit: str) -> None:
    """List the columns whose unit their numbers alone said."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    sink.count(
        f"unit_by_size_{'_'.join(re.findall(r'[a-z]+', unit.lower())[:4])}",
        len(names),
        severity="info",
        doc=f"Read in {unit}, as the size of the numbers says and no header: "
        f"{', '.join(name[:80] for name in names[:MAX_LISTED])}{more}.",
        place=1,
    )


class Layout(NamedTuple, Generic[C]):
    """Which column is what."""

    header: tuple[str, ...]
    delimiter: str
    roles: Mapping[str, int]
    """``metric`` and ``value`` are both there, in a long table, or neither is."""
    counters: tuple[tuple[int, C], ...]
    """Columns of counters in a wide table."""
    metrics: Mapping[str, C]
    """Names in the metric column that job.toml explains."""

    @property
    def unread(self) -> list[str]:
        """Headers of columns that mean nothing to us."""
        used = {*self.roles.values(), *(at for at, _ in self.counters)}
        return [name.strip() for at, name in enumerate(self.header) if at not in used]

    def refuse_rows_told_apart(self, source: SourceFile) -> None:
        """InputError where columns that nobody reads tell rows of one device and time apart."""
        if "time" not in self.roles:
            return
        named = [at for role, at in self.roles.items() if role not in ("value", "unit", "model")]
        keys = sorted(named, key=lambda at: at != self.roles["time"])
        read = {*self.roles.values(), *(at for at, _ in self.counters)}
        rest = [at for at in range(len(self.header)) if at not in read]
        lines = files.read_head(source).decode("utf-8", "replace").splitlines()[1:]
        rows = rows_of(lines, self.delimiter, len(self.header))
        refuse_rows_told_apart(source.path, self.header, rows, keys, rest)

    @property
    def is_long(self) -> bool:
        """Whether it has a row a number."""
        return "metric" in self.roles

    @property
    def is_wide(self) -> bool:
        """Whether it has columns of counters that are surely some: several, or one beside a time.

        One alone may be a word that happens to be a counter's name.
        """
        return bool(self.counters) and ("time" in self.roles or len(self.counters) > 1)


class Subject(NamedTuple, Generic[C]):
    """What tables of one subject hold."""

    roles: Mapping[str, tuple[str, ...]]
    """What a column can be, as job.toml names it, and the headers that say so."""
    counter: Callable[[str, str | None, str, str], C]
    """A canonical counter from its name, its unit, what job.toml says, and its header."""
    by_header: Callable[[str], C | None]
    """The counter that a header is by itself."""
    name_of: Callable[[C], str]
    """The canonical name."""
    example: str
    """Of what job.toml may say."""

    def layout(self, line: str) -> Layout[C] | None:
        """The layout that a header line declares by itself; None where it is no header."""
        header = header_of(line)
        return self._layout(header[1], header[0], {}, {}) if header is not None else None

    def mapped(self, line: str, source: SourceFile) -> Layout[C]:
        """The layout of a table whose columns job.toml explains; the rest by the usual headers.

        InputError, with path and line, for a column that the file does not have.
        """
        named = header_of(line)
        if named is None:
            raise InputError(
                f"{source.path}: line 1 is no header of a table",
                hint="[[source]] columns is for CSV whose first line names its columns",
            )
        delimiter, header = named
        roles: dict[str, int] = {}
        counters: dict[int, C] = {}
        metrics: dict[str, C] = {}
        is_long = any(key == "metric" for key, _ in source.columns)
        is_long = is_long or self._layout(header, delimiter, {}, {}).is_long
        for key, text in source.columns:
            at, unit = column_of(header, text)
            if key not in self.roles and is_long:
                word = text if unit is None else text.rpartition("[")[0].strip()
                metrics[word] = self.counter(key, unit, text, word)
                continue
            if at is None:
                have = ", ".join(h.strip() for h in header)
                raise InputError(
                    f"{source.path}: line 1 has no column {text[:80]!r}, which job.toml says is "
                    f"{key}; it has {have[:300]}"
                )
            if key in self.roles:
                roles[key] = at
            else:
                counters[at] = self.counter(key, unit, text, header[at].strip())
        layout = self._layout(header, delimiter, roles, counters)._replace(metrics=metrics)
        if not layout.counters and not layout.is_long:
            raise InputError(
                f"{source.path}: line 1 and job.toml name no counter",
                hint=f"for example columns = {{ {self.example} }}",
            )
        return layout

    def _layout(
        self,
        header: Sequence[str],
        delimiter: str,
        said: Mapping[str, int],
        known: Mapping[int, C],
    ) -> Layout[C]:
        """What each column is: as said, else by the usual headers."""
        bare = [bare_name(h) for h in header]
        taken = {*said.values(), *known}
        roles = dict(said)
        for role in ("value", "metric", *self.roles):  # a metric's header may be a model's too
            if role not in roles and (role != "metric" or "value" in roles):
                words = (bare.index(w) for w in self.roles[role] if w in bare)
                at = next((i for i in words if i not in taken), None)
                if at is not None:
                    roles[role] = at
                    taken.add(at)
        if "metric" in roles and "value" in roles:
            return Layout(tuple(header), delimiter, roles, (), {})
        roles = {role: at for role, at in roles.items() if role not in ("metric", "value")}
        counters = dict(known)
        have = {self.name_of(c) for c in known.values()}
        used = {*roles.values(), *said.values(), *known}
        for at, name in enumerate(header):
            counter = self.by_header(name) if at not in used else None
            if counter is not None and self.name_of(counter) not in have:
                counters[at] = counter
                have.add(self.name_of(counter))
        return Layout(tuple(header), delimiter, roles, tuple(sorted(counters.items())), {})

    def recognise(self, source: SourceFile, head: bytes, kind: str, what: str) -> Recognition:
        """A file whose columns job.toml explains."""
        try:
            self.mapped(header_line(head), source)
        except InputError as error:
            why = error.message.removeprefix(f"{source.path}: ")
            return Recognition(kind, why, kind, status="unreadable")
        return Recognition(kind, f"{what}, as job.toml explains it", kind)
