"""Series of monitoring services: whose, what and in which unit each service says it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gpu_files import ingest
from memory_sink import MemorySink

from tracekit.ingest.counters.device_headers import column_of
from tracekit.ingest.counters.device_samples import Column
from tracekit.ingest.counters.units import symbol

AT = 1784016758


def gpus(sink: MemorySink) -> list[tuple[object, ...]]:
    """Machine, GPU, counter, seconds since AT, and value."""
    found = sink.rows("gpu_sample", "node", "nvml_index", "counter", "time_ns", "value")
    return sorted(((*r[:3], (r[3] - AT * 10**9) / 1e9, r[4]) for r in found), key=str)


def ports(sink: MemorySink) -> list[tuple[object, ...]]:
    return sorted(sink.rows("net_sample", "node", "port", "counter", "value", "counted"), key=str)


def datadog(metric: str, unit: list[Any], tags: list[str], *points: list[Any]) -> dict[str, Any]:
    return {"metric": metric, "unit": unit, "tag_set": tags, "pointlist": list(points)}


def test_a_series_of_datadog_says_its_unit_and_its_tags_whose_it_is() -> None:
    percent, milliwatt = {"name": "percent"}, {"name": "milliwatt"}
    of_gpu = ["gpu:1", "host:n7"]
    series = [
        datadog("dcgm.gpu_utilization", [percent, None], of_gpu, [AT * 1e3, 93.5], [0, None]),
        datadog("nvml.power_usage", [milliwatt, None], of_gpu, [AT * 1e3 + 15000, 650250.0]),
        datadog("dcgm.gpu_utilization", [percent, None], ["host:n7"], [AT * 1e3, 90.0]),
        datadog(
            "system.net.bytes_rcvd",
            [{"name": "byte"}, {"name": "second"}],
            ["host:n7", "device:eth0"],
            [AT * 1e3, 1.5e9],
        ),
    ]
    sink = ingest(json.dumps({"status": "ok", "series": series}), "answer.json", "monitoring")
    assert gpus(sink) == [
        ("n7", 1, "gpu_utilisation", 0.0, pytest.approx(0.935)),
        ("n7", 1, "power", 15.0, pytest.approx(650.25)),
    ]
    assert ports(sink) == [("n7", "eth0", "rx_rate", 1.5e9, None)]
    # The mean over a machine's GPUs is none of them.
    assert sum(n for c, n in sink.counters.items() if c.startswith("column_not_read")) == 1


def test_cloudwatch_s_metrics_of_its_agent_have_known_units() -> None:
    def result(label: str, *values: float) -> dict[str, Any]:
        stamps = [f"2026-07-14T08:{12 + k}:38Z" for k in range(len(values))]
        return {"Id": "m1", "Label": label, "Timestamps": stamps, "Values": list(values)}

    results = [
        result("i-0abc123 0 nvidia_smi_utilization_gpu", 93.0, 50.0),
        result("i-0abc123 0 nvidia_smi_memory_used", 70000.0),
        result("i-0abc123 nvidia_smi_power_draw", 600.0),  # of all of them
        result("CPUUtilization", 5.0),
    ]
    sink = ingest(json.dumps({"MetricDataResults": results}), "metrics.json", "monitoring")
    assert gpus(sink) == [
        ("i-0abc123", 0, "gpu_utilisation", 0.0, pytest.approx(0.93)),
        ("i-0abc123", 0, "gpu_utilisation", 60.0, pytest.approx(0.5)),
        ("i-0abc123", 0, "memory_used", 0.0, 70000 * 2**20),
    ]


def otlp(*metrics: dict[str, Any]) -> str:
    host = {"attributes": [{"key": "host.name", "value": {"stringValue": "n1"}}]}
    scoped = [{"scope": {"name": "x"}, "metrics": list(metrics)}]
    return json.dumps({"resourceMetrics": [{"resource": host, "scopeMetrics": scoped}]}) + "\n"


def point(value: float | str, **labels: str) -> dict[str, Any]:
    attributes = [
        {"key": k.replace("__", "."), "value": {"stringValue": v}} for k, v in labels.items()
    ]
    number = {"asInt": value} if isinstance(value, str) else {"asDouble": value}
    return {"attributes": attributes, "timeUnixNano": str(AT * 10**9), **number}


@pytest.mark.parametrize(
    ("temporality", "is_monotonic", "is_read"),
    [(2, True, True), ("AGGREGATION_TEMPORALITY_CUMULATIVE", True, True), (1, True, False),
     (2, False, False)],
)  # fmt: skip
def test_opentelemetry_says_whether_a_sum_is_since_the_start(
    temporality: object, is_monotonic: bool, is_read: bool
) -> None:
    sent = [point("5000000000", device="eth0", network__io__direction="transmit")]
    total = {"aggregationTemporality": temporality, "isMonotonic": is_monotonic, "dataPoints": sent}
    metrics = [
        {"name": "hw.gpu.utilization", "unit": "1", "gauge": {"dataPoints": [point(0.9, gpu="3")]}},
        {"name": "hw.network.io", "unit": "By", "sum": total},
    ]
    sink = ingest(otlp(*metrics), "metrics.jsonl", "monitoring")
    assert gpus(sink) == [("n1", 3, "gpu_utilisation", 0.0, 0.9)]
    assert ports(sink) == [("n1", "eth0", "tx_bytes", None, 5_000_000_000)] * is_read


def test_series_that_are_broken_are_counted_and_the_others_read() -> None:
    percent = [{"name": "percent"}, None]
    good = datadog("dcgm.gpu_utilization", percent, ["gpu:0"], [AT * 1e3, 93.0], [1], ["x", 1.0])
    series = [good, {"metric": 7, "pointlist": "none"}, "no series", None]
    sink = ingest(json.dumps({"series": series}), "answer.json", "monitoring")
    assert [r[:3] for r in gpus(sink)] == [(None, 0, "gpu_utilisation")]
    assert sink.counters["bad_record"] == 2
    assert sink.facts["status"] == "partial"


# --- units in words -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        ("milliwatt", "mW"), ("Watts", "W"), ("megahertz", "MHz"), ("mebibytes", "MiB"),
        ("byte/second", "bytes/s"), ("bytes per second", "bytes/s"), ("By", "bytes"),
        ("degree celsius", "C"), ("Cel", "C"), ("1", "ratio"), ("kilobits/second", "kbit/s"),
        ("MB/sec", "MB/s"), ("percent", "percent"), ("parsec", "parsec"),
    ],
)  # fmt: skip
def test_units_in_words(spelled: str, meant: str) -> None:
    assert symbol(spelled) == meant


@pytest.mark.parametrize("header", ["gpu0_power [parsec]", "eth0_tx [byte/fortnight]"])
def test_a_unit_in_brackets_that_nobody_knows_is_not_taken_for_the_usual_one(header: str) -> None:
    assert column_of(0, header) == "nobody knows what it counts, or its unit does not fit"


# --- nvidia_gpu_exporter --------------------------------------------------------------------------


def test_metrics_of_nvidia_gpu_exporter_are_nvidia_smi_s_fields() -> None:
    uuid = "df6e7a7c-7314-46f8-abc4-b88b36dcf3aa"
    text = "# 2026-07-14T08:12:38Z\n" + "".join(
        f'nvidia_smi_{name}{{uuid="{uuid}"}} {number}\n'
        for name, number in [
            ("utilization_gpu_ratio", "0.93"),
            ("power_draw_watts", "650"),
            ("power_draw_instant_watts", "700"),  # beside one that means the same
            ("clocks_current_sm_clock_hz", "1.98e+09"),
            ("memory_used_bytes", "7e+10"),
            ("gpu_info", "1"),
        ]
    )
    sink = ingest(text, "scrape.prom", "prometheus")
    rows = sorted(sink.rows("gpu_sample", "device_id", "counter", "value"))
    assert rows == [
        (f"GPU-{uuid}", "gpu_utilisation", 0.93),
        (f"GPU-{uuid}", "memory_used", 7e10),
        (f"GPU-{uuid}", "power", 650.0),
        (f"GPU-{uuid}", "sm_clock", 1.98e9),
    ]


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "counter", "scale"),
    [
        ("gpu0_pwr_w", "power", 1.0),
        ("gpu0_hbm_used_gib", "memory_used", 2.0**30),
        ("gpu0_mem_total_mib", "memory_total", 2.0**20),
        ("gpu0_vram_temp_c", "memory_temperature", 1.0),
        ("gpu0_DCGM_FI_DEV_GPU_UTIL", "gpu_utilisation", 0.01),
        ("system.gpu.0.gpu", "gpu_utilisation", 0.01),
        ("system.gpu.0.memoryAllocatedBytes", "memory_used", 1.0),
        ("system.gpu.0.powerWatts", "power", 1.0),
    ],
)
def test_short_words_and_tools_own_names(header: str, counter: str, scale: float) -> None:
    column = column_of(0, header)
    assert isinstance(column, Column), column
    assert (column.meaning.counter, column.meaning.scale) == (counter, scale)


@pytest.mark.parametrize("header", ["gpu0_gpu", "gpu0_sm_pct", "gpu0_memory_pct", "gpu0_mem_util"])
def test_what_could_be_two_things_is_not_read(header: str) -> None:
    assert column_of(0, header) == "nobody knows what it counts, or its unit does not fit"


def test_one_column_may_name_gpus_and_ports() -> None:
    text = "ts,host,dev,metric,val\n" + "".join(
        f"{AT},h1,{dev},{metric},{value}\n"
        for dev, metric, value in [
            ("gpu1", "power_w", 600), ("mlx5_1", "tx_bytes_per_sec", 25), ("nvlink", "tx_gbps", 1),
        ]
    )  # fmt: skip
    sink = ingest(text, "long.csv", "device_records")
    assert gpus(sink) == [("h1", 1, "power", 0.0, 600.0)]
    assert ports(sink) == [("h1", "mlx5_1", "tx_rate", 25.0, None)]


def test_what_is_nested_below_a_network_is_of_its_ports() -> None:
    row = {"time": AT, "gpus": [{"id": 0, "power_w": 5}], "network": {"eth1": {"rx_bytes": 7}}}
    sink = ingest(json.dumps(row) + "\n", "rows.jsonl", "device_records")
    assert ports(sink) == [(None, "eth1", "rx_bytes", None, 7)]


def test_a_way_and_a_unit_name_a_counter_of_a_table_of_ports() -> None:
    text = f"timestamp,port,xmit_MBps,rcv_Gbps\n{AT},mlx5_0/1,12.5,8\n"
    assert ports(ingest(text, "ib.csv", "net_csv")) == [
        (None, "mlx5_0/1", "rx_rate", 1e9, None),
        (None, "mlx5_0/1", "tx_rate", 12.5e6, None),
    ]
