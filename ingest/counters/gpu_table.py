"""CSV of GPU counters: ``nvidia-smi --query-gpu``, and tables that somebody made.

Wide tables have a row a GPU and moment; their columns are recognised by nvidia-smi's and DCGM's
names, or by plain words with a unit at the end (``temperature_C``). Long tables have a row a
number, with its metric's name in a column. What is named otherwise is read as job.toml says
(``[[source]] columns``).

nvidia-smi writes local times without a zone: they are kept as they stand (``time_basis`` local)
and mean nothing beside other files until job.toml names the zone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO

from tracekit.errors import InputError
from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile, stated_host
from tracekit.ingest.counters import fields, open_units, times
from tracekit.ingest.counters.gpu_samples import Gpu, GpuSamples
from tracekit.ingest.counters.gpu_words import MOST, blanks
from tracekit.ingest.counters.names import node_of_file, pci_address, uuid_of
from tracekit.ingest.counters.net_samples import decimal
from tracekit.ingest.counters.samples import count_local_time, count_other_metrics
from tracekit.ingest.counters.table import (
    HOST_WORDS,
    SINCE_WORDS,
    TIME_WORDS,
    UNIT_WORDS,
    UNKNOWN,
    VALUE_WORDS,
    Layout,
    Subject,
    bare_name,
    cells_of,
    count_unread,
    header_line,
    host_of,
    since_unit,
    tell_units,
)
from tracekit.ingest.counters.times import local_ns, says_utc
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import shape

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

NAME = "gpu_csv"
BLOCK_BYTES = 8 << 20
"""Text that is parsed at a time."""
MAX_RANKED = 1 << 22
"""Highest number up to which a table of all numbers below is faster than sorting."""

_INDEX = (
    "index", "gpu_index", "gpu", "gpu_id", "device_index", "nvml_index", "gpuid", "deviceid", "idx",
)  # fmt: skip

_UUID = ("uuid", "gpu_uuid", "device_uuid")
_PCI = ("pci.bus_id", "pci_bus_id", "gpu_bus_id", "pci", "bus_id", "gpu_pci_bus_id")
_MODEL = ("name", "gpu_name", "modelname", "model", "model_name")
_POD = ("exported_pod", "pod", "pod_name")
_METRIC = ("metric_name", "metric", "__name__", "field", "counter", "name")
_MISSING = re.compile(
    r"\[?(?:n/?a|not (?:supported|available|found|active)|unknown error|insufficient permissions|"
    r"requested functionality has been deprecated|gpu (?:is lost|requires reset)|)\]?|-+|null|none",
    re.I,
)
TABLE = Subject(
    {
        "time": (*TIME_WORDS, *SINCE_WORDS), "gpu": _INDEX, "uuid": _UUID, "pci": _PCI,
        "model": _MODEL, "host": HOST_WORDS, "pod": _POD, "metric": _METRIC, "value": VALUE_WORDS,
        "unit": UNIT_WORDS,
    },
    lambda key, unit, text, header: fields.of_counter(key, unit, text),
    fields.of_column,
    lambda meaning: meaning.counter,
    'sm_active = "SM [%]"',
)  # fmt: skip
_WORDS = {"active": 1.0, "not active": 0.0, "yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}


_OF_GPUS = re.compile(r"(?<![A-Za-z])(?:gpu|cuda|vram|nvlink|sm|tensor|hbm)(?![A-Za-z])", re.I)
"""What a header says of a GPU alone."""
_OF_DMON = re.compile(r"#\s?(?:Date,\s*Time,\s*)?gpu,")
"""nvidia-smi dmon with commas: its second line has the units."""


_ROW_OF_SMI = re.compile(
    r"(?=.{0,300}?(?:^|, )(?:\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}|GPU-[0-9a-f]{8}-[0-9a-f-]{27}"
    r"|(?:NVIDIA|Tesla|Quadro) [^,]{1,40})(?:,|$))"
    r"(?:[^,]{1,80}, ){1,60}[^,]{1,80}\Z"
)
"""A row of nvidia-smi: a time, a GPU or a model among cells with comma and space between."""
_HAS_UNIT = re.compile(r"(?:^|, )\d+(?:\.\d+)? (?:%|W|MHz|MiB)(?:,|$)")
_NO_HEADER = (
    "rows of nvidia-smi without their header (noheader): which number is what they do not say; put "
    "what was asked for in front as a first line (timestamp, index, utilization.gpu [%], ...), or "
    "record with --format=csv"
)


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise a table by its first line."""
    line = header_line(head)
    if _HAS_UNIT.search(line[:2000]) and _ROW_OF_SMI.match(line[:2000]):
        return Recognition("nvidia_smi", _NO_HEADER, status="unrecognised")
    layout = None if _OF_DMON.match(line) else layout_of(line)
    if layout is None:
        return None
    is_smi = _is_of_smi(layout)
    kind = "nvidia_smi" if is_smi else "gpu_csv"
    what = "nvidia-smi --query-gpu" if is_smi else "a table of GPU counters"
    return Recognition(kind, f"{what}, {len(layout.counters) or 1} counters", NAME)


