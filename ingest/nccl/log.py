"""One job's output or NCCL log: lines in, rows out.

Calls (SUBSYS COLL) are most of a large log, so they take a short way: the prefix is looked up, not
parsed, and one pattern takes the rest. All else goes through the patterns of ``messages``.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tracekit.ingest import streams
from tracekit.ingest.base import STEP_PATTERN, IngestOptions, Sink, SourceFile
from tracekit.ingest.nccl import bench, checks, endings, lines, messages, watchdog
from tracekit.ingest.nccl.comms import COMM_COLUMNS, Comm, Comms
from tracekit.ingest.nccl.lines import Message, Speaker, Splitter
from tracekit.ingest.nccl.rows import Rows, as_int, name_of, pointer, seconds_ns
from tracekit.ingest.stackdumps import reader as stacks
from tracekit.ingest.steplog import failures, phases, silence, stragglers, timers
from tracekit.ingest.steplog.ahead import ahead
from tracekit.ingest.steplog.heads import Heads
from tracekit.ingest.steplog.phases import PhaseReader
from tracekit.ingest.steplog.reader import Looked, StepReader
from tracekit.ingest.steplog.timers import TimerReader
from tracekit.ingest.steplog.words import Block, any_of
from tracekit.ingest.traces.names import rank_of_name

DTYPES = ("Int8", "UInt8", "Int32", "UInt32", "Int64", "UInt64", "Half", "Float", "Double",
          "BFloat16", "Float8_e4m3fn", "Float8_e5m2")  # fmt: skip
REDUCTIONS = ("sum", "prod", "max", "min", "avg")
OPS = {
    b"AllReduce": "all_reduce", b"Broadcast": "broadcast", b"Reduce": "reduce",
    b"AllGather": "all_gather", b"ReduceScatter": "reduce_scatter", b"Send": "send",
    b"Recv": "recv", b"AlltoAll": "all_to_all", b"AllToAll": "all_to_all", b"Gather": "gather",
    b"Scatter": "scatter", b"AllToAllPivot": "all_to_all", b"AllToAllv": "all_to_all",
}  # fmt: skip
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
OLD_ALGORITHMS = ("Tree", "Ring", "CollNet")
PROTOCOLS = ("LL", "LL128", "Simple")
_WORDS_OF = {a.upper().encode(): a for a in ALGORITHMS} | {
    b"COLLNET_DIRECT": "CollNetDirect", b"COLLNET_CHAIN": "CollNetChain", b"NVLS_TREE": "NVLSTree",
}  # fmt: skip
_PROTOCOL_OF = {p.upper().encode(): p for p in PROTOCOLS}

CALL = re.compile(
    rb"(\w+): opCount ([0-9a-fA-F]{1,15}) sendbuff \S+ recvbuff \S+ count (\d{1,18}) (datatype .*)"
)
CALL_TAIL = re.compile(
    rb"datatype (\d+) op (\d+) root (-?\d+) comm (0x[0-9a-fA-F]+) (?:\[nranks=(\d+)\] )?"
    rb"stream (\S+)"
)
CALL_NAME = re.compile(rb"(\w{3,24}): opCount ")
CALL_WORD = re.compile(
    rb"\b(opCount|count|datatype|op|root|comm|stream) (0x[0-9a-fA-F]+|-?[0-9a-fA-F]+)"
    rb"|(\[nranks)=(\d+)"
)
CHOICE = re.compile(
    rb"(?:(?P<op>\w+): )?(?P<bytes>\d+) Bytes -> Algo (?P<algo>\w+) proto (?P<proto>\w+)"
    rb"(?: time (?P<time>[\d.]+))?"
    rb"(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?"
)
EDGE = re.compile(
    rb"(?:Channel|Ring) (\d+)(?:/(\d+))? : (-?\d+)(?:\[(-?[0-9a-fA-F]+)\])? -> "
    rb"(-?\d+)(?:\[(-?[0-9a-fA-F]+)\])? (?:\[(send|receive)\] )?via (.*)"
)
COLLNET_EDGE = re.compile(rb"CollNet (\d+)(?:/(\d+))? : (\d+) \[(send|receive)\] via (COLLNET/.*)")
NET = re.compile(rb"NET/(.{1,40}?)/(\d+)(?:\((\d+)\))?((?:/[A-Za-z0-9]+(?:\([A-Za-z]+\))?)*)\s*$")
DETAIL = re.compile(rb"[\w /()\[\],.-]{1,80}")
RING_ORDER = re.compile(rb"(?:Channel|Ring) (\d+)(?:/(\d+))? :((?:\s+\d+)+)\s*$")
TOTALS = re.compile(
    rb"(\d+) coll channels?, .*?(?<!\d)(\d++) p2p channels?(?:, (\d+) p2p channels per peer)?"
)
COST_ROW = re.compile(rb"^\s*(Broadcast|Reduce|AllGather|ReduceScatter|AllReduce) \|(.*)$")
COST_HEAD = re.compile(rb"^\s*Algorithm +\|(.*)$")
COST_CELL = re.compile(rb"(?<![\d.])([\d.]++)/\s*+([\d.]++)\s*+(?:\||$)")

KEY_COLUMNS = ("place", "comm_pointer", "comm_generation", "pid", "ordinal", "time_ns", "node")
OP_COLUMNS = (*KEY_COLUMNS, "op", "op_count", "elements_count", "dtype", "reduction", "root",
              "stream_pointer")  # fmt: skip
EDGE_COLUMNS = (*KEY_COLUMNS, "channel", "from_group_rank", "to_group_rank", "transport", "detail",
                "nic", "is_gpudirect", "direction", "connection", "net_device",
                "proxy_rank")  # fmt: skip
CHOICE_COLUMNS = (*KEY_COLUMNS, "op", "message_bytes", "algorithm", "protocol", "channels_count",
                  "model_dur_ns")  # fmt: skip
EVENT_COLUMNS = (*KEY_COLUMNS, "code", "severity", "template", "fields")

Tail = tuple[int, int | None, str | None, str | None, int | None, int | None]

BLOCK_BYTES = 1 << 23
"""Read at a time: of smaller blocks what is done once for each costs more, and two threads wait for
each other oftener."""
MAX_SHAPES = 5000
SHOWN_SHAPES = 50
_INFO = b" NCCL INFO "
WORDS = (
    b"CCL", *watchdog.WORDS, *checks.WORDS, *endings.WORDS, *bench.WORDS, *failures.WORDS,
    *stacks.WORDS, *stragglers.WORDS,
)  # fmt: skip
"""Each line that is read has one of these, or stands in a table of nccl-tests."""
_ANY_WORD = any_of(WORDS)

_UNKNOWN = (
    "a log without a step, a failure or a line of NCCL, its tests or watchdog; how its steps read, "
    "job.toml may say ([[source]] path, step_pattern)"
)
_BARE = (
    "a log without a step; its dictionaries of metrics name neither a step nor a time (Hugging "
    "Face's Trainer without its bar prints them so): give the run's TensorBoard files, or leave "
    "disable_tqdm off"
)


class _Seen(NamedTuple):
    """What can be told of a batch of lines without those before."""

    looked: Looked
    garbled_count: int
    has_phases: bool
    """Whether one of the lines that are no step's has a word of ``phases``."""
    has_timers: bool
    has_words: bool
    """Whether one is to be read by all others."""


