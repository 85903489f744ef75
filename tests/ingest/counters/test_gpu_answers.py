"""GPU counters as scrapes and as answers of range queries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gpu_files import ingest, values

from soaks import soak
from tracekit.ingest.counters import range_answers

S = 10**9


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


@pytest.mark.parametrize(
    ("labels", "index", "node"),
    [
        ({"minor_number": "1", "kubernetes_node": "gpu-07"}, 1, "gpu-07"),
        ({"device": "nvidia2", "node_name": "gpu-07"}, 2, "gpu-07"),
        ({"gpu_id": "4", "minor_number": "1", "exported_node": "gpu-07"}, 4, "gpu-07"),
        ({"gpu": "3", "device": "nvidia5", "Hostname": "n7", "node": "gpu-07"}, 3, "n7"),
        ({"gpu": "GPU-a", "index": "6", "node": "0"}, 6, None),  # a NUMA node
        ({"device": "mlx5_0", "node": "gpu-07"}, None, "gpu-07"),
    ],
)
def test_labels_of_other_exporters_tell_gpus_and_machines_apart(
    labels: dict[str, str], index: int | None, node: str | None
) -> None:
    metric = {"__name__": "DCGM_FI_DEV_GPU_TEMP", **labels}
    sink = ingest(json.dumps([{"metric": metric, "values": [[1700000000, "50"]]}]))
    (row,) = sink.rows("gpu_sample")
    assert (row["nvml_index"], row["node"]) == (index, node)


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


def test_an_export_of_victoriametrics_has_values_and_times_in_two_lists() -> None:
    whose = {"gpu": "0", "Hostname": "gpu-11", "UUID": "GPU-1"}
    lines = [
        {"metric": whose | {"__name__": "DCGM_FI_DEV_POWER_USAGE"},
         "values": [688.12, None, 690.5], "timestamps": [1784016758123, 1784016768123,
                                                         1784016778123]},
        {"metric": whose | {"__name__": "DCGM_FI_DEV_GPU_TEMP"}, "values": [61, 62],
         "timestamps": [1784016758123]},
    ]  # fmt: skip
    text = "\n".join(map(json.dumps, lines)) + '\n{"metric":{"__name__":"x"},"val'
    sink = ingest(text, "export.jsonl", "prometheus_api")
    rows = sink.rows("gpu_sample", "counter", "time_ns", "value")
    assert rows == [("power", 1784016758123000000, 688.12), ("power", 1784016778123000000, 690.5)]
    assert sink.counters["bad_series"] == 2 and sink.facts["status"] == "partial"
