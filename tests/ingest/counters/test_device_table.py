"""CSV with a column for each counter of each device."""

from __future__ import annotations

import pytest
from memory_sink import MemorySink, source_of
from net_cases import ingest

from tracekit.ingest import recognise
from tracekit.ingest.counters.device_table import layout_of

FAMILY = "device_csv"
TABLE = """\
timestamp,phase,gpu0_power_w,gpu1_power_w,gpu1_bmc_temp_c,ib3_tx_bytes_s,ib3_rx_gbps,eth0_tx_bytes,fan1_rpm
1763800000.1,warmup,690.5,200,59,12500000000,80,17,5400
1763800000.2,train,690,n/a,60,1e6,0.5,9007199254740993,5400
"""


def reading(text: str, name: str = "telemetry_node7.csv") -> MemorySink:
    return ingest(source_of(text.encode(), name), FAMILY)


def test_gpus_and_ports_of_one_row_share_its_time() -> None:
    found = recognise(source_of(TABLE.encode(), "x.csv"))
    assert (found.kind, found.ingestor, found.status) == (FAMILY, FAMILY, "ok")
    sink = reading(TABLE)
    gpus = [
        (r["place"], r["node"], r["nvml_index"], r["counter"], r["value"], r["unit"])
        for r in sink.rows("gpu_sample")
    ]
    assert sorted(gpus) == [
        (2, "node7", 0, "power", 690.5, "W"),
        (2, "node7", 1, "gpu_temperature", 59.0, "degrees Celsius"),
        (2, "node7", 1, "power", 200.0, "W"),
        (3, "node7", 0, "power", 690.0, "W"),
        (3, "node7", 1, "gpu_temperature", 60.0, "degrees Celsius"),
    ]
    ports = [
        (r["place"], r["port"], r["counter"], r["kind"], r["value"], r["counted"])
        for r in sink.rows("net_sample")
    ]
    # A float of 9,007,199,254,740,993 bytes would end in 992; 80 Gbit/s are 10 GB/s.
    assert sorted(ports) == [
        (2, "eth0", "tx_bytes", "cumulative", None, 17),
        (2, "ib3", "rx_rate", "gauge", 1e10, None),
        (2, "ib3", "tx_rate", "gauge", 12.5e9, None),
        (3, "eth0", "tx_bytes", "cumulative", None, 9007199254740993),
        (3, "ib3", "rx_rate", "gauge", 62.5e6, None),
        (3, "ib3", "tx_rate", "gauge", 1e6, None),
    ]
    times = {r["time_ns"] for r in (*sink.rows("gpu_sample"), *sink.rows("net_sample"))}
    assert times == {1_763_800_000_100_000_000, 1_763_800_000_200_000_000}
    assert {r["node"] for r in sink.rows("net_sample")} == {"node7"}
    assert sink.counters == {
        "no_value": 1,
    }


