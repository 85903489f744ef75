"""A lake: runs under one root.

    LAKE/
      tracekit-lake.json        written first: this folder is a lake
      runs/NAME/                a run as any other, and beside what a run holds:
        tracekit-lake-run.json    this lake made it, under this name
        tracekit-lake-card.json   what it is found by; made again where the run has changed
      tmp/<host>-<pid>-<random>/  runs in the making, moved into place once they are whole
      fleet/                    the fleet's tables (fleet/store.py)

A run that is not there yet is built beside the others and moved into place whole, so none is
listed half made; more files for one that is there are its next generation, as ``ingest --run``
adds them. Nothing is removed but what bears this lake's own mark and consists of files that a run
has; no link is followed.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import secrets
import shutil
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from tracekit import runs, store
from tracekit.derive.placement.hosts import canonical
from tracekit.errors import RunWriteError, StoreError, TracekitError, UsageError
from tracekit.fleet.lock import held
from tracekit.objects import SCHEMES, local
from tracekit.runs.keys import whole
from tracekit.store.manifest import LAKE_MARK, MARK, Manifest, load, stamp_of, work_path
from tracekit.store.removal import Removed, remove_run

if TYPE_CHECKING:
    from tracekit.job import JobDescription

RUN_MARK = "tracekit-lake-run.json"
CARD = "tracekit-lake-card.json"
FORMAT_VERSION = 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHORT_URI = re.compile(rf"({'|'.join(SCHEMES)}):(?!//)/?(.*)", re.S)
_NS_PER_S = 10**9


class Card(Struct, frozen=True, kw_only=True):
    """What a run of a lake is found by. Null is unknown."""

    name: str
    date: str
    """UTC date on which the job ran; where no clock tells, on which it came into the lake."""
    added_utc: str
    generation: int
    key: str
    """Of the run's generation: equal keys hold the same rows."""
    attempts_count: int
    start_utc: str | None
    end_utc: str | None
    job_name: str | None
    job_id: str | None
    signature: str | None
    """What makes runs comparable, as the run's table has it: layout, model, batch, size, GPU."""
    is_described: bool
    """Whether a job description names the model or the batch, without which equal signatures may
    be of different work."""
    model: str | None
    layout: str | None
    world_size: int | None
    ranks_count: int | None
    hosts: tuple[str, ...]
    gpu_model: str | None
    framework: str | None
    torch_version: str | None
    cuda_version: str | None
    nccl_version: str | None
    driver_version: str | None
    sources_count: int


class Entry(Struct, frozen=True):
    """A run of a lake: where it is, and its card or why there is none."""

    name: str
    path: Path | str
    """Its folder, or its URI."""
    card: Card | None
    damage: str | None = None
    stamp: str | None = None
    """Of its generation, as ``store.manifest.stamp_of``; None where a listing tells the key."""


class Known(Struct, frozen=True):
    """What somebody holds of a run already."""

    date: str
    key: str
    stamp: str | None


class Changes(Struct, frozen=True, kw_only=True):
    """A lake beside what somebody holds of it."""

    new: tuple[Entry, ...]
    """Runs of another key, by date and name; and whatever cannot be opened, which has no date."""
    unchanged_count: int
    restamped: tuple[Entry, ...] = ()
    """Of these, runs that had to be opened to know it: their stamp is another."""
    names: frozenset[str]
    """Of all runs there are, whatever their date."""


def place(root: str | Path) -> Path:
    """The folder of a lake that is none of an object store (those: fleet/object_lake.py)."""
    text = local(os.fspath(root))
    short = _SHORT_URI.match(text)
    if short is not None:
        raise UsageError(
            f"{text}: neither a folder nor the URI of a place in a store",
            hint=f"{short[1]}://{short[2]}, or ./{text} for a folder of that name",
        )
    scheme, found, _ = text.partition("://")
    if found:
        raise UsageError(
            f"{scheme}://...: a lake is a folder, or lies in a store that tracekit knows",
            hint=f"a folder, or one of {', '.join(s + '://' for s in ('file', *SCHEMES))}",
        )
    return Path(text)


