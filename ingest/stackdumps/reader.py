"""Stacks of threads among the lines of any text: py-spy dump, faulthandler, gdb, the watchdog.

Each begins with a line that names a thread; its frames follow behind whatever a launcher put before
that line, so the dumps of several ranks may be printed into each other. Rows are ``thread_stack``.

Formats: py-spy 0.4 (``dump``, with ``--native``, ``--locals``, ``--subprocesses``), CPython's
faulthandler of 3.8 to 3.14, gdb (``thread apply all bt`` and ``py-bt``), and the stack of the
failed collective that PyTorch's NCCL watchdog prints from 2.4 on (torch/csrc/distributed/c10d).
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from tracekit.ingest.base import Sink, write_columns
from tracekit.ingest.stackdumps.frames import MAX_FRAMES, frame

WORDS = (
    b"(most recent call first)", b" (LWP ", b" (idle", b" (active", b": Python v", b"Timeout (",
    b"Stack trace of the failed collective",
)  # fmt: skip
"""A line with which a thread's stack begins holds one of these."""
_KEY = re.compile(
    b"|".join(map(re.escape, (*WORDS, b"Process ", b"[Inferior ", b"Attaching to p")))
)

MAX_THREADS = 200_000
"""Threads of one file that are kept: every rank of a large job with all of its threads."""
MAX_DUMP_THREADS = 4096
MAX_HELD_FRAMES = 1_000_000
"""Frames of the dumps that are not at their end; beyond, all of them are ended."""
MAX_OPEN = 4096
"""Dumps that are printed into each other at a time: one a rank."""
MAX_PREFIX_BYTES = 200
MAX_LINE_BYTES = 16 << 10
"""No part of a line that is kept stands further behind."""
_FLUSH_THREADS = 2000

_PROCESS = re.compile(rb"Process (\d{1,10}): ")
_VERSION = re.compile(rb"Python v\d{1,2}\.\d")
_PYSPY = re.compile(
    rb"Thread (0x[0-9A-Fa-f]{1,16}|\d{1,20}) \((active|idle)[^()]{0,40}\)(?:: \"(.{0,200})\")?\s*$"
)
_FAULT = re.compile(
    rb"(?:(?P<now>Current t|T)hread 0x(?P<id>[0-9a-fA-F]{1,16})(?: \[[^\]]{0,80}\])?|Stack)"
    rb" \(most recent call first\):"
)
_TIMEOUT = re.compile(rb"Timeout \(\d{1,6}:\d\d:\d\d")
_GDB = re.compile(
    rb"Thread (?P<number>\d{1,6}) \((?:Thread 0x[0-9a-f]{1,16} \()?"
    rb"(?:LWP|process) (?P<lwp>\d{1,10})\b"
)
_WATCHDOG = re.compile(rb"Stack trace of the failed collective: ?$")
_GDB_PROCESS = re.compile(
    rb"(?:\[Inferior \d{1,6} \(process |Attaching to process )(\d{1,10})\)? ?(?:detached)?"
)
_RANK = re.compile(rb"\[[Rr]ank ?(\d{1,7})\]")
_LOCAL = re.compile(rb"\[default(\d{1,5})\]")
_EACH_LINE = re.compile(rb"\[default\d{1,5}\]:|\s{0,8}\d{1,7}: ")
"""What a launcher puts before every line; a rank's own prefix stands before the first alone."""
_SAID_RANK = re.compile(rb"--(?:global[_-])?rank[= ](\d{1,7})(?=\s|$)")
_SAID_LOCAL = re.compile(rb"--local[_-]rank[= ](\d{1,5})(?=\s|$)")
_FOLDER = re.compile(r"(?:^|[/!])attempt_\d{1,4}/(\d{1,5})/(?:stderr|stdout)\.log(?:\.\w{2,4})?$")
"""Where torchrun keeps what its workers print: attempt_0/2/stderr.log is of local rank 2."""

