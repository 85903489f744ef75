"""Tables and records as people's own collectors write them, each its own way."""

from __future__ import annotations

import gzip
import json

import pytest
from memory_sink import MemorySink, source_of
from net_cases import ingest

from tracekit.ingest import ingestor, recognise
from tracekit.ingest.base import IngestOptions
from tracekit.ingest.counters.device_records import of_point
from tracekit.ingest.counters.records import Record, of_object

T = 1_763_800_000
NS = 10**9
Number = tuple[str | None, str, str, float]
"""Machine, device, counter, number."""


def rows(*cells: str, times: tuple[str, ...] = (str(T), str(T + 1)), by: str = ",") -> str:
    """A header, and its row at two moments."""
    header, row = cells
    return "\n".join([header, *(by.join([t, row]) for t in times)]) + "\n"


def gpustat(second: int) -> str:
    gpus: list[dict[str, object]] = [
        {"index": g, "name": "H100", "temperature.gpu": 50, "utilization.gpu": 99,
         "power.draw": 600 + g, "memory.used": 1000, "processes": []}
        for g in (0, 1)
    ]  # fmt: skip
    when = f"2025-11-22T08:26:4{second}+00:00"
    return json.dumps({"hostname": "n1", "query_time": when, "gpus": gpus})


def lines_of(*records: object) -> str:
    return "".join(json.dumps(r) + "\n" for r in records)


