"""What cannot be meant, in arguments or configuration, is refused with a hint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import ONE_RULE, Tracekit, assert_refused
from tracekit import api
from tracekit.rules.unbuilt import unbuilt_rules
from traces import make_trace, write_trace

pytestmark = pytest.mark.usefixtures("elsewhere")


# ---------------------------------------------------------------- what cannot be meant


@pytest.mark.parametrize(
    ("arguments", "words", "hint"),
    [
        (["query", "RUN", "step_tme"], ["step_tme"], "step_time"),
        (["query", "RUN", "step_time", "--param", "rounding=hta"], ["rounding"], ""),
        (["query", "RUN", "overlap", "--param", "roundin=hta"], ["roundin"], "rounding"),
        (["query", "RUN", "overlap", "--param", "rounding=up"], ["rounding"], None),
        (["query", "RUN", "overlap", "--param", "rounding"], ["--param"], "--param"),
        (["query", "RUN"], ["needs a run and a name"], "--list"),
        (["query", "nowhere", "step_time"], ["nowhere", "no such file"], None),
        (["show", "RUN", "F9"], ["no finding 'F9'"], "dataloader-stall/1"),
        (["explain", "gc-pauze"], ["gc-pauze"], "gc-pause"),
        (["explain", "UNBUILT"], ["not built yet"], "docs/rules.md"),
        (["diagnose", "RUN", "--select", "gc-pauze"], ["gc-pauze"], "gc-pause"),
        (["diagnose", "RUN", "--ignore", "nonsense"], ["nonsense"], "rules: "),
        (["diagnose", "RUN", "--config", "none.toml"], ["none.toml"], None),
        (["diagnose", "RUN", "--job", "job.toml"], ["keeps the job description"], "ingest"),
        (["diagnose", "SLOW", "--job", "job.toml"], ["job.toml"], None),
        (["diagnose", "RUN", "SLOW"], ["cannot be mixed"], "ingest"),
        (["diagnose", "RUN", "--ranks", "a"], ["--ranks: cannot read 'a'"], "--ranks 0-7"),
        (["diagnose", "RUN", "--ranks", "5-2"], ["runs backwards"], "2-5"),
        (["diagnose", "RUN", "--steps", "1,,2"], ["--steps"], "--steps"),
        (["diagnose", "RUN", "--since", "yesterday"], ["--since"], "2026"),
        (["diagnose", "RUN", "--memory", "lots"], ["--memory"], "2GB"),
        (["diagnose", "RUN", "--memory", "0"], ["--memory"], "2GB"),
        (["diagnose", "RUN", "--budget", "soon"], ["--budget"], "60s"),
        (["diagnose", "RUN", "--budget", "0s"], ["--budget"], "60s"),
        (["diagnose", "RUN", "--attempt", "0"], ["--attempt"], None),
        (["diagnose", "RUN", "--window", "-1"], ["--window"], None),
        (["diagnose", "RUN", "--workers", "0"], ["--workers"], None),
        (["diagnose", "RUN", "--format", "xml"], ["--format"], None),
        (["diagnose", "RUN", "--fail-on", "bad"], ["--fail-on"], None),
        (["diagnose"], ["PATH"], None),
        (["sql", "RUN"], ["one statement"], "-f FILE"),
        (["sql", "RUN", "SELECT 1", "-f", "x.sql"], ["one statement"], "-f FILE"),
        (["sql", "RUN", "-f", "none.sql"], ["none.sql"], None),
        (["sql", "RUN", "SELECT nonsense FROM step"], ["nonsense"], None),
        (["sql", "RUN", "SELECT CAST(name AS INTEGER) FROM gpu_op"], ["INT32"], None),
        (["sql", "RUN", "COPY (SELECT 1) TO 'x.csv'"], ["only SELECT"], "--format"),
        (["sql", "RUN", "SELECT 1; SELECT 2"], ["found 2"], "one at a time"),
        (["sql", "RUN", "SELECT * FROM 'x.csv'"], [], None),
        (["sources", "nowhere"], ["nowhere"], None),
        (["ingest", "nowhere", "--run", "r"], ["nowhere"], None),
        (["ingest", "SLOW"], ["--run"], None),
        (["ingest", "SLOW", "--run", "SLOW"], ["is not a run"], "new folder"),
        (["frobnicate"], ["frobnicate"], None),
        (["diagnose", "RUN", "--frobnicate"], ["--frobnicate"], None),
        (["query", "RUN", "step_time", "-o", "no/such/x.csv"], ["no/such/x.csv"], "-o"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: list[str],
    words: list[str],
    hint: str | None,
    tracekit: Tracekit,
    run: Path,
    slow: Path,
) -> None:
    places = {"RUN": str(run), "SLOW": str(slow), "UNBUILT": unbuilt_rules()[0]}
    assert_refused(tracekit(*(places.get(a, a) for a in arguments)), *words, hint=hint)
    assert not list(Path().iterdir())


def test_wrong_names_cost_no_ingest(
    tracekit: Tracekit, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("files were read")

    monkeypatch.setattr(api, "open", refuse)
    Path("bad.toml").write_text("[rules.gc-pause]\nmin_impact = 1\n")
    Path("there.json").write_text("")
    for arguments in (
        ["query", slow, "step_tme"],
        ["diagnose", slow, "--select", "gc-pauze"],
        ["diagnose", slow, "--config", "bad.toml"],
        ["show", slow, "F1", "--config", "bad.toml"],
        ["diagnose", slow, "--ranks", "x"],
        ["diagnose", slow, "-o", "there.json"],
        ["sql", slow],
    ):
        assert tracekit(*arguments).code == 2, arguments


@pytest.mark.slow  # whole commands, of which others take the same way
def test_files_of_two_jobs_are_named_as_candidates(
    tracekit: Tracekit, slow: Path, tmp_path: Path
) -> None:
    other = write_trace(tmp_path / "other.json", make_trace(3, world_size=16))
    files = [*sorted(slow.iterdir()), other]
    done = tracekit("diagnose", *files)
    assert_refused(done, "--attempt 1", "--attempt 2", str(other), hint="--attempt")
    assert_refused(tracekit("ingest", *files, "--run", tmp_path / "r"), "--attempt 2")
    sizes = set()
    for attempt in (1, 2):
        asked = ("--attempt", attempt, *ONE_RULE, "--format", "json")
        done = tracekit("diagnose", *files, *asked)
        assert done.code == 0
        sizes.add(json.loads(done.out)["run"]["world_size"])
        run = tmp_path / f"run{attempt}"
        assert tracekit("ingest", *files, "--run", run, "--attempt", attempt).code == 0
    assert sizes == {2, 16}


# ---------------------------------------------------------------- configuration


def test_thresholds_and_silences_come_from_a_file(tracekit: Tracekit, run: Path) -> None:
    strict = Path("strict.toml")
    strict.write_text("[rules.dataloader-stall]\nmin_impact_ratio = 0.5\n")
    done = tracekit("diagnose", run, *ONE_RULE, "--config", strict, "--format", "json")
    assert "dataloader-stall" not in {f["rule"] for f in json.loads(done.out)["findings"]}
    silence = Path("tracekit.toml")
    silence.write_text(
        '[[silence]]\nrule = "dataloader-stall"\nranks = [1]\nreason = "new disks on Monday"\n'
        "until = 2999-12-31\n"
    )
    done = tracekit("diagnose", run, *ONE_RULE)
    assert "using tracekit.toml" in done.err
    assert "silenced: new disks on Monday" in done.out
    assert "waits 30.0 ms for input" not in done.out
    silence.write_text(silence.read_text().replace("2999", "2020"))
    assert "waits 30.0 ms for input" in tracekit("diagnose", run, *ONE_RULE).out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[rulez.gc-pause]\nmin_impact_ratio = 0.5\n", ["rulez"]),
        ("[rules.gc-pauze]\nmin_impact_ratio = 0.5\n", ["gc-pauze"]),
        ("[rules.gc-pause]\nmin_impct_ratio = 0.5\n", ["min_impct_ratio", "min_impact_ratio"]),
        ("[rules.gc-pause]\nmin_impact_ratio = 'much'\n", ["min_impact_ratio", "number"]),
        ("rules = 3\n", ["rules"]),
        ("[[silence]]\nrule = 'gc-pause'\n", ["reason"]),
        ("[[silence]]\nrule = 'gc-pause'\nreason = 'x'\nfor = 'ever'\n", ["silence"]),
        ("[[silence]]\nrule = 'gc-pause'\nreason = 'x'\nuntil = 'soon'\n", ["until"]),
        ("[[silence]]\nrule = 'gc-pauze'\nreason = 'x'\n", ["gc-pauze"]),
        ("silence = 'all'\n", ["silence"]),
        ("this is no TOML", ["c.toml", "cannot be read"]),
        ("\x00", ["c.toml"]),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(
    text: str, words: list[str], tracekit: Tracekit, run: Path
) -> None:
    Path("c.toml").write_text(text)
    assert_refused(tracekit("diagnose", run, "--config", "c.toml"), *words)