def check_name(name: str) -> str:
    """The name of a run, if it is one that leads nowhere else. UsageError otherwise."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--name: {name!r} cannot name a run of a lake",
            hint="letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )
    return name


class Lake:
    """A lake that is there. StoreError where the folder is none."""

    def __init__(self, root: str | Path) -> None:
        self.root = place(root)
        self._id = _lake_id(self.root)
        if self._id is None:
            raise StoreError(
                f"{self.root}: not a lake (no {LAKE_MARK})",
                hint="tracekit ingest PATH --lake LAKE makes one",
            )

    @property
    def fleet(self) -> Path:
        """Where the fleet's tables are."""
        return self.root / "fleet"

    def path(self, name: str) -> Path:
        """The folder of a run of that name, whether it is there or not."""
        return self.root / "runs" / check_name(name)

    def names(self) -> list[str]:
        """Names of all runs that this lake made, sorted."""
        folder = self.root / "runs"
        if not _is_folder(folder):
            return []
        return sorted(p.name for p in folder.iterdir() if self._is_own(p))

    def entry(self, name: str) -> Entry:
        """A run by its name. UsageError where there is none."""
        path = self.path(name)
        self._check_own(path)
        stamp = stamp_of(path)  # before what it stands for: a change in between is seen next time
        try:
            return Entry(name, path, self._card(name, stamp), stamp=stamp)
        except TracekitError as error:
            self._check_own(path)  # it may have been removed just now
            return Entry(name, path, None, error.message)

    def entries(
        self,
        *,
        name: str | None = None,
        since: str | None = None,
        until: str | None = None,
        signature: str | None = None,
        host: str | None = None,
    ) -> Iterator[Entry]:
        """Runs by date and name: those whose name matches a pattern, that ran between two dates
        (both included), whose signature begins so, or that had a part on a host.

        A run that cannot be opened is found by its name alone.
        """
        wanted = [n for n in self.names() if name is None or fnmatch.fnmatchcase(n, name)]
        found = []
        for each in wanted:
            with contextlib.suppress(UsageError):  # removed since it was listed
                found.append(self.entry(each))
        return select(found, since=since, until=until, signature=signature, host=host)

    def changed(
        self, known: Mapping[str, Known], since: str | None = None, until: str | None = None
    ) -> Changes:
        """Runs between two dates whose key is none of the known ones.

        Of a run whose stamp is known no file is opened, so what was seen before costs a look at a
        folder, however large the lake has grown.
        """
        new: list[Entry] = []
        restamped: list[Entry] = []
        names: set[str] = set()
        unchanged_count = 0
        for name, stamp in self._stamps().items():
            held = known.get(name)
            if held is not None and stamp is not None and held.stamp == stamp:
                unchanged_count += is_between(held.date, since, until)
                names.add(name)
                continue
            try:
                entry = self.entry(name)
            except UsageError:  # none of this lake's, or removed just now
                continue
            names.add(name)
            if entry.card is None:
                new.append(entry)
            elif is_between(entry.card.date, since, until):
                if held is not None and held.key == entry.card.key:
                    restamped.append(entry)
                else:
                    new.append(entry)
        return Changes(
            new=tuple(select(new)),
            unchanged_count=unchanged_count + len(restamped),
            restamped=tuple(restamped),
            names=frozenset(names),
        )

    def _stamps(self) -> dict[str, str | None]:
        """Stamps of all that may be a run of this lake, by name."""
        folder = self.root / "runs"
        if not _is_folder(folder):
            return {}
        with os.scandir(folder) as found:
            names = sorted(e.name for e in found if e.is_dir(follow_symlinks=False))
        return {n: stamp_of(folder / n) for n in names if _NAME.fullmatch(n)}

    def rolling_up(self) -> AbstractContextManager[Callable[[], object]]:
        """Hold the tables; gives what to call now and then. StoreError where another does."""
        return held(self.root / "rollup.lock")

    @contextlib.contextmanager
    def drop(self) -> Iterator[str]:
        """A folder where workers hand over what they made; it ends with the ``with`` statement.

        What a killed process of this host left there is removed by the next.
        """
        runs.sweep_dead_work(self.root)
        folder = work_path(self.root)
        with store.writing(folder.parent):
            folder.mkdir(parents=True)
        try:
            yield os.path.abspath(folder)  # noqa: PTH100  # resolves no link
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def add(
        self, paths: Sequence[str | Path], *, name: str | None = None, **reading: Any
    ) -> tuple[str, bool]:
        """Bring files into the lake; the name of their run, and whether it is new.

        Without a name: the job's, or that of the first path, and when it started. Under the name
        of a run that is there the files are added to it. ``reading`` is as ``runs.ingest`` takes
        it; errors likewise. StoreError where other files are there under the name that was found.
        """
        if name is not None and self.path(name).exists():
            return self._add_to(name, paths, reading), False
        runs.sweep_dead_work(self.root)
        draft = work_path(self.root)
        with store.writing(draft.parent):
            draft.mkdir(parents=True)
        try:
            runs.ingest(paths, draft, **reading)
            added = datetime.now(UTC).isoformat(timespec="seconds")
            card = made_card(draft, "draft", added)
            chosen = name or found_name(card, paths)
            (draft / RUN_MARK).write_text(self._mark_text(chosen, added), encoding="utf-8")
            _write_card(draft, replace(card, name=chosen), stamp_of(draft))
            target = self.path(chosen)
            target.parent.mkdir(exist_ok=True)
            try:
                draft.rename(target)
            except OSError:
                if not target.exists():
                    raise
                return self._lost_race(chosen, name, draft, target, paths, reading), False
            return chosen, True
        finally:
            if draft.exists():
                remove_run(draft, (MARK, RUN_MARK, CARD))

    def _lost_race(
        self,
        chosen: str,
        name: str | None,
        draft: Path,
        target: Path,
        paths: Sequence[str | Path],
        reading: dict[str, Any],
    ) -> str:
        """There is a run of this name already: the same, one to add to, or another."""
        if name is not None:
            return self._add_to(chosen, paths, reading)
        there, made = load(target), load(draft)
        if self._is_own(target) and there and made and there.key == made.key:
            return chosen
        raise StoreError(
            f"{target}: other files are there under this name",
            hint=f"--name {chosen} adds to it, --name of your own makes another run",
        )

    def _add_to(self, name: str, paths: Sequence[str | Path], reading: dict[str, Any]) -> str:
        self.entry(name)
        held = load(self.path(name))
        if held is not None:
            check_same_job(self.path(name), held, paths, reading.get("job_paths", ()))
        runs.ingest(paths, self.path(name), **reading)
        self.entry(name)  # its card
        return name

    def remove(self, name: str) -> Removed:
        """Remove a run: what this lake made of it, and nothing else.

        UsageError where there is none, RunWriteError where its files cannot be removed.
        """
        path = self.path(name)
        self._check_own(path)
        removed = remove_run(path, (MARK, RUN_MARK, CARD))
        if stamp_of(path) is not None or (path.exists() and not removed.left_count):
            raise RunWriteError(
                f"{path}: cannot be removed: some of its files stay",
                hint="ask whoever may write in this folder and all below it",
            )
        return removed

    def _check_own(self, path: Path) -> None:
        if not self._is_own(path):
            raise UsageError(
                f"{self.root}: there is no run {path.name!r}", hint=f"tracekit lake ls {self.root}"
            )

    def _is_own(self, run: Path) -> bool:
        if not _NAME.fullmatch(run.name) or not _is_folder(run) or not _is_folder(run.parent):
            return False
        said = _json_of(run / RUN_MARK)
        return said.get("lake") == self._id and said.get("name") == run.name

    def _mark_text(self, name: str, added: str) -> str:
        said = {"format": "tracekit-lake-run", "format_version": FORMAT_VERSION}
        return json.dumps({**said, "lake": self._id, "name": name, "added_utc": added}) + "\n"

    def _card(self, name: str, stamp: str | None) -> Card:
        """The card of a run, made again where the run has changed since."""
        import msgspec

        path = self.path(name)
        said = _json_of(path / CARD)
        card = None
        with contextlib.suppress(msgspec.ValidationError):
            card = msgspec.convert(said, Card)
        is_own = card is not None and card.name == name
        if card is not None and is_own and stamp and said.get("seal") == _seal(card, stamp):
            return card
        manifest = load(path)
        if manifest is None:
            raise StoreError(f"{path}: not a run (no manifest)")
        if card is None or not is_own or card.key != manifest.key:
            card = made_card(path, name, str(_json_of(path / RUN_MARK).get("added_utc", "")))
        with contextlib.suppress(OSError):  # a lake that may only be read
            _write_card(path, card, stamp)
        return card