POWERS: list[Number] = [(None, "0", "power", 690.5), (None, "1", "power", 50.0)]
CASES: dict[str, tuple[str | bytes, list[Number], dict[str, int]]] = {
    "decimal_commas.csv": (
        rows("\ufefftimestamp;gpu0_power_w;gpu1_power_w", "690,5;50",
             times=(f"{T},0", f"{T + 1},0"), by=";"),
        POWERS, {},
    ),
    "spreadsheet.tsv": (
        rows("time\tgpu0_power_w\tgpu1_power_w", "690.5\t50", by="\t",
             times=("2025-11-22 08:26:40Z", "2025-11-22 08:26:41Z")).encode("utf-16"),
        POWERS, {},
    ),
    "quoted_long.csv": (
        '"time","gpu","metric","value"\n'
        + "".join(f'"{T + s}","{g}","power_w","{v}"\n' for s in (0, 1)
                  for g, v in ((0, 690.5), (1, 50))),
        POWERS, {},
    ),
    "lines.jsonl": (
        lines_of(*({"ts": T + s, "gpu": g, "power_w": v, "note": "x"} | {"util_pct": 99}
                   for s in (0, 1) for g, v in ((0, 690.5), (1, 50)))),
        [*POWERS, (None, "0", "gpu_utilisation", 0.99), (None, "1", "gpu_utilisation", 0.99)],
        {"column_not_read_nobody_knows_what_it": 2},
    ),
    "nested.json": (
        json.dumps([{"ts": T + s, "host": "n1", "gpus": [
            {"index": 0, "power_w": 690.5}, {"index": 1, "power_w": 50}]} for s in (0, 1)]),
        [("n1", *n[1:]) for n in POWERS], {},
    ),
    "by_name.json": (
        json.dumps({"samples": [{"time": T + s, "gpu0": {"power_w": 690.5}, "gpu1": {"power_w": 50},
                                 "sys_power_w": 6000} for s in (0, 1)]}),
        [*POWERS, (None, "", "system_power", 6000.0)], {},
    ),
    "columns.json": (
        json.dumps({"time": [T, T + 1], "gpu0_power_w": [690.5, 690.5], "gpu1_power_w": [50, 50]}),
        POWERS, {},
    ),
    "gpustat.jsonl": (
        gpustat(0) + "\n" + gpustat(1) + "\n",
        [("n1", g, *n) for g, w in (("0", 600.0), ("1", 601.0)) for n in (
            ("power", w), ("gpu_temperature", 50.0), ("gpu_utilisation", 0.99),
            ("memory_used", 1000 * 2.0**20))],
        {"column_not_read_nobody_knows_what_it": 2},  # each GPU's model
    ),
    "points.txt": (
        "".join(f"gpu,host=n1,index={g} power_w={v},temp_c=5{g}i {(T + s) * NS}\n"
                for s in (0, 1) for g, v in ((0, 690.5), (1, 50.0))),
        [*(("n1", *n[1:]) for n in POWERS), ("n1", "0", "gpu_temperature", 50.0),
         ("n1", "1", "gpu_temperature", 51.0)], {},
    ),
    "packed.csv": (
        gzip.compress(rows("epoch_ms,ib0_tx_gbps,ib0_rx_gbps", "8,16",
                           times=(f"{T}000", f"{T + 1}000")).encode()),
        [(None, "ib0", "tx_rate", 1e9), (None, "ib0", "rx_rate", 2e9)], {},
    ),
    "parentheses.csv": (
        rows("Timestamp (ms),GPU 0 Power (W),GPU 1 Power (W)", "690.5,50",
             times=(f"{T}000", f"{T + 1}000")),
        POWERS, {},
    ),
    "a_row_a_device.csv": (
        "time,device,power_w,fan_speed_pct,owner\n"
        + "".join(f"{T + s},GPU-{g},{v},30,me\n" for s in (0, 1)
                  for g, v in ((0, 690.5), (1, 50))),
        [*POWERS, (None, "0", "fan_speed", 0.3), (None, "1", "fan_speed", 0.3)],
        {"column_not_read_nobody_knows_what_it": 2},
    ),
    "a_row_a_port.csv": (
        "ts,iface,rx_mbps,tx_mbps\n"
        + "".join(f"{T + s},eth{p},800,{p}\n" for s in (0, 1) for p in (0, 1)),
        [(None, f"eth{p}", c, v) for p in (0, 1)
         for c, v in (("rx_rate", 1e8), ("tx_rate", p * 125e3))],
        {},
    ),
    "data_frame.csv": (
        rows(",gpu0_power_w,gpu1_power_w", "690.5,50",
             times=("2025-11-22T08:26:40+00:00", "2025-11-22T08:26:41+00:00")),
        POWERS, {},
    ),
    "slashes.utc.csv": (
        rows("date,power_gpu0 (W),power_gpu1 (W)", "690.5,50",
             times=("2025/11/22 08:26:40", "2025/11/22 08:26:41")),
        POWERS, {},
    ),
    "blanks.txt": (rows("time gpu0_power_w gpu1_power_w", "690.5   50", by="  "), POWERS, {}),
    "dashboard.csv": (
        rows('"Time",' + ",".join(f'"DCGM_FI_DEV_POWER_USAGE{{gpu=""{g}"", Hostname=""n1""}}"'
                                  for g in (0, 1)), "690.5,50", times=(f"{T}000", f"{T + 1}000")),
        [("n1", *n[1:]) for n in POWERS], {},
    ),
    "infiniband.csv": (
        rows("time,mlx5_0_port_xmit_data,mlx5_0_port_rcv_data,mlx5_0_colour", '"1,000",50,red'),
        [(None, "mlx5_0", "tx_bytes", 4000), (None, "mlx5_0", "rx_bytes", 200)],
        {"column_not_read_nobody_knows_what_it": 1},
    ),
}  # fmt: skip


def read(data: str | bytes, name: str) -> MemorySink:
    source = source_of(data if isinstance(data, bytes) else data.encode(), name)
    found = recognise(source)
    assert found.ingestor is not None, found
    sink = MemorySink()
    ingestor(found.ingestor).read(source, sink, IngestOptions())
    return sink