def recognise(source: SourceFile, head: bytes) -> Recognition:
    """A file whose columns job.toml explains as those of GPUs."""
    return TABLE.recognise(source, head, NAME, "a table of counters")


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the table into gpu_sample."""
    with source.open() as stream:
        _Reader(source, sink, stream).run()


def layout_of(line: str) -> Layout[Meaning] | None:
    """The layout that a header line declares; None where it is no table of GPU counters.

    A wide table needs a known counter besides its GPU or time; a long one a metric and a value.
    Where ``nvidia-smi`` was not asked which GPU a row is of, its columns and a time will do, and so
    do several counters of which one names a GPU (``gpu_util``): of several GPUs that nothing names
    no sample is kept (``nameless``).
    """
    layout = TABLE.layout(line)
    if layout is None:
        return None
    is_named = {"gpu", "uuid", "pci"} & set(layout.roles)
    if not is_named and not ("time" in layout.roles and _is_of_one(layout)):
        return None
    return layout if layout.is_wide or layout.is_long else None


def _is_of_one(layout: Layout[Meaning]) -> bool:
    """Whether a table without a column for the GPU is one of a GPU."""
    named = [layout.header[at] for at, _ in layout.counters if _OF_GPUS.search(layout.header[at])]
    return _is_of_smi(layout) or (bool(named) and len(layout.counters) > 1)


def _is_of_smi(layout: Layout[Meaning]) -> bool:
    return any(m.original and m.original.startswith("nvidia-smi") for _, m in layout.counters)


MIN_TEXTS = 2000
"""Different times from which on they are read together: of fewer each by itself is faster."""
MAX_DAMAGED_RATIO = 0.1
"""Share of a block's rows up to which those unlike the others are damage, not another kind."""


_BEFORE_HEAD = b"\xef\xbb\xbf\r\n \t"


def _whole_lines(stream: BinaryIO, source: SourceFile) -> Iterator[bytes]:
    """Whole lines, about BLOCK_BYTES at a time; the last one ends with a line's end too."""
    rest = b""
    while data := stream.read(BLOCK_BYTES):
        held = rest + data if rest else data
        end = held.rfind(b"\n") + 1
        rest = held[end:]
        if end:
            yield held[:end]
        elif len(rest) > 4 * BLOCK_BYTES:
            raise InputError(f"{source.path}: a line of more than 32 MB")
    if rest:
        yield rest + b"\n"


def _pointed(cell: str, layout: Layout[Meaning]) -> str:
    """A cell with a point for its decimal comma, which stands beside semicolons alone."""
    return cell.replace(",", ".") if layout.delimiter == ";" and "." not in cell else cell


def _sized_by_lines(
    block: bytes, layout: Layout[Meaning], plain: Sequence[tuple[int, Meaning]],
    sizes: Mapping[str, open_units.Sizes],
) -> None:  # fmt: skip
    """Take the numbers of a block line by line, of the rows that are as the header says."""
    for text in block.decode("utf-8", "replace").split("\n"):
        cells = cells_of(text.rstrip("\r"), layout.delimiter)
        if len(cells) == len(layout.header):
            for at, meaning in plain:
                number = decimal(_pointed(cells[at], layout))
                if number is not None:
                    sizes[meaning.counter].add(number)


def _lines_count(block: bytes) -> int:
    import numpy as np

    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))


def _regular(
    block: bytes,
    layout: Layout[Meaning],
    kinds: Mapping[int, pl.DataType | type[pl.DataType]],
    wanted: list[int] | None = None,
) -> pl.DataFrame | None:
    """The cells of a block of which every row is as the header says, and each cell of its kind.

    None for all others.
    """
    import numpy as np
    import polars as pl

    mark = layout.delimiter.encode()
    width = len(layout.header)
    if len(mark) != 1 or mark == b";" or b'"' in block or not block or block.isspace():
        return None
    data = np.frombuffer(block, np.uint8)
    # As many borders as so many rows have; that none has more than its share, Polars says.
    rows_count = _lines_count(block)
    if np.count_nonzero(data == mark[0]) != rows_count * (width - 1):
        return None
    asked = wanted and sorted({*wanted, width - 1})
    names = [str(i) for i in range(width)]
    schema = {str(i): kinds.get(i, pl.String) for i in range(width)}
    try:
        frame = pl.read_csv(
            block, has_header=False, new_columns=names, schema=schema, columns=asked,
            separator=layout.delimiter, quote_char=None, encoding="utf8-lossy",
        )  # fmt: skip
    except pl.exceptions.PolarsError:
        return None
    if frame.height != rows_count:
        return None
    # Polars does not look behind the columns that it is asked for: a row may have too few cells
    # and another too many.
    if wanted and frame[str(width - 1)].null_count() and not _are_even(data, mark[0], width):
        return None
    return frame


