"""Texts of nvidia-smi and dcgmi: dmon of both, ``nvlink``, ``topo -m``, and lists of processes.

Several outputs may follow each other in one file, as collectors write them; ``smi_printed`` reads
those that are printed for people. ``dmon`` states no time unless ``-o DT`` asked for it (a local
one): a file that holds nothing else counts its rows' rounds (``time_basis`` ticks), and job.toml
may say when it began and how often it looked. A capture that states its time with a zone says
thereby which zone its local times are of.

Seen: nvidia-smi 470 to 590, DCGM 1.7 to 4. A value that dcgmi cuts (``...``) is no number.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import fields, times, topology
from tracekit.ingest.counters.exposition import value_of
from tracekit.ingest.counters.fields import gpu_meaning
from tracekit.ingest.counters.gpu_samples import Gpu, GpuSamples
from tracekit.ingest.counters.names import node_of_path, pci_address, uuid_of
from tracekit.ingest.counters.processes import Processes
from tracekit.ingest.counters.samples import count_local_time, count_other_metrics
from tracekit.ingest.counters.smi_printed import Output, QueryLog, QueryRows, Table
from tracekit.ingest.counters.times import local_ns, says_utc
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import lines, plain, shape
from tracekit.wording import plural

NAME = "gpu_text"

_DCGMI = re.compile(r"#\s?Entity(?:Id)?\s+\S")
_SMI_DMON = re.compile(r"#\s?(?:Date\s+Time\s+)?gpu\s+(?!pid\b)\S")
_WITH_COMMAS = re.compile(r"#\s?(?:Date,\s*Time,\s*)?gpu,\s*[a-z]")
"""dmon and pmon print so with ``--format csv``."""
_OF_COMMAS = re.compile(r" {0,8}[#\d][^,]{0,20},")
"""A real row begins with a blank."""
_PMON = re.compile(r"#\s?(?:Date\s+Time\s+)?gpu\s+pid\s+type\b")
"""pmon, which lists processes, begins its header with a pid."""
_APPS = re.compile(r"(?=.*\bpid\b)(?=.*\bgpu_(?:uuid|bus_id)\b)[\w., \[\]%]{8,400}")
"""Header of ``--query-compute-apps``, in any order of its fields; accounted ones are over."""
_GPU = re.compile(r"GPU (\d{1,4}): (.{1,120}?) \(UUID: ((?:GPU|MIG)-[0-9A-Za-z/-]+)\)")
_LINK = re.compile(r"\s+Link (\d{1,3}): (?:([\d.]+) GB/s|<?inactive>?)", re.I)
_LINK_COUNT = re.compile(
    r"\s+Link (\d{1,3}): ([A-Z][\w .-]{2,50}?): (\d{1,19}|N/A|[\d.]+e[-+]?\d+)( KiB)?\s*", re.I
)
_LINK_COUNTERS = {
    "replay errors": ("nvlink_replays", 1), "recovery errors": ("nvlink_recoveries", 1),
    "crc errors": ("nvlink_crc_flit_errors", 1), "crc flit errors": ("nvlink_crc_flit_errors", 1),
    "crc data errors": ("nvlink_crc_data_errors", 1), "rx errors": ("nvlink_link_errors", 1),
    "link recovery successful events": ("nvlink_recoveries", 1),
    "link recovery failed events": ("nvlink_link_failures", 1),
    "data tx": ("nvlink_tx_bytes", 1024), "data rx": ("nvlink_rx_bytes", 1024),
    "tx bytes": ("nvlink_tx_bytes", 1), "rx bytes": ("nvlink_rx_bytes", 1),
}  # fmt: skip
"""What ``nvlink -e`` and ``-gt d`` count of a link: the sum over a GPU's links is its counter."""
_DCGMI_LINKS = re.compile(r"\|\s*+GPU ID:\s*+(\d{1,4})\s*+\|\s*+NVLINK Error Counts\s*+\|?\s*+")
_DCGMI_COUNT = re.compile(
    r"\|\s*Link (\d{1,3})\s*\|\s*([A-Z][\w ]{2,40}?)\s*\|\s*(\d{1,19}|N/A|Not Supported)\s*\|\s*"
)
"""``dcgmi nvlink -e``: the heading of a GPU, and a number of one of its links."""
SAME_READING_NS = 100_000_000
"""Rows about one GPU that are nearer to each other are of one reading: it takes milliseconds."""
ZONE_STEP_NS = 900 * 10**9
"""Zones differ from UTC by quarters of an hour."""
CAPTURE_NS = 300 * 10**9
"""How far the first local time of a capture may be from the time that its head states."""
MAX_MATRIX_LINES = 2000
"""Longest matrix with its legend."""
_COLLECTED = re.compile(r"(?:collected_at|timestamp|date)\s*[:=]\s*(.{9,40})", re.I)
_ENTITY = re.compile(
    r"(GPU-I|GPU-CI|GPU|Switch|SW|CPU|CPU Core)\s+(\d{1,5})(?:\s+LINK\s+(\d{1,3}))?", re.I
)
_BLANK_CELLS = frozenset({"", "-", "n/a", "[n/a]", "na"})


