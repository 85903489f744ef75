"""A lake in an object store: whole runs or none, whatever the store and its network do.

A folder stands in the store's place, of which every operation can fail.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from store_servers import command

from soaks import examples
from tracekit import api, catalog, fetch, objects, runs, schema
from tracekit.cluster import Cluster
from tracekit.errors import StoreError, UsageError
from tracekit.fleet.diagnosed import diagnosed
from tracekit.fleet.elsewhere import diagnosed_elsewhere
from tracekit.fleet.lake import Lake
from tracekit.fleet.lakes import lake_at, make_lake
from tracekit.fleet.object_lake import ObjectLake
from tracekit.fleet.rollup import rolled_up
from tracekit.objects import Objects
from tracekit.runs import plan
from tracekit.store import Selection, ShardFile
from traces import BASE_NS, write_job

URI = "s3://bucket/lake"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks of a job."""
    folder = tmp_path_factory.mktemp("job")
    write_job(folder, steps_count=2)
    return folder


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of every store; its cache is the test's own."""

    def path(self: Objects, name: str) -> str:
        found = tmp_path / "store" / self._root / name
        found.parent.mkdir(parents=True, exist_ok=True)
        return str(found)

    monkeypatch.setattr(Objects, "_fs", fs.LocalFileSystem())
    monkeypatch.setattr(Objects, "_path", path)
    monkeypatch.setattr(objects, "FIRST_WAIT_S", 0.0)
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))
    found = tmp_path / "store" / "bucket"
    found.mkdir(parents=True)
    return found


def _failing(monkeypatch: pytest.MonkeyPatch, after: int) -> list[str]:
    """Let the store answer so many times and then never again; what was asked."""
    asked: list[str] = []
    real = Objects._asked

    def ask(self: Objects, failed: str, do: Callable[[], Any]) -> Any:
        asked.append(failed)
        if len(asked) > after:
            raise StoreError(f"{self.uri}: {failed} (gone)")
        return real(self, failed, do)

    monkeypatch.setattr(Objects, "_asked", ask)
    return asked