_FILE_FRAME = re.compile(rb'  File "([^"]{1,1000})", line (\d{1,9}|\?{3}),? in (\S.{0,300})')
_GDB_FRAME = re.compile(rb"#\d{1,6} +(?:0x[0-9a-f]{1,16} in )?(.+)", re.S)
_GDB_PYTHON = re.compile(rb", for file ([^,\n]{1,1000}), line (\d{1,9}), in ([\w<>.]{1,200})")
_LOCATION = re.compile(rb"\S{1,1000}")
_WATCHDOG_FRAME = re.compile(rb"#\d{1,6} (.{1,300}) from (\S{1,1000}):(\d{1,9})\s*$")


class _Thread(Struct):
    """One whose frames are being read."""

    place: int
    key: bytes
    is_main: bool | None = None
    state: str | None = None
    frames: list[str] = field(default_factory=list)
    is_python: bool = False
    """Whether its frames are given as py-bt has them."""


class _Dump(Struct):
    """The threads of one process at one moment."""

    format: str
    pid: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    threads: list[_Thread] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)


class StackReader:
    """Takes stacks out of a text. Shows each line; consumes none."""

    def __init__(self, sink: Sink, path: str = "") -> None:
        self._sink = sink
        folder = _FOLDER.search(path.replace("\\", "/"))
        self._local_rank = int(folder[1]) if folder else None
        self._dumps: dict[bytes, _Dump] = {}
        self._reading: dict[bytes, _Thread] = {}
        """The thread whose frames are being read, by what stands before its lines."""
        self._sizes: list[int] | None = None
        """Lengths of these prefixes, longest first; None where they are to be asked anew."""
        self._asked: dict[bytes, tuple[int, bytes]] = {}
        """Processes that a line named, whose dump may begin in the next one."""
        self._rows: list[tuple[object, ...]] = []
        self._held = self._left_out = 0
        self._number = 0
        self.count = 0
        """Threads so far."""

    @property
    def is_open(self) -> bool:
        """Whether something has begun that further lines belong to."""
        return bool(self._asked or self._reading)

    def take(self, line: bytes, place: int) -> bool:
        """Look at a line; whether it belongs to a stack."""
        line = line[:MAX_LINE_BYTES].rstrip(b"\r")
        asked, self._asked = self._asked, {}
        if asked and self._version(line, asked):
            return True
        if _KEY.search(line) and self._begin(line, place):
            return True
        return bool(self._reading) and self._continue(line)

    # --- what begins ----------------------------------------------------------------------------

    def _begin(self, line: bytes, place: int) -> bool:
        if pyspy := _PYSPY.search(line):
            thread = _Thread(place, pyspy[1], state=pyspy[2].decode())
            prefix = line[: pyspy.start()]
            dump = self._dump(prefix, "py-spy", pyspy[1])
            if dump is not None:
                is_first = pyspy[1].isdigit() and int(pyspy[1]) == dump.pid
                thread.is_main = pyspy[3] == b"MainThread" or is_first
                self._add(prefix, dump, thread)
        elif fault := _FAULT.search(line):
            prefix, key = line[: fault.start()], fault["id"] or b""
            dump = self._dump(prefix, "faulthandler", key)
            if dump is not None:
                self._add(prefix, dump, _Thread(place, key))
        elif gdb := _GDB.search(line):
            prefix = line[: gdb.start()]
            # Once for native frames and once for those of Python: both are of one moment.
            dump = self._dump(prefix, "gdb")
            if dump is not None:
                thread = _Thread(place, gdb["lwp"], is_main=gdb["number"] == b"1")
                if thread.is_main:
                    dump.pid = int(gdb["lwp"])
                self._add(prefix, dump, thread)
        elif watchdog := _WATCHDOG.search(line):
            launcher = _EACH_LINE.match(line)
            prefix = launcher[0] if launcher else b""
            dump = self._new(prefix, "watchdog", line[: watchdog.start()])
            self._add(prefix, dump, _Thread(place, b"", is_main=True))
        elif (process := _PROCESS.search(line)) and process.start() <= MAX_PREFIX_BYTES:
            if len(self._asked) < MAX_OPEN:
                self._asked[line[: process.start()]] = int(process[1]), line[process.end() :]
            return False
        elif timeout := _TIMEOUT.search(line):
            self._end(line[: timeout.start()])
            return False
        elif gdb_process := _GDB_PROCESS.search(line):
            dump = self._dumps.get(line[: gdb_process.start()])
            if dump is not None and dump.format == "gdb":
                dump.pid = int(gdb_process[1])
                self._end(line[: gdb_process.start()])
        else:
            return False
        return True

    def _dump(self, prefix: bytes, format_: str, key: bytes | None = None) -> _Dump | None:
        """The dump that a thread behind this prefix belongs to; None where there are too many.

        A thread that it has already belongs to the next one.
        """
        if len(prefix) > MAX_PREFIX_BYTES:
            self._left_out += 1
            return None
        dump = self._dumps.get(prefix)
        if dump is not None and dump.format == format_ and key not in dump.seen:
            return dump
        if dump is None and len(self._dumps) >= MAX_OPEN:
            self._left_out += 1
            return None
        return self._new(prefix, format_, prefix)

    def _new(self, prefix: bytes, format_: str, said: bytes) -> _Dump:
        self._end(prefix)
        dump = self._dumps[prefix] = _Dump(format_, local_rank=self._local_rank)
        if rank := _RANK.search(said):
            dump.rank = int(rank[1])
        if local_rank := _LOCAL.search(said):
            dump.local_rank = int(local_rank[1])
        return dump

    def _add(self, prefix: bytes, dump: _Dump, thread: _Thread) -> None:
        self._reading[prefix], self._sizes = thread, None
        dump.seen.add(thread.key)
        if len(dump.threads) < MAX_DUMP_THREADS:
            dump.threads.append(thread)
        else:
            self._left_out += 1

    # --- what follows ---------------------------------------------------------------------------

    def _continue(self, line: bytes) -> bool:
        prefix = self._prefix_of(line)
        if prefix is None:
            return False
        is_of_it = _TAKEN[self._dumps[prefix].format](self._reading[prefix], line[len(prefix) :])
        if not is_of_it:
            self._close(prefix)
            return False
        self._held += 1
        if self._held > MAX_HELD_FRAMES:
            for held in [*self._dumps]:
                self._end(held)
            self._held = 0
        return True

    def _version(self, line: bytes, asked: dict[bytes, tuple[int, bytes]]) -> bool:
        """Whether py-spy's dump of a process begins: its second line says so, and the first may
        be anyone's."""
        for prefix, (pid, command) in asked.items():
            if line.startswith(prefix) and _VERSION.match(line, len(prefix)):
                dump = self._new(prefix, "py-spy", prefix)
                dump.pid = pid
                if rank := _SAID_RANK.search(command):
                    dump.rank = int(rank[1])
                if local_rank := _SAID_LOCAL.search(command):
                    dump.local_rank = int(local_rank[1])
                return True
        return False

    def _prefix_of(self, line: bytes) -> bytes | None:
        """The longest prefix of the threads being read that the line stands behind."""
        if self._sizes is None:
            self._sizes = sorted({len(p) for p in self._reading}, reverse=True)
        return next((line[:n] for n in self._sizes if line[:n] in self._reading), None)

    def _close(self, prefix: bytes) -> None:
        if self._reading.pop(prefix, None) is not None:
            self._sizes = None

    # --- the end --------------------------------------------------------------------------------

    def _end(self, prefix: bytes) -> None:
        self._close(prefix)
        dump = self._dumps.pop(prefix, None)
        if dump is None:
            return
        if dump.format == "faulthandler":
            # It goes from the newest thread to the first.
            for thread in dump.threads:
                thread.is_main = thread is dump.threads[-1]
        told = [t for t in dump.threads if t.frames]
        self._held = max(0, self._held - sum(len(t.frames) for t in told))
        self._number += bool(told)
        for thread in told:
            self._keep(dump, thread)

    def _keep(self, dump: _Dump, thread: _Thread) -> None:
        if self.count >= MAX_THREADS:
            self._left_out += 1
            return
        self.count += 1
        self._rows.append(
            (
                thread.place, dump.format, self._number, dump.pid, dump.rank, dump.local_rank,
                thread.is_main, thread.state, thread.frames,
            )
        )  # fmt: skip
        if len(self._rows) >= _FLUSH_THREADS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            columns = map(list, zip(*self._rows, strict=True))
            write_columns(self._sink, "thread_stack", dict(zip(COLUMNS, columns, strict=True)))
            self._rows.clear()

    def finish(self) -> None:
        """Write what is held."""
        for prefix in [*self._dumps]:
            self._end(prefix)
        self._flush()
        tell(self._sink, self.count, self._left_out)


