"""``tracekit sources --suggest``: a block for job.toml that works as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tracekit.cli import main

Run = Callable[..., tuple[int, str]]

GPUS = (
    "when,card no,board watts,smact,GPU temp avg,label\n"
    "2026-07-14 08:12:38,0,312.5,0.93,61,a\n"
    "2026-07-14 08:12:39,1,310.5,0.91,60,b\n"
)
PORTS = (
    "t;switch name;adapter;rx bytes;tx_bytes;xoff in;label\n"
    "1784016758;leaf1;swp1;100;200;3;a\n"
    "1784016759;leaf1;swp1;110;220;3;a\n"
)


@pytest.fixture
def sources(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(["sources", *map(str, arguments)])
        return int(end.value.code or 0), capsys.readouterr().out

    return run


def test_parts_by_their_cells_and_counters_by_their_names(sources: Run, tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text(GPUS)
    assert sources(table, "--suggest")[1].splitlines() == [
        "[[source]]",
        'path = "a.csv"',
        '# host = ""  # the machine, where no column names it',
        '# timezone = "UTC"  # of its times, which state none',
        'columns = { time = "when", gpu = "card no", sm_active = "smact" }',
        '# perhaps power = "board watts"',
        '# perhaps gpu_temperature = "GPU temp avg"',
        '# no place for "label"',
        "",
    ]


@pytest.mark.parametrize(("text", "kind"), [(GPUS, "gpu_csv"), (PORTS, "net_csv")])
def test_the_block_makes_the_file_readable(
    sources: Run, tmp_path: Path, text: str, kind: str
) -> None:
    table = tmp_path / "a.csv"
    table.write_text(text)
    assert sources(table)[1].startswith("table ")
    (tmp_path / "job.toml").write_text(sources(table, "--suggest")[1])
    assert f"{kind:<20} {table}  (ok" in sources(tmp_path)[1]


@pytest.mark.parametrize(
    "text", ["name,age,city\nbob,3,paris\n", "no table at all\n", "power,temp\n", "1,2\n3,4\n", ""]
)
def test_what_holds_no_counter_gets_no_block(sources: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert sources(tmp_path / "a.csv", "--suggest")[1] == ""


def test_names_are_quoted(sources: Run, tmp_path: Path) -> None:
    table = tmp_path / 'a".csv'
    table.write_text(GPUS.replace("label", 'la"\x1b[31m"bel'))
    out = sources(table, "--suggest")[1]
    assert "\x1b" not in out
    assert 'path = "a\\".csv"' in out


def test_json_is_another_answer(sources: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(GPUS)
    assert sources(tmp_path / "a.csv", "--suggest", "--json") == (2, "")