@pytest.mark.parametrize("name", CASES)
def test_every_number_is_read_and_every_other_column_is_listed(name: str) -> None:
    data, numbers, unread = CASES[name]
    sink = read(data, name)
    found = [
        (r["time_ns"], r.get("node"), _device(r), r["counter"],
         r["value"] if r["value"] is not None else r["counted"])
        for table in ("gpu_sample", "net_sample", "host_sample") for r in sink.rows(table)
    ]  # fmt: skip
    expected = [((T + s) * NS, *n) for s in (0, 1) for n in numbers]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert sink.counters == unread


def _device(row: dict[str, object]) -> str:
    if "nvml_index" in row:
        return str(row["nvml_index"])
    return str(row["port"] if "port" in row else row["device"] or "")


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (lines_of({"step": 3, "loss": 2.5, "time": T, "gpu0_power_w": 1, "gpu1_power_w": 2}), "a"),
        (lines_of({"time": T, "power_w": 1, "temp_c": 2}), "a"),  # of no device
        (lines_of({"gpu0_power_w": 1, "gpu1_power_w": 2}), "a"),  # at no time
        (lines_of({"time": "soon", "gpu0_power_w": 1, "gpu1_power_w": 2}), "a"),
        (lines_of({"time": T, "gpus": [{"power_w": 1}, {"power_w": 2}]}), "a"),  # of which GPU
        (f"weather,host=n1 temp_c=3,power_w=2 {T * NS}\n", "a"),
        ("time,device,power_w,temp_c\n1763800000,/dev/sda,1,2\n", "a.csv"),
    ],
)
def test_other_records_are_not_taken_for_those_of_devices(data: str, name: str) -> None:
    assert recognise(source_of(data.encode(), name)).ingestor != "device_records"


def test_a_record_that_breaks_off_keeps_what_stands_whole_before() -> None:
    data = lines_of(*({"ts": T + s, "gpu0_power_w": 1, "gpu1_power_w": 2} for s in range(3)))
    sink = read(data[:-9], "x.jsonl")
    assert len(sink.rows("gpu_sample")) == 5
    assert sink.counters == {"bad_record": 1}
    assert sink.facts["status"] == "partial"


def test_comma_that_may_be_either_is_no_number() -> None:
    data = "time;gpu0_power_w;gpu1_power_w\n1763800000;1.690,5;50\n1763800001;1,690,000;50\n"
    sink = read(data, "x.csv")
    assert [r["value"] for r in sink.rows("gpu_sample")] == [50.0, 50.0]
    assert sink.counters["bad_record"] == 2


def test_a_phase_of_records_is_an_annotation() -> None:
    data = lines_of(*({"ts": T + s, "gpu0_power_w": 1, "gpu1_power_w": 2, "phase": p}
                      for s, p in enumerate(("load", "train", "train"))))  # fmt: skip
    assert read(data, "x.jsonl").rows("annotation", "name", "start_ns", "dur_ns") == [
        ("load", T * NS, NS), ("train", (T + 1) * NS, NS)
    ]  # fmt: skip


def test_names_of_what_is_nested() -> None:
    value = {"time": "7", "node": "n1", "mlx5_0": {"tx": {"bytes": 4}}, "ok": True, "none": None,
             "nics": [{"name": "eth3", "rx_bytes": 1}, {"name": "lo", "rx_bytes": 2}]}  # fmt: skip
    numbers = {"mlx5_0_tx_bytes": "4", "eth3_rx_bytes": "1"}
    assert of_object(value) == Record("7", "n1", numbers)
    assert of_point("ports,host=n1,iface=ib1 tx_bytes=5i 7") == Record(
        "7", "n1", {"ib1_tx_bytes": "5"}
    )