@pytest.mark.parametrize(
    ("header", "kind", "device", "counter", "scale"),
    [
        ("ib3_tx_bytes_s", "port", "ib3", "tx_rate", 1.0),
        ("ib3_tx_bytes", "port", "ib3", "tx_bytes", 1),
        ("tx_bytes_ib3", "port", "ib3", "tx_bytes", 1),
        ("ib-3 rx rate [Gbps]", "port", "ib3", "rx_rate", 1.25e8),
        ("mlx5_0_xmit_mb_s", "port", "mlx5_0", "tx_rate", 1e6),
        ("nic1_rx_MB/s", "port", "nic1", "rx_rate", 1e6),
        ("eth0_in_pkts_per_sec", "port", "eth0", "rx_packet_rate", 1),
        ("eth0_rx_crc_errors", "port", "eth0", "rx_crc_errors", 1),
        ("eth0_link_downed_count", "port", "eth0", "link_downed", 1),
        ("gpu0_temp_c", "gpu", "0", "gpu_temperature", 1),
        ("gpu_0_util_pct", "gpu", "0", "gpu_utilisation", 0.01),
        ("gpu0.sm_clock_mhz", "gpu", "0", "sm_clock", 1e6),
        ("gpu0_nvlink_tx_gb_s", "gpu", "0", "nvlink_tx", 1e9),
        ("gpu0_mem_used_mb", "gpu", "0", "memory_used", 2.0**20),
        ("power_w_gpu1", "gpu", "1", "power", 1),
        ("fan3_rpm", "host", "fan3", "fan_rotation", 1),
        ("fan3_speed_pct", "host", "fan3", "fan_speed", 0.01),
        ("psu0_input_power_kw", "host", "psu0", "psu_power", 1000),
        ("cpu1_temp_c", "host", "cpu1", "cpu_temperature", 1),
        ("nvme2_temperature [C]", "host", "nvme2", "disk_temperature", 1),
        ("sys_power_w", "host", "", "system_power", 1),
        ("total_system_pwr [W]", "host", "", "system_power", 1),
        ("ambient_temp_c", "host", "", "inlet_temperature", 1),
        ("g0_util_pct", "gpu", "0", "gpu_utilisation", 0.01),
        ("g3_pow_w", "gpu", "3", "power", 1),
        ("gpu1_tmp_c", "gpu", "1", "gpu_temperature", 1),
        ("cpu_pct", "host", "", "cpu_busy", 0.01),
        ("cpu_wait_pct", "host", "", "cpu_iowait", 0.01),
        ("cpu_sys [%]", "host", "", "cpu_system", 0.01),
        ("ram_used_gib", "host", "", "memory_used", 2.0**30),
    ],
)
def test_a_header_says_device_counter_and_unit(
    header: str, kind: str, device: str, counter: str, scale: float
) -> None:
    layout = layout_of(f"time,{header},gpu7_power_w,gpu8_power_w")
    assert layout is not None
    column = layout.columns[0]
    assert (column.kind, column.device, column.header) == (kind, device, header)
    assert (column.meaning.counter, column.meaning.scale) == (counter, scale)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("gpu0_frobs", "nobody knows"),
        ("gpu0_temp_w", "unit does not fit"),
        ("ib0_tx", "nobody knows"),  # bytes or packets, in all or a second
        ("total_power_w", "names no device"),  # of which devices
        ("phase_power", "names no device"),
        ("fan2_volts", "no counter of such"),
        ("psu0_power", "no counter of such"),  # W or kW
        ("nvlink0_tx_bytes_s", "whose GPU"),
        ("gpu7_bmc_power_w", "same meaning"),
        ("cpu_used", "names no device"),  # a share, or seconds
        ("cpu_temp_pct", "names no device"),
        ("mem_bandwidth_gb", "names no device"),
    ],
)
def test_a_column_that_is_not_read_is_listed_with_the_reason(header: str, reason: str) -> None:
    line = f"time,{header},gpu7_power_w,gpu8_power_w"
    layout = layout_of(line)
    assert layout is not None
    assert len(layout.columns) == 2
    assert [(reason in why, names) for why, names in layout.unread.items()] == [(True, [header])]
    sink = reading(f"{line}\n1763800000,1,2,3\n")
    assert len(sink.rows("gpu_sample")) == 2
    assert sum(n for name, n in sink.counters.items() if "column_not_read" in name) == 1


SENSORS = """\
time,phase,sys_power_w,fan1_rpm,psu0_power_w,note
1763800000,load,6000,5400,3100,7
1763800001,train,6100,n/a,3100,8
1763800002,train,6200,5410,3100,8
1763800004,,6000,5410,3100,8
"""


def test_sensors_of_a_machine_are_its_rows() -> None:
    sink = reading(SENSORS, "bmc_node7.csv")
    rows = sink.rows("host_sample", "place", "device", "counter", "value", "unit")
    assert rows[:4] == [
        (2, None, "system_power", 6000.0, "W"),
        (2, "fan1", "fan_rotation", 5400.0, "rpm"),
        (2, "psu0", "psu_power", 3100.0, "W"),
        (3, None, "system_power", 6100.0, "W"),
    ]
    assert len(rows) == 11
    assert sink.facts["host_name"] == "node7"
    assert sink.counters == {"no_value": 1, "column_not_read_it_names_no_device": 1}


