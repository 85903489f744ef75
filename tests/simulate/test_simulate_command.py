"""tracekit simulate, as typed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tracekit.cli import main
from tracekit.rules import RULES


def run(*arguments: str) -> int:
    try:
        return int(main(list(arguments)) or 0)
    except SystemExit as ended:
        return int(ended.code or 0)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("simulate", "--list") == 0
    text = capsys.readouterr().out
    assert "slow-gpu" in text and "hidden-wait" in text
    assert "not simulated yet" not in text
    assert "storage-interference" in text


def test_the_list_says_what_cannot_be_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracekit.rules.RULES", tuple(r for r in RULES if r.name != "gc-pause"))
    monkeypatch.setattr("tracekit.simulate.catalogue.WRITERS", ("kineto", "nccl"))
    run("simulate", "--list")
    lines = capsys.readouterr().out.splitlines()
    (collector,) = (line for line in lines if line.startswith("gc-pause "))
    assert collector.endswith("[no rule finds it yet]")
    (hot,) = (line for line in lines if line.startswith("thermal-throttle "))
    assert hot.endswith("[files of dcgm are not simulated yet]")
    (slow,) = (line for line in lines if line.startswith("slow-gpu "))
    assert slow.endswith(")")


def test_writes_a_job_and_says_what_it_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "job"
    arguments = ("simulate", "slow-gpu:1.5", "-o", str(folder), "--ranks", "2", "--steps", "2")
    assert run(*arguments) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "ms without the fault" in captured.err
    assert re.search(r"slow-gpu: rank [01], steps 10-11, compute_ratio 1\.5\n", captured.err)
    assert f"tracekit diagnose {folder}" in captured.err
    assert (folder / "truth.json").is_file()
    assert run(*arguments) == 2
    assert run(*arguments, "--force") == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate",),
        ("simulate", "slow-gpu"),
        ("simulate", "slow-gpp", "-o", "x"),
        ("simulate", "none", "-o", "x", "--layout", "tp3"),
        ("simulate", "none", "-o", "x", "--style", "rocprof"),
    ],
)
def test_what_cannot_be_meant(arguments: tuple[str, ...], tmp_path: Path,
                              monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    assert list(tmp_path.iterdir()) == []
