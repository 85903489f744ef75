"""Paths to files: folders, globs, archives, compression, and caps."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import socket
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import msgspec
import pytest
import zstandard
from memory_sink import MemorySink, source_of

from tracekit.errors import InputError
from tracekit.ingest import (
    INGESTORS,
    IngestOptions,
    SourceFile,
    archives,
    files,
    ingestor,
    recognise,
    streams,
)
from tracekit.ingest.files import expand
from tracekit.ingest.kineto import KinetoIngestor
from traces import make_trace, write_trace

EVENT = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 5, "dur": 1}


def trace(rank: int) -> bytes:
    info = {"backend": "nccl", "rank": rank, "world_size": 4}
    return json.dumps(
        {"schemaVersion": 1, "distributedInfo": info, "traceEvents": [EVENT] * 3}
    ).encode()


def names(sources: list[SourceFile], below: Path) -> list[str]:
    return [os.path.relpath(s.path, below) for s in sources]


def ranks(sources: list[SourceFile]) -> list[object]:
    found = []
    for source in sources:
        sink = MemorySink()
        KinetoIngestor().read(source, sink, IngestOptions())
        assert sink.table("host_op").num_rows == 3
        found.append(sink.facts["file_rank"])
    return found


def make_tar(path: Path, mode: str, members: dict[str, bytes]) -> None:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


# --- expanding -----------------------------------------------------------------------------------


def test_folders_are_read_in_order_of_numbers_without_hidden_files(tmp_path: Path) -> None:
    for name in (
        "rank10.json",
        "rank2.json",
        ".hidden.json",
        "sub/rank0.json",
        ".git/x.json",
        "a.json.tmp",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(trace(0))
    (tmp_path / "sub" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "again.json").symlink_to(tmp_path / "rank2.json")
    found = names(files.expand([tmp_path]), tmp_path)
    assert found == ["a.json.tmp", "again.json", "rank10.json", "sub/rank0.json"], "each file once"
    assert [s.path for s in files.expand([tmp_path, tmp_path / "rank10.json"])] == [
        s.path for s in files.expand([tmp_path])
    ]


def test_a_file_that_is_named_like_a_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "a.json").write_text("{}")
    assert [f.path for f in files.expand(["~"])] == [str(tmp_path / "home" / "a.json")]
    Path("~").write_text("{}")
    assert [f.path for f in files.expand(["~"])] == ["~"]
    with pytest.raises(InputError, match="no such file"):
        files.expand(["~nobody-of-that-name/x"])


def test_globs(tmp_path: Path) -> None:
    for i in (10, 9):
        (tmp_path / f"rank{i}.json").write_bytes(trace(i))
    assert names(files.expand([str(tmp_path / "rank*.json")]), tmp_path) == [
        "rank9.json",
        "rank10.json",
    ]
    with pytest.raises(InputError, match="no file matches"):
        files.expand([str(tmp_path / "*.nope")])


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        files.expand([tmp_path / "absent"])
    with pytest.raises(InputError, match="holds no files"):
        files.expand([tmp_path])


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tgz", "tar.zst", "zip"])
def test_archives_are_read_in_place(tmp_path: Path, kind: str) -> None:
    members = {f"job/rank{i}.json.gz": gzip.compress(trace(i)) for i in (2, 0, 1)}
    members["job/.hidden.json"] = b"{}"
    members["job/rank3.json"] = trace(3)
    path = tmp_path / f"job.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
    elif kind == "tar.zst":
        make_tar(tmp_path / "job.tar", "w", members)
        path.write_bytes(zstandard.compress((tmp_path / "job.tar").read_bytes()))
    else:
        make_tar(path, "w" if kind == "tar" else "w:gz", members)
    sources = files.expand([path])
    if kind in ("tar.gz", "tgz", "tar.zst"):
        assert [s.name[4] for s in sources] == ["2", "0", "1", "3"], "as they are stored"
        sources.sort(key=lambda s: s.path)
    assert names(sources, tmp_path) == [
        f"job.{kind}!job/rank{i}.json{'.gz' if i < 3 else ''}" for i in range(4)
    ]
    assert [s.name for s in sources] == [f"rank{i}.json" for i in range(4)]
    assert ranks(sources) == [0, 1, 2, 3]
    assert ranks(sources[::-1]) == [3, 2, 1, 0], "in any order"
    assert [recognise(s).kind for s in sources] == ["kineto"] * 4
    assert ranks(pickle.loads(pickle.dumps(sources)))[0] == 0, "they travel to workers"  # noqa: S301


def test_a_compressed_archive_is_inflated_once_whatever_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.tgz"
    make_tar(path, "w:gz", {f"rank{i}.json": trace(i) for i in reversed(range(20))})
    opened: list[str] = []
    open_tar = archives._open_tar

    def counted(path: str) -> streams.DecompressedStream:
        opened.append(path)
        return open_tar(path)

    monkeypatch.setattr(archives, "_open_tar", counted)
    sources = files.expand([path])
    assert ranks(sources) == list(reversed(range(20)))
    # Once for its members' names, once for what they hold, once for the ends of these traces.
    assert len(opened) == 3
    data = sources[3].open().read()
    with sources[3].open() as stream:
        assert stream.read(10) == data[:10]
    with sources[3].open() as stream:
        assert stream.read() == data, "first what was kept of it, then what follows"
    assert len(opened) == 4
    monkeypatch.setattr(archives, "MAX_KEPT_BYTES", 20)
    for source in [s for s in sources[4:9] for _ in range(2)]:
        with source.open() as stream:
            assert stream.read() == trace(int(source.name[4:-5]))
    assert len(opened) == 5, "what is long is not kept: a second place follows the first"


def test_a_truncated_archive_gives_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "job.tar"
    make_tar(path, "w", {f"rank{i}.json": trace(i) for i in range(3)})
    path.write_bytes(path.read_bytes()[:1100])
    assert names(files.expand([path]), tmp_path)[0] == "job.tar!rank0.json"
    broken = tmp_path / "broken.zip"
    broken.write_bytes(b"PK\x03\x04 nothing else")
    assert [recognise(s).kind for s in files.expand([broken])] == ["archive"]


def test_archives_in_archives_are_named_not_followed(tmp_path: Path) -> None:
    inner = tmp_path / "inner.tar"
    make_tar(inner, "w", {"rank0.json": trace(0)})
    outer = tmp_path / "outer.zip"
    with zipfile.ZipFile(outer, "w") as archive:
        archive.write(inner, "inner.tar")
    (source,) = files.expand([outer])
    assert (recognise(source).kind, recognise(source).status) == ("archive", "unrecognised")


def test_the_number_of_members_is_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 2)
    path = tmp_path / "job.tar"
    make_tar(path, "w", {f"rank{i}.json": trace(i) for i in range(5)})
    (source,) = files.expand([path])
    found = recognise(source)
    assert (found.status, "more than 2 members" in found.reason) == ("unreadable", True)


def test_a_member_that_unpacks_to_more_than_its_share_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "RATIO_FREE_BYTES", 1 << 20)
    path = tmp_path / "job.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("rank0.json", b" " * (40 << 20))
    (source,) = files.expand([path])
    assert "unpacks to more than" in recognise(source).reason
    # A member that is compressed twice: each time less than the limit, together more.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rank0.json.gz", gzip.compress(gzip.compress(b" " * (40 << 20))[:20] * 9))
        archive.writestr("rank1.json.zst", zstandard.compress(b" " * (400 << 20)))
    source = files.expand([path])[1]
    with source.open() as stream:
        assert len(stream.read()) < 2 << 20
        assert streams.stream_problem(stream) == "limit"


def test_overlapping_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rank0.json", trace(0))
        archive.writestr("rank1.json", trace(1))
        archive.infolist()[1].header_offset = 0
    (source,) = files.expand([path])
    assert "overlap" in recognise(source).reason


def test_the_index_of_many_members_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "job.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(3000):
            archive.writestr(f"{i}.txt", b"x")
    begun = time.process_time()
    for source in files.expand([path]):
        with source.open() as stream:
            assert stream.read() == b"x"
    # Read for each member, 3000 times 3000 entries take half a minute.
    assert time.process_time() - begun < 5


def header(kind: bytes, size: int, name: str = "x") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.USTAR_FORMAT)


def test_headers_of_a_tar_file_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "job.tar"
    whole = header(tarfile.REGTYPE, 1, "a.json") + b"x".ljust(512, b"\0")
    # A header of 2 GiB, a thousand headers before one member, and a size below zero.
    record = b"12 size=-99\n"
    negative = header(tarfile.XHDTYPE, len(record)) + record.ljust(512, b"\0")
    for odd in (header(tarfile.XHDTYPE, 2 << 30), header(b"L", 0) * 5000, negative + whole):
        path.write_bytes(whole + odd)
        assert names(files.expand([path]), tmp_path) == ["job.tar!a.json"]
        path.write_bytes(odd)
        assert len(files.expand([path])) == 1


def test_names_of_members_hold_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    path = tmp_path / "job.tar"
    make_tar(path, "w", {"a\x1b[2Jb\n\udcff.json": trace(0), "n" * 9000 + "7.json": trace(0)})
    first, second = sorted(s.path for s in files.expand([path]))
    assert first.isprintable()
    assert second.isprintable()
    assert max(len(first), len(second)) < 4096 + len(str(path))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_bombs_are_stopped(pack: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "RATIO_FREE_BYTES", 1 << 20)
    monkeypatch.setattr(streams, "MAX_RATIO", 50)
    whole = trace(0)[:-1] + b', "x": "' + b"0" * (40 << 20) + b'"}'
    sink = MemorySink()
    KinetoIngestor().read(source_of(pack(whole)), sink, IngestOptions())  # type: ignore[operator]
    assert sink.table("host_op").num_rows == 3
    assert (sink.facts["status"], sink.counters) == ("partial", {"stream_limit": 1})
    assert sink.facts["raw_bytes"] < 20 << 20


def test_compression_is_told_by_the_bytes() -> None:
    for data in (trace(1), gzip.compress(trace(1)), zstandard.compress(trace(1))):
        for name in ("a.json", "a.json.gz", "a.zst"):
            assert ranks([source_of(data, name)]) == [1]


def test_a_file_that_grows_is_told() -> None:
    whole = source_of(trace(1))
    sink = MemorySink()
    KinetoIngestor().read(msgspec.structs.replace(whole, file_bytes=100), sink, IngestOptions())
    assert sink.table("host_op").num_rows == 3
    assert (sink.facts["status"], sink.counters) == ("partial", {"stream_growing": 1})


def test_a_file_that_is_gone_is_our_own_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(trace(1))
    source = files.source_file(tmp_path / "a.json")
    (tmp_path / "a.json").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        KinetoIngestor().read(source, MemorySink(), IngestOptions())


def test_gzip_headers_of_all_kinds(tmp_path: Path) -> None:
    path = tmp_path / "named.gz"
    with gzip.GzipFile("a name.json", "wb", fileobj=path.open("wb")) as stream:
        stream.write(trace(2))
    assert ranks([files.source_file(path)]) == [2]
    plain = gzip.compress(trace(2))
    extra = (
        plain[:3]
        + b"\x1e"
        + plain[4:10]
        + b"\x03\x00abc"
        + b"name\0"
        + b"comment\0"
        + b"\0\0"
        + plain[10:]
    )
    assert ranks([source_of(extra)]) == [2]


# --- recognising ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "kind", "status"),
    [
        (trace(0), "kineto", "ok"),
        (b"\xef\xbb\xbf  " + trace(0), "kineto", "ok"),
        (json.dumps([EVENT]).encode(), "kineto", "ok"),
        (
            json.dumps(
                {"schemaVersion": 1, "deviceProperties": ["x" * 200_000], "traceEvents": []}
            ).encode(),
            "kineto",
            "ok",
        ),
        (json.dumps({"mine": "x" * 300_000, "traceEvents": []}).encode(), "kineto", "ok"),
        (
            b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}',
            "execution_trace",
            "unrecognised",
        ),
        (b'{"segments": [], "device_traces": []}', "memory_snapshot", "unrecognised"),
        (b"[[1, 2, 3], [4, 5, 6]]", "memory_timeline", "unrecognised"),
        (
            json.dumps({"traceEvents": [EVENT | {"args": {"name": "/device:GPU:0"}}]}).encode(),
            "xla_trace",
            "unrecognised",
        ),
        (
            json.dumps([EVENT, EVENT | {"name": "NEGOTIATE_ALLREDUCE"}]).encode(),
            "horovod_timeline",
            "unrecognised",
        ),
        (
            json.dumps([EVENT | {"args": {"name": "Ascend Hardware"}}]).encode(),
            "ascend_trace",
            "unrecognised",
        ),
        (
            b" ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):\n\n Time (%)  Total Time (ns)\n",
            "nsys_stats",
            "unrecognised",
        ),
        (b"Time (%),Total Time (ns),Instances,Avg (ns),Name\n", "nsys_stats", "unrecognised"),
        (b"[[1,0]<stdout>:host-1:1:2 [0] NCCL INFO Using network Socket\n", "nccl", "ok"),
        (b'{"a": 1}', "json", "unrecognised"),
        (b"[]", "json", "unrecognised"),
        (b"NCCL INFO hello", "text", "unrecognised"),
        (b"", "empty", "empty"),
        (gzip.compress(b"", mtime=0), "empty", "empty"),
        (b" \n", "empty", "empty"),
        (b"PAR1....", "parquet", "unreadable"),
        (b"\x80\x04\x95", "pickle", "unrecognised"),
        (b"\x1f\x8b\x08", "unreadable", "unreadable"),
    ],
)
def test_recognition(data: bytes, kind: str, status: str) -> None:
    found = recognise(source_of(data))
    assert (found.kind, found.status) == (kind, status)
    assert found.reason
    assert found.ingestor == (kind if kind in ("kineto", "nccl") else None)


def test_the_head_shows_rank_and_world() -> None:
    facts = recognise(source_of(trace(3), "rank7.json")).facts
    assert facts == {"file_rank": 3, "world_size": 4, "name_rank": 7}


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "a.json").write_bytes(trace(0))
    assert [
        recognise(s).status for s in files.expand([tmp_path / "gone.json", tmp_path / "a.json"])
    ] == ["ok", "unreadable"]


def test_tensorboard_files_are_named() -> None:
    assert (
        recognise(source_of(b"\x18\0\0\0\0\0\0\0abcd", "events.out.tfevents.1")).kind
        == "tensorboard"
    )


def test_ingestors_are_listed() -> None:
    assert "kineto" in [one.name for one in INGESTORS]
    assert ingestor("kineto").version >= 1
    with pytest.raises(KeyError):
        ingestor("none")


def test_importing_is_cheap() -> None:
    code = "import sys, tracekit.ingest as i; i.files.expand(['.']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for heavy in ("numpy", "pyarrow", "polars", "duckdb", "zstandard"):
        assert f"'{heavy}'" not in done.stdout


def test_what_is_no_file_is_named_and_never_opened(tmp_path: Path) -> None:
    """A pipe would wait for ever, a device never end."""
    os.mkfifo(tmp_path / "rank0.json")
    os.mkfifo(tmp_path / "traces.tar")
    os.mkfifo(tmp_path / "job.toml")
    os.mkfifo(tmp_path / "a.parquet")
    (tmp_path / "zero.log").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as unix:
        here = Path.cwd()
        os.chdir(tmp_path)  # the name of a socket is short
        unix.bind("s.json")
        os.chdir(here)
        found = {
            Path(f.path).name: (recognise(f).status, recognise(f).reason)
            for f in expand([tmp_path])
        }
    pipe = ("unreadable", "a named pipe, which is never opened")
    assert found == {
        "rank0.json": pipe,
        "traces.tar": pipe,
        "job.toml": pipe,
        "a.parquet": pipe,
        "zero.log": ("unreadable", "a device, which is never opened"),
        "s.json": ("unreadable", "a socket, which is never opened"),
    }
    with pytest.raises(InputError, match="never opened"):
        expand([tmp_path / "rank0.json"])[0].open()


def test_a_pipe_among_traces_costs_nothing_but_itself(tmp_path: Path) -> None:
    from tracekit import runs

    write_trace(tmp_path / "job" / "rank0.json", make_trace(0, world_size=1))
    os.mkfifo(tmp_path / "job" / "rank1.json")
    manifest = runs.ingest([tmp_path / "job"], tmp_path / "run")
    assert [s.reader.partition("=")[0] for s in manifest.sources] == ["kineto", ""]
    assert runs.ingest([tmp_path / "job"], tmp_path / "run") == manifest