COLUMNS = (
    "place", "format", "dump_number", "pid", "stated_rank", "local_rank", "is_main", "state",
    "frames",
)  # fmt: skip


def tell(sink: Sink, count: int, left_out: int) -> None:
    """Count the threads, and those that were too many."""
    sink.count("thread_stack", count, severity="info", doc="Threads whose stack was dumped.")
    sink.count("stack_left_out", left_out, doc="Threads beyond those kept of one file.")


def _add_frame(thread: _Thread, shown: str) -> None:
    if len(thread.frames) < MAX_FRAMES:
        thread.frames.append(shown)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _pyspy(thread: _Thread, text: bytes) -> bool:
    """Frames stand four blanks behind; what stands further is an argument or a local."""
    if not text.startswith(b"    "):
        return False
    at = text.rfind(b" (")
    if text[4:5] != b" " and at > 0 and text.endswith(b")"):
        path, _, line = text[at + 2 : -1].rpartition(b":")
        if path and line.isdigit() and len(line) < 10:
            _add_frame(thread, frame(_text(text[4:at]), _text(path), int(line)))
        else:
            _add_frame(thread, frame(_text(text[4:at]), _text(text[at + 2 : -1])))
    return True


def _faulthandler(thread: _Thread, text: bytes) -> bool:
    if file_frame := _FILE_FRAME.match(text):
        line = int(file_frame[2]) if file_frame[2].isdigit() else None
        _add_frame(thread, frame(_text(file_frame[3]), _text(file_frame[1]), line))
    elif text.startswith(b"  Garbage-collecting"):
        _add_frame(thread, "Garbage-collecting")
    elif not text.startswith((b"  ...", b"  <", b"  Binary file")):
        return False
    return True


