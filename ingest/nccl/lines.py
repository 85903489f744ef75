"""From lines of a job's output to NCCL's own messages: who said what, whatever stands before it.

NCCL writes ``host:pid:tid [dev] NCCL INFO text``; launchers and platforms put their own prefixes
before it, other programs print into the middle of it. So a message is searched for, not matched
at the line's start, and a line may hold several.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import force_setattr

MAX_LINE_BYTES = 1 << 20
"""A longer line is cut in pieces of this size: no line of NCCL's comes near it."""
LINE_BYTES = 40
"""Memory that a line takes beside its bytes: of a held record of short lines, most of it."""
HEADS_LIMIT = 50_000
"""Distinct prefixes that are remembered (time stamps make them all different)."""
MAX_HEAD_BYTES = 4096
"""A longer prefix is not remembered: 50,000 of a megabyte each would be the memory."""
MAX_HOSTS = 100_000
MAX_HOST_BYTES = 255
"""Longest name of a host (POSIX, HOST_NAME_MAX)."""
MAX_MESSAGE_BYTES = 4096
"""NCCL formats a message in a buffer of 1024 bytes (debug.cc); what stands behind is another's."""

MARK = re.compile(rb" NCCL (INFO|WARN|TRACE|CALL|ABORT|VERSION) ?")
_HEAD = re.compile(
    # Only where a name begins, and whole: searched from each of its letters, one long word takes
    # the square of its length.
    rb"(?<![A-Za-z0-9_.-])([A-Za-z0-9_.-]++):(\d{1,10}):(\d{1,10})"
    rb"(?: \[(-?\d{1,4})\])?"
    rb"(?: \d{1,10}\.\d{1,10} \S{1,200}:\d{1,6})?"
    rb"(?: ([\w./-]++):(\d{1,6})(?: \([^()]{0,80}\))?)?$"
)
_LAUNCHERS = re.compile(
    rb"(?:\s+"
    rb"|\[1,(?P<mpi>\d{1,7})\]<std(?:out|err)>:"
    rb"|\[1,(?P<mpi2>\d{1,7})\]:"
    rb"|\[(?P<horovod>\d{1,7})\]<std(?:out|err)>:"
    rb"|(?P<srun>\d{1,7}):(?=\s)"
    rb"|\[(?:default|rank|local_rank ?|node|worker[-_]?|proc ?)(?P<tag>\d{1,7})\]:?"
    rb"|\((?:\w{1,40} )?pid=\d{1,9}(?:, ip=[0-9a-fA-F.:]{3,40})?\)"
    rb"|\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d[^\s\]]{0,20}\]?"
    rb"|I\d{4} \d\d:\d\d:\d\d\.\d{1,9}(?=\s)"  # of syslog, see steplog.heads
    rb"|[\w.-]{1,64} [\w./@-]{1,64}\[\d{1,10}\]:(?=\s)"  # of journalctl
    rb"|std(?:out|err) [FP](?= )"
    rb"|[A-Za-z][\w.-]{0,60} +\|(?= )"
    rb"|[\w.-]{1,60}:(?=\s)"
    rb")*"
)
_STAMP = re.compile(
    rb"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
)
_TABLE_REST = re.compile(rb"[-+\d.eE]*")
_ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]{0,200}\x07")


class Speaker(Struct, frozen=True):
    """A thread of a process on a host, as a prefix names it."""

    node: str | None
    pid: int
    tid: int
    device: int | None
    """CUDA ordinal of the calling thread: never a rank."""
    tag: int | None = None
    """Task number that the launcher put before the line."""
    tag_kind: str | None = None
    process: tuple[str | None, int] = (None, 0)
    """Who owns communicators and pointers."""

    def __post_init__(self) -> None:
        force_setattr(self, "process", (self.node, self.pid))


class Message(NamedTuple):
    """One NCCL message: speaker, level, text without its prefix, and when."""

    speaker: Speaker
    level: bytes
    text: bytes
    time_ns: int | None
    origin: bytes | None
    """file.cc or plugin function of a warning."""


class Line(NamedTuple):
    """A line that holds messages: those, and what stood before the first."""

    messages: list[Message]
    rest: bytes
    """Text before the first message: a piece of another program's line."""
    is_torn: bool


class _Head(NamedTuple):
    speaker: Speaker
    rest: bytes
    time_ns: int | None
    origin: bytes | None


def stamp_ns(text: bytes) -> int | None:
    """A date and time as ns, read as if it were UTC; None where there is none."""
    stamp = _STAMP.search(text)
    if not stamp:
        return None
    from datetime import UTC, datetime

    year, month, day, hour, minute, second = (int(g) for g in stamp.groups()[:6])
    try:
        whole = int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())
    except ValueError:
        return None
    return whole * 10**9 + int((stamp[7] or b"0").ljust(9, b"0"))


def without_launcher(text: bytes) -> bytes:
    """A line of any program without what launchers and platforms put before it."""
    launched = _LAUNCHERS.match(text)
    return text[launched.end() :] if launched else text


