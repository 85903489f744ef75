"""Tables of GPU counters whose columns a job description explains, and long ones."""

from __future__ import annotations

import pytest
from gpu_files import ingest, real, values
from memory_sink import MemorySink, source_of
from msgspec.structs import replace

from tracekit.errors import InputError
from tracekit.ingest import ingestor, recognise
from tracekit.ingest.base import IngestOptions
from tracekit.ingest.counters import gpu_table
from tracekit.ingest.counters.columns import UnknownColumnError, check_columns

FOREIGN = """\
t;karte;wer;P;busy;Joules
1700000000;0;n1;350000;88;5
1700000001;1;n1; 351000 ;90;6
"""


def test_columns_are_what_job_toml_says() -> None:
    with pytest.raises(AssertionError):
        ingest(FOREIGN)  # nobody knows its headers
    said = {"time": "t", "gpu": "karte", "host": "wer", "power": "P [mW]", "sm_active": "busy [%]",
            "energy": "Joules [J]"}  # fmt: skip
    sink = ingest(FOREIGN, columns=said)
    assert sorted(sink.rows("gpu_sample", "counter", "node", "nvml_index", "value", "counted")) == [
        ("energy", "n1", 0, None, 5000),
        ("energy", "n1", 1, None, 6000),
        ("power", "n1", 0, 350.0, None),
        ("power", "n1", 1, 351.0, None),
        ("sm_active", "n1", 0, 0.88, None),
        ("sm_active", "n1", 1, 0.9, None),
    ]
    assert {r["original_name"] for r in sink.rows("gpu_sample")} == {
        "P [mW]", "busy [%]", "Joules [J]"}  # fmt: skip


def test_a_table_that_nobody_knows_says_how_to_explain_it() -> None:
    found = recognise(source_of(FOREIGN.encode(), "x.csv"))
    assert (found.kind, found.status) == ("table", "unrecognised")
    assert "[[source]] columns in job.toml" in found.reason


def test_what_job_toml_says_wins_and_the_rest_is_read_as_usual() -> None:
    text = "timestamp,gpu,temperature_C,power_W,board_W\n1700000000,0,60,300,500\n"
    sink = ingest(text, columns={"power": "board_W"})
    assert (values(sink, "power"), values(sink, "gpu_temperature")) == ([500], [60])


def test_metrics_of_a_long_table_are_what_job_toml_says() -> None:
    text = "wann,was,gpu,zahl\n1700000000,watt,0,350\n1700000000,SM,1,99\n1700000000,neu,0,1\n"
    said = {
        "time": "wann",
        "metric": "was",
        "value": "zahl",
        "power": "watt",
        "sm_active": "SM [%]",
    }
    sink = ingest(text, columns=said)
    assert sorted(sink.rows("gpu_sample", "counter", "nvml_index", "value", "place")) == [
        ("power", 0, 350.0, 2),
        ("sm_active", 1, 0.99, 3),
    ]
    assert sink.counters["other_metric"] == 1


@pytest.mark.parametrize(
    ("text", "said", "message"),
    [
        (
            FOREIGN,
            {"power": "Q"},
            "line 1 has no column 'Q', which job.toml says is power; it has t",
        ),
        (FOREIGN, {"time": "t", "gpu": "karte"}, "line 1 and job.toml name no counter"),
        ("no table at all", {"power": "Q"}, "line 1 is no header of a table"),
    ],
)
def test_a_mapping_that_does_not_fit_says_so_with_its_line(
    text: str, said: dict[str, str], message: str
) -> None:
    source = replace(source_of(text.encode(), "x.csv"), columns=tuple(said.items()))
    found = recognise(source)
    assert (found.status, found.reason[: len(message)]) == ("unreadable", message)
    with pytest.raises(InputError, match=r"x\.csv: line 1"):
        ingestor("gpu_csv").read(source, MemorySink(), IngestOptions())


