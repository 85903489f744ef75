"""What the kernel and Lustre count of storage, as files and as dumps of them one after another.

/proc/diskstats, /proc/self/mountstats (NFS), and the statistics of Lustre's clients as ``lctl
get_param llite.*.stats osc.*.stats`` prints them; lines of time stand before each dump.
"""

from __future__ import annotations

import re

from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.samples import count_other_metrics
from tracekit.ingest.counters.status import Reading, by_lines
from tracekit.ingest.counters.storage_samples import StorageSamples
from tracekit.ingest.counters.storage_words import STORAGE
from tracekit.ingest.counters.vocabulary import Meaning
from tracekit.ingest.lines import Line, shape

KIND = "storage"

_MS, _US = 1_000_000, 1000
_SECTOR = 512
_GREPPED = r"(?:/proc/[a-z0-9/]{4,40}:)?"
_DISK = re.compile(
    rf"{_GREPPED}\s{{0,8}}\d{{1,4}}\s{{1,8}}\d{{1,7}} ([\w!.-]{{1,60}})((?: \d{{1,20}}){{11,20}})"
)
_MOUNT = re.compile(
    rf"{_GREPPED}device (\S{{1,400}}) mounted on (\S{{1,400}}) with fstype ([\w.-]{{1,40}})"
    r"(?: statvers=[\d.]{1,10})?"
)
_OP = re.compile(rf"{_GREPPED}\s{{1,40}}([A-Z_0-9]{{2,40}}): (\d{{1,20}}(?: \d{{1,20}}){{7,9}})")
_BYTES = re.compile(rf"{_GREPPED}\s{{0,20}}bytes:\s{{1,8}}(\d{{1,20}}(?: \d{{1,20}}){{7}})")
_OTHER_MOUNT = re.compile(
    rf"{_GREPPED}\s{{0,20}}(?:opts|age|caps|sec|events|xprt|impl_id|nfsv4|fsc|per-op statistics|"
    r"RPC iostats version)\b"
)
_LUSTRE = re.compile(r"((?:llite|osc|mdc)\.([\w.-]{1,200}))\.stats=")
_SNAPSHOT = re.compile(r"snapshot_time:?\s{1,40}(\d{1,11})\.(\d{1,9}) secs\.[un]secs")
_START_TIME = re.compile(r"(?:start_time|elapsed_time):?\s{1,40}\d{1,11}\.\d{1,9} secs\.[un]secs")
_STAT = re.compile(
    r"([a-z_]{2,40})\s{1,40}(\d{1,20}) samples \[(regs|reqs|bytes|pages|usecs?)\]"
    r"((?: \d{1,20}){0,4})"
)
_ANY_DISK = re.compile(
    rb"(?:^|\n)(?:/proc/diskstats:)?\s{0,8}\d{1,4}\s{1,8}\d{1,7} "
    rb"(?:[a-z]{2,8}[a-z0-9!._-]{0,50})(?: \d{1,20}){11,20}\s{0,4}\n"
)
_ANY_MOUNT = re.compile(
    rb"(?:^|\n)(?:/proc/[a-z0-9/]{4,40}:)?device \S{1,400} mounted on \S{1,400} with fstype "
)
_ANY_LUSTRE = re.compile(rb"(?:^|\n)(?:llite|osc|mdc)\.[\w.-]{1,200}\.stats=\s{0,4}\nsnapshot_time")
_TARGET = re.compile(r"-(?:[0-9a-f]{16}|osc-[0-9a-f]{16}|mdc-[0-9a-f]{16})$")
"""What Lustre appends to the name of a client's mount or target: an address."""