def _gdb(thread: _Thread, text: bytes) -> bool:
    if thread.is_python or text.startswith(b"Traceback (most recent call first)"):
        thread.is_python = True
        if file_frame := _FILE_FRAME.match(text):
            _add_frame(
                thread, frame(_text(file_frame[3]), _text(file_frame[1]), int(file_frame[2]))
            )
        return text.startswith((b" ", b"Traceback"))
    frame_line = _GDB_FRAME.match(text)
    if frame_line is None:
        # A frame that goes on in the next line, as where gdb wraps them.
        return text.startswith(b"    ") and bool(thread.frames)
    if inside := _GDB_PYTHON.search(frame_line[1]):
        _add_frame(thread, frame(_text(inside[3]), _text(inside[1]), int(inside[2])))
        return True
    at = max(frame_line[1].rfind(b") at "), frame_line[1].rfind(b") from "))
    where = frame_line[1][at:].split(b" ", 2)[2].rstrip() if at >= 0 else b""
    if not _LOCATION.fullmatch(where):
        where = b""
    path, _, line = where.rpartition(b":")
    if path and line.isdigit() and len(line) < 10:
        _add_frame(thread, frame(_text(frame_line[1]), _text(path), int(line)))
    else:
        _add_frame(thread, frame(_text(frame_line[1]), _text(where) or None))
    return True


def _watchdog(thread: _Thread, text: bytes) -> bool:
    frame_line = _WATCHDOG_FRAME.match(text)
    if frame_line is None:
        return False
    _add_frame(thread, frame(_text(frame_line[1]), _text(frame_line[2]), int(frame_line[3])))
    return True


_TAKEN = {
    "py-spy": _pyspy,
    "faulthandler": _faulthandler,
    "gdb": _gdb,
    "watchdog": _watchdog,
}
"""Of each format: takes a frame's line, and says whether the line belongs to the thread."""