def test_two_ports_of_a_device_are_two() -> None:
    """Device and port stand in parts of their own."""
    text = "".join(
        f'{{"ts": {1784602867 + s}, "device": "mlx5_0", "port": {p}, '
        f'"port_rcv_data": {10 * p + s}, "port_xmit_data": 7}}\n'
        for s in range(2)
        for p in (1, 2)
    )
    sink = ingest(source_of(text.encode(), "x.jsonl"), "device_records")
    found = sink.rows("net_sample", "port", "counter", "counted")
    assert [r for r in found if r[1] == "rx_bytes"] == [
        ("mlx5_0/1", "rx_bytes", 40), ("mlx5_0/2", "rx_bytes", 80),
        ("mlx5_0/1", "rx_bytes", 44), ("mlx5_0/2", "rx_bytes", 84),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("header", "rate"),
    [("gpu0_pcie_rx_mbps", None), ("gpu0_pcie_rx_MBPS", None), ("gpu0_pcie_rx_MBps", 1e6),
     ("gpu0_pcie_rx_Mbps", 1.25e5), ("gpu0_pcie_rx [mbps]", None)],
)  # fmt: skip
def test_a_rate_of_a_gpu_whose_unit_lost_its_case_is_not_read(
    header: str, rate: float | None
) -> None:
    wide = f"time,gpu0_power_w,gpu1_power_w,{header}\n1784602867,1,2,1\n"
    rows = f"time,gpu,power_w,{header.removeprefix('gpu0_')}\n1784602867,0,1,1\n"
    for text, family in ((wide, "device_csv"), (rows, "gpu_csv")):
        sink = ingest(source_of(text.encode(), "x.csv"), family)
        found = [r["value"] for r in sink.rows("gpu_sample") if r["counter"] == "pcie_rx"]
        assert found == ([] if rate is None else [pytest.approx(rate)]), family
        assert any(name.startswith("column_not_read") for name in sink.counters) is (rate is None)


def test_a_table_of_snmp_s_objects_is_one_of_ports() -> None:
    text = (
        "time,host,ifDescr,ifInOctets,ifHCInOctets,ifHCOutOctets,ifOutDiscards\n"
        f"{T},leaf1,Ethernet1,5,1000000000000,7,3\n"
    )
    sink = ingest(source_of(text.encode(), "x.csv"), "net_csv")
    assert sink.rows("net_sample", "node", "port", "counter", "counted") == [
        ("leaf1", "Ethernet1", "rx_bytes", 10**12),
        ("leaf1", "Ethernet1", "tx_bytes", 7),
        ("leaf1", "Ethernet1", "tx_dropped_packets", 3),
    ]
    assert sink.counters["column_not_read"] == 1  # 32 bits wrap too soon


@pytest.mark.parametrize("is_json", [False, True])
def test_what_the_physical_port_counts_goes_before_what_its_driver_does(is_json: bool) -> None:
    """The driver's own bytes leave out RDMA."""
    numbers = {"eth0_rx_bytes": 1, "eth0_rx_bytes_phy": 200, "eth0_rx_discards_phy": 3,
               "eth0_rx_of_its_own_phy": 4}  # fmt: skip
    record = {"ts": T, **numbers}
    text = ",".join(record) + "\n" + ",".join(map(str, record.values())) + "\n"
    if is_json:
        text = json.dumps(record) + "\n"
    sink = ingest(source_of(text.encode(), "x"), "device_records" if is_json else "device_csv")
    assert sorted(sink.rows("net_sample", "counter", "counted")) == [
        ("rx_bytes", 200), ("rx_dropped_packets", 3)]  # fmt: skip


@pytest.mark.parametrize("header", ["Time (UTC)", "time [UTC]", "Timestamp(UTC)"])
def test_a_header_may_say_that_its_times_are_utc(header: str) -> None:
    moment = "2026-07-21 03:01:07"
    rows_a_gpu = f"{header},gpu,power_w,temp_c\n{moment},0,300,60\n"
    wide = f"{header},gpu0_power_w,gpu1_power_w\n{moment},300,310\n"
    for text, family in ((rows_a_gpu, "gpu_csv"), (wide, "device_csv")):
        sink = ingest(source_of(text.encode(), "x.csv"), family)
        assert {r["time_ns"] for r in sink.rows("gpu_sample")} == {1784602867 * NS}
        assert (sink.facts["time_basis"], "local_time" in sink.counters) == ("epoch", False)
