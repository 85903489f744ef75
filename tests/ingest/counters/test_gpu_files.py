"""Files of GPU counters: every number in its unit, blanks as none, damage told and survived."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from memory_sink import MemorySink, source_of

from soaks import soak
from tracekit.errors import InputError
from tracekit.ingest import ingestor, recognise
from tracekit.ingest.base import IngestOptions
from tracekit.ingest.counters import fields, range_answers
from tracekit.ingest.counters.columns import UnknownColumnError, check_columns
from tracekit.ingest.counters.names import pci_address

SHARED = Path(__file__).parents[4] / "shared" / "data" / "counters"
S = 10**9


def ingest(
    text: str | bytes,
    name: str = "gpu.txt",
    kind: str | None = None,
    columns: dict[str, str] | None = None,
) -> MemorySink:
    data = text.encode() if isinstance(text, str) else text
    source = replace(source_of(data, name), columns=tuple((columns or {}).items()))
    found = recognise(source)
    assert found.ingestor is not None, found
    if kind is not None:
        assert found.kind == kind
    sink = MemorySink()
    ingestor(found.ingestor).read(source, sink, IngestOptions())
    return sink


def real(name: str) -> MemorySink:
    path = SHARED / name
    if not path.exists():
        pytest.skip("shared/data is not here")
    return ingest(path.read_bytes(), path.name)


def values(sink: MemorySink, counter: str) -> list[Any]:
    return [
        r["value"] if r["value"] is not None else r["counted"]
        for r in sink.rows("gpu_sample")
        if r["counter"] == counter
    ]


# --- names ----------------------------------------------------------------------------------------


def test_every_alias_of_a_field_is_the_same_counter() -> None:
    path = SHARED / "dcgm_fields_table.tsv"
    if not path.exists():
        pytest.skip("shared/data is not here")
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    names = header.split("\t")
    checked = 0
    for line in lines:
        row = dict(zip(names, line.split("\t"), strict=False))
        meaning = fields.of_dcgm(row["name"])
        if meaning is None:
            continue
        checked += 1
        assert meaning.original == f"dcgm {row['id']}", row["name"]
        for alias in filter(None, row["aliases"].split(",")):
            assert fields.of_dcgm(alias.strip()) == meaning, alias
        assert fields.of_dmon_short(row["dmon_short"]) == meaning, row["dmon_short"]
    assert checked > 60


@pytest.mark.parametrize(
    ("header", "counter", "scale"),
    [
        ("temperature_C", "gpu_temperature", 1.0),
        ("utilization_gpu_percent", "gpu_utilisation", 0.01),
        ("power_W", "power", 1.0),
        ("clocks.current.sm [MHz]", "sm_clock", 1e6),
        ("memory.used [MiB]", "memory_used", 2.0**20),
        ("clocks_throttle_reasons.active", "clock_event_reasons", 1.0),
        ("clocks_event_reasons_counters.sw_power_cap [us]", "sw_power_cap_time", 1e3),
        ("DCGM_FI_DEV_GPU_TEMP", "gpu_temperature", 1.0),
        ("DCGM_FI_DEV_GPU_UTIL", "gpu_utilisation", 0.01),
        ("sm_active", "sm_active", 1.0),
        ("weather", None, None),
    ],
)
def test_a_column_is_known_by_its_name_and_unit(
    header: str, counter: str | None, scale: float | None
) -> None:
    found = fields.of_column(header)
    assert (found.counter if found else None) == counter
    assert (found.scale if found else None) == scale


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:9B:00.0", "00000000:9b:00.0"),
        ("PCI:0000:9b:00", "00000000:9b:00.0"),
        ("9b:00.1", "00000000:9b:00.1"),
        ("0000:9b:00", "00000000:9b:00.0"),
        ("nvidia0", None),
    ],
)
def test_every_spelling_of_a_pci_address_is_one(text: str, expected: str | None) -> None:
    assert pci_address(text) == expected


# --- exposition and range queries -----------------------------------------------------------------

LABELS = 'gpu="3",UUID="GPU-aaaa-1",pci_bus_id="00000000:9B:00.0",modelName="H100",Hostname="n7"'


def scrape(temperature: object, time: str = "") -> str:
    return (
        "# HELP DCGM_FI_DEV_GPU_TEMP Temperature\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
        f"DCGM_FI_DEV_GPU_TEMP{{{LABELS}}} {temperature}{time}\n"
        f"DCGM_FI_DEV_SM_CLOCK{{{LABELS}}} 1980{time}\n"
    )


def test_a_scrape_names_its_gpu_and_normalises_units() -> None:
    sink = ingest(scrape(61), "scrape-1784602867.prom", "dcgm")
    temperature, clock = sink.rows("gpu_sample")
    assert temperature["value"] == 61
    assert temperature["original_name"] == "dcgm 150"
    assert (temperature["device_id"], temperature["nvml_index"]) == ("GPU-aaaa-1", 3)
    assert temperature["node"] == "n7"
    assert (clock["value"], clock["unit"]) == (1.98e9, "Hz")
    assert {r["time_ns"] for r in (temperature, clock)} == {1784602867 * S}
    assert {r["time_source"] for r in (temperature, clock)} == {"name"}
    (device,) = sink.rows("device")
    assert device["pci"] == "00000000:9b:00.0"
    assert device["model"] == "H100"


@pytest.mark.parametrize(
    "blank",
    ["9223372036854775794", "9.223372036854775794e+18", "140737488355328", "2147483632", "NaN"],
)
def test_blanks_become_none_before_any_scaling(blank: str) -> None:
    sink = ingest(scrape(blank))
    assert values(sink, "gpu_temperature") == []
    assert values(sink, "sm_clock") == [1.98e9]
    assert sink.counters["no_value"] == 1


def test_times_come_from_samples_then_marks_then_the_file() -> None:
    own = ingest(scrape(60, " 1700000000123"))
    assert {r["time_ns"] for r in own.rows("gpu_sample")} == {1700000000123 * 10**6}
    marked = ingest(f"# 1700000000\n{scrape(60)}# 2023-11-14T22:13:30Z\n{scrape(61)}")
    assert sorted({r["time_ns"] for r in marked.rows("gpu_sample")}) == [
        1700000000 * S,
        1700000010 * S,
    ]
    plain = ingest(scrape(60) + scrape(61), "s-1700000000.prom")
    assert [(r["value"], r["time_ns"]) for r in plain.rows("gpu_sample")][::2] == [
        (60, None),
        (61, 1700000000 * S),
    ]
    assert plain.counters["dump_without_time"] == 1


def test_a_mark_without_a_zone_makes_the_scrapes_local() -> None:
    local = ingest(f"# 2023-11-14 22:13:20\n{scrape(60)}# 2023-11-14 22:13:30\n{scrape(61)}")
    assert (local.facts["time_basis"], local.counters["local_time"]) == ("local", 1)
    zoned = ingest(f"# 2023-11-14 22:13:20Z\n{scrape(60)}")
    assert (zoned.facts["time_basis"], "local_time" in zoned.counters) == ("epoch", False)


def test_renamed_fields_and_labels_and_pods_are_understood() -> None:
    text = (
        'DCGM_FI_DEV_GPU_TEMP_CELSIUS{gpu="0",uuid="GPU-b",hostname="n1",exported_pod="p"} 50\n'
        'DCGM_FI_PROF_SM_UTIL_RATIO{gpu="0",uuid="GPU-b",hostname="n1",exported_pod="p"} 0.5\n'
    )
    rows = ingest(text).rows("gpu_sample")
    assert [(r["counter"], r["value"], r["pod"]) for r in rows] == [
        ("gpu_temperature", 50, "p"),
        ("sm_active", 0.5, "p"),
    ]


def test_parts_of_a_gpu_are_kept_apart_from_it() -> None:
    text = (
        'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-b",GPU_I_ID="3"} 0.5\n'
        'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-b"} 0.25\n'
    )
    rows = ingest(text).rows("gpu_sample")
    assert [(r["device_id"], r["value"]) for r in rows] == [("GPU-b/3", 0.5), ("GPU-b", 0.25)]


def test_nic_metrics_of_the_same_scrape_are_network_counters() -> None:
    text = scrape(60, " 1700000000000") + (
        'node_infiniband_port_data_received_bytes_total{device="mlx5_0",port="1",'
        'instance="n7:9100"} 1.8e+19 1700000000000\n'
        'node_network_receive_drop_total{device="eth0",instance="n7:9100"} 7 1700000000000\n'
        'node_network_receive_drop_total{device="lo",instance="n7:9100"} 7 1700000000000\n'
        "node_load1 0.5 1700000000000\n"
    )
    sink = ingest(text)
    rows = sink.rows("net_sample")
    assert [(r["node"], r["port"], r["counter"], r["counted"]) for r in rows] == [
        ("n7", "mlx5_0/1", "rx_bytes", 18000000000000000000),
        ("n7", "eth0", "rx_dropped_packets", 7),
    ]
    assert sink.counters["other_metric"] == 2


def answer(name: str, samples: list[tuple[float, str]], **labels: str) -> dict[str, Any]:
    metric = {"__name__": name, "gpu": "3", "UUID": "GPU-a", "Hostname": "n7", **labels}
    return {"metric": metric, "values": [list(s) for s in samples]}


@pytest.mark.parametrize("has_envelope", [True, False])
def test_a_range_query_is_read_with_or_without_its_envelope(has_envelope: bool) -> None:
    result = [
        answer("DCGM_FI_DEV_POWER_USAGE", [(1700000000.123, "350.5"), (1700000001, "NaN")]),
        answer("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", [(1700000000, "9007199254740993")]),
        answer("up", [(1700000000, "1")]),
    ]
    whole = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    sink = ingest(json.dumps(whole if has_envelope else result), kind="prometheus_api")
    rows = sink.rows("gpu_sample", "counter", "time_ns", "value", "counted")
    assert sorted(rows) == [
        ("energy", 1700000000 * S, None, 9007199254740993),
        ("power", 1700000000123 * 10**6, 350.5, None),
    ]
    assert sink.counters["no_value"] == 1
    assert sink.counters["other_metric"] == 1


def test_a_damaged_series_costs_only_itself() -> None:
    result = [{"metric": {"__name__": "x"}}, answer("DCGM_FI_DEV_GPU_TEMP", [(1.0, "50")])]
    sink = ingest(json.dumps({"status": "success", "data": {"resultType": "matrix",
                                                            "result": result}}))  # fmt: skip
    assert values(sink, "gpu_temperature") == [50]
    assert sink.facts["status"] == "partial"


def api(*result: dict[str, Any], indent: int | None = None) -> str:
    return json.dumps(
        {"status": "success", "data": {"resultType": "matrix", "result": result}}, indent=indent
    )


TEMPERATURE = [(1.0 + i, str(50 + i % 7)) for i in range(500)]


@pytest.mark.parametrize("read_bytes", soak([1, 7, 100, 4096, 1 << 22], fast=[1, 100, 1 << 22]))
@pytest.mark.parametrize("indent", [None, 1])
def test_an_answer_is_the_same_however_it_is_cut_into_blocks(
    read_bytes: int, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_answers, "READ_BYTES", read_bytes)
    text = api(
        answer("DCGM_FI_DEV_GPU_TEMP", TEMPERATURE),
        answer("DCGM_FI_DEV_GPU_TEMP", []) | {"metric": {"__name__": "DCGM_FI_DEV_POWER_USAGE"}},
        {"metric": {"__name__": "DCGM_FI_DEV_SM_CLOCK", "gpu": "1", "say": 'a "]]" \\ {}'},
         "value": [2.5, "1980"]},
        answer("something_else", [(1.0, "1"), (2.0, "2")]),
        answer("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", [(1.0, "18446744073709551557"), (2.0, "7")]),
        indent=indent,
    )  # fmt: skip
    sink = ingest(text)
    rows = sink.rows("gpu_sample", "place", "time_ns", "counter", "value", "counted")
    assert rows == [
        *((1, int(t) * S, "gpu_temperature", float(v), None) for t, v in TEMPERATURE),
        (3, 2_500_000_000, "sm_clock", 1.98e9, None),
        # Beyond what 64 bits of DCGM can hold: one of its blanks.
        (5, 2 * S, "energy", None, 7),
    ]
    assert sink.counters == {"no_value": 1, "other_metric": 2}
    assert "status" not in sink.facts


def test_a_pair_that_does_not_end_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_answers, "READ_BYTES", 100)
    monkeypatch.setattr(range_answers, "MAX_PAIR_BYTES", 1000)
    text = api(
        answer("DCGM_FI_DEV_GPU_TEMP", [(1.0, "5" * 5000)]),
        answer("DCGM_FI_DEV_SM_CLOCK", [(1.0, "1980")]),
    )
    sink = ingest(text)
    assert (values(sink, "gpu_temperature"), values(sink, "sm_clock")) == ([], [1.98e9])
    assert sum(sink.counters.values()) == 1, sink.counters


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_an_answer_that_breaks_off_gives_what_came_before(share: float) -> None:
    text = api(answer("DCGM_FI_DEV_GPU_TEMP", TEMPERATURE))
    sink = ingest(text[: int(len(text) * share)])
    kept = values(sink, "gpu_temperature")
    assert kept == [float(v) for _, v in TEMPERATURE[: len(kept)]]
    assert abs(len(kept) - 500 * share) < 12
    assert (sink.facts["status"], sink.facts["is_truncated_end"]) == ("partial", True)


@pytest.mark.parametrize(
    ("pairs", "kept", "bad"),
    [
        ([[1, "50"], [2, "x"], [3, "52"]], [50, 52], 1),
        ([[1, "50"], [2], [3, "52"]], [50, 52], 1),
        ([[1, "50"], "y", [3, 52]], [50, 52], 1),
        ([["1", "50"], [2, None], [3, "52"]], [52], 2),
        ([[1, "50"], [2, "NaN"], [3, "+Inf"], [4, "-Inf"], [5, "5e1"]], [50, 50], 0),
        ([[1, "50"], [1e300, "51"], [3, "52"]], [50, 52], 1),
        ([[1, "50"], {"a": [1]}, [3, "52"]], [50, 52], 1),
    ],
)
def test_bad_pairs_cost_only_themselves(pairs: list[Any], kept: list[float], bad: int) -> None:
    good = answer("DCGM_FI_DEV_SM_CLOCK", [(1.0, "1980")])
    sink = ingest(
        api({"metric": answer("DCGM_FI_DEV_GPU_TEMP", [])["metric"], "values": pairs}, good)
    )
    assert values(sink, "gpu_temperature") == kept
    assert values(sink, "sm_clock") == [1.98e9]
    assert sink.counters.get("bad_sample", 0) == bad
    assert sink.facts.get("status") == ("partial" if bad else None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            '{"status":"error","errorType":"bad_data","error":"parse error"}',
            "answered with an error",
        ),
        ('{"status":"success","data":{"resultType":"matrix","result":[]}}', "found no series"),
    ],
)
def test_an_answer_without_series_says_why(text: str, reason: str) -> None:
    assert reason in ingest(text).facts["reason"]


def test_a_series_whose_samples_stand_elsewhere_is_counted() -> None:
    odd = {"values": [[1, "50"]], "metric": {"__name__": "DCGM_FI_DEV_GPU_TEMP"}}
    sink = ingest(api(answer("DCGM_FI_DEV_SM_CLOCK", [(1.0, "1980")]), odd))
    assert sink.counters["bad_series"] == 1
    assert sink.facts["status"] == "partial"


# --- CSV ------------------------------------------------------------------------------------------


def test_nvidia_smi_s_csv_is_read_with_its_units_and_words() -> None:
    text = (
        "timestamp, index, uuid, pci.bus_id, temperature.gpu, power.draw [W], "
        "clocks.current.sm [MHz], clocks_event_reasons.active, "
        "clocks_event_reasons.hw_thermal_slowdown, pstate, utilization.gpu [%], "
        "ecc.errors.uncorrected.volatile.total, fan.speed [%]\n"
        "2026/07/21 03:01:07.500, 0, GPU-a, 00000000:9B:00.0, 61, 387.20 W, 1965 MHz, "
        "0x0000000000000044, Active, P0, 98 %, 2, [N/A]\n"
    )
    sink = ingest(text, kind="nvidia_smi")
    found = {r["counter"]: r["value"] if r["value"] is not None else r["counted"]
             for r in sink.rows("gpu_sample")}  # fmt: skip
    assert found == {
        "gpu_temperature": 61,
        "power": 387.2,
        "sm_clock": 1.965e9,
        "clock_event_reasons": 0x44,
        "clock_event.hw_thermal": 1,
        "performance_state": 0,
        "gpu_utilisation": 0.98,
        "ecc_dbe_volatile": 2,
    }
    assert {r["device_id"] for r in sink.rows("gpu_sample")} == {"GPU-a"}
    assert sink.facts["time_basis"] == "local"  # no zone: of no use beside other files
    assert sink.facts["window_start_ns"] == 1784602867500 * 10**6
    assert sink.counters["local_time"] == 1


def test_without_units_nvidia_smi_s_own_hold() -> None:
    text = "timestamp, index, clocks.sm, memory.used\n2026/07/21 03:01:07, 0, 1965, 3\n"
    sink = ingest(text)
    assert values(sink, "sm_clock") == [1.965e9]
    assert values(sink, "memory_used") == [3 * 2**20]


def test_a_repeated_header_costs_nothing_and_a_damaged_row_costs_itself() -> None:
    text = (
        "timestamp,gpu,temperature_C,power_W\n"
        "2026-07-21T03:01:07Z,0,60,300\n"
        "timestamp,gpu,temperature_C,power_W\n"
        "2026-07-21T03:01:08Z,0,61\n"
        "yesterday,0,70,300\n"
        "2026-07-21T03:01:09Z,0,warm,300\n"
    )
    sink = ingest(text, kind="gpu_csv")
    assert values(sink, "gpu_temperature") == [60]
    assert values(sink, "power") == [300]
    assert sink.counters["bad_time"] == 1
    assert sink.counters["bad_number"] == 1
    assert sink.counters["bad_row"] == 2
    assert sink.shapes["bad_number"] == "aaaa"
    assert sink.facts["status"] == "partial"


@pytest.mark.parametrize("year", [1823, 2127, 2410, 9999])
def test_a_damaged_year_costs_its_own_row(year: int) -> None:
    # 9999 is beyond 64 bits of nanoseconds.
    rows = [f"{y}/03/01 10:00:0{i}.000, 0, 350.10" for i, y in enumerate((2024, year, 2024))]
    sink = ingest("timestamp, index, power.draw [W]\n" + "\n".join(rows) + "\n")
    assert values(sink, "power") == [350.1, 350.1]
    assert sink.counters["bad_time"] == 1


HEADER = "timestamp, index, clocks_throttle_reasons.active, power.draw [W], clocks.sm [MHz]\n"
ROW = "2024/03/01 10:00:{:02d}.000, 0, 0x0000000000000004, 350.10 W, 1980 MHz\n"


@pytest.mark.parametrize(
    "damaged",
    [
        # A cell is lost: 135 W would be bits, the power brake among them.
        "2024/03/01 10:00:{:02d}.000, 0, 135.10 W, 1980 MHz\n",
        # Two rows run into one.
        "2024/03/01 10:00:{:02d}.000, 0, 0x002024/03/01 10:00:09.000, 0, 0x84, 350.10 W\n",
        # A cell that is none: who knows what its neighbours are.
        "2024/03/01 10:00:{:02d}.000, 0, 0x0000000000000080, 35q.10 W, 1980 MHz\n",
    ],
)
def test_damaged_rows_are_no_state_of_the_gpu(damaged: str) -> None:
    lines = [(damaged if i in (7, 20) else ROW).format(i) for i in range(40)]
    sink = ingest(HEADER + "".join(lines))
    assert set(values(sink, "clock_event_reasons")) == {4.0}
    assert sink.counters["bad_row"] == 2
    assert len(values(sink, "power")) == 38
    assert sink.facts["status"] == "partial"
    assert {r["place"] for r in sink.rows("gpu_sample")} == set(range(2, 42)) - {9, 22}


def test_a_column_without_numbers_takes_no_other_with_it() -> None:
    lines = [ROW.format(i).replace("350.10 W", "broken") for i in range(20)]
    sink = ingest(HEADER + "".join(lines))
    assert len(values(sink, "clock_event_reasons")) == 20
    assert values(sink, "power") == []


@pytest.mark.parametrize("host", ["[N/A]", "N/A", "-", "[Unknown Error]", "localhost", "null"])
def test_a_word_for_no_host_is_none(host: str) -> None:
    sink = ingest(f"timestamp,host,gpu,power_W\n2026-07-21T03:01:07Z,{host},0,300\n")
    assert [r["node"] for r in sink.rows("gpu_sample")] == [None]
    assert "host_name" not in sink.facts


def test_an_xid_of_any_length_is_that_xid() -> None:
    line = "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): {}, pid=7, text\n"
    sink = ingest("".join(line.format(x) for x in ("9999", "99999", "123456789")))
    assert [r["code"] for r in sink.rows("log_event")] == ["xid-9999", "xid-99999", "xid-123456789"]


def test_a_number_of_any_kind_costs_at_most_its_own_sample() -> None:
    odd = ["0x1F", "1e308", "9" * 500, "-0x1F", "0x" + "f" * 300, "NaN", "+Inf", "-1", "1e400"]
    text = "".join(
        f'DCGM_FI_DEV_{name}{{gpu="{i}",UUID="GPU-{i}",Hostname="h"}} {number}\n'
        for i, number in enumerate(["31", *odd, "32"])
        for name in ("POWER_USAGE", "ECC_DBE_VOL_TOTAL", "FB_USED", "TOTAL_ENERGY_CONSUMPTION")
    )
    sink = ingest(text)
    assert values(sink, "ecc_dbe_volatile") == [31, 31, 32]
    power = values(sink, "power")
    assert [power[0], power[1], power[-1]] == [31, 31, 32]


@pytest.mark.parametrize("encoding", ["no-such", "rot13", "utf-7", "hex", "utf-32"])
def test_a_dump_in_an_encoding_that_is_none_is_damaged(encoding: str) -> None:
    good = "<nvidia_smi_log><gpu id='0000:9b:00.0'><uuid>GPU-a</uuid></gpu></nvidia_smi_log>"
    sink = ingest(f'<?xml version="1.0" encoding="{encoding}"?>{good}<?xml version="1.0" ?>{good}')
    assert sink.counters["bad_document"] == 1
    assert sink.facts["status"] == "partial"
    assert [r["uuid"] for r in sink.rows("device")] == ["GPU-a"]


def test_a_share_above_one_is_refused() -> None:
    text = "timestamp,gpu,utilization_gpu_percent\n2026-07-21T03:01:07Z,0,1.40737488355328e+16\n"
    sink = ingest(text)
    assert values(sink, "gpu_utilisation") == []
    assert sink.counters["impossible_number"] == 1


def test_a_share_that_may_be_percent_is_refused_as_a_bad_cell() -> None:
    sink = ingest("time,gpu,sm_active,power_W\n1700000000,0,88,300\n")
    assert values(sink, "sm_active") == []
    assert (sink.counters["impossible_number"], sink.facts["status"]) == (1, "partial")


@pytest.mark.parametrize("stamp", ["2026-07-21 03:01:07", "2026-07-21T03:01:07.5"])
def test_a_time_without_a_zone_is_local(stamp: str) -> None:
    sink = ingest(f"time,gpu,power_W\n{stamp},0,300\n")
    assert (sink.facts["time_basis"], sink.counters["local_time"]) == ("local", 1)
    assert ingest(f"time,gpu,power_W\n{stamp}Z,0,300\n").facts["time_basis"] == "epoch"


def test_a_lone_quote_costs_its_own_row() -> None:
    rows = [f"17000000{i:02d},{i % 2},{300 + i}" for i in range(50)]
    rows[20] = '1700000020,0,"320'
    sink = ingest("time,gpu,power_W\n" + "\n".join(rows) + "\n")
    assert sorted(values(sink, "power")) == [300 + i for i in range(50) if i != 20]
    assert sorted(sink.rows("gpu_sample", "place", "value"))[20] == (23, 321)
    assert (sink.counters["bad_row"], sink.places["bad_row"]) == (1, 22)


# --- columns as job.toml explains them ------------------------------------------------------------

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


# --- dmon, XML, lists -----------------------------------------------------------------------------


def test_dcgmi_dmon_is_read_by_position_and_states_no_time() -> None:
    text = (
        "#Entity   SMACT        TMPTR        POWER                  \n"
        "ID                     C            W                      \n"
        "GPU 0     N/A          60           350.123                \n"
        "GPU 1     0.500                     351.000                \n"
        "GPU 0     0.900        61           12345678901234567...   \n"
        "GPU-I 3   0.100        50           1                      \n"
        "dmon was stopped due to receiving a signal.\n"
    )
    sink = ingest(text, kind="dcgm")
    rows = sink.rows("gpu_sample", "nvml_index", "counter", "value", "time_ns")
    assert rows == [
        (0, "gpu_temperature", 60.0, 0),
        (0, "power", 350.123, 0),
        (1, "sm_active", 0.5, 0),
        (1, "power", 351.0, 0),
        (0, "sm_active", 0.9, 1),
        (0, "gpu_temperature", 61.0, 1),
    ]
    assert sink.facts["time_basis"] == "ticks"
    assert sink.counters["cut_number"] == 1


def test_nvidia_smi_dmon_is_read_with_its_units_and_its_local_time() -> None:
    text = (
        "#Date       Time        gpu   pwr gtemp    sm  mclk  pclk rxpci\n"
        "#YYYYMMDD   HH:MM:SS    Idx     W     C     %   MHz   MHz  MB/s\n"
        " 20260721   03:01:07      0   631    63   100  2619  1980     -\n"
    )
    sink = ingest(text, kind="nvidia_smi")
    assert sink.rows("gpu_sample", "counter", "value") == [
        ("power", 631.0),
        ("gpu_temperature", 63.0),
        ("gpu_utilisation", 1.0),
        ("memory_clock", 2.619e9),
        ("sm_clock", 1.98e9),
    ]
    assert sink.facts["time_basis"] == "local"


def test_a_capture_of_many_outputs_is_read_by_its_parts() -> None:
    sink = real("nvidia_smi/linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt")
    power = [r["value"] for r in sink.rows("gpu_sample")
             if (r["counter"], r["original_name"]) == ("power", "nvidia-smi dmon pwr")]  # fmt: skip
    assert power == [69.0] * 5 + [631.0, 634.0, 633.0, 634.0, 636.0]
    assert values(sink, "nvlink_links_active") == [18]
    # The table, -q and --query-gpu, before and under load, dmon, and nothing of pmon.
    assert sorted(values(sink, "gpu_utilisation")) == [0.0] * 8 + [1.0] * 8


def test_links_of_every_gpu_are_counted() -> None:
    sink = real("nvidia_smi/nvidia-smi.nvlink.status.a100.txt")
    assert values(sink, "nvlink_links_active") == [12] * 8
    assert values(sink, "nvlink_links_inactive") == [0] * 8
    text = "GPU 0: A (UUID: GPU-aaaa)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n"
    assert values(ingest(text), "nvlink_links_inactive") == [1]


def test_the_xml_dump_gives_the_gpu_and_not_its_instances() -> None:
    sink = real("nvidia_smi/a100-sxm4-v12.xml")
    found = {r["counter"]: r["value"] if r["value"] is not None else r["counted"]
             for r in sink.rows("gpu_sample")}  # fmt: skip
    assert found["gpu_temperature"] == 27
    assert found["power"] == 67.03
    assert found["power_limit"] == 500
    assert found["sm_clock"] == 1.275e9
    assert found["sm_clock_max"] == 1.41e9
    assert (found["pcie_width"], found["pcie_width_max"]) == (16, 16)
    assert found["memory_total"] == 81920 * 2**20
    assert found["clock_event.hw_thermal"] == 0
    assert found["ecc_dbe_volatile"] == 0
    assert {r["device_id"] for r in sink.rows("gpu_sample")} == {
        "GPU-513536b6-7d19-9063-b049-1e69664bb298"
    }


XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log {doctype}>
<nvidia_smi_log><timestamp>Fri Aug  4 11:44:30 2023</timestamp>
<gpu id="00000000:01:00.0"><uuid>GPU-a</uuid>
<temperature><gpu_temp>{heat}</gpu_temp></temperature></gpu>{end}
"""