_DISK_FIELDS = (
    (0, "read_requests", 1), (2, "read_bytes", _SECTOR), (3, "read_time", _MS),
    (4, "write_requests", 1), (6, "write_bytes", _SECTOR), (7, "write_time", _MS),
    (9, "busy_time", _MS), (15, "flush_requests", 1), (16, "flush_time", _MS),
)  # fmt: skip
"""Places after the name (kernel's Documentation/admin-guide/iostats.rst)."""
_DISK_MEANINGS = [(i, name, STORAGE.meaning(name, scale)) for i, name, scale in _DISK_FIELDS]
_NFS_OPS = {"READ": "read", "WRITE": "write", "COMMIT": "flush"}
_DATA_OPS = frozenset({*_NFS_OPS, "NULL"})
_NFS_REQUESTS, _NFS_TIMEOUTS, _NFS_EXECUTE = 0, 2, 7
"""Places of a per-op line: requests, transmissions, timeouts, bytes sent and received, then ms in
the queue, at the server, and of both (kernel's net/sunrpc/stats.c)."""
_LUSTRE_OPS = {
    "read": "read", "write": "write", "fsync": "flush",
    "ost_read": "read", "ost_write": "write", "ost_sync": "flush",
}  # fmt: skip
_LUSTRE_METADATA = frozenset({
    "open", "close", "seek", "readdir", "getattr", "setattr", "lookup", "getxattr", "setxattr",
    "statfs", "create", "link", "unlink", "mkdir", "rmdir", "mknod", "rename", "truncate",
    "mds_getattr", "mds_close", "mds_readpage", "ldlm_ibits_enqueue", "mds_reint",
})  # fmt: skip
_MOUNTED = frozenset({"nfs", "nfs3", "nfs4"})


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise the lines by their fixed form."""
    if b" mounted on " in head and _ANY_MOUNT.search(head):
        return Recognition(KIND, "NFS as its clients count it (/proc/self/mountstats)", KIND)
    if b".stats=" in head and _ANY_LUSTRE.search(head):
        return Recognition(KIND, "Lustre as its clients count it (lctl get_param)", KIND)
    if _ANY_DISK.search(head):
        return Recognition(KIND, "what disks did (/proc/diskstats)", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the counts into storage_sample."""
    with by_lines(source, sink, lambda reading: _Parser(StorageSamples(sink, source), reading)) as (
        parser,
        _,
    ):
        parser.finish()
        if parser.others_count:
            count_other_metrics(sink, parser.others_count)
        if parser.unused_count:
            sink.count(
                "unused_device",
                parser.unused_count,
                severity="info",
                doc="Numbers of disks that were never used, all of them zero: not kept.",
            )


