"""CSV of GPU counters: ``nvidia-smi --query-gpu``, and tables that somebody made.

Wide tables have a row a GPU and moment; their columns are recognised by nvidia-smi's and DCGM's
names, or by plain words with a unit at the end (``temperature_C``). Long tables have a row a
number, with its metric's name in a column.

nvidia-smi writes local times without a zone: they are kept as they stand (``time_basis`` local)
and mean nothing beside other files until job.toml names the zone.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from tracekit.errors import InputError
from tracekit.ingest import files
from tracekit.ingest.base import IngestOptions, Recognition, Sink, SourceFile
from tracekit.ingest.gpu import fields
from tracekit.ingest.gpu.fields import Meaning
from tracekit.ingest.gpu.moments import local_ns
from tracekit.ingest.gpu.samples import Gpu, Samples, pci_address, uuid_of
from tracekit.ingest.lines import shape
from tracekit.ingest.net import times

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

NAME = "gpu_csv"
VERSION = 1
BLOCK_BYTES = 8 << 20
"""Text that is parsed at a time."""
MAX_COLUMNS = 1000
MAX_CELL = 4096

_TIME = ("timestamp", "time", "datetime", "date_time", "ts", "epoch", "epoch_s", "time_s", "date")
_INDEX = ("index", "gpu_index", "gpu", "gpu_id", "device_index", "nvml_index", "gpuid", "idx")
_UUID = ("uuid", "gpu_uuid", "device_uuid")
_PCI = ("pci.bus_id", "pci_bus_id", "gpu_bus_id", "pci", "bus_id", "gpu_pci_bus_id")
_MODEL = ("name", "gpu_name", "modelname", "model", "model_name")
_NODE = ("hostname", "host", "node", "node_name", "nodename")
_POD = ("exported_pod", "pod", "pod_name")
_METRIC = ("metric_name", "metric", "__name__", "field", "counter", "name")
_VALUE = ("value", "metric_value", "val")
_MISSING = re.compile(
    r"\[?(?:n/?a|not (?:supported|available|found|active)|unknown error|insufficient permissions|"
    r"requested functionality has been deprecated|gpu (?:is lost|requires reset)|)\]?|-+|null|none",
    re.I,
)
_WORDS = {"active": 1.0, "not active": 0.0, "yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}


class Layout(NamedTuple):
    """Which column is what."""

    header: tuple[str, ...]
    delimiter: str
    time: int | None
    nvml: int | None
    uuid: int | None
    pci: int | None
    model: int | None
    node: int | None
    pod: int | None
    metric: int | None
    value: int | None
    counters: tuple[tuple[int, Meaning], ...]
    """Columns of counters in a wide table."""


class TableIngestor:
    """Wide and long CSV."""

    name = NAME
    version = VERSION

    def sniff(self, head: bytes, name: str) -> Recognition | None:
        """Recognise a table by its first line."""
        found = layout_of(_first_line(head))
        if found is None:
            return None
        is_smi = any(m.original and m.original.startswith("nvidia-smi") for _, m in found.counters)
        kind = "nvidia_smi" if is_smi else "gpu_csv"
        what = "nvidia-smi --query-gpu" if is_smi else "a table of GPU counters"
        return Recognition(kind, f"{what}, {len(found.counters) or 1} counters", NAME)

    def read(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        """Stream the table into gpu_sample."""
        with source.open() as stream:
            _Reader(source, sink, stream).run()


def _first_line(head: bytes) -> str:
    line = head.lstrip(b"\xef\xbb\xbf\r\n \t").split(b"\n", 1)[0]
    return line[:65536].decode("utf-8", "replace").rstrip("\r")


def layout_of(line: str) -> Layout | None:
    """The layout that a header line declares; None where it is no table of GPU counters.

    A wide table needs a known counter besides its GPU or time; a long one a metric and a value.
    """
    delimiter = max(",;\t", key=line.count)
    if not line.count(delimiter):
        return None
    try:
        header = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
    except (csv.Error, StopIteration):
        return None
    if not 2 <= len(header) <= MAX_COLUMNS:
        return None
    names = [h.strip().lower() for h in header]
    bare = [re.sub(r"\s*\[.*", "", n) for n in names]

    def at(wanted: Sequence[str], taken: tuple[int | None, ...] = ()) -> int | None:
        return next(
            (bare.index(w) for w in wanted if w in bare and bare.index(w) not in taken), None
        )

    time, value = at(_TIME), at(_VALUE)
    metric = at(_METRIC) if value is not None else None
    keys = {
        "nvml": at(_INDEX),
        "uuid": at(_UUID),
        "pci": at(_PCI),
        "model": at(_MODEL, (metric,)),
        "node": at(_NODE),
        "pod": at(_POD),
    }
    counters: list[tuple[int, Meaning]] = []
    if metric is None:
        used = {time, *keys.values()}
        for i, name in enumerate(header):
            meaning = fields.of_column(name) if i not in used else None
            if meaning is not None and all(m.counter != meaning.counter for _, m in counters):
                counters.append((i, meaning))
    has_gpu = any(keys[k] is not None for k in ("nvml", "uuid", "pci"))
    is_wide = bool(counters) and has_gpu and (time is not None or len(counters) > 1)
    if not is_wide and not (metric is not None and has_gpu):
        return None
    return Layout(
        tuple(header), delimiter, time, **keys, metric=metric, value=value, counters=tuple(counters)
    )


class _Reader:
    def __init__(self, source: SourceFile, sink: Sink, stream: BinaryIO) -> None:
        self._source = source
        self._sink = sink
        self._stream = stream
        self._samples = Samples(sink, source)
        self._layout: Layout | None = None
        self._line = 0
        self._is_local = False
        self._clock: dict[str, int | None] = {}
        self._gpus: dict[tuple[str | None, ...], Gpu] = {}
        self._bad_rows = 0
        self._bad_numbers = 0
        self._bad_times = 0

    def run(self) -> None:
        for block, first_line in self._blocks():
            self._block(block, first_line)
        problem = files.stream_problem(self._stream)
        self._samples.finish("local" if self._is_local else "epoch")
        self._sink.fact(place_kind="line", is_truncated_end=problem is not None)
        if self._bad_times:
            self._sink.count(
                "bad_time", self._bad_times, doc="Rows whose time cannot be read: left out."
            )
        if self._is_local:
            self._sink.count(
                "local_time",
                severity="info",
                doc="Times without a zone. They mean nothing beside other files until job.toml "
                "says [[source]] path, timezone.",
            )
        if self._bad_rows or self._bad_numbers or problem is not None:
            what = f"it breaks off ({problem})" if problem else ""
            what = what or f"{self._bad_rows or self._bad_numbers} cells or rows could not be read"
            self._sink.fact(status="partial", reason=what)
        elif not self._samples.rows_count:
            self._sink.fact(status="empty", reason="it holds no numbers")

    def _blocks(self) -> Iterator[tuple[bytes, int]]:
        """Whole lines, about BLOCK_BYTES at a time, and the number of the first."""
        rest = b""
        while data := self._stream.read(BLOCK_BYTES):
            whole, newline, rest = (rest + data).rpartition(b"\n")
            if not newline:
                if len(rest) > 4 * BLOCK_BYTES:
                    raise InputError(f"{self._source.path}: a line of more than 32 MB")
                continue
            first = self._line + 1
            self._line += whole.count(b"\n") + 1
            yield whole + b"\n", first
        if rest:
            self._line += 1
            yield rest + b"\n", self._line

    def _block(self, block: bytes, first_line: int) -> None:
        if self._layout is None:
            head, _, block = block.lstrip(b"\xef\xbb\xbf\r\n \t").partition(b"\n")
            first_line += 1
            self._layout = layout_of(_first_line(head))
            if self._layout is None:
                raise InputError(f"{self._source.path}: its first line names no GPU counter")
        if block.strip():
            self._rows(block, first_line)

    def _rows(self, block: bytes, first_line: int) -> None:
        import numpy as np
        import polars as pl

        layout = self._layout
        assert layout is not None  # noqa: S101 - set by _block
        names = [str(i) for i in range(len(layout.header))]
        try:
            frame = pl.read_csv(
                block,
                has_header=False,
                new_columns=names,
                schema=dict.fromkeys(names, pl.String),
                separator=layout.delimiter,
                truncate_ragged_lines=True,
                encoding="utf8-lossy",
            )
        except pl.exceptions.PolarsError:
            self._bad_rows += 1
            self._sink.count(
                "bad_block", doc="Lines that are no table (unbalanced quotes).", place=first_line
            )
            return
        frame = frame.with_columns(pl.all().str.strip_chars())
        lines = np.arange(first_line, first_line + frame.height, dtype=np.int64)
        keep = np.ones(frame.height, bool)
        if layout.time is not None:
            column = frame[names[layout.time]]
            # nvidia-smi that was started again writes its header again.
            keep &= (column != layout.header[layout.time].strip()).fill_null(False).to_numpy()
            times_ns, known = self._times(column)
            bad = keep & ~known
            self._bad_times += int(bad.sum())
            keep &= known
        else:
            time_ns, _ = self._samples.file_time
            times_ns = np.full(frame.height, time_ns or 0, np.int64)
        rows = np.flatnonzero(keep)
        frame, lines, times_ns = frame[rows], lines[rows], times_ns[rows]
        if not frame.height:
            return
        keys = [layout.nvml, layout.uuid, layout.pci, layout.model, layout.node, layout.pod]
        source = "content" if layout.time is not None else self._samples.file_time[1]
        if layout.metric is not None and layout.value is not None:
            self._long(frame, keys, lines, times_ns, source)
            return
        which, gpus = self._who(frame, keys)
        for column_at, meaning in layout.counters:
            texts = frame[names[column_at]]
            self._column(texts, meaning, which, gpus, lines, times_ns, source)

    def _who(self, frame: pl.DataFrame, keys: Sequence[int | None]) -> tuple[np.ndarray, list[Gpu]]:
        """The GPU of each row, as numbers of a list."""
        import polars as pl

        columns = [str(k) for k in keys if k is not None]
        ids = frame.select(pl.struct(columns).rank("dense").alias("id"))["id"].to_numpy() - 1
        firsts = frame.with_columns(id=pl.Series(ids)).unique("id", keep="first").sort("id")
        found = []
        for row in firsts.iter_rows(named=True):
            values = tuple(row[str(k)] if k is not None else None for k in keys)
            if values not in self._gpus:
                self._gpus[values] = _gpu(values)
            found.append(self._gpus[values])
        return ids, found

    def _column(
        self,
        texts: pl.Series,
        meaning: Meaning,
        which: np.ndarray,
        gpus: Sequence[Gpu],
        lines: np.ndarray,
        times_ns: np.ndarray,
        source: str | None,
    ) -> None:
        """One counter's column into samples."""
        import numpy as np

        numbers, meaning = self._numbers(texts, meaning, lines)
        exact = None
        if meaning.kind == "cumulative":
            exact = self._exact(texts, numbers, meaning)
        good = np.flatnonzero(np.isfinite(numbers))
        if not len(good):
            return
        series = np.array([self._samples.series(g, meaning, source) for g in gpus], np.int32)
        self._samples.add_many(
            series[which[good]],
            lines[good],
            times_ns[good],
            None if exact is not None else numbers[good] * meaning.scale,
            exact[good] if exact is not None else None,
        )

    def _exact(self, texts: pl.Series, numbers: np.ndarray, meaning: Meaning) -> np.ndarray:
        """Counts as unsigned integers: from their digits where nothing is scaled."""
        import numpy as np
        import polars as pl

        scaled = np.where(np.isfinite(numbers), numbers, 0.0) * meaning.scale
        if meaning.scale != 1.0:
            return np.round(scaled).astype(np.uint64)
        digits = texts.str.extract(r"^(\d{1,20})(?: .*)?$").cast(pl.UInt64, strict=False)
        rounded = pl.Series(np.round(scaled).astype(np.uint64))
        return digits.fill_null(rounded).to_numpy()

    def _numbers(
        self, texts: pl.Series, meaning: Meaning, lines: np.ndarray
    ) -> tuple[np.ndarray, Meaning]:
        """Cells as numbers, NaN where there is none, and the meaning in the unit of the cells."""
        import numpy as np
        import polars as pl

        from tracekit.ingest.prometheus import blanks

        plain = texts.cast(pl.Float64, strict=False)
        if plain.null_count():
            parts = texts.str.extract_groups(
                r"^P?(?<n>[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?) *(?<u>[A-Za-z%/]{1,8})?$"
            ).struct.unnest()
            inner = parts["n"].cast(pl.Float64, strict=False)
            units = parts["u"].drop_nulls().unique().to_list() if inner.len() else []
            if len(units) == 1:
                scale = fields.scale_of(meaning.counter, units[0])
                if scale is not None:
                    meaning = meaning._replace(scale=scale)
            plain = plain.fill_null(inner)
        left = plain.is_null()
        if left.any():
            plain = self._words(texts, plain, left, lines)
        numbers = plain.cast(pl.Float64).fill_null(float("nan")).to_numpy().copy()
        blank = blanks(np.nan_to_num(numbers, nan=0.0))
        self._samples.blanks_count += int(blank.sum())
        numbers[blank] = float("nan")
        if meaning.unit == "0..1":
            self._refuse(numbers, (numbers * meaning.scale > 1.5) | (numbers < 0), lines)
        if meaning.kind == "cumulative":
            self._refuse(numbers, (numbers < 0) | (numbers * meaning.scale >= 2.0**64), lines)
        return numbers, meaning

    def _words(
        self, texts: pl.Series, plain: pl.Series, left: pl.Series, lines: np.ndarray
    ) -> pl.Series:
        """Cells that are words (Active, 0x4, N/A): few different ones, so by value."""
        import polars as pl

        said: dict[str, float | None] = {}
        for text in texts.filter(left).drop_nulls().unique().to_list()[:10_000]:
            number = _WORDS.get(text.lower())
            if number is None and re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", text):
                number = float(int(text, 16))
            said[text] = number
            if number is None and not _MISSING.fullmatch(text):
                self._bad_numbers += 1
                self._sink.count(
                    "bad_number",
                    doc="A cell that should hold a number does not.",
                    place=int(lines[texts.index_of(text) or 0]),
                    shape=shape(text),
                )
        self._samples.blanks_count += int(sum(1 for t in texts.filter(left) if said.get(t) is None))
        words = texts.replace_strict(said, default=None, return_dtype=pl.Float64)
        return plain.fill_null(words)

    def _refuse(self, numbers: np.ndarray, wrong: np.ndarray, lines: np.ndarray) -> None:
        import numpy as np

        at = np.flatnonzero(wrong)
        if len(at):
            self._sink.count(
                "impossible_number",
                len(at),
                doc="A share above 1, or a count below 0: left out.",
                place=int(lines[at[0]]),
            )
            numbers[at] = float("nan")

    def _long(
        self,
        frame: pl.DataFrame,
        keys: Sequence[int | None],
        lines: np.ndarray,
        times_ns: np.ndarray,
        source: str | None,
    ) -> None:
        import numpy as np

        layout = self._layout
        assert layout is not None  # noqa: S101 - set by _block
        metric = frame[str(layout.metric)]
        unknown = 0
        for name in metric.drop_nulls().unique().sort().to_list():
            rows = np.flatnonzero((metric == name).fill_null(False).to_numpy())
            meaning = fields.of_column(name)
            if meaning is None:
                unknown += len(rows)
                continue
            part = frame[rows]
            which, gpus = self._who(part, keys)
            self._column(
                part[str(layout.value)], meaning, which, gpus, lines[rows], times_ns[rows], source
            )
        if unknown:
            self._sink.count(
                "other_metric",
                unknown,
                severity="info",
                doc="Samples of metrics that are no counter of a GPU, NIC or interface: not kept.",
            )

    def _times(self, column: pl.Series) -> tuple[np.ndarray, np.ndarray]:
        """Nanoseconds of each row, and where they are known; each different text is read once."""
        import numpy as np
        import polars as pl

        for text in column.drop_nulls().unique().to_list():
            if text not in self._clock:
                if len(self._clock) > 1_000_000:
                    self._clock.clear()
                self._clock[text] = self._moment(text)
        texts = column.to_list()
        found = [self._clock.get(t) if t is not None else None for t in texts]
        series = pl.Series(found, dtype=pl.Int64)
        return series.fill_null(0).to_numpy(), np.asarray(series.is_not_null().to_numpy())

    def _moment(self, text: str) -> int | None:
        found = times.parse(text)
        if found is not None:
            return found
        found = local_ns(text)
        if found is not None:
            self._is_local = True
        return found


def _gpu(values: tuple[str | None, ...]) -> Gpu:
    index, uuid, pci, model, node, pod = (v or None for v in values)
    number = re.fullmatch(r"(?:gpu|nvidia|cuda)?[ :_]?(\d{1,5})", index or "", re.I)
    return Gpu(
        node=node[:200] if node else None,
        uuid=uuid_of(uuid),
        pci=pci_address(pci) if pci else None,
        nvml_index=int(number[1]) if number else None,
        model=model[:200] if model else None,
        pod=pod[:200] if pod else None,
    )
