"""What several commands printed of one machine's ports into one file, each read by its own format.

Each format is given the file with the lines of the others blank: numbers of lines stay true, and
lines that say when or whose (a time, a prompt) are given to all.
"""

from __future__ import annotations

import io
import re
from typing import BinaryIO

from msgspec.structs import replace

from tracekit.ingest.base import IngestOptions, Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.printed_tables import prompt
from tracekit.ingest.lines import lines

KIND = "net_capture"

MAX_BYTES = 64 << 20
"""Of a file, which is held in memory; a longer one is read by one format as if it were alone."""

_BEGINS = {
    "nic": re.compile(
        r"(?:NIC statistics|Standard stats for \S{1,40}|Pause parameters for [\w.@-]{1,60}):\s*$"
        r"|link [\w-]{1,60}/\d{1,3}(?: |$)"
    ),
    "infiniband": re.compile(r'# Port[\w ]{0,40} counters: Lid \d|Errors for (?:0x\w{1,16} )?"'),
}
"""By family: the lines with which an output of its commands begins."""
_MARK = re.compile(r"\s*[=#*>-]{2,}\s*\S.{0,200}$")
"""Somebody's heading."""


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise outputs of two families by the lines with which they begin."""
    if b"ounters: Lid" not in head and b"Errors for" not in head:
        return None
    text = head.decode("utf-8", "replace").splitlines()
    if all(any(begins.match(line) for line in text) for begins in _BEGINS.values()):
        return Recognition(KIND, "what ethtool or rdma and InfiniBand's tools print", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream each command's output through the format that knows it."""
    from tracekit.ingest.counters.formats import FAMILIES

    readers = {family.name: family for family in FAMILIES if family.name in _BEGINS}
    parts: dict[str, list[bytes]] = {name: [] for name in _BEGINS}
    whose = "nic"
    with source.open() as stream:
        taken = 0
        for line in lines(stream):
            raw = line.text.encode()
            taken += len(raw)
            if taken > MAX_BYTES:
                sink.count(
                    "capture_too_long",
                    doc=f"A capture of several commands of more than {MAX_BYTES >> 20} MiB is read "
                    "so far only: give each command a file.",
                    place=line.number,
                )
                break
            whose = next((n for n, begins in _BEGINS.items() if begins.match(line.text)), whose)
            is_all = (
                times.of_line(line.text) is not None
                or prompt(line.text) is not None
                or (_MARK.match(line.text) and not _BEGINS["infiniband"].match(line.text))
            )
            for name, held in parts.items():
                held.append(raw if is_all or name == whose else b"")
    for name, held in parts.items():
        text = b"\n".join(held) + b"\n"

        def opened(text: bytes = text) -> BinaryIO:
            return io.BytesIO(text)

        readers[name].read(replace(source, open=opened), sink, IngestOptions())
