"""The manifest: what a run consists of, one immutable file a generation."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import zlib
from pathlib import Path

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from tracekit.errors import DamagedRunError, StoreError

FORMAT = "tracekit-run"
FORMAT_VERSION = 1

MARK = "tracekit-run.json"
LAKE_MARK = "tracekit-lake.json"
"""In the folder of a lake, which holds many runs and is none."""
"""In the folder of every run, written before anything else: what lies in it is no raw file."""

_CHECK = '\n "crc32": {},'


class SourceEntry(Struct, frozen=True):
    """One source of a run. ``key`` hashes its bytes, its name and the options of its reading.

    Its rows also depend on who read it: ``reader``.
    """

    source_id: int
    path: str
    sha256: str
    file_bytes: int
    mtime_ns: int
    key: str
    columns: str = ""
    """What the job description says of its columns, as JSON; empty where nothing."""
    reader: str = ""
    """name=version of the ingestor that read it; empty where none knew it."""
    folder: str = ""
    """What a relative path is relative to."""


class ShardFile(Struct, frozen=True):
    """One Parquet file; ``path`` is relative to the run's folder."""

    table: str
    path: str
    rows_count: int
    file_bytes: int
    min_source_id: int | None = None
    max_source_id: int | None = None
    min_time_ns: int | None = None
    max_time_ns: int | None = None
    crc32: int | None = None
    """Of its bytes; null in runs of earlier versions."""


class Manifest(Struct, frozen=True):
    """A generation of a run."""

    generation: int
    key: str
    tracekit_version: str
    registry_version: int
    job_toml: str | None = None
    job_path: str | None = None
    """Where the job description lay."""
    job_bases: tuple[str, ...] = ()
    """What the paths of its [[rank]] and then of its [[source]] entries are relative to."""
    sources: tuple[SourceEntry, ...] = ()
    files: tuple[ShardFile, ...] = ()
    attempt: int | None = None
    """Which attempt of the job was chosen, where the files hold several."""
    notes: tuple[str, ...] = field(default=())
    """What a reader of the report must know of how the run was made."""
    unread: tuple[str, ...] = field(default=())
    """Paths that a time budget left for another time."""
    derive_version: str = ""
    """What made the derived tables (runs.keys.derive_version)."""
    ingestor_versions: str = ""
    """All ingestors there were, of which each source's own is its ``reader``."""

    def to_json(self) -> str:
        """The manifest as JSON text, with a checksum of all of it but the line that says so."""
        text = json.dumps(
            {"format": FORMAT, "format_version": FORMAT_VERSION, **to_builtins(self)}, indent=1
        )
        return "{" + _CHECK.format(zlib.crc32(text.encode())) + text[1:]

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """Read a manifest; StoreError names ``where`` if it is not one of ours."""
        import msgspec

        try:
            raw = json.loads(text)
            if raw.pop("format") != FORMAT:
                raise KeyError("format")
            version = raw.pop("format_version")
            if version != FORMAT_VERSION:
                raise StoreError(
                    f"{where}: run format {version}, this tracekit reads {FORMAT_VERSION}",
                    hint="ingest the sources again, or use the tracekit that wrote it",
                )
            check = raw.pop("crc32", None)  # runs of earlier versions have none
            said = text.replace(_CHECK.format(check), "", 1).encode()
            if check is not None and zlib.crc32(said) != check:
                raise ValueError("checksum")
            manifest = msgspec.convert(raw, cls)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DamagedRunError(
                f"{where}: not a manifest of a tracekit run ({type(error).__name__})",
                hint="ingest the sources again into a new folder",
            ) from None
        for file in manifest.files:
            # A manifest may come from a stranger: it must not lead out of its own folder.
            parts = Path(file.path).parts
            if Path(file.path).is_absolute() or ".." in parts:
                raise StoreError(f"{where}: lists a file outside the run: {file.path!r}")
        return manifest


def manifests_dir(run: Path) -> Path:
    """Folder of the generations."""
    return run / "manifests"


def is_run(path: Path) -> bool:
    """Whether the folder is a run (has at least one generation)."""
    return path.is_dir() and _latest_number(path) > 0


def mark(run: Path) -> None:
    """Say that the folder is a run's, whether or not its first generation is ever finished."""
    path = run / MARK
    if not path.exists():
        path.write_text(
            json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION}), encoding="utf-8"
        )


def is_made_by_us(folder: Path) -> bool:
    """Whether the folder is a run, or what a killed or refused ingest left of one."""
    return (folder / MARK).is_file() or is_run(folder)


def _latest_number(run: Path) -> int:
    numbers = [0]
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in manifests_dir(run).iterdir():
            if entry.suffix == ".json" and entry.stem.isdigit():
                numbers.append(int(entry.stem))
    return max(numbers)


def stamp_of(run: Path) -> str | None:
    """What tells without opening a file that a run is of the same generation still: equal stamps
    are of one file. None where the folder is no run.

    A file system that numbers its files anew, or a copy, gives another stamp to the same rows.
    """
    number = _latest_number(run)
    try:
        found = (manifests_dir(run) / f"{number:06d}.json").lstat()
    except OSError:
        return None
    return f"{number}-{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"


def load(run: Path) -> Manifest | None:
    """The latest generation, or None where the folder is no run yet."""
    number = _latest_number(run)
    if number == 0:
        return None
    path = manifests_dir(run) / f"{number:06d}.json"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedRunError(
            f"{path}: cannot be read ({type(error).__name__})",
            hint="ingest the sources again into a new folder",
        ) from None
    return Manifest.from_json(text, str(path))


def this_host() -> str:
    """The name of this machine, without its domain."""
    return os.uname().nodename.split(".")[0]


def is_dead(pid: object) -> bool:
    """Whether no process of this machine can have this number."""
    if not isinstance(pid, int) or pid <= 0:
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False  # it is somebody else's
    return False


def work_path(run: Path) -> Path:
    """A new path for work in progress, named so that a later ingest can tell it is dead."""
    return run / "tmp" / f"{this_host()}-{os.getpid()}-{secrets.token_hex(4)}"


def commit(run: Path, manifest: Manifest) -> bool:
    """Publish the manifest as the next generation.

    Returns False if another writer took that number first: reload and start again. The link is
    exclusive where rename would silently replace, and a reader never sees half a file.
    """
    folder = manifests_dir(run)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{manifest.generation:06d}.json"
    temporary = work_path(run)
    temporary.parent.mkdir(exist_ok=True)
    with temporary.open("w", encoding="utf-8") as stream:
        stream.write(manifest.to_json())
        stream.flush()
        os.fsync(stream.fileno())
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    _fsync_folder(folder)
    return True


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def next_generation(previous: Manifest | None, **changes: object) -> Manifest:
    """The manifest that follows ``previous`` (or the first), with ``changes`` applied."""
    if previous is None:
        return Manifest(generation=1, **changes)  # type: ignore[arg-type]  # fields by name
    return replace(previous, generation=previous.generation + 1, **changes)
