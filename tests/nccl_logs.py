"""Synthetic NCCL logs, a shape for each range of releases, and a sink that keeps what is written.

The lines are made here from the formats; none is copied from a real log.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from tracekit.ingest import IngestOptions, SourceFile, ingestor, recognise
from tracekit.schema import table

HOST = "gpu-a"


@dataclass
class KeptSink:
    """A sink in memory."""

    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    shapes: list[str] = field(default_factory=list)

    def write(self, name: str, rows: pa.Table) -> None:
        known = {c.name for c in table(name).stored_columns}
        assert set(rows.column_names) <= known
        self.tables.setdefault(name, []).extend(rows.to_pylist())

    def count(
        self,
        counter: str,
        n: int = 1,
        *,
        severity: str = "warning",
        doc: str,
        place: int | None = None,
        shape: str | None = None,
    ) -> None:
        assert doc.endswith(".")
        self.counts[counter] = self.counts.get(counter, 0) + n
        if shape:
            self.shapes.append(shape)

    def fact(self, **columns: object) -> None:
        self.facts.update(columns)

    def rows(self, name: str, *columns: str) -> list[Any]:
        """Rows of a table: of some columns as tuples, of one as values."""
        found = self.tables.get(name, [])
        if not columns:
            return found
        if len(columns) == 1:
            return [r.get(columns[0]) for r in found]
        return [tuple(r.get(c) for c in columns) for r in found]

    def events(self, code: str) -> list[dict[str, str]]:
        """Fields of the events of a kind."""
        return [
            dict(f.split("=", 1) for f in r["fields"] or ())
            for r in self.rows("nccl_event")
            if r["code"] == code
        ]

    @property
    def everything(self) -> str:
        """All that was kept, as text."""
        return repr((self.tables, self.counts, self.facts, self.shapes))


def source_of(content: bytes, name: str = "job.log") -> SourceFile:
    """Bytes as a file."""
    return SourceFile(name, name, len(content), 0, lambda: io.BytesIO(content))


def read(content: str | bytes, name: str = "job.log") -> KeptSink:
    """Recognise and ingest."""
    data = content.encode() if isinstance(content, str) else content
    source = source_of(data, name)
    found = recognise(source)
    assert found.ingestor is not None, found
    sink = KeptSink(facts={"status": found.status})
    ingestor(found.ingestor).read(source, sink, IngestOptions())
    return sink


def read_file(path: Path) -> KeptSink:
    """Ingest a file on disk."""
    return read(path.read_bytes(), path.name)


def info(text: str, pid: int = 100, tid: int = 101, host: str = HOST, dev: int = 0) -> str:
    """A line of NCCL."""
    return f"{host}:{pid}:{tid} [{dev}] NCCL INFO {text}"


def pointer(rank: int) -> str:
    """A communicator's address in the process of a rank."""
    return f"0x7f00{rank:04x}0000"


def comm_lines(version: str, rank: int, size: int = 2) -> list[str]:
    """The life of a communicator as a release range prints it, for one rank a process."""
    minor = int(version.split(".")[1])
    pid, tid, where = 100 + rank, 200 + rank, pointer(rank)
    bus = f"{0x17 + rank:x}000"
    peer = (rank + 1) % size

    def say(text: str) -> str:
        return info(text, pid, tid, dev=rank)

    head = f"comm {where} rank {rank} nranks {size} cudaDev {rank}"
    if minor >= 21:
        head = f"{'ncclCommInitRank' if minor < 23 else 'ncclCommInitRankConfig'} {head}"
    start = f"[Rank {rank}] {head}" if minor >= 29 else head
    middle = f" nvmlDev {rank}" if minor == 4 or minor >= 18 else ""
    tail = "" if minor == 4 else f" busId {bus}"
    ident = " commId 0xabc" if minor >= 16 else ""
    lines = [f"NCCL version {version}+cuda12.4"] if rank == 0 and minor <= 21 else []
    if rank == 0 and minor >= 22:
        lines.append(say(f"NCCL version {version}+cuda12.4"))
    if minor >= 6:
        lines.append(say("Using network IB"))
    if minor >= 18:
        lines.append(say(f"{start}{middle}{tail}{ident} - Init START"))
    if minor >= 20:
        lines.append(
            say(f"comm {where} rank {rank} nRanks {size} nNodes 1 localRanks {size} "
                f"localRank {rank} MNNVL 0")
        )  # fmt: skip
    edge = _edge(minor, rank, peer, bus)
    if minor < 22:
        lines.append(say(edge))
    if minor >= 7:
        lines.append(say(_channels(minor)))
    else:
        lines.append(say("Channel 00/04 :    0   1"))
    lines.append(say(f"{head}{middle}{tail}{ident} - Init COMPLETE"))
    if minor >= 23:
        lines.append(
            say(f"Init timings - ncclCommInitRankConfig: rank {rank} nranks {size} total 1.25 "
                f"(kernels 0.50, alloc 0.20, bootstrap 0.30, allgathers 0.00, topo 0.05, "
                f"graphs 0.02, connections 0.10, rest 0.08)")
        )  # fmt: skip
    if minor >= 22:
        lines.append(info(edge, pid, tid + 50, dev=rank))
    lines.append(
        say(f"AllReduce: opCount a sendbuff 0x1 recvbuff 0x2 count 1024 datatype 7 op 0 root 0 "
            f"comm {where} [nranks={size}] stream 0x5")
    )  # fmt: skip
    return lines


def _edge(minor: int, rank: int, peer: int, bus: str) -> str:
    other = f"{0x17 + peer:x}000"
    if minor <= 6:
        return f"Ring 00 : {rank}[{rank}] -> {peer}[{peer}] via P2P/IPC"
    if minor <= 13:
        return f"Channel 00 : {rank}[{bus}] -> {peer}[{other}] via P2P/IPC/read"
    if minor <= 17:
        return f"Channel 00/0 : {rank}[{bus}] -> {peer}[{other}] via P2P/IPC/read"
    return f"Channel 00/0 : {rank}[{rank}] -> {peer}[{peer}] via P2P/CUMEM/read"


def _channels(minor: int) -> str:
    if minor <= 16:
        return "4 coll channels, 8 p2p channels, 2 p2p channels per peer"
    if minor <= 19:
        return "4 coll channels, 0 nvls channels, 8 p2p channels, 2 p2p channels per peer"
    return (
        "4 coll channels, 4 collnet channels, 0 nvls channels, 8 p2p channels, "
        "2 p2p channels per peer"
    )


VERSIONS = (
    "2.4.8", "2.5.7", "2.6.4", "2.7.8", "2.8.4", "2.9.9", "2.10.3", "2.11.4", "2.12.12",
    "2.13.4", "2.14.3", "2.15.5", "2.16.5", "2.17.1", "2.18.5", "2.19.4", "2.20.5", "2.21.5",
    "2.22.3", "2.23.4", "2.24.3", "2.25.1", "2.26.6", "2.27.7", "2.28.3", "2.29.2", "2.30.7",
)  # fmt: skip


def job(version: str, size: int = 2) -> str:
    """One log of all ranks."""
    lines = [line for rank in range(size) for line in comm_lines(version, rank, size)]
    return "\n".join(lines) + "\n"
