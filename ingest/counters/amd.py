"""What AMD's tools print of GPUs: rocm-smi (CSV, JSON, its table) and amd-smi (JSON, text, table).

Neither states a time: one reading has the file's, and lines that are nothing but a time stamp what
follows them. Of a GPU's several dies, clocks of the first are read. A GPU is known by its number in
the tool's own order; rocm-smi's ``Unique ID`` and amd-smi's UUID and PCI address are kept.

amd-smi in CSV states a time with ``--watch`` and is read by ``gpu_csv``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import fields, times
from tracekit.ingest.counters.documents import documents, numbers_count
from tracekit.ingest.counters.fields import gpu_meaning
from tracekit.ingest.counters.gpu_samples import Gpu, GpuSamples
from tracekit.ingest.counters.names import node_of_file, pci_address
from tracekit.ingest.counters.net_samples import decimal, is_missing
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.status import count_documented
from tracekit.ingest.counters.table import cells_of
from tracekit.ingest.lines import lines, shape
from tracekit.wording import plural

NAME = "amd"

_ROCM_JSON = re.compile(rb'\A\s*\{\s*"(?:card\d+|system)"\s*:\s*\{')
_ROCM_CSV = re.compile(
    rb"^(?:[Tt]ime(?:stamp)?,)?device,[^\r\n]*"
    rb"(?:\(Sensor |GPU use \(%\)|Package Power|VRAM|clock speed)",
    re.M,
)
_HEADER = re.compile(r"(?:[Tt]ime(?:stamp)?,)?device,")
_CARD_OF_CSV = re.compile(r"(?:[^,]{1,40},)?(?:card|gpu)?[ _]?\d{1,3},", re.I)
_ROCM_TABLE = re.compile(rb"^=+ (?:ROCm System Management Interface|ROCm SMI) ", re.M)
_SMI_JSON = re.compile(
    rb'\A\s*(?:\{\s*"gpu_data"\s*:\s*)?\[\s*\{\s*"gpu"\s*:\s*\d+\s*,\s*"'
    rb"(?:usage|power|clock|temperature|power_usage|bdf|pcie|ecc|mem_usage|hotspot_temperature)\""
)
_SMI_TEXT = re.compile(rb"^GPU: \d+[ \t]*\r?\n[ \t]+(?:USAGE|POWER|CLOCK|TEMPERATURE|BDF):", re.M)
_SMI_TABLE = re.compile(rb"^GPU  +(?:XCP  +)?POWER\b[^\r\n]*\bGFX", re.M)

_NAMES: dict[str, tuple[str, str | None]] = {
    # amd-smi, by the path of its names
    "usage.gfx_activity": ("gpu_utilisation", "%"),
    "usage.umc_activity": ("memory_copy_utilisation", "%"),
    "power.socket_power": ("power", "W"),
    "power.current_socket_power": ("power", "W"),
    "clock.gfx_0.clk": ("sm_clock", "MHz"),
    "clock.gfx_0.max_clk": ("sm_clock_max", "MHz"),
    "clock.mem_0.clk": ("memory_clock", "MHz"),
    "temperature.hotspot": ("gpu_temperature", "C"),
    "temperature.mem": ("memory_temperature", "C"),
    "pcie.width": ("pcie_width", None),
    "pcie.replay_count": ("pcie_replays", None),
    "ecc.total_correctable_count": ("ecc_sbe_volatile", None),
    "ecc.total_uncorrectable_count": ("ecc_dbe_volatile", None),
    "fan.usage": ("fan_speed", "%"),
    "energy.total_energy_consumption": ("energy", "J"),
    "mem_usage.total_vram": ("memory_total", "MB"),
    "mem_usage.used_vram": ("memory_used", "MB"),
    "mem_usage.free_vram": ("memory_free", "MB"),
    # amd-smi monitor
    "power_usage": ("power", "W"),
    "hotspot_temperature": ("gpu_temperature", "C"),
    "memory_temperature": ("memory_temperature", "C"),
    "gfx_clk": ("sm_clock", "MHz"),
    "gfx_clock": ("sm_clock", "MHz"),
    "mem_clock": ("memory_clock", "MHz"),
    "gfx": ("gpu_utilisation", "%"),
    "mem": ("memory_copy_utilisation", "%"),
    "vram_used": ("memory_used", "MB"),
    "vram_total": ("memory_total", "MB"),
    "vram_free": ("memory_free", "MB"),
    # rocm-smi
    "temperature (sensor junction) (c)": ("gpu_temperature", "C"),
    "temperature (sensor memory) (c)": ("memory_temperature", "C"),
    "average graphics package power (w)": ("power", "W"),
    "current socket graphics package power (w)": ("power", "W"),
    "gpu use (%)": ("gpu_utilisation", "%"),
    "gpu memory read/write activity (%)": ("memory_copy_utilisation", "%"),
    "gpu memory allocated (vram%)": ("memory_used_ratio", "%"),
    "gpu memory use (%)": ("memory_used_ratio", "%"),
    "vram total memory (b)": ("memory_total", "B"),
    "vram total used memory (b)": ("memory_used", "B"),
    "sclk clock speed:": ("sm_clock", "MHz"),
    "mclk clock speed:": ("memory_clock", "MHz"),
    "pcie replay count": ("pcie_replays", None),
    "max graphics package power (w)": ("power_limit", "W"),
    "fan speed (%)": ("fan_speed", "%"),
}
_TABLE_NAMES = {
    "power": "power", "gpu_t": "gpu_temperature", "mem_t": "memory_temperature",
    "gfx_clk": "sm_clock", "gfx%": "gpu_utilisation", "mem%": "memory_copy_utilisation",
    "mem_clock": "memory_clock",
}  # fmt: skip
"""Columns of ``amd-smi monitor``."""
_RATES = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4, "32": 5, "32.0": 5,
          "64": 6, "64.0": 6}  # fmt: skip
"""PCIe's generation by GT/s of a lane."""
_MEASURED = re.compile(
    r"\(?\s*+(-?\d[\d,]*+(?:\.\d++)?)\s*+(%|°?C|W|MHz|Mhz|MB|GB|B|J|GT/s)?\s*+\)?"
)
_CARD = re.compile(r"(?:card|gpu)?[ _]?(\d{1,3})", re.I)
_ROW = re.compile(
    r"(\d{1,3})\s.{0,60}?([\d.]{1,8})°C\s.{0,40}?([\d.]{1,8})W\s.{0,60}?(\d{1,6})Mhz\s{1,20}"
    r"(\d{1,6})Mhz\s{1,20}(?:([\d.]{1,8})%\s{1,20})?\S{1,20}\s{1,20}"
    r"(?:([\d.]{1,8})W|\S{1,20})\s{1,20}(\d{1,3})%\s{1,20}(\d{1,3})%\s*"
)
"""A row of rocm-smi's own table: temperature, power, two clocks, fan, limit, VRAM, use."""
_ROW_COUNTERS = (
    ("gpu_temperature", "C"), ("power", "W"), ("sm_clock", "MHz"), ("memory_clock", "MHz"),
    ("fan_speed", "%"), ("power_limit", "W"), ("memory_used_ratio", "%"), ("gpu_utilisation", "%"),
)  # fmt: skip
_SIZES = {"C": "C", "°C": "C", "Mhz": "MHz"}
MAX_DEPTH = 8


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise any of the outputs by how it begins, or by its heading."""
    plain = head.removeprefix(b"\xef\xbb\xbf")
    if _ROCM_JSON.match(plain) and re.search(rb'"(?:GPU |VRAM|Temperature|\w+ Graphics)', plain):
        return Recognition(NAME, "rocm-smi in JSON", NAME)
    if _SMI_JSON.match(plain):
        return Recognition(NAME, "amd-smi in JSON", NAME)
    for pattern, what in (
        (_ROCM_CSV, "rocm-smi in CSV"), (_ROCM_TABLE, "rocm-smi"), (_SMI_TEXT, "amd-smi"),
        (_SMI_TABLE, "amd-smi monitor"),
    ):  # fmt: skip
        if pattern.search(plain[:65536]):
            return Recognition(NAME, what, NAME)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the output into gpu_sample and device."""
    with source.open() as stream:
        is_json = stream.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")
    with source.open() as stream:
        reader = _Reader(source, sink)
        if is_json:
            for document in documents(stream):
                if document.problem:
                    reader.bad(document.line, document.problem, None)
                else:
                    reader.stamp_ns = document.stamp_ns or reader.stamp_ns
                    reader.document(document.line, document.value)
        else:
            for number, line in lines(stream):
                reader.line(number, line)
        reader.finish(streams.stream_problem(stream))


