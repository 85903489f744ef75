"""Tables that somebody made in another shape than CSV, and times that no date is beside."""

from __future__ import annotations

import json

import pytest
from gpu_files import ingest
from memory_sink import MemorySink, source_of

from tracekit.ingest import recognise
from tracekit.ingest.counters import plain_table
from tracekit.ingest.counters.device_headers import column_of
from tracekit.ingest.counters.device_samples import Column

AT = 1784016758


def gpus(sink: MemorySink, since: int = AT) -> list[tuple[object, ...]]:
    """Machine, GPU, counter, seconds since, and value."""
    found = sink.rows("gpu_sample", "node", "nvml_index", "counter", "time_ns", "value")
    return sorted(((*r[:3], (r[3] - since * 10**9) / 1e9, r[4]) for r in found), key=str)


# --- a date and a time ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Date,Time,GPU,Util %,Power W\n2026-07-14,08:12:38,0,90,650.5\n"
        "2026-07-14,08:12:48,0,80,9\n",
        '"Date","Time","GPU","Util %","Power W"\r\n"2026-07-14","08:12:38","0","90","650.5"\r\n'
        '"2026-07-14","08:12:48","0","80","9"',
        "\ufeffdate;time;gpu0_util_percent;gpu0_power_w\n14.07.2026;08:12:38;90;650,5\n"
        "14.07.2026;08:12:48;80;9,0\n",
    ],
    ids=["plain", "quoted", "German"],
)
def test_a_date_and_a_time_are_one_column(text: str) -> None:
    assert [r[1:] for r in gpus(ingest(text, "gpus.csv"))] == [
        (0, "gpu_utilisation", 0.0, pytest.approx(0.9)),
        (0, "gpu_utilisation", 10.0, pytest.approx(0.8)),
        (0, "power", 0.0, 650.5),
        (0, "power", 10.0, 9.0),
    ]


def test_lines_are_joined_wherever_blocks_of_the_file_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"2026-07-14,08:{k // 60:02}:{k % 60:02},0,{k % 100},600" for k in range(600)]
    text = "\n".join(["Date,Time,GPU,Util %,Power W", *lines])
    whole = gpus(ingest(text, "gpus.csv"))
    monkeypatch.setattr(plain_table, "BLOCK_BYTES", 37)
    assert gpus(ingest(text, "gpus.csv")) == whole
    assert len(whole) == 1200


# --- parted by blanks -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "time                 gpu  util_pct  power_w\n2026-07-14T08:12:38  0    90        650.5\n"
        "2026-07-14T08:12:48  0    80        9\n",
        "# timestamp   gpu util_pct power_w\n  2026-07-14 08:12:38   0  90  650.5  \n"
        "  2026-07-14 08:12:48   0  80  9.0",
        "Date       Time      GPU  util_pct  power_w\r\n2026-07-14 08:12:38  0    90   650.5\r\n"
        "2026-07-14 08:12:48  0    80   9\r\n",
        "\ufeffts gpu util_pct power_w\n1784016758 0 90 650.5\n\n1784016768 0 80 9\n",
    ],
    ids=["column -t", "a moment of two words", "a date and a time", "epoch"],
)
def test_blanks_part_the_columns(text: str) -> None:
    assert [r[1:] for r in gpus(ingest(text, "gpus.txt"))] == [
        (0, "gpu_utilisation", 0.0, pytest.approx(0.9)),
        (0, "gpu_utilisation", 10.0, pytest.approx(0.8)),
        (0, "power", 0.0, 650.5),
        (0, "power", 10.0, 9.0),
    ]


def test_columns_of_devices_may_be_parted_by_blanks() -> None:
    text = "ts gpu0_power_w ib0_tx_gbps sys_power_w\n1784016758 650 8 6000\n"
    sink = ingest(text, "node3.txt", "device_csv")
    assert gpus(sink) == [("node3", 0, "power", 0.0, 650.0)]
    assert sink.rows("net_sample", "port", "counter", "value") == [("ib0", "tx_rate", 1e9)]


@pytest.mark.parametrize(
    "text",
    [
        "time gpu power_w\nwhen the power was cut\n",
        "time gpu power_w\n2026-07-14T08:12:38 0\n",
        "the time is now\n2026-07-14T08:12:38 0 9 9\n",
        "gpu util_pct power_w\n0 90 650\n",
        "time gpu power_w",
    ],
    ids=["prose", "another number of cells", "no names", "no time", "no row"],
)
def test_a_text_of_words_is_no_table(text: str) -> None:
    assert plain_table.rewrite_of(text.encode()) is None