def test_a_label_is_an_annotation_for_as_long_as_it_stays() -> None:
    sink = reading(SENSORS)
    rows = sink.rows("annotation", "place", "name", "start_ns", "dur_ns", "domain")
    begun = 1_763_800_000 * 10**9
    assert rows == [
        (2, "load", begun, 10**9, "label"),
        (3, "train", begun + 10**9, 3 * 10**9, "label"),
    ]


def test_sensors_of_a_second_machine_name_it() -> None:
    text = "time,host,sys_power_w,fan1_rpm\n1763800000,a1,1,2\n1763800000,a2,3,4\n"
    sink = reading(text)
    assert sink.rows("host_sample", "node", "value") == [
        (None, 1.0), (None, 2.0), ("a2", 3.0), ("a2", 4.0),
    ]  # fmt: skip
    assert sink.facts["host_name"] == "a1"


def test_a_file_of_what_gpus_did_is_the_node_s() -> None:
    """gpu_node0.csv and ib_node0.csv are of one machine: no name of one has an underscore."""
    rows = reading(TABLE, "gpu_node0.csv").rows("gpu_sample")
    assert {r["node"] for r in rows} == {"node0"}


def test_what_a_bmc_reads_alone_is_the_device_s() -> None:
    layout = layout_of("time,gpu0_bmc_power_w,gpu1_bmc_power_w")
    assert layout is not None
    assert [c.meaning.counter for c in layout.columns] == ["power", "power"]


@pytest.mark.parametrize(
    "line",
    [
        "gpu0_power_w,gpu1_power_w",  # no time
        "time,gpu0_power_w",  # one counter alone
        "time,power_w,temp_c",
        "time;gpu0_colour;gpu1_colour",
        "a log line about time, gpu0_power and more",
        "",
    ],
)
def test_other_headers_are_none(line: str) -> None:
    assert layout_of(line) is None


def test_rows_that_are_not_as_the_header_says_are_counted() -> None:
    text = "time,gpu0_util_pct,gpu1_util_pct\n1763800000,99,98\n1763800001,99\nx,1,1\n"
    sink = reading(text + "1763800002,990,broken\ntime,gpu0_util_pct,gpu1_util_pct\n")
    assert [r["value"] for r in sink.rows("gpu_sample")] == [0.99, 0.98]
    assert sink.counters == {"bad_record": 3, "impossible_number": 1}
    assert sink.facts["status"] == "partial"


def test_quoted_cells_are_cells() -> None:
    text = 'time,phase,gpu0_power_w,gpu1_power\n1763800000,"a, b","99.5",98\n'
    assert [r["value"] for r in reading(text).rows("gpu_sample")] == [99.5, 98.0]


def test_times_without_a_zone_are_local() -> None:
    text = "time,gpu0_power_w,gpu1_power_w\n2026-11-21 02:12:35.1,99,98\n"
    sink = reading(text)
    assert sink.facts["time_basis"] == "local"
    assert sink.counters["local_time"] == 1
    assert reading(text, "x.utc.csv").facts["time_basis"] == "epoch"


def test_a_column_says_whose_a_row_is() -> None:
    text = "time,host,gpu0_power_w,gpu1_power_w\n1763800000,a1,9,8\n1763800000,[N/A],7,6\n"
    assert [r["node"] for r in reading(text, "x.csv").rows("gpu_sample")] == [
        "a1",
        "a1",
        None,
        None,
    ]
    named = reading(text).rows("gpu_sample")
    assert [r["node"] for r in named] == ["a1", "a1", "node7", "node7"]


def test_words_that_run_into_each_other_below_a_numbered_device() -> None:
    """As experiment trackers export what they sample: ``system.gpu.0.powerWatts``."""
    layout = layout_of("_runtime,_timestamp,system.gpu.0.powerWatts,system.gpu.1.powerWatts")
    assert layout is not None
    assert [(c.device, c.meaning.counter) for c in layout.columns] == [
        ("0", "power"),
        ("1", "power"),
    ]
    assert layout.time == 1