class _Parser:
    def __init__(self, samples: StorageSamples, reading: Reading) -> None:
        self.samples = samples
        self.others_count = 0
        self.unused_count = 0
        self._reading = reading
        self._device: str | None = None
        self._filesystem: str | None = None
        self._rest: dict[str, int] = {}
        """Requests and time of operations that are neither reads nor writes, of one device."""
        self._rest_place = 0
        self._said: set[str] = set()

    def line(self, line: Line) -> None:
        text = line.text.rstrip()
        if not text:
            return
        if (stamp := times.of_line(text.strip())) is not None:
            self.finish()
            self._device = None
            self.samples.at(stamp)
        elif disk := _DISK.fullmatch(text):
            self._disk(line.number, disk[1], disk[2].split())
        elif mount := _MOUNT.fullmatch(text):
            self.finish()
            is_nfs = mount[3] in _MOUNTED
            self._device, self._filesystem = (mount[2], mount[3]) if is_nfs else (None, None)
            self._reading.good()
            if is_nfs:
                self._documented("/proc/self/mountstats of NFS")
        elif target := _LUSTRE.fullmatch(text):
            self.finish()
            self._device = _TARGET.sub("", target[2])
            self._filesystem = target[1].partition(".")[0]
            self._reading.good()
            self._documented("lctl get_param llite.*.stats")
        elif snapshot := _SNAPSHOT.fullmatch(text):
            # Some versions count from the machine's start: the line of time before it holds then.
            if (ns := times.from_epoch(snapshot[1], snapshot[2])) is not None:
                self.samples.at(ns)
        elif op := _OP.fullmatch(text):
            self._nfs(line.number, op[1], [int(n) for n in op[2].split()])
        elif moved := _BYTES.fullmatch(text):
            if self._device is not None:
                numbers = moved[1].split()
                self._put(line.number, "read_bytes", numbers[4], 1, "bytes: serverreadbytes")
                self._put(line.number, "write_bytes", numbers[5], 1, "bytes: serverwritebytes")
        elif statistic := _STAT.fullmatch(text):
            self._lustre(line.number, statistic)
        elif not _OTHER_MOUNT.match(text) and not _START_TIME.fullmatch(text):
            self._reading.bad(line.number, "another line than is known", shape(text))

    def finish(self) -> None:
        """Write the operations that were added up."""
        if self._device is not None and self._rest:
            for name, number in self._rest.items():
                self._put(self._rest_place, name, number, 1, "all other operations")
        self._rest = {}

    def _disk(self, place: int, device: str, numbers: list[str]) -> None:
        self._device, self._filesystem = device, None
        if not any(int(n) for n in numbers):
            self.unused_count += len(numbers)
            return
        self.others_count += len(numbers) - sum(i < len(numbers) for i, *_ in _DISK_MEANINGS)
        for index, name, meaning in _DISK_MEANINGS:
            if index < len(numbers):
                self._add(place, meaning, numbers[index], f"diskstats {index + 4} {name}")
        self._reading.good()

    def _nfs(self, place: int, op: str, numbers: list[int]) -> None:
        if self._device is None:
            self._reading.bad(place, "an operation of no mount")
            return
        self._reading.good()
        name = _NFS_OPS.get(op)
        if name is not None:
            self._put(place, f"{name}_requests", numbers[_NFS_REQUESTS], 1, f"{op} ops")
            self._put(place, f"{name}_time", numbers[_NFS_EXECUTE], _MS, f"{op} execute")
            if name != "flush":
                self._put(place, f"{name}_timeouts", numbers[_NFS_TIMEOUTS], 1, f"{op} timeouts")
        elif op not in _DATA_OPS:
            self._more(place, numbers[_NFS_REQUESTS], numbers[_NFS_EXECUTE] * _MS)

    def _lustre(self, place: int, statistic: re.Match[str]) -> None:
        if self._device is None:
            self._reading.bad(place, "a statistic of no target")
            return
        self._reading.good()
        op, count, unit = statistic[1], int(statistic[2]), statistic[3]
        numbers = [int(n) for n in statistic[4].split()]
        total = numbers[2] if len(numbers) > 2 else None
        if op in ("read_bytes", "write_bytes") and unit == "bytes" and total is not None:
            self._put(place, op, total, 1, op)
        elif unit.startswith("usec") and op in _LUSTRE_OPS and total is not None:
            name = _LUSTRE_OPS[op]
            self._put(place, f"{name}_requests", count, 1, op)
            self._put(place, f"{name}_time", total, _US, op)
        elif unit.startswith("usec") and op in _LUSTRE_METADATA and total is not None:
            self._more(place, count, total * _US)
        else:
            self.others_count += 1

    def _more(self, place: int, count: int, time_ns: int) -> None:
        self._rest_place = place
        for name, number in (("metadata_requests", count), ("metadata_time", time_ns)):
            self._rest[name] = self._rest.get(name, 0) + number

    def _put(self, place: int, name: str, printed: object, scale: int, original: str) -> None:
        self._add(place, STORAGE.meaning(name, scale), printed, original)

    def _add(self, place: int, meaning: Meaning, printed: object, original: str) -> None:
        if self._device is not None:
            self.samples.sample(
                place,
                self._device,
                meaning,
                printed,
                original=original,
                filesystem=self._filesystem,
            )

    def _documented(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._reading.from_documentation(what)