# --- times without a date -------------------------------------------------------------------------


def test_times_of_a_gpu_table_may_count_from_its_beginning() -> None:
    sink = ingest("elapsed_ms,gpu,power_w\n0,0,400\n100,0,401\n", "gpus.csv")
    assert gpus(sink, 0) == [(None, 0, "power", 0.0, 400.0), (None, 0, "power", 0.1, 401.0)]
    assert sink.facts["time_basis"] == "elapsed"


def test_a_clock_without_a_date_goes_past_midnight() -> None:
    xpu_smi = (
        "Timestamp, DeviceId, GPU Utilization (%), GPU Frequency (MHz),"
        " GPU Core Temperature (Celsius Degree), GPU Memory Used (MiB)\n"
        "23:59:59.500,    0, 80.00, 1550, 55.00, 1024.00\n"
        "00:00:00.500,    0, 81.00, 1550, 55.00, 1024.00\n"
        "00:00:01.500,    0, 82.00, 1550, 55.00, 1024.00\n"
    )
    rows = gpus(ingest(xpu_smi, "xpu.csv"), 86_400)
    assert [r[3:] for r in rows if r[2] == "gpu_utilisation"] == [
        (-0.5, 0.8), (0.5, pytest.approx(0.81)), (1.5, pytest.approx(0.82)),
    ]  # fmt: skip
    assert {(r[2], r[4]) for r in rows if r[2] != "gpu_utilisation"} == {
        ("sm_clock", 1.55e9), ("gpu_temperature", 55.0), ("memory_used", 2.0**30),
    }  # fmt: skip


def test_among_moments_a_time_of_day_is_none() -> None:
    text = "time,gpu,power_w\n1784016758,0,400\n08:12:39,0,401\n1784016760,0,402\n"
    assert [r[3] for r in gpus(ingest(text, "gpus.csv"))] == [0.0, 2.0]


# --- names and numbers ----------------------------------------------------------------------------


def test_a_device_may_stand_before_its_unit() -> None:
    text = "time,power_gpu1_w,tx_ib0_gbps,loss_gpu0_w\n1784016758,400,8,7\n"
    sink = ingest(text, "t.csv", "device_csv")
    assert gpus(sink) == [(None, 1, "power", 0.0, 400.0)]
    assert sink.rows("net_sample", "port", "counter", "value") == [("ib0", "tx_rate", 1e9)]


def test_records_beside_semicolons_have_decimal_commas() -> None:
    text = "ts;host;device;metric;value\n" + "".join(
        f"1784016758;n0;gpu{n};power_draw_w;{500 + n},5\n" for n in range(2)
    )
    assert gpus(ingest(text, "long.csv", "device_records")) == [
        ("n0", 0, "power", 0.0, 500.5),
        ("n0", 1, "power", 0.0, 501.5),
    ]


def test_numbers_of_records_say_the_unit_that_their_name_lacks() -> None:
    def record(second: int, *shares: float) -> str:
        gpus = [
            {"id": n, "util": share, "mem_used": 70_000, "power_w": 600}
            for n, share in enumerate(shares)
        ]
        return json.dumps({"ts": AT + second, "node": "n4", "gpus": gpus})

    sink = ingest("\n".join([record(0, 90, 1), record(1, 0, 0)]), "t.jsonl", "device_records")
    shares = [(r[1], r[3], r[4]) for r in gpus(sink) if r[2] == "gpu_utilisation"]
    assert shares == [(0, 0.0, 0.9), (0, 1.0, 0.0), (1, 0.0, 0.01), (1, 1.0, 0.0)]
    assert {r[4] for r in gpus(sink) if r[2] == "memory_used"} == {70_000 * 2.0**20}
    assert sink.counters["unit_by_size_percent"] == 2
    # Of an idle GPU's 0.3 nobody knows.
    sink = ingest(record(0, 0.3, 0.2), "t.jsonl", "device_records")
    assert {r[2] for r in gpus(sink)} == {"memory_used", "power"}


# --- units and names that were read wrong, or not at all ------------------------------------------


