"""Runs of a lake: whole or absent, found by what they are, and removed only if they are its own."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tracekit import api, runs
from tracekit.cli import main
from tracekit.errors import InputError, RunWriteError, StoreError, UsageError
from tracekit.fleet import lake as lake_module
from tracekit.fleet.lake import CARD, RUN_MARK, Known, Lake, make_lake, older_than, place
from tracekit.store.manifest import stamp_of
from traces import BASE_NS, make_trace, write_job, write_trace


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks of a job that has a description."""
    folder = tmp_path_factory.mktemp("job")
    write_job(folder, steps_count=2)
    (folder / "job.toml").write_text(
        'name = "llama ft"\nworld_size = 2\n[parallelism]\ndp = 2\n[model]\nlayers = 4\n'
    )
    return folder


@pytest.fixture(scope="module")
def filled(job: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with one run."""
    root = tmp_path_factory.mktemp("filled") / "lake"
    make_lake(root).add([job], workers=1)
    return root


@pytest.fixture
def lake(filled: Path, tmp_path: Path) -> Lake:
    """A copy of it for a test to change."""
    shutil.copytree(filled, tmp_path / "lake", symlinks=True)
    return Lake(tmp_path / "lake")


def test_a_run_is_named_by_its_job_and_start_and_is_a_run_as_any_other(filled: Path) -> None:
    lake = Lake(filled)
    (name,) = lake.names()
    card = lake.entry(name).card
    assert card is not None
    assert card.start_utc is not None
    assert name == "llama-ft-" + card.start_utc[:19].replace("-", "").replace(":", "")
    assert (card.date, card.world_size, card.job_name) == (card.start_utc[:10], 2, "llama ft")
    assert (card.model, card.layout, card.is_described) == ("layers 4", "dp 2", True)
    with api.open(lake.path(name)) as run:
        assert run.query("step_time_summary").height
    assert not list((filled / "tmp").iterdir())


def test_the_same_files_again_change_nothing(lake: Lake, job: Path) -> None:
    before = lake.entry(lake.names()[0])
    assert lake.add([job], workers=1) == (before.name, False)
    assert lake.names() == [before.name]
    assert lake.entry(before.name) == before


def test_other_files_never_take_a_found_name_unasked(lake: Lake, job: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(job / "job.toml", other)
    write_trace(other / "rank0.json", make_trace(0, steps_count=2, base_ns=BASE_NS))
    with pytest.raises(StoreError, match="other files are there") as caught:
        lake.add([other], workers=1)
    assert "--name" in (caught.value.hint or "")
    assert len(lake.names()) == 1


def test_under_its_name_a_run_takes_more_files(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake")
    write_job(tmp_path / "job", steps_count=2)
    assert lake.add([tmp_path / "job" / "rank0.json"], name="j", workers=1) == ("j", True)
    assert lake.add([tmp_path / "job" / "rank1.json"], name="j", workers=1) == ("j", False)
    card = lake.entry("j").card
    assert card is not None
    assert (card.ranks_count, card.generation) == (2, 2)


def _other_job(folder: Path, text: str) -> Path:
    write_job(folder, steps_count=2, base_ns=BASE_NS + 86_400 * 10**9)
    (folder / "job.toml").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "other"\n', "its name is 'llama ft', that of these files 'other'"),
        (
            'name = "llama ft"\n[model]\nlayers = 9\n',
            "its model.layers is 4, that of these files 9",
        ),
        ("[model]\nlayers = 4\n", None),
        ("[model]\nhidden = 64\n", None),
    ],
    ids=["another name", "another model", "the same model", "states something else"],
)
def test_another_job_is_never_added_to_a_run(
    text: str, said: str | None, lake: Lake, tmp_path: Path
) -> None:
    before = lake.entry(lake.names()[0])
    other = _other_job(tmp_path / "other", text)
    if said is None:
        assert lake.add([other], name=before.name, workers=1) == (before.name, False)
        assert lake.entry(before.name) != before
        return
    with pytest.raises(StoreError, match=re.escape(said)) as caught:
        lake.add([other], name=before.name, workers=1)
    assert "--name of its own" in (caught.value.hint or "")
    assert lake.entry(before.name) == before


def test_the_description_of_a_runs_own_files_may_be_put_right(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake")
    job = _other_job(tmp_path / "job", 'name = "lama"\n[model]\nlayers = 4\n')
    lake.add([job], name="j", workers=1)
    (job / "job.toml").write_text('name = "llama"\n[model]\nlayers = 5\n')
    assert lake.add([job], name="j", workers=1) == ("j", False)
    card = lake.entry("j").card
    assert card is not None
    assert (card.job_name, card.model) == ("llama", "layers 5")


def test_a_lake_is_no_jobs_files(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a lake of many runs") as caught:
        make_lake(tmp_path / "second").add([lake.root], workers=1)
    assert "tracekit lake ls" in (caught.value.hint or "")
    with pytest.raises(InputError, match="a lake of many runs"):
        api.open(lake.root)


@pytest.mark.parametrize("root", ["s3:/bucket/lake", "gs:bucket", "abfss:/a/b"])
def test_a_uri_without_both_slashes_is_no_folder(root: str) -> None:
    with pytest.raises(UsageError, match="neither a folder nor the URI") as caught:
        make_lake(root)
    assert "://" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "name", ["..", ".", "", "a/b", "/x", "-rf", ".hidden", "a\nb", "x" * 129, "ä"]
)
def test_a_name_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake")
    with pytest.raises(UsageError, match="cannot name a run"):
        lake.add([tmp_path], name=name)
    with pytest.raises(UsageError):
        lake.remove(name)
    assert not list((tmp_path / "lake").glob("tmp/*"))


def test_what_fails_half_way_leaves_no_run(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(tmp_path / "lake")

    def cut(paths: object, run: Path, **options: object) -> None:
        real(paths, run, **options)  # type: ignore[arg-type]
        raise StoreError("cut")

    real = runs.ingest
    monkeypatch.setattr(runs, "ingest", cut)
    with pytest.raises(StoreError, match="cut"):
        lake.add([job], workers=1)
    assert lake.names() == []
    assert not list((tmp_path / "lake" / "tmp").iterdir())


def test_a_folder_of_somebody_is_made_no_lake(tmp_path: Path) -> None:
    (tmp_path / "theirs.txt").write_text("x")
    with pytest.raises(StoreError, match="not a lake"):
        make_lake(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["theirs.txt"]
    with pytest.raises(StoreError, match="not a lake"):
        Lake(tmp_path)


@pytest.mark.parametrize("root", ["http://key:secret@h/lake", "hdfs://b", "s4://c"])
def test_a_store_that_nobody_knows_is_not_taken_for_a_folder(root: str) -> None:
    with pytest.raises(UsageError, match="a store that tracekit knows") as caught:
        make_lake(root)
    assert "secret" not in caught.value.message
    assert place("file:///data/my%20lake") == Path("/data/my lake")


def test_rm_takes_the_run_and_leaves_what_is_not_of_it(lake: Lake, tmp_path: Path) -> None:
    (name,) = lake.names()
    run = lake.path(name)
    outside = tmp_path / "outside.parquet"
    outside.write_text("theirs")
    (run / "notes.txt").write_text("mine")
    (run / "data" / "link").symlink_to(tmp_path)
    (run / "derived" / "x.parquet").symlink_to(outside)
    removed = lake.remove(name)
    assert removed.left_count == 3
    assert removed.size_bytes > 0
    assert outside.read_text() == "theirs"
    assert (run / "notes.txt").read_text() == "mine"
    assert not list(run.rglob("*.parquet")) or all(p.is_symlink() for p in run.rglob("*.parquet"))


def test_rm_leaves_nothing_of_a_run_that_is_whole(lake: Lake) -> None:
    (name,) = lake.names()
    with api.open(lake.path(name)) as run:
        run.diagnose(select=["gc-pause"])  # what is kept beside a run goes with it
    assert lake.remove(name).left_count == 0
    assert not lake.path(name).exists()


@pytest.mark.parametrize("is_kept", ["manifests", "derived"])
def test_rm_says_so_where_files_cannot_be_removed(
    lake: Lake, is_kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = lake.names()
    unlink = Path.unlink

    def refused(path: Path, missing_ok: bool = False) -> None:
        if is_kept in path.parts:  # modes bind no superuser
            raise PermissionError(errno.EACCES, "Permission denied")
        unlink(path, missing_ok)

    (lake.path(name) / "derived" / ("0" * 24)).mkdir(parents=True, exist_ok=True)
    (lake.path(name) / "derived" / ("0" * 24) / "x.parquet").write_text("")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refused)
        with pytest.raises(RunWriteError, match="cannot be removed"):
            lake.remove(name)
        assert lake.path(name).exists()


def test_a_lake_that_cannot_be_written_is_no_bug(
    lake: Lake,
    job: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    shutil.rmtree(lake.root / "tmp")
    (lake.root / "tmp").write_text("")
    try:
        for root, place in ((lake.root, "tmp"), (tmp_path / "file" / "lake", "")):
            with pytest.raises(SystemExit) as ended:
                main(["ingest", str(job), "--lake", str(root), "--name", "b"])
            assert ended.value.code == 2
            assert f"{root / place}: cannot be written" in capsys.readouterr().err
        with pytest.raises(RunWriteError), lake.drop():
            pass
    finally:
        (lake.root / "tmp").unlink()


def test_a_run_removed_while_others_are_listed_is_none(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (name,) = lake.names()
    shutil.copytree(lake.path(name), lake.path("gone"))
    mark = lake.path("gone") / RUN_MARK
    mark.write_text(mark.read_text().replace(name, "gone"))
    assert lake.names() == sorted([name, "gone"])
    asked = stamp_of

    def removed_just_now(run: Path) -> str | None:
        if run.name == "gone":
            shutil.rmtree(run)
        return asked(run)

    with monkeypatch.context() as patch:
        patch.setattr(lake_module, "stamp_of", removed_just_now)
        assert [e.name for e in lake.entries()] == [name]
    old = [replace(lake.entry(name), name="gone"), lake.entry(name)]
    monkeypatch.setattr(lake_module, "older_than", lambda *_: old)
    with pytest.raises(SystemExit) as ended:
        main(["lake", "prune", str(lake.root), "--older-than", "1d"])
    assert ended.value.code == 0
    assert "removed 1 runs" in capsys.readouterr().err


Spoil = Callable[[Path], object]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda run: (run / RUN_MARK).unlink(),
        lambda run: (run / RUN_MARK).write_text((run / RUN_MARK).read_text().replace("llama", "x")),
        lambda run: (run / RUN_MARK).write_text(json.dumps({"lake": "other", "name": run.name})),
    ],
    ids=["no mark", "another name", "another lake"],
)
def test_what_the_lake_cannot_prove_to_have_made_stays(spoil: Spoil, lake: Lake) -> None:
    (name,) = lake.names()
    spoil(lake.path(name))
    with pytest.raises(UsageError, match="there is no run"):
        lake.remove(name)
    assert lake.names() == []
    assert (lake.path(name) / "manifests").is_dir()


def test_a_link_to_a_run_is_no_run_of_the_lake(lake: Lake, tmp_path: Path) -> None:
    (name,) = lake.names()
    lake.path(name).rename(tmp_path / name)
    lake.path(name).symlink_to(tmp_path / name)
    assert lake.names() == []
    with pytest.raises(UsageError):
        lake.remove(name)
    assert (tmp_path / name / "manifests").is_dir()


def test_runs_are_found_by_what_they_are(filled: Path) -> None:
    lake = Lake(filled)
    (entry,) = lake.entries()
    card = entry.card
    assert card is not None
    assert card.signature is not None
    found = [{"name": "llama-*"}, {"since": card.date, "until": card.date}]
    found += [{"signature": card.signature[:6]}, {"host": card.hosts[0]}]
    found += [{"host": f"{card.hosts[0].upper()}.example.org"}]
    for asked in found:
        assert [e.name for e in lake.entries(**asked)] == [entry.name], asked
    for asked in ({"name": "x*"}, {"since": "2999-01-01"}, {"until": "1999-01-01"},
                  {"signature": "zz"}, {"host": "nowhere"}):  # fmt: skip
        assert not list(lake.entries(**asked)), asked


def test_a_card_that_is_gone_broken_or_old_is_made_again(lake: Lake) -> None:
    (entry,) = lake.entries()
    path = lake.path(entry.name) / CARD
    for text in ("{", "[]", json.dumps({"name": entry.name}), path.read_text().replace("4", "5")):
        path.write_text(text)
        assert lake.entry(entry.name) == entry
    path.unlink()
    assert lake.entry(entry.name) == entry


def test_what_is_known_of_a_run_is_known_until_its_generation_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = write_job(tmp_path, steps_count=2)
    lake = make_lake(tmp_path / "lake")
    lake.add([first], name="j", workers=1)
    entry = lake.entry("j")
    assert entry.card is not None
    assert lake.changed({}).new == (entry,)
    known = {"j": Known(entry.card.date, entry.card.key, entry.stamp)}
    with monkeypatch.context() as patch:
        patch.setattr(Lake, "entry", lambda *_: pytest.fail("opened"))
        assert lake.changed(known).unchanged_count == 1
        assert lake.changed(known, until="1999-01-01").unchanged_count == 0
    shutil.copytree(lake.root, tmp_path / "elsewhere")
    elsewhere = Lake(tmp_path / "elsewhere")
    copied = elsewhere.changed(known)
    assert (copied.new, copied.unchanged_count) == ((), 1)
    assert copied.restamped == (elsewhere.entry("j"),)
    lake.add([second], name="j", workers=1)
    (new,) = lake.changed(known).new
    assert new.card is not None
    assert (new.card.generation, new.card.ranks_count) == (2, 2)
    lake.remove("j")
    assert lake.changed(known).names == frozenset()


def test_a_card_is_believed_without_reading_what_the_run_consists_of(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = lake.entries()
    with monkeypatch.context() as patch:
        patch.setattr(lake_module, "load", lambda *_: pytest.fail("its manifest is read"))
        assert lake.entry(entry.name) == entry
    (manifest,) = (lake.path(entry.name) / "manifests").iterdir()
    os.utime(manifest, ns=(0, 0))
    again = lake.entry(entry.name)
    assert (again.card, again.stamp == entry.stamp) == (entry.card, False)
    with monkeypatch.context() as patch:
        patch.setattr(lake_module, "load", lambda *_: pytest.fail("its manifest is read"))
        assert lake.entry(entry.name) == again


def test_a_damaged_run_is_listed_with_what_is_wrong(lake: Lake) -> None:
    (name,) = lake.names()
    (lake.path(name) / CARD).unlink()
    for manifest in (lake.path(name) / "manifests").iterdir():
        manifest.write_text("{")
    (entry,) = lake.entries()
    assert entry.card is None
    assert "not a manifest" in (entry.damage or "")
    assert older_than(lake.entries(), 1) == []


def test_old_is_what_ran_and_came_in_long_ago(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = lake.entries()
    assert entry.card is not None
    assert older_than(lake.entries(), 90) == []  # it has just come in, whenever it ran
    old = replace(entry.card, added_utc="2020-01-01T00:00:00+00:00")
    ran = replace(old, start_utc="2020-01-01T00:00:00+00:00", date="2020-01-01", end_utc=None)
    for card, expected in ((ran, 1), (replace(ran, date="2999-01-01"), 0)):
        monkeypatch.setattr(Lake, "_card", lambda *_, card=card: card)
        assert len(older_than(lake.entries(), 90)) == expected


def test_the_commands(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    root = tmp_path / "lake"
    assert call("ingest", job)[0] == 2
    assert call("ingest", job, "--run", tmp_path / "r", "--lake", root)[0] == 2
    assert call("ingest", job, "--run", tmp_path / "r", "--name", "x")[0] == 2
    assert call("ingest", job, "--run", f"file://{tmp_path}/r%20u", "--workers", 1)[0] == 0
    assert (tmp_path / "r u" / "manifests").is_dir()
    code, _, err = call("ingest", job, "--lake", root, "--name", "x1", "--workers", 1)
    assert code == 0
    assert "new in the lake: x1" in err
    code, out, _ = call("lake", "ls", root, "--format", "json")
    assert code == 0
    (row,) = json.loads(out)
    assert (row["name"], row["path"]) == ("x1", str(root / "runs" / "x1"))
    code, out, _ = call("lake", "show", root, "x1", "--json")
    assert json.loads(out)["world_size"] == 2
    assert "layers 4" in call("lake", "show", root, "x1")[1]
    asked = [call("query", f"{at}{row['path']}", "job_ranks") for at in ("", "file://")]
    assert asked[0] == asked[1]
    assert (asked[0][0], call("diagnose", f"file://{row['path']}")[0]) == (0, 0)
    assert call("lake", "rm", root, "x1", "nobody")[0] == 2
    assert call("lake", "prune", root, "--older-than", "soon")[0] == 2
    assert "0 runs" in call("lake", "prune", root, "--older-than", "1d")[2]
    assert "would remove" in call("lake", "rm", root, "x1", "--dry-run")[2]
    assert (root / "runs" / "x1").is_dir()
    assert call("lake", "rm", root, "x1")[0] == 0
    assert not (root / "runs" / "x1").exists()
    assert call("lake", "ls", root, "--since", "yesterday")[0] == 2


def test_files_of_another_date_under_the_name_of_a_run_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for night in range(2):
        write_job(tmp_path / str(night), base_ns=BASE_NS + night * 86_400 * 10**9)

    def told(path: str) -> str:
        words = ("ingest", tmp_path / path, "--lake", tmp_path / "lake", "--name", "llama")
        with pytest.raises(SystemExit) as ended:
            main([*map(str, words), "--workers", "1"])
        assert ended.value.code == 0
        return capsys.readouterr().err

    assert "another --name" not in told("0")
    assert "another --name" not in told("0")  # the same files again
    warning = "llama ended on 2026-07-21 and now ends on 2026-07-22: it stays one run"
    assert warning in told("1")
    assert "another --name" not in told("1")