class _Reader:
    def __init__(self, source: SourceFile, sink: Sink) -> None:
        self._sink = sink
        self._samples = GpuSamples(sink, source)
        self._node = node_of_file(source)
        self.stamp_ns: int | None = None
        self._readings: list[tuple[int, int | None, int, dict[str, str]]] = []
        """Line, time, GPU and what was printed of it, under the names of ``_NAMES``."""
        self._header: list[str] = []
        self._columns: list[str] = []
        self._path: list[tuple[int, str]] = []
        self._others = self._bad = 0

    def bad(self, place: int, problem: str, text: str | None) -> None:
        """What cannot be read."""
        self._bad += 1
        self._sink.count(
            "bad_record", doc=f"A record that could not be read ({problem}).", place=place,
            shape=None if text is None else shape(text),
        )  # fmt: skip

    def document(self, place: int, value: Any) -> None:
        """An answer in JSON: objects by their card's name, or a list of objects."""
        if isinstance(value, dict) and isinstance(value.get("gpu_data"), list):
            value = value["gpu_data"]
        listed = (
            [(str(g.get("gpu")), g) for g in value if isinstance(g, dict)]
            if isinstance(value, list)
            else list(value.items())
            if isinstance(value, dict)
            else []
        )
        for name, said in listed:
            card = _CARD.fullmatch(name)
            if card is None or not isinstance(said, dict):
                self._others += numbers_count(said)
                continue
            rest = {k: v for k, v in said.items() if k != "gpu"}
            self._take(place, int(card[1]), dict(_flat("", rest, MAX_DEPTH)))

    def line(self, number: int, line: str) -> None:
        """A line of CSV, of a table or of amd-smi's indented text."""
        text = line.rstrip()
        moment = times.of_line(text)
        if moment is not None:
            self.stamp_ns = moment
        elif _HEADER.match(text):
            self._header = cells_of(text, ",")
        elif self._header and _CARD_OF_CSV.match(text):
            self._row_of_csv(number, text)
        elif _SMI_TABLE.match(text.encode()):
            self._columns = text.lower().split()
        elif self._columns and text.strip()[:1].isdigit():
            self._monitor(number, text)
        elif text.startswith("GPU: "):
            self._path = []
            card = _CARD.fullmatch(text[5:].strip())
            if card is not None:
                self._take(number, int(card[1]), {})
        elif self._readings and text[:1] == " " and ":" in text:
            self._indented(text)
        elif row := _ROW.fullmatch(text):
            said = {f"={c}": f"{v} {u}" for (c, u), v in
                    zip(_ROW_COUNTERS, row.groups()[1:], strict=True) if v is not None}  # fmt: skip
            self._take(number, int(row[1]), said)

    def _row_of_csv(self, number: int, text: str) -> None:
        """A row of ``rocm-smi --csv``, behind a time where a loop of one's own put it there."""
        cells = cells_of(text, ",")
        at = self._header.index("device")
        card = _CARD.fullmatch(cells[at].strip()) if len(cells) == len(self._header) else None
        moment = times.parse(cells[0]) if at else None
        if card is None or (at and moment is None):
            self.bad(number, "a row that is not as its header says", text)
            return
        if moment is not None:
            self.stamp_ns = moment
        said = dict(zip(self._header[at + 1 :], cells[at + 1 :], strict=True))
        self._take(number, int(card[1]), said)

    def _indented(self, text: str) -> None:
        indent = len(text) - len(text.lstrip())
        name, _, value = text.strip().partition(":")
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()
        whole = ".".join([*(n for _, n in self._path), name.strip().lower()])
        if value.strip():
            self._readings[-1][3][whole] = value.strip()
        else:
            self._path.append((indent, name.strip().lower()))

    def _monitor(self, number: int, text: str) -> None:
        """A row of ``amd-smi monitor``: cells with their unit behind a blank."""
        cells = re.findall(r"N/A|[\d.]+/[\d.]+ GB|-?[\d.]+(?: (?:°C|W|MHz|%|GB|MB|MB/s))?", text)
        if len(cells) != len(self._columns) or not cells[0].isdecimal():
            self.bad(number, "a row that is not as its header says", text)
            return
        said = {}
        for name, cell in zip(self._columns[1:], cells[1:], strict=True):
            said[f"={_TABLE_NAMES[name]}" if name in _TABLE_NAMES else name] = cell
        self._take(number, int(cells[0]), said)

    def _take(self, place: int, gpu: int, said: dict[str, str]) -> None:
        self._readings.append((place, self.stamp_ns, gpu, said))

    def finish(self, problem: str | None) -> None:
        """Write what was read, and say what it is worth."""
        counts: dict[int, int] = {}
        for _, stamp, gpu, _ in self._readings:
            counts[gpu] = counts.get(gpu, 0) + (stamp is None)
        is_once = max(counts.values(), default=0) <= 1
        basis = "epoch"
        for place, stamp, gpu, said in self._readings:
            time_ns, source = (stamp, "content") if stamp is not None else (None, None)
            if stamp is None and is_once:
                time_ns, source = self._samples.file_time
            basis = times.basis_of(time_ns) if time_ns is not None else basis
            self._put(place, gpu, said, time_ns, source)
        if not is_once:
            self._sink.count(
                "no_time", doc="Readings of one GPU, one after the other, that state no time: "
                "their order is known, and nothing is said of when.",
            )  # fmt: skip
        if self._others:
            count_other_metrics(self._sink, self._others)
        count_documented(self._sink, "The output of rocm-smi and amd-smi")
        self._samples.finish(basis)
        self._sink.fact(place_kind="line", is_truncated_end=problem is not None)
        if problem or self._bad:
            what = f"it breaks off ({problem})" if problem else ""
            self._sink.fact(
                status="partial",
                reason=what or f"{plural(self._bad, 'record')} could not be read",
            )
        elif not self._samples.rows_count:
            self._sink.fact(status="empty", reason="it holds no numbers that are read")

    def _put(
        self, place: int, number: int, said: Mapping[str, str], time_ns: int | None,
        source: str | None,
    ) -> None:  # fmt: skip
        lower = {name.strip().lower(): text for name, text in said.items()}
        named = lower.get("uuid") or lower.get("unique id")
        pci = lower.get("bdf") or lower.get("pci bus")
        gpu = Gpu(node=self._node, nvml_index=number,
                  uuid=named if named and not is_missing(named) else None,
                  pci=pci_address(pci) if pci else None)  # fmt: skip
        self._samples.described(gpu)
        for name, text in lower.items():
            if name in ("uuid", "unique id", "bdf", "pci bus"):
                continue
            for counter, unit, printed in _meant(name, text):
                if counter is None:
                    self._others += decimal(printed) is not None
                    continue
                scale = fields.scale_of(counter, unit) if unit else 1.0
                meaning = gpu_meaning(counter, scale or 1.0, f"amd {name.lstrip('=')}"[:80])
                series = self._samples.series(gpu, meaning, source)
                value = decimal(printed)
                counted = int(value) if value is not None and value.is_integer() else None
                self._samples.add(series, meaning, place, time_ns, value, counted)