@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        ({"sm_actve": "a"}, "'sm_actve' is no counter", "did you mean sm_active?"),
        ({"power": "P [MHz]"}, "power is not measured in 'MHz'", "its units: W, mW, watts, watt"),
        ({"zzz": "a"}, "'zzz' is no counter", "parts: time, gpu, "),
    ],
)
def test_counters_and_units_that_there_are_not_are_refused(
    said: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(UnknownColumnError, match=message) as caught:
        check_columns(said)
    assert caught.value.hint.startswith(hint)
    check_columns({"power": "P [mW]", "xid": "x", "time": "t"})


def test_a_long_table_is_read_by_metric() -> None:
    text = (
        "timestamp,metric_name,gpu_id,uuid,Hostname,value\n"
        "1700000000,DCGM_FI_DEV_GPU_TEMP,0,GPU-a,n1,60\n"
        "1700000000,DCGM_FI_DEV_SM_CLOCK,0,GPU-a,n1,1980\n"
        "1700000000,DCGM_FI_DEV_GPU_TEMP,1,GPU-b,n1,50\n"
        "1700000000,something,1,GPU-b,n1,50\n"
    )
    sink = ingest(text)
    assert sorted(sink.rows("gpu_sample", "counter", "device_id", "value", "place")) == [
        ("gpu_temperature", "GPU-a", 60.0, 2),
        ("gpu_temperature", "GPU-b", 50.0, 4),
        ("sm_clock", "GPU-a", 1.98e9, 3),
    ]
    assert sink.counters["other_metric"] == 1


def test_the_recorded_run_of_eight_gpus_is_read_whole() -> None:
    sink = real("nvidia_smi/nanogpt_pr643_gpu_metrics.csv")
    assert len(sink.rows("gpu_sample")) == 3 * 8 * 639
    own = [r["value"] for r in sink.rows("gpu_sample")
           if r["counter"] == "gpu_temperature" and r["nvml_index"] == 1]  # fmt: skip
    assert sum(own) / len(own) == pytest.approx(62.3, abs=0.05)
    assert sink.facts["time_basis"] == "epoch"


def test_what_amd_smi_prints_is_in_percent_and_watts_without_saying_so() -> None:
    """amd-smi metric --csv --watch 1; sizes and the clock of one of eight dies are left out."""
    sink = ingest(
        "timestamp,gpu,gfx_activity,umc_activity,mm_activity,socket_power,hotspot_temperature,"
        "mem_temperature,gfx_0_clk,used_vram\n"
        "1784592000,0,98,1,N/A,700,66,60,1980,150000\n"
        "1784592000,1,1,45,N/A,140,41,40,130,283\n"
    )
    assert sorted(sink.rows("gpu_sample", "counter", "nvml_index", "value")) == [
        ("gpu_temperature", 0, 66), ("gpu_temperature", 1, 41),
        ("gpu_utilisation", 0, 0.98), ("gpu_utilisation", 1, 0.01),
        ("memory_copy_utilisation", 0, 0.01), ("memory_copy_utilisation", 1, 0.45),
        ("memory_temperature", 0, 60), ("memory_temperature", 1, 40),
        ("power", 0, 700), ("power", 1, 140),
    ]  # fmt: skip
    assert sink.counters == {"column_not_read": 3}


def test_amd_smi_monitor_as_csv_names_its_clocks_and_load_without_units() -> None:
    sink = ingest(
        "timestamp,gpu,power_usage,gfx,gfx_clock,mem_clock\n1784592000,0,700,98,1980,1300\n"
    )
    assert sorted(sink.rows("gpu_sample", "counter", "value")) == [
        ("gpu_utilisation", 0.98), ("memory_clock", 1.3e9), ("power", 700), ("sm_clock", 1.98e9),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "days", [("21.07.2026 00:00:00", "21.07.2026 00:00:01"), ("7/21/2026 12:00:00 AM",) * 2]
)
def test_a_table_with_days_as_a_country_writes_them(days: tuple[str, str]) -> None:
    one, other = days
    sink = ingest(f"time;gpu;power_w\n{one};0;650,5\n{other};1;651,5\n")
    assert sink.rows("gpu_sample", "value") == [650.5, 651.5]
    assert sink.rows("gpu_sample", "time_ns")[0] == 1_784_592_000 * 10**9
    assert set(sink.counters) == {"local_time"}


HEADER = "timestamp,gpu,power_W,sm_active,ecc_dbe_volatile,energy_J,memory_used_MiB\n"
PLAIN = [f"{1_700_000_000 + i},{i % 2},30{i}.5,0.8{i},{i},{i}.25,80{i}\n" for i in range(8)]
CELLS = {
    "plain": "1700000009,0,309,0.5,3,4,5",
    "none": "1700000009,0,,,,,",
    "words": "1700000009,0,[N/A],N/A,-,null,5",
    "with units": "1700000009,0,309 W,0.5,3,4,5",
    "not finite": "1700000009,0,nan,inf,3,4,5",
    "blanks of DCGM": "1700000009,0,2147483632,0.5,9223372036854775792,4,5",
    "large": "1700000009,0,309,0.5,18446744073709551615,4,5",
    "too large": "1700000009,0,309,0.5,18446744073709551616,4,5",
    "negative": "1700000009,0,309,-0.5,-3,-4,5",
    "a share beyond 1": "1700000009,0,309,1.6,3,4,5",
    "a fraction of a count": "1700000009,0,309,0.5,3.0,4,5",
    "blanks": "1700000009, 0, 309, 0.5, 3, 4, 5 ",
    "signs": "1700000009,0,+309,.5,+3,4.,5e0",
    "hexadecimal": "1700000009,0,309,0.5,0x3,4,5",
    "short": "1700000009,0,309,0.5,3,4",
    "long": "1700000009,0,309,0.5,3,4,5,6",
    "short and long": "1700000009,0,309,0.5,3,4\n1700000010,0,309,0.5,3,4,5,6",
    "empty line": "\n1700000009,0,309,0.5,3,4,5",
    "header again": HEADER + "1700000009,0,309,0.5,3,4,5",
    "quoted": '1700000009,"0",309,0.5,3,4,5',
    "no end": "1700000009,0,309,0.5,3,4,5\r",
}


@pytest.mark.parametrize("name", CELLS)
def test_plain_numbers_are_the_same_as_read_from_text(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = HEADER + "".join(PLAIN) + CELLS[name] + "\n"
    at_once = ingest(text)
    monkeypatch.setattr(gpu_table, "_regular", lambda *_: None)
    one_by_one = ingest(text)
    assert sorted(at_once.rows("gpu_sample"), key=repr) == sorted(
        one_by_one.rows("gpu_sample"), key=repr
    )
    assert (at_once.counters, at_once.places) == (one_by_one.counters, one_by_one.places)
    assert at_once.facts == one_by_one.facts
    assert len(at_once.rows("gpu_sample")) >= 32