def _without_commas(line: str) -> str:
    """A row of dmon's CSV as dmon prints it for people; as it is where a cell is empty."""
    cells = [cell.strip() for cell in line.split(",")]
    return " ".join(cells) if all(cells) else line


class _Column(NamedTuple):
    """A column of a dmon table."""

    start: int
    end: int
    name: str
    meaning: Meaning | None


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise any of the outputs among the first lines."""
    for raw in head[:65536].split(b"\n"):
        line = plain(raw[:2000]).rstrip()
        line = _without_commas(line) if _WITH_COMMAS.match(line) else line
        if _DCGMI.match(line):
            return Recognition("dcgm", "dcgmi dmon", NAME)
        if _SMI_DMON.match(line):
            return Recognition("nvidia_smi", "nvidia-smi dmon", NAME)
        if _PMON.match(line):
            return Recognition("nvidia_smi", "nvidia-smi pmon", NAME)
        if _is_apps(line):
            return Recognition("nvidia_smi", "nvidia-smi --query-compute-apps", NAME)
        if _GPU.match(line):
            return Recognition("nvidia_smi", "nvidia-smi, a list of GPUs or links", NAME)
        if _DCGMI_LINKS.fullmatch(line):
            return Recognition("dcgm", "dcgmi nvlink -e", NAME)
        if topology.is_matrix_header(line):
            return Recognition("nvidia_smi", "nvidia-smi topo -m", NAME)
        if QueryLog.begins(line):
            return Recognition("nvidia_smi", "nvidia-smi -q", NAME)
        if Table.begins(line):
            return Recognition("nvidia_smi", "nvidia-smi", NAME)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the lines into gpu_sample, gpu_process, host_link and device."""
    with source.open() as stream:
        reader = _Reader(source, sink)
        for number, line in lines(stream):
            reader.line(number, line)
        reader.finish(streams.stream_problem(stream))