class LogReader:
    """State of reading one log."""

    def __init__(self, source: SourceFile, sink: Sink, options: IngestOptions) -> None:
        self.source = source
        self.sink = sink
        self.options = options
        self.splitter = Splitter()
        self.heads = Heads()
        self.comms = Comms()
        self.ops = Rows(sink, "nccl_op", OP_COLUMNS)
        self.edges = Rows(sink, "nccl_edge", EDGE_COLUMNS)
        self.choices = Rows(sink, "nccl_choice", CHOICE_COLUMNS)
        self.events = Rows(sink, "nccl_event", EVENT_COLUMNS)
        self.comm_rows = Rows(sink, "nccl_comm", COMM_COLUMNS)
        self.bench = bench.BenchReader(sink, self._plain_event)
        self.watchdog = watchdog.WatchdogReader(sink, self._plain_event)
        name_rank = rank_of_name(source.name)
        self.checks = checks.CheckReader(sink, name_rank)
        self.steps = StepReader(sink, dict(source.columns).get(STEP_PATTERN), name_rank)
        self.failures = failures.FailureReader(sink, _whose(source))
        self.stragglers = stragglers.StragglerReader(sink)
        self.stacks = stacks.StackReader(sink, source.path)
        self.phases = PhaseReader(sink)
        self.timers = TimerReader(sink)
        self.place = 0
        self._last_blocks = deque[tuple[int, int, bytes]](maxlen=2)
        """Of the last blocks: the number of the first line, that of its last step, and the text."""
        self.messages_count = 0
        self.unknown_count = 0
        self.torn_count = 0
        self.long_count = 0
        self.garbled_count = 0
        self.shapes: Counter[str] = Counter()
        self.shape_places: dict[str, int] = {}
        self.times: list[int] = []
        self.versions: set[str] = set()
        self.cost_algorithms: dict[object, list[str]] = {}
        self._tails: dict[bytes, Tail] = {}
        self._is_old = False
        """2.13 and before: algorithm 2 is the only CollNet."""

    def run(self) -> None:
        """Read the file from its first byte to its last."""
        with self.source.open() as raw:
            numbered = _numbered(self.heads.texts(lines.read_texts(raw, BLOCK_BYTES)))
            for seen in ahead(self._look, numbered, self.options.threads_count):
                self._take(seen)
            problem = streams.stream_problem(raw)
        self._finish(problem)

    # --- lines ---------------------------------------------------------------------------------

    def _look(self, numbered: tuple[int, Block]) -> _Seen:
        """Nearly all that there is to do, in whatever thread."""
        first_place, block = numbered
        garbled_count = block.garbled_count
        looked = self.steps.look(block, first_place)
        has_phases, has_timers, has_words = (
            looked.others_hold(p) for p in (phases.KEYS, timers.KEYS, _ANY_WORD)
        )
        return _Seen(looked, garbled_count, has_phases, has_timers, has_words)

    def _take(self, seen: _Seen) -> None:
        """What needs to know the lines before."""
        heads, looked = self.splitter.heads, seen.looked
        self.long_count += looked.block.last_bytes > lines.MAX_LINE_BYTES
        self.garbled_count += seen.garbled_count
        self.steps.take(looked)
        self.timers.take_steps(looked.with_parts)
        if seen.has_phases:
            self.phases.take(looked.others())
        if seen.has_timers or self.timers.is_open:
            self.timers.take(looked.others())
        readers = (self.failures, self.stacks, self.stragglers, self.checks)
        is_open = any(reader.is_open for reader in readers)
        is_within = self.bench.section is not None or is_open
        left: Iterable[tuple[int, bytes]] = ()
        if is_within or seen.has_words:
            left = looked.others()
        for self.place, line in left:
            at = line.find(_INFO)
            if at > 0:
                known = heads.get(line[:at])
                if known is not None and line.find(b" NCCL ", at + 6) < 0:
                    self.messages_count += 1
                    text = line[at + 11 : at + 11 + lines.MAX_MESSAGE_BYTES]
                    self._info(known.speaker, text, None)
                    continue
            self._other(line)
        self.place = looked.first_place + looked.block.count - 1
        last_step = max(looked.taken, default=0)
        self._last_blocks.append((looked.first_place, last_step, looked.block.whole))

    def _other(self, line: bytes) -> None:
        if b"\x1b" in line or b"\r" in line:
            line = lines.clean(line)
        bare = self.heads.without(line)
        self.failures.take(bare, self.place)
        self.stragglers.take(bare, self.place)
        self.checks.look(bare, self.place)
        if self.stacks.take(bare, self.place):
            return
        if b"CCL" in line:
            pieces = self.splitter.split(line)
            if pieces is not None:
                self.torn_count += pieces.is_torn
                if rest := self.heads.without(pieces.rest):
                    self._rest(rest, is_piece=True)
                for message in pieces.messages:
                    self._message(message)
                return
            if b"CCL version" in line:
                self._bare_version(line)
                return
        if line:
            self._rest(line, is_piece=False)

    def _rest(self, line: bytes, *, is_piece: bool) -> None:
        """A line, or a piece of one, that is not NCCL's."""
        if watchdog.KEY.search(line) and self.watchdog.take(line, self.place):
            return
        if checks.KEY.search(line) and self.checks.take(line, self.place):
            return
        if endings.KEY.search(line):
            ending = endings.event_of(line)
            if ending is not None:
                self._plain_event(self.place, *ending)
                return
        self.bench.take(self.heads.without(line), self.place, is_piece=is_piece)

    def _message(self, message: Message) -> None:
        self.messages_count += 1
        if message.time_ns is not None:
            self.times.append(message.time_ns)
            if len(self.times) > 1000:
                self.times = [min(self.times), max(self.times)]
        if message.level == b"INFO":
            self._info(message.speaker, message.text, message.time_ns)
        elif message.level == b"WARN":
            self._warning(message)
        # TRACE and CALL repeat what INFO says, with pointers only.

    # --- messages ------------------------------------------------------------------------------

    def _info(self, speaker: Speaker, text: bytes, time_ns: int | None) -> None:
        if b": opCount " in text and self._call(speaker, text, time_ns):
            return
        if b" Bytes -> Algo " in text and self._choice(speaker, text, time_ns):
            return
        if b" via " in text and self._edge(speaker, text, time_ns):
            return
        text = text.rstrip()
        if b"comm 0x" in text and b"rank " in text:
            comm = self.comms.mention(speaker, text, self.place, time_ns)
            if comm is not None:
                self._comm_event(comm, speaker, text, time_ns)
                return
        if b"channel" in text.lower() and self._channels(speaker, text):
            return
        if b"|" in text and self._cost(speaker, text, time_ns):
            return
        event = messages.event_of(text)
        if event is not None:
            self._known(speaker, event, time_ns)
        elif not messages.NOISE.match(text):
            self._unknown(text)

    def _key(self, comm: Comm | None, speaker: Speaker, time_ns: int | None) -> tuple[Any, ...]:
        if comm is None:
            state = self.comms.process(speaker)
            state.unbound += 1
            return (
                self.place, None, None, speaker.pid, state.unbound - 1, time_ns, speaker.node,
            )  # fmt: skip
        return (
            self.place, comm.pointer, comm.generation, speaker.pid, comm.next_other(), time_ns,
            speaker.node,
        )  # fmt: skip

    def _call(self, speaker: Speaker, text: bytes, time_ns: int | None) -> bool:
        call = CALL.match(text)
        if call is None:
            return self._odd_call(speaker, text, time_ns)
        name, count, elements, tail = call.groups()
        # What follows the count is the same for most calls of a rank: parsed once.
        known = self._tails.get(tail)
        if known is None:
            known = self._tail(tail)
            if known is None:
                return self._odd_call(speaker, text, time_ns)
        where, size, dtype, reduction, root, stream = known
        comm = self.comms.current.get((speaker.process, where))
        if comm is None:
            comm = self.comms.of_value(speaker, where, self.place)
            comm.group_size = size
        self.ops.add(
            (
                self.place, where, comm.generation, speaker.pid, comm.next_op(), time_ns,
                speaker.node, OPS.get(name) or name.decode(), int(count, 16), int(elements), dtype,
                reduction, root, stream,
            )
        )  # fmt: skip
        return True

    def _tail(self, text: bytes) -> Tail | None:
        """Communicator, size, element type, reduction, root and stream of a call."""
        tail_match = CALL_TAIL.match(text)
        where = pointer(tail_match[4]) if tail_match else None
        if tail_match is None or where is None:
            return None
        if len(self._tails) > 100_000:
            self._tails.clear()
        tail = self._tails[text] = (
            where,
            as_int(tail_match[5]),
            _nth(DTYPES, tail_match[1]),
            _nth(REDUCTIONS, tail_match[2]),
            as_int(tail_match[3]),
            pointer(tail_match[6]),
        )
        return tail

    def _odd_call(self, speaker: Speaker, text: bytes, time_ns: int | None) -> bool:
        """A call whose words stand in another order or number than in any release so far."""
        name = CALL_NAME.search(text)
        if name is None:
            return False
        given = {m[1] or m[3]: m[2] or m[4] for m in CALL_WORD.finditer(text)}
        comm = self.comms.of_pointer(speaker, given.get(b"comm", b""), self.place)
        if comm is None:
            return False
        count, elements = as_int(given.get(b"opCount"), 16), as_int(given.get(b"count"))
        self.ops.add(
            (
                self.place, comm.pointer, comm.generation, speaker.pid, comm.next_op(), time_ns,
                speaker.node, OPS.get(name[1]) or name[1].decode(), count, elements,
                _nth(DTYPES, given.get(b"datatype", b"")), _nth(REDUCTIONS, given.get(b"op", b"")),
                as_int(given.get(b"root")), pointer(given.get(b"stream")),
            )
        )  # fmt: skip
        return True

    def _choice(self, speaker: Speaker, text: bytes, time_ns: int | None) -> bool:
        choice = CHOICE.match(text)
        if choice is None:
            return False
        name, _, algorithm, protocol, time, low, high = choice.groups()
        comm = self.comms.of_root(speaker)
        channels = int(high) - int(low) + 1 if low and high else None
        self.choices.add(
            (
                *self._key(comm, speaker, time_ns),
                (OPS.get(name) or name.decode()) if name else None,
                as_int(choice[2]),
                self._algorithm(algorithm),
                _PROTOCOL_OF.get(protocol) or _nth(PROTOCOLS, protocol),
                channels,
                round(float(time) * 1000)
                if time and time.count(b".") <= 1 and len(time) < 40
                else None,
            )
        )
        return True

    def _algorithm(self, word: bytes) -> str | None:
        if word in _WORDS_OF:
            return _WORDS_OF[word]
        return _nth(OLD_ALGORITHMS if self._is_old else ALGORITHMS, word)

    # --- connections ---------------------------------------------------------------------------

    def _edge(self, speaker: Speaker, text: bytes, time_ns: int | None) -> bool:
        edge = EDGE.match(text)
        if edge is None:
            return self._collnet(speaker, text, time_ns)
        channel, connection, start, _, end, _, side, way = edge.groups()
        source, target = int(start), int(end)
        rank, other = (target, source) if side == b"receive" else (source, target)
        transport, tail = self._transport(speaker, way)
        row: list[Any] = [None, rank, other, speaker, self.place, time_ns, (
            as_int(channel), source, target, transport, *tail[:3],
            side.decode() if side else None, as_int(connection), *tail[3:],
        )]  # fmt: skip
        if connection != b"1" and self.comms.is_before_init(speaker):
            if self.comms.wait(speaker, row):
                return True
        else:
            row[0] = self.comms.of_ranks(speaker, rank, other)
        self._add_edge(row)
        return True

    def _collnet(self, speaker: Speaker, text: bytes, time_ns: int | None) -> bool:
        edge = COLLNET_EDGE.match(text)
        if edge is None:
            return False
        rank = int(edge[3])
        is_send = edge[4] == b"send"
        detail = DETAIL.match(edge[5])
        words = name_of(detail[0].decode()).split("/", 1)[1] if detail else None
        tail = (
            as_int(edge[1]), rank if is_send else None, None if is_send else rank, "COLLNET",
            words, None, b"GDRDMA" in edge[5], edge[4].decode(), as_int(edge[2]), None, None,
        )  # fmt: skip
        comm = self.comms.of_ranks(speaker, rank, rank)
        self._add_edge([comm, rank, rank, speaker, self.place, time_ns, tail])
        return True

    def _add_edge(self, row: list[Any]) -> None:
        comm, _, _, speaker, place, time_ns, values = row
        key = self._key(comm, speaker, time_ns)
        self.edges.add((place, *key[1:], *values))

    def _transport(self, speaker: Speaker, way: bytes) -> tuple[str | None, tuple[Any, ...]]:
        """Transport, then detail, nic, is_gpudirect, net_device, proxy_rank."""
        net = NET.match(way)
        if net is not None:
            device = as_int(net[2])
            nics = self.comms.process(speaker).nics
            detail = f"{net[1].decode('ascii', 'replace')}/{net[2].decode()}{net[4].decode()}"
            nic = nics.get(device) if device is not None else None
            return "NET", (name_of(detail), nic, b"GDRDMA" in net[4], device, as_int(net[3]))
        if way.startswith(b"direct shared memory"):
            return "SHM", (None, None, None, None, None)
        name, _, rest = way.partition(b"/")
        if name not in (b"P2P", b"SHM", b"NET", b"COLLNET", b"NVLS"):
            return None, (None, None, None, None, None)
        detail_match = DETAIL.match(rest.strip())
        return name.decode(), (
            name_of(detail_match[0].decode()) if detail_match else None, None, None, None, None,
        )  # fmt: skip

    def _channels(self, speaker: Speaker, text: bytes) -> bool:
        totals = TOTALS.match(text)
        if totals is not None:
            self._set_channels(speaker, int(totals[1]), is_final=True)
            return True
        order = RING_ORDER.match(text)
        if order is not None:
            total = as_int(order[2])
            if total:
                self._set_channels(speaker, total, is_final=False)
            return True
        return False

    def _set_channels(self, speaker: Speaker, total: int, *, is_final: bool) -> None:
        comm = self.comms.of_thread(speaker)
        if comm is None or (self.comms.is_before_init(speaker) and comm.state == "complete"):
            key = (speaker.process, speaker.tid)
            if is_final or key not in self.comms.channels_waiting:
                self.comms.channels_waiting[key] = total
        elif is_final or comm.channels is None:
            comm.channels = total

    # --- everything else -----------------------------------------------------------------------

    def _comm_event(self, comm: Comm, speaker: Speaker, text: bytes, time_ns: int | None) -> None:
        """What happened to the communicator; rows that waited for its pointer are due."""
        if text.endswith(b"Init COMPLETE"):
            for row in self.comms.drain((speaker.process, speaker.tid)):
                self._add_edge(row)
            code = "init_complete"
        elif text.endswith(b"Init START"):
            code = "init_start"
        elif text.endswith(b"Destroy COMPLETE"):
            code = "destroyed"
        elif b"Abort " in text[-16:]:
            code = "comm_aborted"
        else:
            return
        severity = "warning" if code == "comm_aborted" else "info"
        self.events.add((*self._key(comm, speaker, time_ns), code, severity, None, None))

    def _cost(self, speaker: Speaker, text: bytes, time_ns: int | None) -> bool:
        """Rows of the table of NCCL's own model: latency in us and bandwidth in GB/s."""
        head = COST_HEAD.match(text)
        if head is not None:
            names = [w.strip().decode("ascii", "replace") for w in head[1].split(b"|")]
            self.cost_algorithms[speaker.process, speaker.tid] = [
                n for n in names if n in ALGORITHMS or n in OLD_ALGORITHMS
            ]
            return True
        row = COST_ROW.match(text)
        if row is None:
            return False
        algorithms = self.cost_algorithms.get((speaker.process, speaker.tid))
        cells = COST_CELL.findall(row[2])
        if algorithms is None and len(cells) in (6, 9):  # the wide table of 2.16 and before
            algorithms = list(OLD_ALGORITHMS[: len(cells) // 3])
        if not algorithms or len(cells) < 3 * len(algorithms):
            return bool(cells)
        fields = [f"op={OPS[row[1]]}"]
        for index, (latency, bandwidth) in enumerate(cells[: 3 * len(algorithms)]):
            if bandwidth.strip(b"0."):
                name = f"{algorithms[index // 3]}/{PROTOCOLS[index % 3]}"
                fields.append(f"{name}={latency.decode()}/{bandwidth.decode()}")
        self._event(self.comms.of_root(speaker), speaker, time_ns, "cost", "info", fields)
        return True

    def _known(
        self, speaker: Speaker, event: tuple[str, str, list[str]], time_ns: int | None
    ) -> None:
        code, severity, fields = event
        comm = self.comms.of_thread(speaker)
        if code == "version":
            self._version(speaker, fields)
        elif code == "nic":
            given = dict(f.split("=", 1) for f in fields)
            if "device" in given and "ports" in given:
                self.comms.process(speaker).nics[int(given["device"])] = given["nic"]
        elif code == "net_devices":
            nics = self.comms.process(speaker).nics
            for item in fields:
                index, _, name = item.partition("=")
                if index.isdecimal():
                    nics.setdefault(int(index), name.split(":", 1)[0])
        elif code == "init_timings" and comm is not None:
            total = next((f[6:] for f in fields if f.startswith("total=")), None)
            comm.init_ns = seconds_ns(total)
            fields = [*(f for f in fields if not f.startswith("parts=")), *_parts(fields)]
        self._event(comm, speaker, time_ns, code, severity, fields)

    def _event(
        self,
        comm: Comm | None,
        speaker: Speaker,
        time_ns: int | None,
        code: str,
        severity: str,
        fields: list[str],
        template: str | None = None,
    ) -> None:
        self.events.add(
            (*self._key(comm, speaker, time_ns), code, severity, template, fields or None)
        )

    def _plain_event(
        self, place: int, code: str, severity: str, fields: list[str], node: str | None = None
    ) -> None:
        """An event that no NCCL process logged (nccl-tests, PyTorch)."""
        self.events.add(
            (place, None, None, None, None, None, node, code, severity, None, fields or None)
        )

    def _version(self, speaker: Speaker, fields: list[str]) -> None:
        given = dict(f.split("=", 1) for f in fields)
        if "nccl" in given:
            self.comms.process(speaker).version = given["nccl"]
        self._keep_version(given)

    def _keep_version(self, given: dict[str, str]) -> None:
        if "nccl" not in given:
            return
        self.versions.add(f"nccl={given['nccl']}")
        parts = given["nccl"].split(".")
        if len(parts) > 1 and parts[1].isdecimal():
            self._is_old = int(parts[0]) == 2 and int(parts[1]) <= 13
        if "runtime_version" in given:
            self.versions.add(f"{given['runtime']}={given['runtime_version']}")

    def _bare_version(self, line: bytes) -> None:
        event = messages.event_of(line)
        if event is not None and event[0] == "version":
            self._keep_version(dict(f.split("=", 1) for f in event[2]))
            self._plain_event(self.place, *event)

    def _warning(self, message: Message) -> None:
        event = messages.event_of(message.text)
        comm = self.comms.of_thread(message.speaker)
        fields: list[str] = []
        if event is None:
            code, severity = "warning", "warning"
        else:
            code, severity, fields = event
        if message.origin is not None:
            fields = [*fields, f"origin={message.origin[-60:].decode('ascii', 'replace')}"]
        self._event(
            comm, message.speaker, message.time_ns, code, severity, fields,
            lines.shape(message.text),
        )  # fmt: skip

    def _unknown(self, text: bytes) -> None:
        self.unknown_count += 1
        shape = lines.shape(text, 80)
        if shape in self.shapes or len(self.shapes) < MAX_SHAPES:
            self.shapes[shape] += 1
            self.shape_places.setdefault(shape, self.place)

    # --- the end -------------------------------------------------------------------------------

    def _finish(self, problem: str | None) -> None:
        for row in self.comms.drain():
            row[0] = row[0] or self.comms.of_ranks(row[3], row[1], row[2])
            self._add_edge(row)
        self.comms.finish()
        for shape, count in self.shapes.most_common(SHOWN_SHAPES):
            self.events.add(
                (self.shape_places[shape], None, None, None, None, None, None,
                 "unknown_line", "info", shape, [f"count={count}"])
            )  # fmt: skip
        self.bench.finish(self.place)
        self.watchdog.finish()
        self.checks.finish()
        self.steps.finish()
        is_local = not self.times and self.steps.basis != "epoch"
        self.failures.finish(keeps_times=is_local, silence=self._silence())
        self.stacks.finish()
        self.stragglers.finish()
        self.phases.finish(self.steps.basis)
        self.timers.finish()
        self.comms.write(self.comm_rows)
        for rows in (self.ops, self.edges, self.choices, self.events, self.comm_rows):
            rows.flush()
        self._count()
        self._facts(problem)

    def _silence(self) -> silence.Silence | None:
        """How long nothing was printed behind the last step, where a failure stands there."""
        if not self.steps.count or not self.failures.is_any:
            return None
        begin = max(last_step for _, last_step, _ in self._last_blocks)
        tail = deque[tuple[int, bytes]](maxlen=silence.MAX_LINES)
        for first_place, _, text in self._last_blocks:
            numbered = enumerate(text.split(b"\n"), first_place)
            tail.extend(line for line in numbered if line[0] >= begin)
        return silence.longest(tail)

    def _count(self) -> None:
        count = self.sink.count
        count("nccl_line", self.messages_count, severity="info", doc="Messages of NCCL.")
        first = next(iter(self.shapes), None)
        count(
            "unknown_nccl_line",
            self.unknown_count,
            severity="info",
            doc="Messages of NCCL whose meaning is not known here; nccl_event lists their shapes.",
            place=self.shape_places.get(first) if first else None,
            shape=first,
        )
        count(
            "torn_line",
            self.torn_count,
            severity="info",
            doc="Lines into which several messages were written; they were taken apart.",
        )
        count(
            "long_line",
            self.long_count,
            severity="info",
            doc="Lines over a megabyte, or pieces of them, each of which counts as a line.",
        )
        count(
            "garbled_line",
            self.garbled_count,
            severity="info",
            doc="Lines that are no UTF-8: in another encoding, or no text.",
        )
        count(
            "glued_prefix",
            self.splitter.phantom_hosts,
            doc="Messages behind another text, so that their host could not be told.",
        )
        count(
            "reused_pointer",
            self.comms.reused,
            severity="info",
            doc="Communicators at an address that an earlier one had.",
        )

    def _facts(self, problem: str | None) -> None:
        known = [n for n, _ in self.comms.processes if n is not None]
        hosts = sorted(set(known))
        is_ours = self.messages_count or self.bench.rows_count or self.bench.sections_count
        others = (self.watchdog, self.checks, self.steps, self.failures, self.stacks, self.timers,
                  self.stragglers)  # fmt: skip
        has_found = bool(is_ours or any(reader.count for reader in others))
        facts: dict[str, object] = {
            "producer": self._producer(),
            "place_kind": "line",
            "time_basis": "relative" if self.times else "none",
            "versions": sorted(self.versions) or None,
            "backend": "nccl" if self.messages_count else None,
            "is_truncated_end": problem is not None,
        }
        if self.times:
            facts["window_start_ns"], facts["window_end_ns"] = min(self.times), max(self.times)
        elif self.steps.window_ns is not None:
            facts["window_start_ns"], facts["window_end_ns"] = self.steps.window_ns
            facts["time_basis"] = self.steps.basis
        elif self.failures.window_ns is not None:
            facts["window_start_ns"], facts["window_end_ns"] = self.failures.window_ns
            facts["time_basis"] = "local"
        if len(hosts) == 1:
            facts["host_name"] = hosts[0]
        if not has_found:
            facts["status"] = "unrecognised"
            facts["reason"] = _BARE if self.steps.has_bare_metrics else _UNKNOWN
        elif problem is not None:
            facts["status"] = "partial"
            facts["reason"] = f"it ends early ({problem})"
        self.sink.fact(**facts)

    def _producer(self) -> str | None:
        stated = sorted(v for v in self.versions if v.startswith("nccl="))
        if stated:
            return f"NCCL {stated[0][5:]}" + (" and others" if len(stated) > 1 else "")
        return self.bench.producer or ", ".join(sorted(self.steps.formats)) or None


def _numbered(texts: Iterable[bytes]) -> Iterator[tuple[int, Block]]:
    """Each block of lines with the number of its first."""
    place = 1
    for text in texts:
        block = Block(text)
        yield place, block
        place += block.count


def _nth(names: tuple[str, ...], word: bytes) -> str | None:
    index = as_int(word)
    return names[index] if index is not None and 0 <= index < len(names) else None


_PART = re.compile(r"(?<![a-z])([a-z]++) (\d++\.\d++)")


def _parts(fields: list[str]) -> list[str]:
    """``kernels 0.60, alloc 0.24`` as fields, in the line's own words."""
    text = next((f[6:] for f in fields if f.startswith("parts=")), "")
    return [f"{name}={value}" for name, value in _PART.findall(text)]


def read(source: SourceFile, sink: Sink, options: IngestOptions) -> None:
    """Stream a log into the sink."""
    LogReader(source, sink, options).run()


_KEPT = re.compile(r"[/!]attempt_\d{1,4}/(\d{1,5})/(?:std(?:out|err)\.log|error\.json)$")
"""Where torchrun keeps what a worker prints, and what ``@record`` writes of its exception."""


def _whose(source: SourceFile) -> list[str]:
    """The rank that a file's name names, or the local rank whose output torchrun keeps there
    (``--log-dir``), as fields of an event; none where neither does."""
    if kept := _KEPT.search(source.path):
        return [f"local_rank={int(kept[1])}"]
    rank = rank_of_name(source.name)
    return [] if rank is None or "node" in source.name.lower() else [f"rank={rank}"]