def test_entities_are_refused_and_nothing_is_fetched(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("27 C")
    for doctype in (f'[<!ENTITY x SYSTEM "{secret.as_uri()}">]', '[<!ENTITY x "27 C">]'):
        sink = ingest(XML.format(doctype=doctype, heat="&x;", end="</nvidia_smi_log>"))
        assert "gpu_sample" not in sink.tables
        assert sink.facts["status"] == "partial"


def test_a_cut_xml_keeps_what_came_before_and_a_second_dump_is_read() -> None:
    good = XML.format(doctype='SYSTEM "x.dtd"', heat="61 C", end="</nvidia_smi_log>")
    cut = XML.format(doctype='SYSTEM "x.dtd"', heat="62 C", end="<gpu")
    sink = ingest(good + cut)
    assert values(sink, "gpu_temperature") == [61, 62]
    assert sink.facts["status"] == "partial"
    assert sink.facts["window_start_ns"] == 1691149470 * S


# --- kernel logs ----------------------------------------------------------------------------------


def events(sink: MemorySink) -> list[Any]:
    return sink.rows("log_event", "place", "device_id", "code", "severity", "fields")


def test_xids_of_a_real_log_are_events_and_no_line_is_kept() -> None:
    sink = real("xid/dmesg-with-xid-119.log")
    found = events(sink)
    assert [(e[0], e[1], e[2]) for e in found] == [
        (line, "00000000:9b:00.0", "xid-119") for line in (3, 38, 40, 42, 43)
    ]
    assert sink.facts["time_basis"] == "local"
    for row in sink.rows("log_event"):
        assert "Timeout" not in row["template"]
        assert not any("nvidia-smi" in f for f in row["fields"])


def test_the_fabric_manager_s_errors_are_events() -> None:
    (event,) = events(real("xid/fabricmanager.log"))
    assert event == (
        100,
        "00000000:86:00.0",
        "sxid-12028",
        "warning",
        ["sxid=12028", "severity=non-fatal", "switch=3", "link=61"],
    )


@pytest.mark.parametrize(
    ("line", "basis", "time_ns", "expected"),
    [
        (
            "[ 1234.000001] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU "
            "has fallen off the bus.",
            "relative", 1234000001000, ("00000000:3b:00.0", "xid-79", "error", ["xid=79"]),
        ),
        (
            "2026-07-21T03:01:07+0000 gpu-11 kernel: NVRM: Xid (PCI:0000:3b:00): 13, pid=77, "
            "name=python, Graphics Exception",
            "epoch", 1784602867 * S,
            ("00000000:3b:00.0", "xid-13", "warning", ["xid=13", "pid=77"]),
        ),
        (
            "[12.000000] NVRM: Xid (0000:03:00): 14, Channel 00000001",
            "relative", 12 * S, ("00000000:03:00.0", "xid-14", "info", ["xid=14"]),
        ),
        (
            "[12.000000] NVRM: Xid (PCI:0000:3b:00): 154, pid=1, name=p, GPU recovery action "
            "changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            "relative", 12 * S,
            ("00000000:3b:00.0", "xid-154", "info",
             ["xid=154", "pid=1", "action=GPU Reset Required"]),
        ),
        (
            "[12.000000] NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT Fatal XC1 i0 Link 09",
            "relative", 12 * S,
            ("00000000:3b:00.0", "xid-149", "error", ["xid=149", "link=9"]),
        ),
        (
            "[12.000000] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC "
            "TS crumbstore MCTO (First)",
            "relative", 12 * S,
            ("00000000:c1:00.0", "sxid-28006", "warning",
             ["sxid=28006", "severity=non-fatal", "link=46"]),
        ),
        (
            "[12.000000] nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 20009, Fatal, Link 04 LTSSM",
            "relative", 12 * S,
            ("00000000:85:00.0", "sxid-20009", "error",
             ["sxid=20009", "severity=fatal", "link=4"]),
        ),
    ],
)  # fmt: skip
def test_lines_of_every_age_are_understood(
    line: str, basis: str, time_ns: int, expected: tuple[Any, ...]
) -> None:
    sink = ingest(line + "\n")
    (event,) = events(sink)
    assert event[1:] == expected
    assert sink.facts["time_basis"] == basis
    assert sink.rows("log_event", "time_ns") == [time_ns]


GONE = """\
{0}NVRM: The NVIDIA GPU 0000:b3:00.0
{1}NVRM: (PCI ID: 10de:26b5) installed in this system has
{1}NVRM: fallen off the bus and is not responding to commands.
"""


@pytest.mark.parametrize(
    ("text", "time_ns", "devices"),
    [
        (GONE.format("[ 1843.308145] ", " " * 15), 1843308145000, ["00000000:b3:00.0"]),
        (GONE.format(*["Feb 14 05:03:42 gpu-1 kernel: "] * 2), None, ["00000000:b3:00.0"]),
        ("[7.000000] NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n", 7 * S,
         ["00000000:01:00.0"]),
        # With its number too it is one event; what stands far below a GPU's name is not said of it.
        ("[7.000000] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n"
         "[7.000000] NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n", 7 * S,
         ["00000000:01:00.0"]),
        ("[7.000000] NVRM: The NVIDIA GPU 0000:b3:00.0\n" + "[8.000000] x\n" * 4
         + "[9.000000] NVRM: fallen off the bus\n", 9 * S, [None]),
    ],
)  # fmt: skip
def test_a_gpu_that_is_gone_is_told_without_a_number_too(
    text: str, time_ns: int | None, devices: list[str | None]
) -> None:
    sink = ingest(text)
    found = sink.rows("log_event", "device_id", "code", "severity", "fields")
    assert found == [(device, "xid-79", "error", ["xid=79"]) for device in devices]
    assert sink.rows("log_event", "time_ns") == [time_ns]
    assert sink.facts.get("host_name") == ("gpu-1" if "gpu-1" in text else None)


def test_a_log_without_xids_is_an_answer() -> None:
    sink = ingest("[ 1.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n")
    assert sink.facts["status"] == "ok"
    assert "log_event" not in sink.tables


KILLS = """\
[Mon Nov 23 03:05:40 2026] usb 1-1: new device
[Mon Nov 23 03:05:44 2026] Memory cgroup out of memory: Killed process 4242 (python3) \
total-vm:99kB, anon-rss:2048kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:9kB oom_score_adj:0
[Mon Nov 23 03:05:50 2026] Out of memory: Killed process 77 (api_key) total-vm:9kB
"""


def test_a_kernel_s_kills_for_want_of_memory_are_read_without_names() -> None:
    sink = MemorySink()
    source = source_of(KILLS.encode(), "dmesg.txt")
    recognition = recognise(source)
    assert (recognition.kind, recognition.ingestor) == ("kernel_log", "kernel_log")
    ingestor("kernel_log").read(source, sink, IngestOptions())
    rows = sink.rows("log_event", "place", "code", "fields")
    assert rows == [
        (2, "oom-kill", ["pid=4242", "signal=SIGKILL", "why=out of memory", "of=cgroup",
                         "anonymous_bytes=2097152"]),
        (3, "oom-kill", ["pid=77", "signal=SIGKILL", "why=out of memory", "of=host"]),
    ]  # fmt: skip


def test_a_job_s_output_with_such_a_line_is_no_kernel_log() -> None:
    kill = "Out of memory: Killed process 77 (python3) total-vm:9kB\n"
    step = "iter 100: loss 3.2512, time 135.22ms, mfu 12.50%\n"
    for text in (f"a line\n{kill}", f"{step}[Mon Nov 23 03:05:50 2026] {kill}"):
        assert recognise(source_of(text.encode(), "job.log")).kind == "job_log"


def test_columns_that_no_gpu_has_are_listed_once_and_the_others_read() -> None:
    """System power, a fan and a phase beside counters of GPUs: listed, not dropped in silence."""
    text = "timestamp,gpu,gpu_util [%],power_w,sys_power_w,fan0_rpm,phase\n"
    text += "".join(f"{1784601666 + i},{i % 2},90,600,5400,9000,train\n" for i in range(4))
    sink = MemorySink()
    ingestor("gpu_csv").read(source_of(text.encode(), "t.csv"), sink, IngestOptions())
    assert sink.counters["column_not_read"] == 3
    assert set(sink.rows("gpu_sample", "counter")) == {"gpu_utilisation", "power"}
    text = text.replace(",sys_power_w,fan0_rpm,phase", "").replace(",5400,9000,train", "")
    sink = MemorySink()
    ingestor("gpu_csv").read(source_of(text.encode(), "t.csv"), sink, IngestOptions())
    assert "column_not_read" not in sink.counters


# --- tables that say when, in which unit, and how many --------------------------------------------


@pytest.mark.parametrize(
    ("header", "cell"),
    [
        ("time_unix_ns", "1784592000000000000"), ("unix_ts", "1784592000"),
        ("epoch_seconds", "1784592000.0"), ("timestamp_unix_ms", "1784592000000"),
        ("_timestamp", "1784592000"),
    ],
)  # fmt: skip
def test_a_time_is_told_by_its_words_and_digits(header: str, cell: str) -> None:
    sink = ingest(f"{header},node,gpu,power_w\n{cell},n1,0,690.5\n", "t.csv", "gpu_csv")
    (row,) = sink.rows("gpu_sample")
    assert (row["time_ns"], row["value"], row["time_source"]) == (1784592000 * S, 690.5, "content")


def test_a_table_that_was_read_more_than_once_and_says_no_times_has_none() -> None:
    """The file's time is of one moment: of two readings of a GPU at least one was another."""
    text = "elapsed_s,gpu,power_w,sm_clock_mhz\n0,0,690,1980\n0,1,50,345\n2,0,691,1980\n"
    sink = ingest(text, "t.csv", "gpu_csv")
    assert values(sink, "power") == [690, 50, 691]
    assert {(r["time_ns"], r["time_source"]) for r in sink.rows("gpu_sample")} == {(None, None)}
    assert sink.counters["no_time"] == 3
    once = ingest("gpu,power_w,sm_clock_mhz\n0,690,1980\n1,50,345\n", "t.csv", "gpu_csv")
    assert all(r["time_ns"] is not None for r in once.rows("gpu_sample"))
    assert "no_time" not in once.counters
    long = "gpu,metric,value\n0,power_w,690\n0,temp_c,50\n"
    assert "no_time" not in ingest(long, "t.csv", "gpu_csv").counters
    assert ingest(long + "0,power_w,1\n", "t.csv", "gpu_csv").counters["no_time"] == 3


def test_a_unit_in_a_column_of_its_own_is_the_metrics() -> None:
    text = (
        "time,node,gpu,metric,unit,value\n"
        "1784592000,n1,0,power_draw,W,690.5\n1784592000,n1,0,mem_used,GiB,60.5\n"
        "1784592000,n1,0,mem_used,MiB,7\n1784592000,n1,0,gpu_temp,,61\n"
        "1784592000,n1,0,power_draw,furlongs,1\n"
    )
    sink = ingest(text, "t.csv", "gpu_csv")
    assert values(sink, "power") == [690.5]
    assert sorted(values(sink, "memory_used")) == [7 * 2**20, 60.5 * 2**30]
    assert values(sink, "gpu_temperature") == [61]
    assert sink.counters["other_metric"] == 1


def test_a_decimal_comma_beside_semicolons_is_a_point() -> None:
    """With both marks nobody knows which it is: that row is left out."""
    header = "timestamp;gpu;power_w;temp_c\n"
    rows = "1784592000;0;690,5;61\n1784592001;0;691,25;1.234,5\n"
    sink = ingest(header + rows, "t.csv", "gpu_csv")
    assert values(sink, "power") == [690.5]
    assert values(sink, "gpu_temperature") == [61]
    assert (sink.counters["bad_number"], sink.counters["bad_row"]) == (1, 1)


def test_of_the_powers_of_nvidia_smi_one_is_read() -> None:
    """The first that stands in the file; the other is listed."""
    head = "timestamp, index, power.draw.instant [W], power.draw [W]\n"
    sink = ingest(head + "2026/07/21 00:00:00.000, 0, 690.50 W, 512.00 W\n", "smi.csv")
    (row,) = sink.rows("gpu_sample")
    assert (row["counter"], row["value"]) == ("power", 690.5)
    assert row["original_name"] == "nvidia-smi power.draw.instant"
    assert sink.counters["column_not_read"] == 1