def _meant(name: str, text: str) -> Iterator[tuple[str | None, str | None, str]]:
    """Counter, unit and number of what was printed; no counter where it has none here.

    ``=`` and a counter is the name of a table's cell, whose unit stands behind the number.
    """
    if name == "pcie.speed":
        generation = _RATES.get(text.removesuffix("GT/s").strip())
        if generation is not None:
            yield "pcie_generation", None, str(generation)
        return
    if name == "power.throttle_status" and text in ("THROTTLED", "UNTHROTTLED"):
        return  # what holds it down is not said
    if name == "vram_usage" and "/" in text:
        used, _, rest = text.partition("/")
        yield "memory_used", "GB", used
        yield "memory_total", "GB", rest.split()[0]
        return
    found = _MEASURED.fullmatch(text.strip())
    if found is None:
        return
    known = (name[1:], None) if name[:1] == "=" else _NAMES.get(name)
    if known is None:
        yield None, None, found[1]
        return
    yield known[0], (_SIZES.get(found[2], found[2]) if found[2] else known[1]), found[1]


def _flat(path: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    """Numbers and words below a name; a number with its unit is one text."""
    if not depth or isinstance(value, bool) or value is None:
        return
    if isinstance(value, dict):
        if "value" in value:
            yield path, f"{value['value']} {value.get('unit') or ''}".strip()
            return
        for key, inner in value.items():
            yield from _flat(f"{path}.{key}" if path else str(key), inner, depth - 1)
    elif isinstance(value, list):
        for at, inner in enumerate(value[:64]):
            yield from _flat(f"{path}.{at}", inner, depth - 1)
    else:
        yield path, str(value)