class _Reader:
    def __init__(self, source: SourceFile, sink: Sink) -> None:
        self._sink = sink
        self._samples = GpuSamples(sink, source)
        self._columns: list[_Column] = []
        self._is_dcgmi = False
        self._is_unit_line = False
        self._has_time = False
        self._has_commas = False
        """Whether dmon prints its rows as CSV."""
        self._round = -1
        self._seen: set[tuple[str, int, int | None]] = set()
        self._stated_ns: int | None = None
        self._gpu: Gpu | None = None
        self._origin = ""
        """What prints its links."""
        self._links: dict[bool, int] = {}
        self._links_place = 0
        self._link_counts: dict[str, int] = {}
        self._basis: str | None = None
        self._local = "epoch" if says_utc(source.name) else "local"
        self._processes = Processes(sink, self._samples)
        self._is_pmon = False
        self._apps: list[str] | None = None
        self._app_moments: dict[Gpu, int] = {}
        """When each GPU was listed first in the reading that runs."""
        self._newest_gpu = -1
        self._newest_moment: int | None = None
        self._matrix: list[str] = []
        self._matrix_place = 0
        self._node = node_of_path(source.path)
        self._output: Output | None = None
        """What is printed for people, while its lines come."""
        self._printed_ns: int | None = None
        """The local time on a line of its own, as it stands above a table."""
        self._zone_ns: int | None = None
        """What local times are ahead of UTC, where the capture says both."""
        self._bad = 0
        self._other = 0
        self._tables = 0

    def line(self, number: int, line: str) -> None:
        """One line, whatever it belongs to."""
        self._has_commas |= _WITH_COMMAS.match(line) is not None
        if self._has_commas and _OF_COMMAS.match(line):
            line = _without_commas(line)
        if self._output is not None:
            if self._output.line(number, line):
                return
            self._output.end()
            self._output = None
        if self._begins_output(line):
            return
        if _DCGMI.match(line):
            self._header(line, is_dcgmi=True)
        elif _SMI_DMON.match(line) or _PMON.match(line):
            self._header(line, is_dcgmi=False)
        elif _is_apps(line):
            self._end_list()
            self._end_matrix()
            self._columns, self._tables = [], self._tables + 1
            self._processes.end_output()
            self._apps = _cells_of(line)
        elif self._apps is not None and line.strip() and not line.startswith("#"):
            self._app(number, line)
        elif self._is_unit_line:
            self._units(line)
        elif gpu := _GPU.fullmatch(line.strip()):
            self._begin_list(
                number,
                Gpu(uuid=uuid_of(gpu[3]), nvml_index=int(gpu[1]), model=gpu[2]),
                "nvidia-smi nvlink",
            )
        elif gpu := _DCGMI_LINKS.fullmatch(line):
            self._begin_list(number, Gpu(nvml_index=int(gpu[1])), "dcgmi nvlink -e")
        elif self._gpu is not None and (link := _LINK.match(line)):
            is_up = link[2] is not None
            self._links[is_up] = self._links.get(is_up, 0) + 1
            self._other += is_up  # its speed: links are counted only
        elif self._gpu is not None and (counted := _LINK_COUNT.fullmatch(line)):
            self._link_counted(counted[2], counted[3], in_kib=counted[4] is not None)
        elif self._gpu is not None and (counted := _DCGMI_COUNT.fullmatch(line)):
            self._link_counted(f"{counted[2]}s", counted[3], in_kib=False)
        elif self._columns and line.strip() and not line.startswith("#"):
            self._row(number, line)
        elif topology.is_matrix_header(line):
            self._end_list()
            self._end_matrix()
            self._tables += 1
            self._columns = []
            self._matrix, self._matrix_place = [line], number
        elif self._matrix and not line.startswith("#" * 5):
            if len(self._matrix) < MAX_MATRIX_LINES:
                self._matrix.append(line)
        elif stated := _COLLECTED.match(line.strip()):
            stated_ns = times.parse(stated[1])
            self._stated_ns = stated_ns if stated_ns is not None else self._stated_ns
        elif line.startswith(("#" * 5, "# gpu", "#gpu")):
            self._columns = []
            self._apps = None
            self._end_matrix()

    def _begins_output(self, line: str) -> bool:
        """Whether a line begins what is printed for people; then it has been taken."""
        if QueryLog.begins(line):
            self._output = QueryLog(self._sink, self._samples, self._processes, self._at)
        elif Table.begins(line):
            self._output = Table(self._samples, self._processes, self._at, self._printed_ns)
        elif QueryRows.begins(line):
            self._output = QueryRows(line.strip(), self._sink, self._samples, self._at)
        else:
            if 20 <= len(line) <= 40 and (moment := local_ns(line)) is not None:
                self._printed_ns = moment
            return False
        self._end_list()
        self._end_matrix()
        self._processes.end_output()
        self._columns, self._apps, self._tables = [], None, self._tables + 1
        return True

    def _at(self, moment: int | None) -> tuple[int | None, str | None]:
        """The time of what is no row of a round: its own, the capture's, else the file's."""
        if moment is not None:
            return self._when(moment)
        stated: tuple[int | None, str | None] = self._stated_ns, "content"
        time_ns, source = stated if self._stated_ns is not None else self._samples.file_time
        basis = "local" if isinstance(time_ns, times.Local) else "epoch"
        self._basis = self._basis or basis
        return (time_ns, source) if time_ns is not None and basis == self._basis else (None, None)

    def finish(self, problem: str | None) -> None:
        """Write what is left and the facts."""
        if self._output is not None:
            self._output.end()
        self._end_list()
        self._end_matrix()
        self._processes.finish()
        self._samples.finish(self._basis or "epoch")
        self._sink.fact(place_kind="line", is_truncated_end=problem is not None)
        if self._other:
            count_other_metrics(self._sink, self._other)
        if self._basis == "ticks":
            self._sink.count(
                "no_time",
                severity="info",
                doc="The rows state no time. They mean nothing beside other files until job.toml "
                "says [[source]] path, start, interval.",
            )
        elif self._basis == "local":
            count_local_time(self._sink)
        if problem is not None:
            self._sink.fact(status="partial", reason=f"it breaks off ({problem})")
        elif self._bad:
            self._sink.fact(
                status="partial", reason=f"{plural(self._bad, 'row')} could not be read"
            )
        elif not self._tables:
            self._sink.fact(status="empty", reason="it holds no table of a GPU")

    # --- dmon

    def _header(self, line: str, *, is_dcgmi: bool) -> None:
        """Column names. dcgmi prints blanks for what it lacks, so its columns are by position."""
        self._end_list()
        self._end_matrix()
        self._apps = None
        self._processes.end_output()  # a header stands between two readings, wherever it stands
        self._is_pmon = _PMON.match(line) is not None
        self._is_dcgmi, self._is_unit_line, self._tables = is_dcgmi, True, self._tables + 1
        self._has_time = "Date" in line and "Time" in line
        body = re.sub(r"^#\s?(?:Entity(?:Id)?|(?:Date\s+Time\s+)?gpu)", _spaces, line)
        cells = [(m.start(), m.end(), m[0]) for m in re.finditer(r"\S+", body)]
        columns = []
        end = len(line) - len(body.lstrip())
        for i, (start, stop, name) in enumerate(cells):
            left = end if i == 0 else cells[i - 1][1]
            # dcgmi aligns left: a column runs from its name to the next one's.
            right = cells[i + 1][0] if i + 1 < len(cells) else 1 << 20
            meaning = fields.of_dmon_short(name) if is_dcgmi else None
            span = (start, right) if is_dcgmi else (left, stop)
            columns.append(_Column(*span, name, meaning))
        self._columns = columns

    def _units(self, line: str) -> None:
        self._is_unit_line = False
        if self._is_dcgmi or self._is_pmon:
            return
        body = re.sub(r"^#\s?(?:YYYYMMDD\s+HH:MM:SS\s+)?Idx", _spaces, line)
        units = body.split()
        self._columns = [
            c._replace(meaning=fields.of_smi_dmon(c.name, units[i] if i < len(units) else None))
            for i, c in enumerate(self._columns)
        ]

    def _row(self, number: int, line: str) -> None:
        if self._is_dcgmi:
            entity = _ENTITY.match(line.strip())
            if entity is None:
                self._bad_row(number, line)
                return
            kind, index, link = entity[1].upper(), int(entity[2]), entity[3]
            key = (kind, index, int(link) if link else None)
            cells = [line[c.start : c.end].strip() for c in self._columns]
            moment = None
        else:
            parts = line.split()
            moment = None
            if self._has_time:
                moment = local_ns(" ".join(parts[:2]))
                if moment is None:
                    self._bad_row(number, line)
                    return
                parts = parts[2:]
            if self._is_pmon:
                self._process(number, line, parts, moment)
                return
            if not parts or not parts[0].isdecimal() or len(parts) > len(self._columns) + 1:
                self._bad_row(number, line)
                return
            kind, link, index = "GPU", None, int(parts[0])
            key = (kind, index, None)
            cells = parts[1:]
        if key in self._seen:
            self._seen.clear()
        if not self._seen:
            self._round += 1
        self._seen.add(key)
        if kind not in ("GPU", "GPU-I", "GPU-CI"):
            self._other += len(cells)
            return
        instance = f"nvlink{link}" if link else None if kind == "GPU" else f"{kind.lower()}{index}"
        gpu = Gpu(nvml_index=index if kind == "GPU" else None, instance=instance)
        self._cells(number, cells, gpu, moment)

    def _cells(self, number: int, cells: list[str], gpu: Gpu, moment: int | None) -> None:
        if gpu.instance is not None:
            self._other += len(cells)
            return
        time_ns, source = self._when(moment)
        for column, cell in zip(self._columns, cells, strict=False):
            if column.meaning is None:
                self._other += 1
                continue
            if cell.lower() in _BLANK_CELLS:
                self._samples.missing_count += 1
                continue
            if cell.endswith("..."):
                self._sink.count(
                    "cut_number",
                    doc="A number that dcgmi cut to the width of its column: left out.",
                    place=number,
                )
                continue
            value = value_of(cell)
            if value is None:
                self._bad_row(number, cell)
                continue
            series = self._samples.series(gpu, column.meaning, source)
            counted = int(cell) if cell.isdecimal() else None
            self._samples.add(series, column.meaning, number, time_ns, value, counted)

    def _when(self, moment: int | None) -> tuple[int | None, str | None]:
        """The time of a row and where it is from: its own, else the number of its round."""
        time_ns: int | None
        if moment is not None:
            time_ns, source, basis = moment, "content", self._local
            zone_ns = self._zone(moment)
            if zone_ns is not None:
                time_ns, basis = moment - zone_ns, "epoch"
        elif self._stated_ns is not None:
            time_ns, source, basis = None, None, "epoch"
        else:
            time_ns, source, basis = self._round, None, "ticks"
        self._basis = self._basis or basis
        return (time_ns, source) if basis == self._basis else (None, None)

    def _zone(self, moment: int) -> int | None:
        """What local times of this capture are ahead of UTC; None where nothing says."""
        stated = self._stated_ns
        if self._zone_ns is None and stated is not None and not isinstance(stated, times.Local):
            zone_ns = round((moment - stated) / ZONE_STEP_NS) * ZONE_STEP_NS
            is_near = abs(moment - stated - zone_ns) <= CAPTURE_NS
            self._zone_ns = zone_ns if is_near and abs(zone_ns) <= 14 * 3600 * 10**9 else None
        return self._zone_ns

    # --- processes

    def _process(self, number: int, line: str, parts: list[str], moment: int | None) -> None:
        """A row of pmon: GPU, process, type, then loads, and the command at its end."""
        if len(parts) < 3 or not parts[0].isdecimal() or not re.fullmatch(r"\d{1,9}|-", parts[1]):
            self._bad_row(number, line)
            return
        index = int(parts[0])
        key = ("GPU", index, None if parts[1] == "-" else int(parts[1]))
        if index < self._newest_gpu or moment != self._newest_moment:
            self._processes.end_reading()
            self._seen.clear()
        if not self._seen or key in self._seen:
            self._round += 1
        self._seen.add(key)
        self._newest_gpu, self._newest_moment = index, moment
        gpu = Gpu(nvml_index=index)
        time_ns, source = self._when(moment)
        if key[2] is None:
            self._processes.nobody(number, gpu, time_ns, source)
            return
        at = len(self._columns)
        name = parts[at] if len(parts) > at else None  # a row that lacks cells may end in anything
        self._processes.process(number, gpu, key[2], time_ns, source, kind=parts[2][:8], name=name)

    def _app(self, number: int, line: str) -> None:
        """A process as a row of CSV; only its name may hold a comma."""
        names = self._apps or []
        cells = [c.strip() for c in line.split(",")]
        if len(cells) == 1 and "," not in line:
            self._apps = None  # another output begins
            return
        more = len(cells) - len(names)
        at = next((i for i, n in enumerate(names) if n in ("process_name", "name")), None)
        if more > 0 and at is not None:
            cells = [*cells[:at], ",".join(cells[at : at + more + 1]), *cells[at + more + 1 :]]
        row = dict(zip(names, cells, strict=False))
        gpu = Gpu(uuid=uuid_of(row.get("gpu_uuid")), pci=pci_address(row.get("gpu_bus_id", "")))
        pid = row.get("pid", "")
        if len(cells) != len(names) or gpu.device_id is None or not re.fullmatch(r"\d{1,9}", pid):
            self._bad_row(number, "0")
            return
        moment = local_ns(row["timestamp"]) if "timestamp" in row else None
        time_ns, source = self._at(moment)
        if moment is not None:
            first_ns = self._app_moments.setdefault(gpu, moment)
            if moment - first_ns >= SAME_READING_NS:
                self._processes.end_reading()
                self._app_moments = {gpu: moment}
        said = row.get("used_gpu_memory", row.get("used_memory", ""))
        used = re.fullmatch(r"(\d{1,9})(?: MiB)?", said)
        self._processes.process(
            number,
            gpu,
            int(pid),
            time_ns,
            source,
            name=cells[at] if at is not None else None,
            memory_bytes=int(used[1]) << 20 if used else None,
        )

    def _bad_row(self, number: int, text: str) -> None:
        # dmon ends with a sentence, and may print errors: not rows, and no damage.
        if re.match(r"\s*[A-Za-z][a-z]+ ", text) and not text.startswith(("GPU ", "    ")):
            self._columns = []
            return
        self._bad += 1
        self._sink.count(
            "bad_row", doc="A row that is not as its header says.", place=number, shape=shape(text)
        )

    # --- topo -m

    def _end_matrix(self) -> None:
        if self._matrix:
            matrix = topology.from_matrix("\n".join(self._matrix), self._matrix_place)
            if matrix is not None:
                topology.write_links(self._sink, matrix, self._node)
        self._matrix = []

    # --- nvlink

    def _begin_list(self, number: int, gpu: Gpu, origin: str) -> None:
        """A GPU whose links are listed on the lines that follow."""
        self._end_list()
        self._columns = []
        self._gpu, self._origin = gpu, origin
        self._links, self._links_place, self._link_counts = {}, number, {}
        self._tables += 1
        self._samples.described(gpu)

    def _link_counted(self, name: str, number: str, *, in_kib: bool) -> None:
        """A number of one link, added to those of the GPU's other links."""
        known = _LINK_COUNTERS.get(name.lower())
        if known is None or not number.isdecimal() or in_kib != (known[1] != 1):
            self._other += number[0] != "N"
            return
        counter, scale = known
        self._link_counts[counter] = self._link_counts.get(counter, 0) + int(number) * scale

    def _end_list(self) -> None:
        if self._gpu is not None and self._link_counts:
            time_ns, source = self._at(None)
            for counter, total in self._link_counts.items():
                meaning = gpu_meaning(counter, 1.0, self._origin)
                series = self._samples.series(self._gpu, meaning, source)
                self._samples.add(series, meaning, self._links_place, time_ns, total, total)
        self._link_counts = {}
        if self._gpu is not None and self._links:
            time_ns, source = self._at(None)
            for is_up, name in ((True, "nvlink_links_active"), (False, "nvlink_links_inactive")):
                meaning = gpu_meaning(name, 1.0, "nvidia-smi nvlink -s")
                series = self._samples.series(self._gpu, meaning, source)
                count = float(self._links.get(is_up, 0))
                self._samples.add(series, meaning, self._links_place, time_ns, count)
        self._gpu = None
        self._links = {}


def _cells_of(line: str) -> list[str]:
    """Names of a header's fields, without units."""
    return [c.partition("[")[0].strip() for c in line.split(",")]


def _is_apps(line: str) -> bool:
    """Whether a line is the header of ``--query-compute-apps``."""
    if "pid" not in line or not _APPS.fullmatch(line.strip()):
        return False
    names = set(_cells_of(line))
    is_listed = bool(names & {"process_name", "name", "used_gpu_memory", "used_memory"})
    return "pid" in names and bool(names & {"gpu_uuid", "gpu_bus_id"}) and is_listed


def _spaces(matched: re.Match[str]) -> str:
    return " " * len(matched[0])