def check_same_job(
    run: Path | str, held: Manifest, paths: Sequence[str | Path], job_paths: Sequence[str | Path]
) -> None:
    """StoreError where files that a run does not hold yet come with the description of another job.

    Where the files state no name and no model, or the run none, nothing tells one job from
    another. A description of the same files may be put right.
    """
    import msgspec

    said = runs.job_of(held)
    if said is None or not paths:
        return
    files, job = runs.gather(paths, job_paths, None if isinstance(run, str) else run)
    if job is None or {whole(f.path) for f in files} <= {
        whole(s.path, s.folder) for s in held.sources
    }:
        return
    model, other = (msgspec.structs.asdict(each.model) for each in (said, job))
    stated = {"name": (said.name, job.name)}
    stated |= {f"model.{key}": (model[key], other[key]) for key in model}
    for key, (old, new) in stated.items():
        if old is not None and new is not None and old != new:
            raise StoreError(
                f"{run}: is of another job: its {key} is {old!r}, that of these files {new!r}",
                hint="--name of its own for another job; if it is the same one, put its job.toml "
                "right and give the files that are there too",
            )


def select(
    entries: Iterable[Entry],
    *,
    since: str | None = None,
    until: str | None = None,
    signature: str | None = None,
    host: str | None = None,
) -> Iterator[Entry]:
    """Those of some runs that ``Lake.entries`` asks for, by date and name."""
    asks = any(asked is not None for asked in (since, until, signature, host))

    def is_wanted(card: Card | None) -> bool:
        if card is None:
            return not asks
        return (
            is_between(card.date, since, until)
            and (signature is None or (card.signature or "").startswith(signature))
            and (host is None or host in card.hosts or canonical(host) in card.hosts)
        )

    kept = [e for e in entries if is_wanted(e.card)]
    return iter(sorted(kept, key=lambda e: (e.card.date if e.card else "", e.name)))