def _are_even(data: np.ndarray, mark: int, width: int) -> bool:
    """Whether each row has so many cells."""
    import numpy as np

    ends = data == ord("\n")
    borders = ends[np.flatnonzero(ends | (data == mark))]
    rows_count = int(borders.sum())
    return len(borders) == rows_count * width and bool(borders[width - 1 :: width].all())


_Column = tuple["np.ndarray", "np.ndarray | None", Meaning]
"""Numbers (NaN: none), the exact counts, and what they are."""


class _Reader:
    def __init__(self, source: SourceFile, sink: Sink, stream: BinaryIO) -> None:
        self._source = source
        self._sink = sink
        self._stream = stream
        self._samples = GpuSamples(sink, source)
        self._layout: Layout[Meaning] | None = None
        self._undecided: list[str] = []
        """Headers and metrics whose unit nothing says."""
        self._open: dict[str, Meaning] | None = None
        """Metrics of a long table whose unit their numbers say; None before it was asked for."""
        self._line = 0
        self._is_local = False
        self._is_elapsed: bool | None = None
        """Whether times count from a beginning, or since midnight: the first row's says it."""
        self._since_unit = "s"
        self._last_ns = 0
        self._days_count = 0
        self._is_utc = says_utc(source.name)
        self._node = node_of_file(source)
        self._clock: dict[str, int | None] = {}
        self._gpus: dict[tuple[str | None, ...], Gpu] = {}
        self._is_regular = True
        """Whether all so far was as the header says, and every counter a plain number."""
        self._is_of_moments = False
        self._bad_rows = 0
        self._damaged: np.ndarray
        """Rows of the block of which a cell cannot be read."""
        self._bad_numbers = 0
        self._bad_times = 0

    def run(self) -> None:
        for block, first_line in self._blocks():
            self._block(block, first_line)
        problem = streams.stream_problem(self._stream)
        basis = "elapsed" if self._is_elapsed else "local" if self._is_local else "epoch"
        self._samples.finish(basis)
        self._sink.fact(place_kind="line", is_truncated_end=problem is not None)
        if self._bad_times:
            self._sink.count(
                "bad_time", self._bad_times, doc="Rows whose time cannot be read: left out."
            )
        if self._is_local:
            count_local_time(self._sink)
        if self._bad_rows or self._bad_numbers or problem is not None:
            what = f"it breaks off ({problem})" if problem else ""
            what = what or f"{self._bad_rows + self._bad_numbers} cells or rows could not be read"
            self._sink.fact(status="partial", reason=what)
        elif not self._samples.rows_count:
            self._sink.fact(status="empty", reason="it holds no numbers")

    def _blocks(self) -> Iterator[tuple[bytes, int]]:
        """Whole lines, about BLOCK_BYTES at a time, and the number of the first."""
        for block in _whole_lines(self._stream, self._source):
            first = self._line + 1
            self._line += _lines_count(block)
            yield block, first

    def _block(self, block: bytes, first_line: int) -> None:
        if self._layout is None:
            head, _, block = block.lstrip(_BEFORE_HEAD).partition(b"\n")
            first_line += 1
            line = header_line(head)
            is_mapped = bool(self._source.columns)
            self._layout = TABLE.mapped(line, self._source) if is_mapped else layout_of(line)
            if self._layout is None:
                raise InputError(f"{self._source.path}: its first line names no GPU counter")
            self._layout.refuse_rows_told_apart(self._source)
            time_at = self._layout.roles.get("time")
            if time_at is not None:
                self._since_unit = since_unit(self._layout.header[time_at])
                self._is_utc |= self._since_unit == "UTC"
            self._layout = self._settled(self._layout)
            if self._layout.is_wide:
                names = [name for name in self._layout.unread if name not in self._undecided]
                count_unread(self._sink, names, UNKNOWN)
                count_unread(self._sink, self._undecided, open_units.UNDECIDED, "_of_no_unit")
        if block and not block.isspace():
            self._rows(block, first_line)

    def _settled(self, layout: Layout[Meaning]) -> Layout[Meaning]:
        """The layout with a unit for what lacks one, by all numbers of the file.

        Of 1 and 87 below one header the first is no whole share, and which it is no number before
        the second says. A column that could be of two units is not read.
        """
        plain = [(at, m) for at, m in layout.counters if _is_open(layout.header[at], m)]
        if not plain or layout.is_long or self._source.columns:
            return layout
        sizes: dict[str, open_units.Sizes] = {m.counter: open_units.Sizes() for _, m in plain}
        with self._source.open() as stream:
            for number, whole in enumerate(_whole_lines(stream, self._source)):
                block = whole if number else whole.lstrip(_BEFORE_HEAD).partition(b"\n")[2]
                if not self._sized(block, layout, plain, sizes):
                    _sized_by_lines(block, layout, plain, sizes)
        counters = dict(layout.counters)
        said: dict[str, list[str]] = defaultdict(list)
        for at, meaning in plain:
            found = open_units.told(meaning.counter, meaning.unit or "", sizes[meaning.counter])
            if found is None:
                del counters[at]
                self._undecided.append(layout.header[at].strip())
                continue
            counters[at] = meaning._replace(scale=found.scale)
            said[found.unit].append(layout.header[at].strip())
        for unit, names in said.items():
            tell_units(self._sink, names, unit)
        return layout._replace(counters=tuple(sorted(counters.items())))

    def _told(self, name: str) -> Meaning | None:
        """A metric of a long table that lacks its unit, with that which all its numbers say."""
        if self._open is None:
            self._open = {}
            said: dict[str, list[str]] = defaultdict(list)
            for word, sizes in self._sizes_of_metrics().items():
                known = fields.of_column(word)
                found = open_units.told(known.counter, known.unit or "", sizes) if known else None
                if known is None or found is None:
                    self._undecided.append(word)
                    continue
                self._open[word] = known._replace(scale=found.scale)
                said[found.unit].append(word)
            for unit, names in said.items():
                tell_units(self._sink, names, unit)
            count_unread(self._sink, self._undecided, open_units.UNDECIDED, "_of_no_unit")
        return self._open.get(name)

    def _sizes_of_metrics(self) -> dict[str, open_units.Sizes]:
        """Of a long table's metrics that lack their unit what their numbers are like."""
        import numpy as np
        import polars as pl

        layout = self._layout
        assert layout is not None  # noqa: S101 - set by _block
        roles = [layout.roles[role] for role in ("metric", "value", "unit") if role in layout.roles]
        sizes: dict[str, open_units.Sizes] = defaultdict(open_units.Sizes)
        with self._source.open() as stream:
            for number, whole in enumerate(_whole_lines(stream, self._source)):
                block = whole if number else whole.lstrip(_BEFORE_HEAD).partition(b"\n")[2]
                frame = _regular(block, layout, {}, sorted(roles))
                if frame is None:
                    rows = [
                        [_pointed(cells[at], layout) for at in roles]
                        for text in block.decode("utf-8", "replace").split("\n")
                        if len(cells := cells_of(text.rstrip("\r"), layout.delimiter))
                        == len(layout.header)
                    ]
                    schema = {str(at): pl.String for at in roles}
                    frame = pl.DataFrame(rows, schema=schema, orient="row")
                codes, names = _codes(_metrics(frame, layout))
                numbers = frame[str(layout.roles["value"])].str.strip_chars()
                for code, text in enumerate(names):
                    meaning = fields.of_column(text.strip()) if text else None
                    if text and meaning is not None and _is_open(text.strip(), meaning):
                        own = numbers.filter(pl.Series(codes == code))
                        found = own.cast(pl.Float64, strict=False).drop_nulls().to_numpy()
                        sizes[text.strip()].add_many(found[np.isfinite(found)])
        return sizes

    def _sized(
        self, block: bytes, layout: Layout[Meaning], plain: Sequence[tuple[int, Meaning]],
        sizes: Mapping[str, open_units.Sizes],
    ) -> bool:  # fmt: skip
        """Take the numbers of a block of which every row is as the header says; False if not."""
        import numpy as np
        import polars as pl

        wanted = sorted(at for at, _ in plain)
        # As numbers first: cells of digits alone take half the time so, and are the usual ones.
        frame = _regular(block, layout, dict.fromkeys(wanted, pl.Float64), wanted)
        if frame is None:
            frame = _regular(block, layout, {}, wanted)
        if frame is None:
            return False
        for at, meaning in plain:
            texts = frame[str(at)]
            if texts.dtype == pl.String:
                texts = texts.str.strip_chars().cast(pl.Float64, strict=False)
            numbers = texts.drop_nulls().to_numpy()
            sizes[meaning.counter].add_many(numbers[np.isfinite(numbers)])
        return True

    def _rows(self, block: bytes, first_line: int) -> None:
        import numpy as np

        layout = self._layout
        assert layout is not None  # noqa: S101 - set by _block
        frame, lines = self._frame(block, first_line, layout)
        keep = np.ones(frame.height, bool)
        time_at = layout.roles.get("time")
        if time_at is not None:
            which, texts = _coded(frame[str(time_at)])
            if self._is_elapsed is None and frame.height:
                self._is_elapsed = self._counts_on(texts[int(which[0])] or "")
            moments, known = self._moments(texts)
            # nvidia-smi that was started again writes its header again.
            title = layout.header[time_at].strip()
            is_row = known.copy()
            for at in np.flatnonzero(~known).tolist():
                is_row[at] = texts[at] is None or texts[at].strip() != title
            keep = is_row[which]
            self._bad_times += int((keep & ~known[which]).sum())
            keep &= known[which]
            times_ns = moments[which]
        else:
            times_ns = np.full(frame.height, self._samples.file_time[0] or 0, np.int64)
        if not keep.all():
            rows = np.flatnonzero(keep)
            frame, lines, times_ns = frame[rows], lines[rows], times_ns[rows]
        if not frame.height:
            return
        if self._is_elapsed:
            times_ns = self._past_midnight(times_ns)
        keys = [layout.roles.get(r) for r in ("gpu", "uuid", "pci", "model", "host", "pod")]
        source = "content" if time_at is not None else self._samples.file_time[1]
        which, gpus = self._who(frame, keys)
        if time_at is None and self._are_moments(frame, which):
            times_ns, source = None, None
        if layout.is_long:
            self._long(frame, which, gpus, lines, times_ns, source)
            return
        self._damaged = np.zeros(frame.height, bool)
        read = [self._read(frame[str(at)], meaning, lines) for at, meaning in layout.counters]
        if self._damaged.any():
            self._bad_row(int(self._damaged.sum()), int(lines[self._damaged][0]))
            for numbers, _, _ in read:
                numbers[self._damaged] = float("nan")
        for column in read:
            self._put(column, which, gpus, lines, times_ns, source)

    def _are_moments(self, frame: pl.DataFrame, which: np.ndarray) -> bool:
        """Whether a table without times has several rows of one GPU: it was read more than once,
        and nobody knows when. The file's time is of one moment."""
        import numpy as np

        layout = self._layout
        assert layout is not None  # noqa: S101 - set by _block
        at = layout.roles["metric"] if layout.is_long else None
        codes = _codes(frame[str(at)])[0] if at is not None else np.zeros(len(which), np.int64)
        pairs = which * (int(codes.max(initial=0)) + 1) + codes
        self._is_of_moments |= len(np.unique(pairs)) < len(pairs)
        if self._is_of_moments:
            self._sink.count(
                "no_time",
                len(which),
                doc="Rows of a table that has several a GPU and no column of times: their samples "
                "have none, and nothing is said of when. [[source]] columns may name it.",
            )
        return self._is_of_moments

    def _frame(
        self, block: bytes, first_line: int, layout: Layout[Meaning]
    ) -> tuple[pl.DataFrame, np.ndarray]:
        """The cells of a block, as text unless all are plain numbers, and the line of each row.

        Lines with an odd number of quotes would take the rows after them into one cell: where the
        block is no table, they are left out.
        """
        import numpy as np
        import polars as pl

        if self._is_regular and not layout.is_long:
            kinds = {
                at: pl.UInt64 if m.kind == "cumulative" and m.scale == 1 else pl.Float64
                for at, m in layout.counters
            }
            plain = _regular(block, layout, kinds)
            if plain is not None:
                return plain, np.arange(first_line, first_line + plain.height, dtype=np.int64)
            self._is_regular = False
        names = [str(i) for i in range(len(layout.header))]
        block, kept = self._whole_rows(block, first_line, layout)
        if not len(kept):
            return pl.DataFrame(schema=dict.fromkeys(names, pl.String)), kept

        def parsed(text: bytes) -> pl.DataFrame:
            return pl.read_csv(
                text,
                has_header=False,
                new_columns=names,
                schema=dict.fromkeys(names, pl.String),
                separator=layout.delimiter,
                truncate_ragged_lines=True,
                encoding="utf8-lossy",
            )

        try:
            frame = parsed(block)
        except pl.exceptions.PolarsError:
            texts = block.removesuffix(b"\n").split(b"\n")
            good = [i for i, text in enumerate(texts) if text.strip() and not text.count(b'"') % 2]
            bad = {*range(len(texts))} - {*good}
            bad -= {i for i in bad if not texts[i].strip()}
            self._bad_row(len(bad), int(kept[min(bad, default=0)]))
            try:
                frame = parsed(b"\n".join(texts[i] for i in good) + b"\n")
            except pl.exceptions.PolarsError:
                frame = pl.DataFrame(schema=dict.fromkeys(names, pl.String))
            if frame.height == len(good):
                return frame, kept[good]
        if frame.height == len(kept):
            return frame, kept
        return frame, np.arange(kept[0], kept[0] + frame.height, dtype=np.int64)

    def _whole_rows(
        self, block: bytes, first_line: int, layout: Layout[Meaning]
    ) -> tuple[bytes, np.ndarray]:
        """A block without the rows that lack cells or have some too many; their lines.

        Where a row was cut, or two run into one, each number stands under another's header: a power
        of 128 W is then the bit of a power brake. A block in which such rows are not the exception
        is a table of its own kind, and stays as it is.
        """
        import numpy as np

        data = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(data == ord("\n"))
        lines = first_line + np.arange(len(ends), dtype=np.int64)
        mark = layout.delimiter.encode()
        if len(mark) != 1 or b'"' in block:
            return block, lines
        commas = np.diff(np.searchsorted(np.flatnonzero(data == mark[0]), ends), prepend=0)
        if (commas == len(layout.header) - 1).all():
            return block, lines
        texts = block.removesuffix(b"\n").split(b"\n")
        filled = np.array([bool(text.strip()) for text in texts])
        usual = np.bincount(commas[filled]).argmax() if filled.any() else 0
        is_odd = filled & (commas != usual) & (commas != len(layout.header) - 1)
        if not is_odd.any() or is_odd.sum() > MAX_DAMAGED_RATIO * filled.sum() + 1:
            return block, lines
        self._bad_row(int(is_odd.sum()), int(lines[is_odd][0]))
        good = np.flatnonzero(~is_odd)
        return b"\n".join(texts[i] for i in good.tolist()) + b"\n", lines[good]

    def _bad_row(self, count: int, line: int) -> None:
        self._bad_rows += count
        self._sink.count(
            "bad_row",
            count,
            doc="Rows that are not as their header says, whose quotes do not pair, or of which a "
            "cell cannot be read: left out whole.",
            place=line,
        )

    def _who(self, frame: pl.DataFrame, keys: Sequence[int | None]) -> tuple[np.ndarray, list[Gpu]]:
        """The GPU of each row, as numbers of a list."""
        import numpy as np

        which = np.zeros(frame.height, np.int64)
        combined: list[tuple[str | None, ...]] = [()]
        for key in keys:
            if key is None:
                combined = [(*c, None) for c in combined]
                continue
            codes, texts = _codes(frame[str(key)])
            both, which = _ranked(which * len(texts) + codes, len(combined) * len(texts))
            pairs = (divmod(n, len(texts)) for n in both.tolist())
            combined = [(*combined[a], texts[b]) for a, b in pairs]
        gpus = []
        host_at = keys[4]
        assert self._layout is not None  # noqa: S101 - set by _block
        # Where Prometheus scraped, or one of MIG's instances.
        is_instance = host_at is not None and bare_name(self._layout.header[host_at]) == "instance"
        for values in combined:
            if values not in self._gpus:
                gpu = _gpu(tuple(v.strip() if v else None for v in values))
                if is_instance and gpu.node is not None and gpu.node.isdecimal():
                    gpu = gpu._replace(node=None, instance=gpu.node)
                self._gpus[values] = gpu if gpu.node else gpu._replace(node=self._node)
            gpus.append(self._gpus[values])
        return which, gpus

    def _read(self, texts: pl.Series, meaning: Meaning, lines: np.ndarray) -> _Column:
        """One counter's column as numbers; counts also exactly."""
        numbers, meaning = self._numbers(texts, meaning, lines)
        is_count = meaning.kind == "cumulative"
        return numbers, self._exact(texts, numbers, meaning) if is_count else None, meaning

    def _put(
        self,
        column: _Column,
        which: np.ndarray,
        gpus: Sequence[Gpu],
        lines: np.ndarray,
        times_ns: np.ndarray | None,
        source: str | None,
    ) -> None:
        """One counter's column into samples."""
        import numpy as np

        numbers, exact, meaning = column
        is_good = np.isfinite(numbers)
        if not is_good.any():
            return
        if not is_good.all():
            which, lines, numbers = which[is_good], lines[is_good], numbers[is_good]
            times_ns = None if times_ns is None else times_ns[is_good]
            exact = None if exact is None else exact[is_good]
        series = np.array([self._samples.series(g, meaning, source) for g in gpus], np.int32)
        scaled = numbers if meaning.scale == 1 else numbers * meaning.scale
        values = scaled if exact is None else None
        self._samples.add_many(series[which], lines, times_ns, values, exact)

    def _exact(self, texts: pl.Series, numbers: np.ndarray, meaning: Meaning) -> np.ndarray:
        """Counts as unsigned integers: from their digits where nothing is scaled."""
        import numpy as np
        import polars as pl

        scaled = np.where(np.isfinite(numbers), numbers, 0.0) * meaning.scale
        if meaning.scale != 1.0:
            return np.round(scaled).astype(np.uint64)
        digits = texts.cast(pl.UInt64, strict=False)
        if digits.null_count() and texts.dtype == pl.String:
            leading_digits = texts.str.extract(r"^\s*(\d{1,20})(?:\s.*)?$")
            digits = digits.fill_null(leading_digits.cast(pl.UInt64, strict=False))
        rounded = pl.Series(np.round(scaled).astype(np.uint64))
        return digits.fill_null(rounded).to_numpy()

    def _numbers(
        self, texts: pl.Series, meaning: Meaning, lines: np.ndarray
    ) -> tuple[np.ndarray, Meaning]:
        """Cells as numbers, NaN where there is none, and the meaning in the unit of the cells."""
        import polars as pl

        if texts.dtype != pl.String:
            self._samples.missing_count += texts.null_count()
            return self._possible(texts.cast(pl.Float64), meaning, lines), meaning
        if self._layout is not None and self._layout.delimiter == ";":
            texts = texts.str.replace(r"^([^.,]*),([^.,]*)$", "$1.$2")  # a decimal comma
        plain = texts.cast(pl.Float64, strict=False)
        if plain.null_count():
            texts = texts.str.strip_chars()
            plain = texts.cast(pl.Float64, strict=False)
        if plain.null_count():
            parts = texts.str.extract_groups(
                r"^P?(?<n>[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?) *(?<u>[A-Za-z%/]{1,8})?$"
            ).struct.unnest()
            inner = parts["n"].cast(pl.Float64, strict=False)
            units = parts["u"].drop_nulls().unique().to_list() if inner.len() else []
            scales = {unit: fields.scale_of(meaning.counter, unit) for unit in units}
            if len(units) == 1 and (scale := scales[units[0]]) is not None:
                meaning = meaning._replace(scale=scale)
            elif units and fields.has_sizes(meaning.counter):
                # MiB beside GiB; of a unit that is none of the counter's no number is known.
                is_count = meaning.kind == "cumulative"
                sizes = {u: None if is_count or s is None else s / meaning.scale
                         for u, s in scales.items()}  # fmt: skip
                factor = parts["u"].replace_strict(sizes, default=None, return_dtype=pl.Float64)
                inner = pl.select(pl.when(parts["u"].is_null()).then(inner)
                                  .otherwise(inner * factor)).to_series()  # fmt: skip
            plain = plain.fill_null(inner)
        left = plain.is_null()
        if left.any():
            plain = self._words(texts, plain, left, lines)
        return self._possible(plain.cast(pl.Float64), meaning, lines), meaning

    def _possible(self, plain: pl.Series, meaning: Meaning, lines: np.ndarray) -> np.ndarray:
        """Numbers that can be, NaN for all others."""
        import numpy as np

        numbers = plain.fill_null(float("nan")).to_numpy().copy()
        blank = blanks(np.nan_to_num(numbers, nan=0.0))
        self._samples.missing_count += int(blank.sum())
        numbers[blank] = float("nan")
        if meaning.unit == "0..1":
            self._refuse(numbers, (numbers * meaning.scale > 1.5) | (numbers < 0), lines)
        if (most := MOST.get(meaning.counter)) is not None:
            self._refuse(numbers, numbers * meaning.scale > most, lines)
        if meaning.kind == "cumulative":
            self._refuse(numbers, (numbers < 0) | (numbers * meaning.scale >= 2.0**64), lines)
        return numbers

    def _words(
        self, texts: pl.Series, plain: pl.Series, left: pl.Series, lines: np.ndarray
    ) -> pl.Series:
        """Cells that are words (Active, 0x4, N/A): few different ones, so by value."""
        import polars as pl

        said: dict[str, float | None] = {}
        bad: list[str] = []
        for text in texts.filter(left).drop_nulls().unique().to_list()[:10_000]:
            number = _WORDS.get(text.lower())
            if number is None and re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", text):
                number = float(int(text, 16))
            said[text] = number
            if number is None and not _MISSING.fullmatch(text):
                self._bad_numbers += 1
                bad.append(text)
                self._sink.count(
                    "bad_number",
                    doc="A cell that should hold a number does not.",
                    place=int(lines[texts.index_of(text) or 0]),
                    shape=shape(text),
                )
        self._samples.missing_count += int(
            sum(1 for t in texts.filter(left) if said.get(t) is None)
        )
        if bad:
            self._damage(texts.is_in(bad).fill_null(False).to_numpy())
        words = texts.replace_strict(said, default=None, return_dtype=pl.Float64)
        return plain.fill_null(words)

    def _refuse(self, numbers: np.ndarray, wrong: np.ndarray, lines: np.ndarray) -> None:
        import numpy as np

        at = np.flatnonzero(wrong)
        if len(at):
            self._samples.impossible(len(at), int(lines[at[0]]))
            self._bad_numbers += len(at)
            self._damage(wrong)
            numbers[at] = float("nan")

    def _damage(self, wrong: np.ndarray) -> None:
        """Rows with a cell that cannot be; where many have one, it is the column that is odd."""
        if wrong.sum() <= MAX_DAMAGED_RATIO * len(wrong) + 1:
            self._damaged |= wrong

    def _long(
        self,
        frame: pl.DataFrame,
        which: np.ndarray,
        gpus: Sequence[Gpu],
        lines: np.ndarray,
        times_ns: np.ndarray | None,
        source: str | None,
    ) -> None:
        import numpy as np

        layout = self._layout
        assert layout is not None  # noqa: S101 - set by _block
        said = layout.metrics
        codes, names = _codes(_metrics(frame, layout))
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(names)))
        texts = frame[str(layout.roles["value"])]
        unknown = 0
        for code, text in enumerate(names):
            rows = order[ends[code - 1] if code else 0 : ends[code]]
            name = (text or "").strip()
            meaning = said.get(name) or said.get(name.partition(" [")[0])
            if meaning is None and (meaning := fields.of_column(name)) and _is_open(name, meaning):
                meaning = self._told(name)
                if meaning is None:
                    continue
            if meaning is None:
                unknown += len(rows) if name else 0
                continue
            part = texts[rows]
            self._damaged = np.zeros(len(rows), bool)
            column = self._read(part, meaning, lines[rows])
            moments = None if times_ns is None else times_ns[rows]
            self._put(column, which[rows], gpus, lines[rows], moments, source)
        if unknown:
            count_other_metrics(self._sink, unknown)

    def _moments(self, texts: pl.Series) -> tuple[np.ndarray, np.ndarray]:
        """The moment of each text, and whether it says one."""
        import numpy as np

        if len(texts) >= MIN_TEXTS:
            moments, known, is_local = times.parse_usual(texts)
            self._is_local |= not self._is_utc and bool(is_local.any())
        else:
            moments, known = np.zeros(len(texts), np.int64), np.zeros(len(texts), bool)
        if not known.all():
            moments, known = moments.copy(), known.copy()
            for at in np.flatnonzero(~known).tolist():
                moment = self._at(texts[at])
                moments[at], known[at] = moment or 0, moment is not None
        return moments, known

    def _at(self, text: str | None) -> int | None:
        """The moment of a text; each different one is read once."""
        if text is None:
            return None
        if text not in self._clock:
            if len(self._clock) > 1_000_000:
                self._clock.clear()
            self._clock[text] = self._moment(text)
        return self._clock[text]

    def _moment(self, text: str) -> int | None:
        time_ns = times.parse(text)
        if time_ns is not None:
            self._is_local |= isinstance(time_ns, times.Local) and not self._is_utc
            return time_ns
        time_ns = local_ns(text)
        if time_ns is not None:
            self._is_local |= not self._is_utc
            return time_ns
        return times.elapsed(text, self._since_unit) if self._is_elapsed else None

    def _counts_on(self, text: str) -> bool:
        """Whether a time is no moment, but counts from some beginning."""
        is_moment = times.parse(text) is not None or local_ns(text) is not None
        return not is_moment and times.elapsed(text, self._since_unit) is not None

    def _past_midnight(self, times_ns: np.ndarray) -> np.ndarray:
        """Times of days one after another: a clock that falls back by most of a day is past it."""
        import numpy as np

        before = np.concatenate(([self._last_ns], times_ns[:-1]))
        self._last_ns = int(times_ns[-1])
        days = self._days_count + np.cumsum(before - times_ns > times.DAY_NS // 2)
        self._days_count = int(days[-1])
        moved: np.ndarray = times_ns + days * times.DAY_NS
        return moved


def _metrics(frame: pl.DataFrame, layout: Layout[Meaning]) -> pl.Series:
    """Names of metrics, with the unit that stands in a column of its own: ``power [W]``."""
    import polars as pl

    names = frame[str(layout.roles["metric"])]
    if "unit" not in layout.roles:
        return names
    units = frame[str(layout.roles["unit"])]
    pair = pl.DataFrame({"name": names, "unit": units.str.strip_chars()})
    said = pl.col("unit").fill_null("") != ""
    named = pl.format("{} [{}]", pl.col("name").str.strip_chars(), "unit")
    return pair.select(pl.when(said).then(named).otherwise("name").alias("name")).to_series()


def _codes(column: pl.Series) -> tuple[np.ndarray, list[str | None]]:
    """The different texts of a column, and which of them each row holds."""
    which, texts = _coded(column)
    return which, texts.to_list()


def _coded(column: pl.Series) -> tuple[np.ndarray, pl.Series]:
    """The same, as a column."""
    import numpy as np
    import polars as pl
    import pyarrow.compute as pc

    encoded = pc.dictionary_encode(column.to_arrow())
    texts, indices = pl.Series(encoded.dictionary, dtype=pl.String), encoded.indices
    if indices.null_count:
        indices = pc.fill_null(indices, len(texts))
        texts = texts.extend_constant(None, 1)
    return indices.to_numpy().astype(np.int64), texts


def _ranked(numbers: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """The different numbers (below ``limit``) in their order, and which of them each is."""
    import numpy as np

    if limit > MAX_RANKED:
        return np.unique(numbers, return_inverse=True)
    is_there = np.zeros(limit, bool)
    is_there[numbers] = True
    return np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[numbers]


def _is_open(header: str, meaning: Meaning) -> bool:
    """Whether its numbers must say in which unit they are: nothing else does."""
    is_plain = meaning.unit in open_units.UNITS and meaning.scale == 1
    return is_plain and fields.lacks_unit(header)


def _gpu(values: tuple[str | None, ...]) -> Gpu:
    index, uuid, pci, model, node, pod = (v or None for v in values)
    number = re.fullmatch(r"(?:gpu|nvidia|cuda)?[ :_]?(\d{1,5})", index or "", re.I)
    return Gpu(
        node=stated_host(host_of(node or "")),
        uuid=uuid_of(uuid),
        pci=pci_address(pci) if pci else None,
        nvml_index=int(number[1]) if number else None,
        model=model[:200] if model else None,
        pod=pod[:200] if pod else None,
        labels=(index, uuid, pci),
    )