def test_a_bucket_that_is_not_there_is_said(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.rmdir()
    store = bucket.parent
    monkeypatch.setattr(Objects, "_path", lambda self, name: str(store / self._root / name))
    for asked in (lake_at, make_lake):
        with pytest.raises(StoreError, match="there is no bucket 'bucket'"):
            asked(URI)
    (bucket / "lake").mkdir(parents=True)
    with pytest.raises(StoreError, match="not a lake"):
        lake_at(URI)
    assert make_lake(URI).names() == []


@pytest.mark.usefixtures("bucket")
def test_another_job_is_never_added_to_a_run_of_a_store(tmp_path: Path) -> None:
    for name, start_s in (("one", 0), ("two", 86_400)):
        write_job(tmp_path / name, steps_count=2, base_ns=BASE_NS + start_s * 10**9)
        (tmp_path / name / "job.toml").write_text(f'name = "{name}"\n')
    lake = make_lake(URI)
    assert lake.add([tmp_path / "one"], name="j", workers=1) == ("j", True)
    with pytest.raises(StoreError, match="its name is 'one', that of these files 'two'"):
        lake.add([tmp_path / "two"], name="j", workers=1)
    card = lake.entry("j").card
    assert card is not None
    assert (card.generation, card.job_name) == (1, "one")


def test_a_run_in_a_store_is_a_run_as_any_other(bucket: Path, job: Path, tmp_path: Path) -> None:
    lake = make_lake(URI)
    assert lake.add([job], name="j", workers=1) == ("j", True)
    (entry,) = lake.entries()
    assert entry.card is not None
    assert (entry.card.ranks_count, entry.card.generation, entry.path) == (2, 1, f"{URI}/runs/j")
    plain = make_lake(tmp_path / "plain")
    plain.add([job], name="j", workers=1)
    assert _told(entry.path) == _told(plain.path("j"))


def _told(run: str | Path) -> str:
    """What its diagnosis says, wherever it lies."""
    with api.open(run) as opened:
        text = opened.diagnose().to_json()
    assert str(run) in text
    return text.replace(str(run), "RUN")


def test_the_same_files_again_change_nothing_in_a_store(bucket: Path, job: Path) -> None:
    lake = make_lake(URI)
    name, _ = lake.add([job], workers=1)
    before = Objects(URI).sizes()
    assert lake.add([job], workers=1) == (name, False)
    assert Objects(URI).sizes() == before
    assert not [n for n in before if n.startswith("claims/")]


def test_under_its_name_a_run_in_a_store_takes_more_files(bucket: Path, job: Path) -> None:
    lake = make_lake(URI)
    assert lake.add([job / "rank0.json"], name="j", workers=1) == ("j", True)
    first = lake.entry("j").card
    assert lake.add([job / "rank1.json"], name="j", workers=1) == ("j", False)
    (entry,) = lake.entries()
    assert first is not None
    assert entry.card is not None
    assert (entry.card.ranks_count, entry.card.generation) == (2, 2)
    assert entry.card.added_utc == first.added_utc
    with api.open(entry.path) as run:
        assert run.run.rows_count("rank") == 2
    with pytest.raises(StoreError, match="other files are there"):
        lake.add([_renamed(job)], workers=1)


def _renamed(job: Path) -> Path:
    """Other files of a job that is called and began as the one called ``j`` did."""
    folder = job.parent / "again" / "j"
    shutil.rmtree(folder.parent, ignore_errors=True)
    shutil.copytree(job, folder)
    (folder / "job.toml").write_text('name = "j"\n')
    lake = make_lake(URI)
    lake.add([folder], workers=1)
    (folder / "rank1.json").unlink()
    return folder


def test_a_store_that_fails_at_any_point_holds_the_run_whole_or_not_at_all(
    bucket: Path, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lake(URI)
    shutil.copytree(bucket, tmp_path / "empty")
    made = runs.ingest([job], tmp_path / "made", workers=1)

    def ingest(_: object, run: Path, **__: object) -> object:  # once is enough
        shutil.copytree(tmp_path / "made", run, dirs_exist_ok=True)
        return made

    monkeypatch.setattr(runs, "ingest", ingest)
    with pytest.MonkeyPatch.context() as patch:
        asked = _failing(patch, 10**9)
        lake_at(URI).add([job], name="j", workers=1)
    shutil.rmtree(bucket)
    seen = set()
    for point in range(1, len(asked), examples(6, 1)):
        shutil.copytree(tmp_path / "empty", bucket)
        with pytest.MonkeyPatch.context() as patch:
            _failing(patch, point)
            try:
                lake_at(URI).add([job], name="j", workers=1)
            except StoreError as error:
                assert "gone" in error.message
        names = lake_at(URI).names()
        seen.add(len(names))
        for name in names:
            with api.open(lake_at(URI).path(name)) as run:
                assert run.run.rows_count("rank") == 2
        # What is left of it, a claim included, stands in nobody's way once it is dead.
        shutil.rmtree(bucket / "lake" / "claims", ignore_errors=True)
        lake_at(URI).add([job], name="j", workers=1)
        assert lake_at(URI).names() == ["j"]
        shutil.rmtree(bucket)
    assert 0 in seen


def test_of_two_writers_of_one_name_neither_is_lost(bucket: Path, job: Path) -> None:
    """Both bring another rank, at the same time."""
    make_lake(URI)

    def add(rank: int) -> None:
        while True:
            try:
                lake_at(URI).add([job / f"rank{rank}.json"], name="j", workers=1)
            except StoreError as error:  # the other one publishes just now
                assert "another ingest publishes j" in error.message
                time.sleep(0.05 * (rank + 1))
            else:
                return

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(add, (0, 1)))
    (entry,) = lake_at(URI).entries()
    assert entry.card is not None
    assert (entry.card.generation, entry.card.ranks_count) == (2, 2)


def test_a_claim_keeps_others_away_until_its_process_is_dead(bucket: Path) -> None:
    make_lake(URI)
    at = Objects(URI)
    with at.claimed("claims/x", "somebody is at work", 100) as is_held:
        assert is_held()
        with (
            pytest.raises(StoreError, match="somebody is at work"),
            at.claimed("claims/x", "somebody is at work", 100),
        ):
            pass
        (claim,) = (bucket / "lake" / "claims" / "x").iterdir()
        os.utime(claim, (0, 0))  # its process sleeps
        with at.claimed("claims/x", "somebody is at work", 100) as is_theirs:
            assert is_theirs()
    assert at.sizes("claims") == {}


def test_rm_takes_a_run_from_a_store_and_leaves_what_is_not_of_it(bucket: Path, job: Path) -> None:
    lake = make_lake(URI)
    lake.add([job], name="j", workers=1)
    (bucket / "lake" / "runs" / "j" / "notes.txt").write_text("mine")
    removed = lake.remove("j")
    assert removed.left_count == 1
    assert removed.size_bytes > 0
    assert lake.names() == []
    assert sorted(Objects(URI).sizes()) == ["runs/j/notes.txt", "tracekit-lake.json"]
    with pytest.raises(UsageError, match="there is no run"):
        lake.remove("j")


def test_what_was_fetched_and_then_damaged_is_fetched_again(bucket: Path, job: Path) -> None:
    lake = make_lake(URI)
    lake.add([job], name="j", workers=1)
    with api.open(lake.path("j")) as run:
        kept = run.path
    victim = next(kept.glob("data/*/*.parquet"))
    victim.write_bytes(bytes(victim.stat().st_size))
    with api.open(lake.path("j")) as run:
        assert run.query("step_time_summary").height
    stored = next((bucket / "lake").glob("runs/j/data/*/*.parquet"))
    stored.write_bytes(bytes(stored.stat().st_size))
    shutil.rmtree(kept)
    with pytest.raises(StoreError, match=r"s3://bucket/lake/runs/j/data/.* not those"):
        api.open(lake.path("j"))


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes that are read in place, by object; every run is large enough."""
    monkeypatch.setattr(fetch, "IN_PLACE_BYTES", 0)
    read: dict[str, int] = {}
    real = Objects.ranges

    def ranges(self: Objects, name: str, size_bytes: int) -> Callable[[int, int], bytes]:
        ask = real(self, name, size_bytes)

        def counted(start: int, count: int) -> bytes:
            read[name] = read.get(name, 0) + count
            return ask(start, count)

        return counted

    monkeypatch.setattr(Objects, "ranges", ranges)
    return read


def test_in_place_every_query_answers_as_of_a_copy(
    bucket: Path, job: Path, parts: dict[str, int]
) -> None:
    lake = make_lake(URI)
    lake.add([job], name="j", workers=1)
    uri = lake.path("j")
    names = [q.name for q in catalog.queries()][:: examples(12, 1)]
    some = names[::4]
    part = Selection(ranks=((1, 1),))
    statement = "SELECT name, count(*) AS n FROM gpu_op GROUP BY name ORDER BY name"
    with api.open(uri, in_place=True) as there:
        told = {name: there.table(name).to_pylist() for name in names}
        beside = dict(there.answers.each(some))
        counts = there.rows(statement).to_pylist()
    assert parts
    assert not list((bucket.parent.parent / "cache").rglob("*.parquet"))
    with api.open(uri, in_place=True, selection=part) as there:
        assert there.answers.rows("job_sources")  # by a connection beside the first
        of_one = there.table("step_time").to_pylist()
    with api.open(uri, selection=part) as copy:
        assert of_one == copy.table("step_time").to_pylist()
    parts.clear()
    with api.open(uri, in_place=True) as copy:  # which is there now
        assert told == {name: copy.table(name).to_pylist() for name in names}
        assert counts == copy.rows(statement).to_pylist()
        assert beside == dict(copy.answers.each(some))
    assert not parts


def test_a_query_of_most_of_a_run_copies_it(
    bucket: Path, job: Path, parts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    del bucket
    lake = make_lake(URI)
    lake.add([job], name="j", workers=1)
    uri = str(lake.path("j"))
    sizes = Counter[str]()
    for file in fetch.manifest_of(Objects(uri)).files:  # type: ignore[union-attr]  # there is one
        sizes[file.table] += file.file_bytes
    wanted = catalog.find("overlap").reads
    share = sum(sizes[name] for name in wanted) / sizes.total()
    monkeypatch.setattr(fetch, "COPY_RATIO", share + 0.01)
    assert fetch.in_place(uri, wanted) is not None
    monkeypatch.setattr(fetch, "COPY_RATIO", share - 0.01)
    assert fetch.in_place(uri, wanted) is None
    assert command("query", uri, "overlap") == 0
    assert not parts
    assert fetch.in_place(uri) is None  # the copy is there now


def test_a_figure_without_findings_is_drawn_of_what_it_needs(
    bucket: Path, job: Path, parts: dict[str, int], tmp_path: Path
) -> None:
    lake = make_lake(URI)
    lake.add([job], name="j", workers=1)
    words = ["plot", str(lake.path("j")), "step_times", "--no-findings", "-o"]
    assert command(*words, str(tmp_path / "there.svg")) == 0
    stored = {n for n in Objects(str(lake.path("j"))).sizes() if n.endswith(".parquet")}
    assert parts.keys() < stored
    assert any("/collective-" in name for name in stored - parts.keys())
    assert not list((bucket.parent.parent / "cache").rglob("*.parquet"))
    parts.clear()
    api.open(lake.path("j")).close()
    assert command(*words, str(tmp_path / "copy.svg")) == 0
    assert not parts
    assert (tmp_path / "there.svg").read_bytes() == (tmp_path / "copy.svg").read_bytes()


def test_in_place_only_the_columns_and_row_groups_that_are_asked_for_are_read(
    bucket: Path, tmp_path: Path, parts: dict[str, int]
) -> None:
    del bucket
    rows = 200_000
    columns = schema.table("host_op").arrow_schema()
    values = {
        f.name: pa.array(range(rows), f.type)
        if pa.types.is_integer(f.type)
        else pa.array((str(i) for i in range(rows)), f.type)
        for f in columns
    }
    written = pa.table(values, schema=columns)
    names = written.schema.get_field_index("name")
    coded = written.set_column(names, "name", written["name"].dictionary_encode())  # as some are
    pq.write_table(coded, tmp_path / "x.parquet", row_group_size=20_000)
    at = Objects("s3://bucket/part")
    at.upload(tmp_path, ["x.parquet"])
    size = at.sizes()["x.parquet"]
    file = ShardFile("host_op", "x.parquet", rows, size)
    con = duckdb.connect()
    con.register("t", fetch._dataset(at, "host_op", [file], [], fetch._Held()))
    count = "SELECT count(DISTINCT thread) FROM t"
    assert con.execute(count).fetchall() == [(rows,)]
    of_one_column = parts.pop("x.parquet")
    assert con.execute(count).fetchall() == [(rows,)]
    assert not parts  # what was read is held for whoever reads it again
    where = f"WHERE start_ns BETWEEN {rows // 2} AND {rows // 2 + 9}"
    assert con.execute(f"SELECT count(DISTINCT thread) FROM t {where}").fetchall() == [(10,)]
    of_one_row_group = parts.pop("x.parquet")
    assert con.execute(f"SELECT typeof(name), name FROM t {where}").fetchone() == (
        "VARCHAR",
        str(rows // 2),
    )
    of = pq.read_metadata(tmp_path / "x.parquet")
    chunks = [of.row_group(i).column(7).total_compressed_size for i in range(of.num_row_groups)]
    assert of.schema.column(7).name == "thread"
    assert sum(chunks) <= of_one_column < 1.5 * sum(chunks) < size / 4  # and ends of the file
    assert of_one_row_group < of_one_column / 2


def test_of_what_was_read_in_place_only_so_much_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "HELD_BYTES", 10)
    held = fetch._Held()
    held.add(("a", 0, 4), b"aaaa")
    held.add(("b", 0, 4), b"bbbb")
    held.add(("b", 0, 4), b"bbbb")  # two threads read it at once
    assert held.get(("a", 0, 4)) == b"aaaa"
    held.add(("c", 0, 4), b"cccc")  # b was asked for longest ago
    assert held.get(("b", 0, 4)) is None
    assert (held.get(("a", 0, 4)), held.get(("c", 0, 4))) == (b"aaaa", b"cccc")
    held.add(("d", 0, 11), b"d" * 11)  # too large to be held at all
    assert [held.get((n, 0, size)) for n, size in (("a", 4), ("c", 4), ("d", 11))] == [None] * 3
    held.add(("a", 0, 4), b"aaaa")
    assert held.get(("a", 0, 4)) == b"aaaa"


def test_in_place_a_store_that_fails_is_named_as_such(
    bucket: Path, job: Path, parts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(URI)
    lake.add([job], name="j", workers=1)
    with (
        pytest.raises(StoreError, match=r"gpu_op.*\.parquet: cannot be read"),
        api.open(lake.path("j"), in_place=True) as run,
    ):
        for file in (bucket / "lake" / "runs" / "j").rglob("gpu_op*.parquet"):
            file.write_bytes(b"short")
        run.table("kernel_summary")
    assert parts
    for file in (bucket / "lake" / "runs" / "j").rglob("source_context*.parquet"):
        file.unlink()
    with pytest.raises(StoreError, match=r"source_context.*: cannot be read \(it is not there\)"):
        api.open(lake.path("j"), in_place=True)


def test_what_is_no_card_of_a_run_is_named(bucket: Path, job: Path) -> None:
    lake = make_lake(URI)
    lake.add([job], name="j", workers=1)
    (card,) = (bucket / "lake").glob("cards/*/*.json")
    shutil.copy(card, card.with_name(card.name.replace("j.", "other.")))
    card.write_text("{")
    (bucket / "lake" / "cards" / "theirs.txt").write_text("x")
    assert [(e.name, e.card, e.damage is None) for e in lake.entries()] == [
        ("j", None, False),
        ("other", None, False),
    ]


@pytest.mark.parametrize(
    "uri",
    [
        "s3://key:planted@bucket/lake",
        "s3://planted@bucket/lake",
        "s3://bucket/lake?secret=planted",
        "abfs://c:planted@account.dfs.core.windows.net/lake",
        "s3://",
        "s3://bucket/../other",
        "s3://bucket/two//lakes",
    ],
)
def test_a_uri_holds_no_credentials_and_leads_nowhere_else(uri: str) -> None:
    for ask in (make_lake, lake_at, api.open):
        with pytest.raises(UsageError) as caught:
            ask(uri)
        assert "planted" not in caught.value.message + (caught.value.hint or "")


def test_a_run_in_a_store_stands_alone(bucket: Path, job: Path) -> None:
    lake = make_lake(URI)
    lake.add([job], name="j", workers=1)
    with pytest.raises(UsageError, match="mixed"):
        api.open([lake.path("j"), job])
    with pytest.raises(UsageError, match="made in a folder"):
        api.ingest(job, run=f"{URI}/runs/k")
    with pytest.raises(StoreError, match="not a run"):
        api.open(f"{URI}/runs/k")
    bucket.joinpath("theirs").write_text("x")
    with pytest.raises(StoreError, match="not a lake"):
        make_lake("s3://bucket")


def test_a_local_lake_is_a_lake_by_its_uri(job: Path, tmp_path: Path) -> None:
    lake = make_lake(f"file://{tmp_path}/lake")
    assert isinstance(lake, Lake)
    lake.add([job], name="j", workers=1)
    assert Lake(tmp_path / "lake").names() == ["j"]


@pytest.mark.slow  # several processes; one of each kind stays
def test_workers_hand_shards_and_rows_over_through_the_store(
    bucket: Path, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed", reason="needs pip install 'tracekit[cluster]'")
    monkeypatch.setattr(plan, "MIN_SHARD_BYTES", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    alone, spread = make_lake(URI), make_lake(f"{URI}-spread")
    alone.add([job], name="j", workers=1)
    # Threads instead of processes, which would not know the folder in the store's place.
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as two,
        Cluster(scheduler=two.scheduler_address) as remote,
    ):
        assert spread.add([job], name="j", cluster=remote) == ("j", True)
        with spread.drop() as drop:
            (entry,) = spread.entries()
            ((_, rows),) = diagnosed_elsewhere(remote, drop, [entry], None, lambda: None)
    assert not isinstance(rows, Exception)
    (own,) = alone.entries()
    assert rows == json.loads(json.dumps(diagnosed(own, memory_bytes=None, config=None)))
    assert _told(spread.path("j")) == _told(alone.path("j"))
    shards = {p.parent.name for p in bucket.glob("lake-spread/runs/j/data/*/*.parquet")}
    assert len(shards) == 2
    assert not [p for p in (bucket / "lake-spread" / "tmp").rglob("*") if p.is_file()]
    assert not [*(tmp_path / "scratch").glob("tracekit-*")]


def test_what_a_killed_process_left_in_a_store_is_removed_a_day_later(
    bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(URI)
    assert isinstance(lake, ObjectLake)
    for name, age_s in (("old", 90_000), ("new", 3_000)):
        path = bucket / "lake" / "tmp" / name / "a.json"
        path.parent.mkdir(parents=True)
        path.write_text("x")
        os.utime(path, (time.time() - age_s,) * 2)
    with lake.drop():
        assert [p.parent.name for p in bucket.rglob("a.json")] == ["new"]


@pytest.mark.slow  # several processes; one of each kind stays
def test_a_run_that_goes_while_a_night_reads_it_stops_no_other(
    bucket: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(URI)
    for name in ("half", "stays", "whole"):
        lake.add([job], name=name, workers=1)
    runs = bucket / "lake" / "runs"
    monkeypatch.setattr(ObjectLake, "fleet", str(bucket.parent / "fleet"))  # Delta Lake has its own
    held = lake._held()  # type: ignore[union-attr]  # a lake of a store
    next((bucket / "lake").glob("cards/*/whole.*")).unlink()  # since it was listed
    with monkeypatch.context() as patch:
        patch.setattr(ObjectLake, "_held", lambda _: held)
        with pytest.raises(UsageError, match="no run 'whole'"):
            lake.entry("whole")
        assert [e.name for e in lake.entries()] == ["half", "stays"]
        for file in (runs / "half").rglob("gpu_op*.parquet"):
            file.unlink()
        rolled = rolled_up(lake)
    assert rolled.done == ("stays",)
    ((name, why),) = rolled.failed
    assert name == "half"
    assert re.search(r"s3://bucket/lake/runs/half: .*gpu_op.* \(it is not there\)", why)
    lake.remove("half")
    again = rolled_up(lake)
    assert (again.done, again.failed, again.unchanged_count) == ((), (), 1)