def is_between(date: str, since: str | None, until: str | None) -> bool:
    """Whether a date is none before the one and none after the other."""
    return (since is None or date >= since) and (until is None or date <= until)


def older_than(entries: Iterable[Entry], days: float) -> list[Entry]:
    """Those of some runs whose job ran, and that came into the lake, longer ago than so many days.

    One that cannot be opened is never old.
    """
    limit = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="seconds")
    return [e for e in entries if e.card and max(_last(e.card), e.card.added_utc) < limit]


def found_name(card: Card, paths: Sequence[str | Path]) -> str:
    """The name of a run that got none: its job's, or its first path's, and when it started."""
    base = card.job_name or (Path(paths[0]).name.partition(".")[0] if paths else "")
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", base).strip("-._")[:80] or "run"
    when = re.sub(r"[-:]", "", card.start_utc[:19]) if card.start_utc else card.key[:8]
    return f"{base}-{when}"


def make_lake(root: str | Path) -> Lake:
    """The lake of that root, made where nothing is there yet. StoreError where it is no lake."""
    folder = place(root)
    if _lake_id(folder) is None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise StoreError(
                f"{folder}: exists and is not a lake", hint="name a new or empty folder, or a lake"
            )
        with store.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        draft = work_path(folder)
        with store.writing(draft.parent):
            draft.parent.mkdir(exist_ok=True)
            draft.write_text(new_mark(), encoding="utf-8")
            with contextlib.suppress(FileExistsError):  # somebody else made it just now
                os.link(draft, folder / LAKE_MARK)
            draft.unlink()
    return Lake(folder)


def _lake_id(root: Path) -> str | None:
    return lake_id(_json_of(root / LAKE_MARK), str(root))


def new_mark() -> str:
    """What says that here is a lake."""
    said = {"format": "tracekit-lake", "format_version": FORMAT_VERSION}
    return json.dumps({**said, "id": secrets.token_hex(12)}) + "\n"