class Splitter:
    """Finds the messages in lines; remembers prefixes and hosts."""

    def __init__(self) -> None:
        self.hosts: set[bytes] = set()
        self.heads: dict[bytes, _Head] = {}
        self.phantom_hosts = 0
        """Prefixes glued to another text whose host could not be told."""
        self._speakers: dict[tuple[object, ...], Speaker] = {}

    def split(self, line: bytes) -> Line | None:
        """The messages of a line that contains ``NCCL``; None if it holds none."""
        marks = list(MARK.finditer(line))
        if not marks:
            return None
        messages: list[Message] = []
        rest = b""
        is_torn = len(marks) > 1
        begin = 0
        for index, mark in enumerate(marks):
            head = self.head(line[begin : mark.start()])
            if head is None:
                is_torn = True
                begin = max(begin, mark.start())
                continue
            end = len(line)
            if index + 1 < len(marks):
                next_head = _HEAD.search(line[mark.end() : marks[index + 1].start()])
                if next_head is None:
                    is_torn = True
                else:
                    end = mark.end() + self._host_start(next_head)
            if not messages:
                rest = line[:begin] + head.rest
            text = line[mark.end() : min(end, mark.end() + MAX_MESSAGE_BYTES)]
            messages.append(
                Message(head.speaker, mark[1], text.rstrip(), head.time_ns, head.origin)
            )
            begin = end
        return Line(messages, rest, is_torn) if messages else None

    def _host_start(self, head_match: re.Match[bytes]) -> int:
        """Where the next message's host begins: text glued before it belongs to this one."""
        name = head_match[1]
        for start in range(max(0, len(name) - MAX_HOST_BYTES), len(name)):
            if name[start:] in self.hosts:
                return head_match.start(1) + start
        return head_match.start(1)

    def head(self, text: bytes) -> _Head | None:
        """Who speaks, from the text before ``NCCL INFO``."""
        known = self.heads.get(text)
        if known is not None:
            return known
        head_match = _HEAD.search(text)
        if head_match is None:
            return None
        before = text[: head_match.start(1)]
        name = head_match[1]
        launched = _LAUNCHERS.match(before)
        is_launched = launched is not None and launched.end() == len(before)
        is_launched = is_launched and len(name) <= MAX_HOST_BYTES
        rest = b""
        host: bytes | None = name
        if is_launched:
            if len(self.hosts) < MAX_HOSTS:
                self.hosts.add(name)
        else:
            host, rest = self._glued(before, name)
        tag, kind = _tag_of(launched)
        speaker = self._speaker(host, head_match, tag, kind)
        head = _Head(speaker, rest, stamp_ns(before), head_match[5])
        if not rest and head.time_ns is None and len(text) <= MAX_HEAD_BYTES:
            if len(self.heads) >= HEADS_LIMIT:
                self.heads.clear()
            self.heads[text] = head
        return head

    def _glued(self, before: bytes, name: bytes) -> tuple[bytes | None, bytes]:
        """The host in a prefix that stands behind something unknown, and that something."""
        known = self._known_suffix(name)
        if known:
            return known, before + name[: len(name) - len(known)]
        if before.endswith((b" ", b"\t", b"]", b"|", b">")) and name[:1] not in b"-.":
            first = before.split(None, 1)[:1]
            is_word = not first or not _TABLE_REST.fullmatch(first[0])
            if is_word and len(name) <= MAX_HOST_BYTES:
                return name, before
        self.phantom_hosts += 1
        return None, before

    def _known_suffix(self, name: bytes) -> bytes | None:
        """The longest known host that the name ends in, behind nothing but a number's rest."""
        if name in self.hosts:
            return name
        for start in range(max(1, len(name) - MAX_HOST_BYTES), len(name)):
            if name[start:] in self.hosts and (
                _TABLE_REST.fullmatch(name[:start]) or name[:start] == b"A"
            ):
                return name[start:]
        return None

    def _speaker(
        self, host: bytes | None, head_match: re.Match[bytes], tag: int | None, kind: str | None
    ) -> Speaker:
        key = (host, head_match[2], head_match[3], head_match[4], tag, kind)
        speaker = self._speakers.get(key)
        if speaker is None:
            if len(self._speakers) >= HEADS_LIMIT:
                self._speakers.clear()
            speaker = self._speakers[key] = Speaker(
                host.decode() if host is not None else None,
                int(head_match[2]),
                int(head_match[3]),
                int(head_match[4]) if head_match[4] is not None else None,
                tag,
                kind,
            )
        return speaker


def _tag_of(launched: re.Match[bytes] | None) -> tuple[int | None, str | None]:
    if launched is None:
        return None, None
    for group, kind in (
        ("mpi", "mpi"),
        ("mpi2", "mpi"),
        ("horovod", "mpi"),
        ("srun", "srun"),
    ):
        if launched[group] is not None:
            return int(launched[group]), kind
    return None, None


def clean(line: bytes) -> bytes:
    """A line without colours and carriage returns (a progress bar's line may precede it)."""
    if b"\x1b" in line:
        line = _ANSI.sub(b"", line)
    if b"\r" in line:
        line = line.replace(b"\r", b" ").rstrip()
    return line


def read_texts(stream: object, size: int = 1 << 21) -> Iterator[bytes]:
    """A stream in texts of whole lines, without the last one's end; over-long lines in pieces."""
    rest = b""
    while data := stream.read(size):  # type: ignore[attr-defined]
        end = data.rfind(b"\n")
        if len(data) - end - 1 + (len(rest) if end < 0 else 0) > MAX_LINE_BYTES:
            yield rest + data
            rest = b""
        elif end >= 0:
            yield b"".join((rest, memoryview(data)[:end]))  # a copy, and not one more for each part
            rest = data[end + 1 :]
        else:
            rest += data
    if rest:
        yield rest


def read_lines(stream: object) -> Iterator[list[bytes]]:
    """Lines of a stream in batches, without their ends; over-long ones in pieces."""
    for text in read_texts(stream):
        yield text.split(b"\n")


def shape(text: bytes, limit: int = 160) -> str:
    """A masked shape: letters to a, digits to 9, runs folded."""
    kept = re.sub(rb"[A-Za-z\x80-\xff]+", b"a", text[: 4 * limit])
    kept = re.sub(rb"\d+", b"9", kept)
    kept = re.sub(rb"(?:a9|9a)[a9]*", b"9", kept)
    return kept[:limit].decode("ascii", "replace")
