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


def test_units_tell_counters_of_another_language_and_far_names_tell_none(
    sources: Run, tmp_path: Path
) -> None:
    table = tmp_path / "a.csv"
    table.write_text(
        "Zeit;GPU;Leistung (W);Temperatur (\u00b0C);mm_activity\n"
        "21.07.2026 00:00:00;0;650,5;60,0;3\n21.07.2026 00:00:01;0;651,5;60,0;3\n",
        encoding="utf-8",
    )
    out = sources(table, "--suggest")[1].splitlines()
    assert out[4:] == [
        'columns = { time = "Zeit", gpu = "GPU" }',
        '# perhaps power = "Leistung (W)"',
        '# perhaps gpu_temperature = "Temperatur (\\u00b0C)"',
        '# no place for "mm_activity"',
        "",
    ]
    (tmp_path / "job.toml").write_text(
        '[[source]]\npath = "a.csv"\nhost = "n1"\ntimezone = "UTC"\ncolumns = { time = "Zeit", '
        'gpu = "GPU", power = "Leistung (W)", gpu_temperature = "Temperatur (\\u00b0C)" }\n'
    )
    assert f"{'gpu_csv':<20} {table}  (ok" in sources(tmp_path)[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Linux 6.1 (n1) \t07/21/26 \t_x86_64_\t(2 CPU)\n\n"
         "02:59:46 PM   UID       PID    %usr\n", "pidstat"),
        ("AAA,progname,nmon\nAAA,host,n1\n", "nmon"),
        ("RESET\nCPU n1 1784592000 2026/07/21 00:00:00 10 100 96\n", "atop"),
        ('"pcp-dool 1.3.2 CSV output"\n"Host:","n1"\n', "dool"),
        ('"Dstat 0.7.3 CSV output"\n"Host:","n1"\n', "dool"),
        ("epoch,rx,tx\n1784592000.123,1.0,2.0\n", "collectd"),
        ("CA 'mlx5_0'\n\tCA type: MT4129\n", "perfquery"),
        ("Successfully ran diagnostic for group.\n+-----+\n"
         "| Diagnostic                | Result                 |\n", "dcgmi dmon"),
        ("+-----------+\n| Health Monitor Report                   |\n", "dcgmi dmon"),
        ("Successfully retrieved statistics for job: 5.\n", "dcgmi dmon"),
        ('{\n  "epoch": 1.0,\n  "log_history": [\n    {"loss": 2.5, "step": 10}\n  ]\n}\n',
         "without the time of any"),
    ],
)  # fmt: skip
def test_what_other_tools_print_is_named_with_what_is_read_instead(
    sources: Run, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "a.txt").write_text(text)
    out = sources(tmp_path)[1]
    assert out.startswith("other_tool ") and "(unrecognised: " in out
    assert said in out
    assert sources(tmp_path, "--suggest")[1] == ""


GRAFANA = (
    "sep=,\n"
    '"Time","{gpu=""0"", Hostname=""n1""}","{gpu=""1"", Hostname=""n1""}"\n'
    "2026-07-14 08:12:38,312.5,90\n2026-07-14 08:12:39,313,91\n"
)
LEGENDS = (
    '"When","gpu 0 (n1)","gpu 1 (n1)"\n2026-07-14T08:12:38Z,55%,60%\n2026-07-14T08:12:39Z,5%,6%\n'
)
PANELS = '"Time","card3 fan noise","ib0 flow xmit"\n1784016758,1,2\n1784016759,2,3\n'


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "grafana_power.csv",
            GRAFANA,
            {
                'host = "n1"',
                'columns = { time = "Time", gpu0_power_w = "{gpu=\\"0\\", Hostname=\\"n1\\"}", '
                'gpu1_power_w = "{gpu=\\"1\\", Hostname=\\"n1\\"}" }',
            },
        ),
        (
            "sm_util.csv",
            LEGENDS,
            {
                'columns = { time = "When", gpu0_util_pct = "gpu 0 (n1)", '
                'gpu1_util_pct = "gpu 1 (n1)" }'
            },
        ),
        (
            "panel.csv",
            PANELS,
            {
                'columns = { time = "Time", ib0_tx_bytes_s = "ib0 flow xmit" }',
                '# perhaps gpu3_power_w = "card3 fan noise"',
            },
        ),
    ],
)
def test_a_column_a_device_gets_a_key_a_column_and_the_block_works(
    sources: Run, tmp_path: Path, name: str, text: str, said: set[str]
) -> None:
    (tmp_path / name).write_text(text)
    block = sources(tmp_path / name, "--suggest")[1]
    assert said <= set(block.splitlines())
    (tmp_path / "job.toml").write_text(block)
    code, told = sources(tmp_path)
    assert code == 0
    assert f"device_csv           {tmp_path / name}  (ok: a table of devices, as job.toml" in told


def test_a_column_that_is_not_there_is_an_error_with_those_that_are(
    sources: Run, tmp_path: Path
) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1784016758,5\n")
    job = '[[source]]\npath = "x.csv"\ncolumns = { time = "a", gpu0_power_w = "c" }\n'
    (tmp_path / "job.toml").write_text(job)
    told = sources(tmp_path)[1]
    assert "unreadable: its header has no column 'c', which job.toml says is gpu0_power_w" in told
    assert "it has a, b" in told


@pytest.mark.parametrize("key", ["gpu0_frobs", "ib0_tx", "gpu_power"])
def test_a_key_that_names_no_counter_of_a_device_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, key: str
) -> None:
    (tmp_path / "x.csv").write_text("a,b,c\n1784016758,5,6\n")
    job = f'[[source]]\npath = "x.csv"\ncolumns = {{ gpu1_power_w = "b", {key} = "c" }}\n'
    (tmp_path / "job.toml").write_text(job)
    with pytest.raises(SystemExit) as end:
        main(["sources", str(tmp_path)])
    assert end.value.code
    assert f"columns: '{key}' is no counter of a device" in capsys.readouterr().err