def lake_id(said: Mapping[str, Any], root: str) -> str | None:
    """The id of a lake by its mark; None where that is none. StoreError for another format."""
    if said.get("format") != "tracekit-lake":
        return None
    if said.get("format_version") != FORMAT_VERSION:
        raise StoreError(
            f"{root}: a lake of format {said.get('format_version')!r}, "
            f"this tracekit reads {FORMAT_VERSION}",
            hint="use the tracekit that made it",
        )
    return str(said.get("id"))


def _is_folder(path: Path) -> bool:
    """Whether it is a folder and no link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _json_of(path: Path) -> dict[str, Any]:
    """What a small file of ours holds; nothing where it is a link or not as we write it."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return {}
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _write_card(run: Path, card: Card, stamp: str | None) -> None:
    draft = work_path(run)
    draft.parent.mkdir(exist_ok=True)
    seal = _seal(card, stamp) if stamp else None
    draft.write_text(json.dumps({**to_builtins(card), "seal": seal}) + "\n", encoding="utf-8")
    draft.replace(run / CARD)


def _seal(card: Card, stamp: str) -> str:
    """By which a card is known to be whole, and of the generation that there is."""
    return f"{stamp}-{zlib.crc32(json.dumps(to_builtins(card)).encode()):08x}"


def _last(card: Card) -> str:
    return card.end_utc or card.date


def utc_of(time_ns: int | None) -> str | None:
    """A moment as ISO 8601 UTC, to the second."""
    if time_ns is None:
        return None
    try:
        return datetime.fromtimestamp(time_ns // _NS_PER_S, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return None


_RUN_COLUMNS = (
    "attempt", "job_name", "job_id", "signature", "start_ns", "end_ns", "world_size",
    "ranks_count", "gpu_model", "framework", "torch_version", "cuda_version", "nccl_version",
    "driver_version",
)  # fmt: skip


def made_card(path: Path, name: str, added: str) -> Card:
    """What a run's tables say it is; of several attempts the last."""
    with store.open_run(path, lazily=True) as run:
        con = run.prepare(["run", "rank", "source"])
        found = con.execute(
            f"SELECT {', '.join(_RUN_COLUMNS)} FROM run ORDER BY attempt"  # noqa: S608 - our names
        ).fetchall()
        last = dict(zip(_RUN_COLUMNS, found[-1], strict=True)) if found else {}
        ranks = con.execute(
            "SELECT host, coalesce(time_basis = 'epoch', FALSE) "
            "FROM rank LEFT JOIN source ON source.source_id = rank.source_id WHERE attempt = ?",
            [last.get("attempt")],
        ).fetchall()
        manifest = run.manifest
    is_epoch = bool(ranks) and all(r[1] for r in ranks)
    start = utc_of(last.get("start_ns")) if is_epoch else None
    job = runs.job_of(manifest)
    said = {c: last.get(c) for c in _RUN_COLUMNS if c not in ("attempt", "start_ns", "end_ns")}
    return Card(
        name=name,
        date=(start or added)[:10],
        added_utc=added,
        generation=manifest.generation,
        key=manifest.key,
        attempts_count=len(found),
        start_utc=start,
        end_utc=utc_of(last.get("end_ns")) if is_epoch else None,
        is_described=job is not None and bool(_words(job.model) or _words(job.batch)),
        model=_words(job.model) if job else None,
        layout=_layout(job) if job else None,
        hosts=tuple(sorted({str(r[0]) for r in ranks if r[0] is not None})),
        sources_count=len(manifest.sources),
        **said,
    )


def _words(section: object) -> str | None:
    """What a section of a job description states: ``layers 32, hidden 4096``."""
    import msgspec

    assert isinstance(section, msgspec.Struct)  # noqa: S101  # as tracekit.job declares them
    stated = [
        f"{field.rstrip('_')} {value}"
        for field in section.__struct_fields__
        if (value := getattr(section, field)) is not None
    ]
    return ", ".join(stated) or None


def _layout(job: JobDescription) -> str | None:
    return _words(job.parallelism)