@pytest.mark.parametrize(
    ("header", "scale"),
    [
        ("ib0_tx_Bps", 1), ("ib0_tx [Bps]", 1), ("ib0_tx_kBps", 1000), ("ib0_tx (MBps)", 10**6),
        ("tx_MiBps_ib0", 2**20), ("ib0_tx_bytes_sec", 1), ("ib0_tx_bps", 1 / 8),
        ("ib0_tx [Mbps]", 10**6 / 8), ("ib0_tx_gbps", 10**9 / 8),
    ],
)  # fmt: skip
def test_a_capital_b_a_second_is_bytes(header: str, scale: float) -> None:
    column = column_of(0, header)
    assert isinstance(column, Column)
    assert (column.meaning.counter, column.meaning.scale) == ("tx_rate", scale)


def test_the_same_in_tables_of_gpus_and_of_ports() -> None:
    sink = ingest("time,gpu,pcie_rx_Bps,power_w\n1784016758,0,8,400\n", "t.csv", "gpu_csv")
    assert {r[4] for r in gpus(sink) if r[2] == "pcie_rx"} == {8.0}
    sink = ingest("time,port,tx_rate [Bps],rx_bytes\n1784016758,p1,8,9\n", "t.csv", "net_csv")
    assert ("tx_rate", 8.0) in sink.rows("net_sample", "counter", "value")


def test_a_port_of_an_adapter_stands_behind_it() -> None:
    text = "ts,mlx5_0_p1_rx_gbps,mlx5_0_p2_rx_gbps\n1784016758,8,16\n"
    sink = ingest(text, "t.csv", "device_csv")
    assert sink.rows("net_sample", "port", "value") == [("mlx5_0/1", 1e9), ("mlx5_0/2", 2e9)]


def test_a_table_of_ports_has_openconfig_s_names_and_priorities() -> None:
    text = (
        "elapsed_s,switch,port,in_octets,out-discards,pfc3_rx,tx_prio4_pause,pfc\n"
        "0.0,leaf1,Et1,100,1,5,6,7\n0.5,leaf1,Et1,200,2,8,9,7\n"
    )
    sink = ingest(text, "t.csv", "net_csv")
    rows = sink.rows("net_sample", "time_ns", "node", "port", "counter", "priority", "counted")
    assert [r for r in rows if r[0] == 0] == [
        (0, "leaf1", "Et1", "rx_bytes", None, 100),
        (0, "leaf1", "Et1", "tx_dropped_packets", None, 1),
        (0, "leaf1", "Et1", "rx_pfc_packets", 3, 5),
        (0, "leaf1", "Et1", "tx_pfc_packets", 4, 6),
    ]
    assert {r[0] for r in rows} == {0, 500_000_000}
    assert sink.facts["time_basis"] == "elapsed"


def test_a_first_time_that_is_none_says_nothing_of_the_others() -> None:
    text = "time,port,rx_bytes,tx_bytes\n?,p1,7,8\n1784016758,p1,7,8\n5,p1,9,9\n"
    sink = ingest(text, "t.csv", "net_csv")
    assert set(sink.rows("net_sample", "time_ns")) == {AT * 10**9}
    assert sink.counters["bad_record"] == 2


def test_a_host_s_cpus_and_memory_may_be_columns() -> None:
    text = (
        "time,cpu_user_pct,cpu_iowait_pct,mem_available_gib,cpu_percent\n1784016758,50,2,512,70\n"
    )
    sink = ingest(text, "node4.csv", "device_csv")
    assert sorted(sink.rows("host_sample", "counter", "value")) == [
        ("cpu_busy", pytest.approx(0.7)),
        ("cpu_iowait", 0.02),
        ("cpu_user", 0.5),
        ("memory_available", 512 * 2.0**30),
    ]


def test_a_table_may_be_of_machines_alone() -> None:
    text = "ts,host,cpu_pct,mem_used_gb,load1\n1784016758,n1,30,4,1\n1784016758,n2,40,5,2\n"
    sink = ingest(text, "hosts.csv", "device_csv")
    # The first machine is the file's; what says otherwise names its own.
    assert sink.rows("host_sample", "node", "counter", "value") == [
        (None, "cpu_busy", 0.3),
        (None, "memory_used", 4 * 2.0**30),
        ("n2", "cpu_busy", 0.4),
        ("n2", "memory_used", 5 * 2.0**30),
    ]


def test_records_print_units_beside_their_numbers() -> None:
    record = {"time": "2026-07-14T08:12:38Z", "gpu0": {"power": "650 W", "util": "98 %"}}
    sink = ingest(json.dumps(record), "t.jsonl", "device_records")
    assert [r[2:] for r in gpus(sink)] == [
        ("gpu_utilisation", 0.0, pytest.approx(0.98)),
        ("power", 0.0, 650.0),
    ]


def test_a_comment_s_sign_is_no_column() -> None:
    text = "# t_unix  ib0_tx_Bps  ib0_rx_Bps\n1.784016758e9 5 6\n"
    sink = ingest(text, "node0.dat", "device_csv")
    assert sink.rows("net_sample", "counter", "value") == [("tx_rate", 5.0), ("rx_rate", 6.0)]


# --- where devices and metrics stand --------------------------------------------------------------


def test_a_metric_may_be_the_name_of_a_file_beside_its_machine() -> None:
    sink = ingest("timestamp,gpu0,gpu1\n1784016758,600,610\n", "node1_power.csv", "device_csv")
    assert gpus(sink) == [("node1", 0, "power", 0.0, 600.0), ("node1", 1, "power", 0.0, 610.0)]
    shares = "timestamp,gpu0,gpu1\n1784016758,90,0\n"
    sink = ingest(shares, "util-node1.csv", "device_csv")
    assert [r[4] for r in gpus(sink)] == [pytest.approx(0.9), 0.0]


def test_an_export_of_w_and_b_has_its_run_before_each_metric() -> None:
    name = "magic-run-7 - system.gpu.0.powerWatts"
    text = f'"Relative Time (Process)","{name}","{name}__MIN","{name}__MAX"\n15,600,590,610\n'
    sink = ingest(text, "wandb_export.csv", "device_csv")
    assert gpus(sink, 0) == [(None, 0, "power", 15.0, 600.0)]
    assert sum(n for c, n in sink.counters.items() if c.startswith("column_not_read")) == 2


@pytest.mark.parametrize(
    "value",
    [
        {"ts": {"0": AT, "1": AT + 1}, "gpu0_power_w": {"0": 600, "1": 601},
         "ib0_tx_bytes": {"0": 7, "1": 8}},
        {"columns": ["ts", "gpu0_power_w", "ib0_tx_bytes"], "index": [0, 1],
         "data": [[AT, 600, 7], [AT + 1, 601, 8]]},
    ],
    ids=["columns", "split"],
)  # fmt: skip
def test_a_data_frame_as_json(value: dict[str, object]) -> None:
    sink = ingest(json.dumps(value), "frame.json", "device_records")
    assert [r[3:] for r in gpus(sink)] == [(0.0, 600.0), (1.0, 601.0)]
    assert sink.rows("net_sample", "counted") == [7, 8]


@pytest.mark.parametrize(
    ("header", "is_of_a_gpu"),
    [
        ("time,gpu_util,power_w", True),
        ("time,sm_clock_mhz,power_w", True),
        ("time,temperature_c,power_w", False),  # of a switch, or of the room
        ("time,gpu_util,loss", False),
        ("gpu_util,power_w", False),
    ],
)
def test_a_table_of_one_gpu_says_so_in_a_header(header: str, is_of_a_gpu: bool) -> None:
    row = ",".join(["1784016758", "90", "400"][-header.count(",") - 1 :])
    found = recognise(source_of(f"{header}\n{row}\n".encode(), "rank3.csv"))
    assert (found.ingestor == "gpu_csv") == is_of_a_gpu


@pytest.mark.parametrize(
    ("device", "port", "node", "named"),
    [
        ("leaf3", "Eth1/1", "leaf3", "Eth1/1"),
        ("mlx5_0", "1", None, "mlx5_0/1"),
        ("mlx5_0", "ens1f0", None, "ens1f0"),
    ],
)
def test_a_device_whose_ports_have_names_is_a_switch(
    device: str, port: str, node: str | None, named: str
) -> None:
    text = f"time,device,interface,rx_bytes,tx_bytes\n1784016758,{device},{port},7,8\n"
    sink = ingest(text, "ports.csv", "net_csv")
    assert set(sink.rows("net_sample", "node", "port")) == {(node, named)}


def test_more_words_of_gpus() -> None:
    header = "time,gpu,clock_mem [MHz],throttle_reason,pcie_replay"
    sink = ingest(f"{header}\n1784016758,0,2619,0x0000000000000004,3\n", "t.csv", "gpu_csv")
    found = {r["counter"]: r["value"] for r in sink.rows("gpu_sample")}
    assert found["memory_clock"] == 2.619e9
    assert found["clock_event_reasons"] == 4
    assert "pcie_replays" in found
