"""Points of Telegraf: GPUs, NICs and interfaces, as its documentation prints them."""

from __future__ import annotations

import json
from typing import Any

from memory_sink import MemorySink, source_of
from printed_numbers import balance, of_fields

from tracekit.ingest import ingestor, recognise
from tracekit.ingest.base import IngestOptions

AT_NS = 1_784_016_758_000_000_000
SMI = (
    "nvidia_smi,compute_mode=Default,host=gpu-11,index=3,name=NVIDIA\\ H100,pstate=P0,"
    "uuid=GPU-aaaa clocks_current_memory=2619i,clocks_current_sm=1980i,clocks_current_video=7i,"
    'driver_version="590.48",fan_speed=30i,memory_total=81559i,memory_used=7i,power_draw=629.5,'
    f"remapped_rows_uncorrectable=1i,temperature_gpu=59i,utilization_gpu=100i {AT_NS}\n"
)
IB = (
    "infiniband,device=mlx5_0,host=gpu-11,port=1 VL15_dropped=2i,port_rcv_data=100i,"
    f"port_xmit_data=200i,symbol_error=3i,out_of_sequence=4i {AT_NS}\n"
)
ETHTOOL = (
    "ethtool,driver=mlx5_core,host=gpu-11,interface=eth0 rx_bytes=5i,rx_bytes_phy=50i,"
    f"rx_prio3_pause=6i,rx_out_of_buffer=7i {AT_NS}\n"
)
NET = (
    f"net,host=gpu-11,interface=eth1 bytes_recv=8i,bytes_sent=9i,drop_in=1i,err_out=2i {AT_NS}\n"
    f"net,host=gpu-11,interface=lo bytes_recv=8i,bytes_sent=9i {AT_NS}\n"
    f"net,host=gpu-11,interface=all icmp_inmsgs=8i {AT_NS}\n"
)
DCGM = (
    "prometheus,Hostname=gpu-12,UUID=GPU-bbbb,gpu=1,host=collector,modelName=H100 "
    f"DCGM_FI_DEV_SM_CLOCK=345,DCGM_FI_DEV_GPU_UTIL=25,go_threads=7 {AT_NS}\n"
    f"DCGM_FI_DEV_POWER_USAGE,Hostname=gpu-12,UUID=GPU-bbbb,gpu=1 gauge=70.5 {AT_NS}\n"
)


def read(text: str) -> MemorySink:
    source = source_of(text.encode(), "metrics.out")
    assert recognise(source).ingestor == "telegraf", recognise(source)
    sink = MemorySink()
    ingestor("telegraf").read(source, sink, IngestOptions())
    return sink


def gpu(sink: MemorySink) -> dict[str, Any]:
    return {
        r["counter"]: r["value"] if r["value"] is not None else r["counted"]
        for r in sink.rows("gpu_sample")
    }


def net(sink: MemorySink) -> dict[tuple[str, str], Any]:
    return {
        (r["port"], r["counter"]): r["value"] if r["value"] is not None else r["counted"]
        for r in sink.rows("net_sample")
    }


def test_gpus_of_nvidia_smi_are_in_its_units() -> None:
    sink = read(SMI)
    assert gpu(sink) == {
        "memory_clock": 2619e6, "sm_clock": 1980e6, "fan_speed": 0.3, "power": 629.5,
        "memory_total": 81559 * 2**20, "memory_used": 7 * 2**20, "gpu_temperature": 59,
        "remapped_rows_uncorrectable": 1, "gpu_utilisation": 1.0,
    }  # fmt: skip
    (row,) = [r for r in sink.rows("gpu_sample") if r["counter"] == "power"]
    assert (row["node"], row["nvml_index"], row["device_id"]) == ("gpu-11", 3, "GPU-aaaa")
    assert row["time_ns"] == AT_NS
    assert sink.rows("device")[0]["model"] == "NVIDIA H100"
    assert sink.facts["time_basis"] == "epoch"


def test_ports_are_counted_as_their_sources_do() -> None:
    sink = read(IB + ETHTOOL + NET)
    assert net(sink) == {
        ("mlx5_0/1", "vl15_dropped"): 2,
        ("mlx5_0/1", "rx_bytes"): 400,  # words of four bytes
        ("mlx5_0/1", "tx_bytes"): 800,
        ("mlx5_0/1", "rx_symbol_errors"): 3,
        ("mlx5_0/1", "rdma_out_of_sequence"): 4,
        ("eth0", "rx_driver_bytes"): 5,  # the physical port's are counted beside it
        ("eth0", "rx_bytes"): 50,
        ("eth0", "rx_pfc_packets"): 6,
        ("eth0", "rx_out_of_buffer"): 7,
        ("eth1", "rx_bytes"): 8,
        ("eth1", "tx_bytes"): 9,
        ("eth1", "rx_dropped_packets"): 1,
        ("eth1", "tx_errors"): 2,
    }
    assert {r["node"] for r in sink.rows("net_sample")} == {"gpu-11"}
    (priority,) = {r["priority"] for r in sink.rows("net_sample") if r["priority"] is not None}
    assert priority == 3


def test_scraped_exporters_are_whose_their_labels_say() -> None:
    sink = read(DCGM)
    assert gpu(sink) == {"sm_clock": 345e6, "gpu_utilisation": 0.25, "power": 70.5}
    assert {r["node"] for r in sink.rows("gpu_sample")} == {"gpu-12"}


def test_what_is_none_of_ours_is_counted_and_damage_is_told() -> None:
    sink = read(SMI + f"cpu,cpu=cpu0,host=a usage_idle=5 {AT_NS}\nnot a point\nnet,host=a x\n")
    assert sink.counters["other_metric"] == 2  # the video clock and the processor
    assert sink.counters["bad_record"] == 2
    assert sink.facts["status"] == "partial"
    assert "bad_record" not in read(SMI).counters


def test_other_measurements_alone_are_not_ours() -> None:
    text = f"cpu,cpu=cpu0,host=a usage_idle=5 {AT_NS}\n"
    assert recognise(source_of(text.encode(), "metrics.out")).ingestor != "telegraf"


def test_points_in_json_are_those_of_the_line_protocol() -> None:
    """``data_format = "json"``: an object a line."""
    points = [
        {"fields": {"power_draw": 629.5, "utilization_gpu": 100, "driver_version": "590.48"},
         "name": "nvidia_smi", "tags": {"host": "gpu-11", "index": "3"}, "timestamp": 1784016758},
        {"fields": {"bytes_recv": 8}, "name": "net", "timestamp": 1784016758,
         "tags": {"host": "gpu-11", "interface": "eth1"}},
        {"fields": {"usage_idle": 3}, "name": "cpu", "tags": {}, "timestamp": 1784016758},
    ]  # fmt: skip
    sink = read("".join(json.dumps(p) + "\n" for p in points) + '{"fields": {"a": 1}}\n')
    assert gpu(sink) == {"power": 629.5, "gpu_utilisation": 1.0}
    assert net(sink) == {("eth1", "rx_bytes"): 8}
    (row, *_) = sink.rows("gpu_sample")
    assert (row["node"], row["nvml_index"], row["time_ns"]) == ("gpu-11", 3, 1784016758 * 10**9)
    assert sink.counters["other_metric"] == 1
    assert sink.facts["status"] == "partial"  # the last line is no point


def test_every_field_of_the_points_is_a_row_or_counted() -> None:
    """Numbers that are all different: video clocks and the exporter's threads are no counters."""
    gpus = (
        "nvidia_smi,host=n1,index=3 clocks_current_memory=2619i,clocks_current_sm=1980i,"
        "clocks_current_video=1755i,memory_total=81559i,memory_used=70001i,power_draw=629.5,"
        f"temperature_gpu=59i,utilization_gpu=97i {AT_NS}\n"
    )
    ports = (
        "infiniband,device=mlx5_0,host=n1,port=1 port_rcv_data=1009i,port_xmit_data=2003i,"
        f"symbol_error=3001i,out_of_sequence=4001i {AT_NS}\n"
        "ethtool,driver=mlx5_core,host=n1,interface=eth0 rx_bytes=50021i,rx_bytes_phy=60013i,"
        f"rx_prio3_pause=6007i,rx_out_of_buffer=7001i {AT_NS}\n"
    )
    points = gpus + ports + DCGM
    told = balance(of_fields(points), read(points))
    assert told.missing == {"clocks_current_video": 1, "go_threads": 1}, told
    assert (told.found, told.named) == (18, 2)


# --- as InfluxDB answers (docs.influxdata.com, "Annotated CSV") ----------------------------------

ANNOTATED = """\
#group,false,false,true,true,false,false,true,true,true,true,true
#datatype,string,long,dateTime:RFC3339,dateTime:RFC3339,dateTime:RFC3339,long,string,string,string,string,string
#default,_result,,,,,,,,,,
,result,table,_start,_stop,_time,_value,_field,_measurement,host,index,uuid
,,0,2026-07-14T08:00:00Z,2026-07-14T09:00:00Z,2026-07-14T08:12:38Z,97,utilization_gpu,nvidia_smi,n1,3,GPU-a
,,0,2026-07-14T08:00:00Z,2026-07-14T09:00:00Z,2026-07-14T08:12:48Z,98,utilization_gpu,nvidia_smi,n1,3,GPU-a
,,1,2026-07-14T08:00:00Z,2026-07-14T09:00:00Z,2026-07-14T08:12:38.5Z,70001,memory_used,nvidia_smi,n1,3,GPU-a

#group,false,false,true,true,false,false,true,true,true,true
#datatype,string,long,dateTime:RFC3339,dateTime:RFC3339,dateTime:RFC3339,{kind},string,string,string,string
#default,_result,,,,,,,,,
,result,table,_start,_stop,_time,_value,_field,_measurement,host,interface
,,2,2026-07-14T08:00:00Z,2026-07-14T09:00:00Z,2026-07-14T08:12:38Z,{value},bytes_recv,net,n1,eth1
,,3,2026-07-14T08:00:00Z,2026-07-14T09:00:00Z,2026-07-14T08:12:38Z,5,usage_idle,cpu,n1,
"""


def test_answers_of_influxdb_are_the_points_that_were_written() -> None:
    sink = read(ANNOTATED.format(kind="unsignedLong", value="18446744073709551615"))
    rows = sink.rows("gpu_sample", "place", "node", "nvml_index", "device_id", "counter", "value")
    assert rows == [
        (5, "n1", 3, "GPU-a", "gpu_utilisation", 0.97),
        (6, "n1", 3, "GPU-a", "gpu_utilisation", 0.98),
        (7, "n1", 3, "GPU-a", "memory_used", 70001 * 2**20),
    ]
    assert [r["time_ns"] - AT_NS for r in sink.rows("gpu_sample")] == [0, 10**10, 5 * 10**8]
    assert net(sink) == {("eth1", "rx_bytes"): 2**64 - 1}
    assert sink.counters["other_metric"] == 1
    assert sink.facts["status"] == "ok"


def test_means_and_rates_of_counts_are_no_counts() -> None:
    sink = read(ANNOTATED.format(kind="double", value="1200"))
    assert net(sink) == {}
    (name,) = [c for c in sink.counters if c.startswith("column_not_read")]
    assert sink.counters[name] == 1
    assert len(sink.rows("gpu_sample")) == 3


def test_pivoted_answers_have_a_column_a_field_with_or_without_annotations() -> None:
    text = (
        "#group,false,false,false,true,false,true,false,false\n"
        "#datatype,string,long,dateTime:RFC3339,string,long,string,long,long\n"
        "#default,_result,,,,,,,\n"
        ",result,table,_time,_measurement,rx_bytes,interface,rx_bytes_phy,rx_prio3_pause\n"
        ",,0,2026-07-14T08:12:38Z,ethtool,5,eth0,50,\n"
    )
    assert net(read(text)) == {("eth0", "rx_driver_bytes"): 5, ("eth0", "rx_bytes"): 50}
    plain = (
        "result,table,_time,_value,_field,_measurement,interface\n"
        ",0,2026-07-14T08:12:38Z,50,rx_bytes_phy,ethtool,eth0\n"
        ",0,2026-07-14T08:12:38Z,5,rx_bytes,ethtool,eth0\n"
    )
    assert net(read(plain)) == {("eth0", "rx_driver_bytes"): 5, ("eth0", "rx_bytes"): 50}


def test_damaged_answers_are_told_and_other_measurements_are_not_ours() -> None:
    lines = ANNOTATED.format(kind="long", value="7").splitlines(keepends=True)
    broken = "".join([*lines[:5], ",,0,2026-07-14T08\n", *lines[5:]])
    sink = read(broken)
    assert (sink.counters["bad_record"], sink.places["bad_record"]) == (1, 6)
    assert len(sink.rows("gpu_sample")) == 3
    other = ANNOTATED.replace("nvidia_smi", "mem").replace(",net,", ",swap,")
    assert recognise(source_of(other.encode(), "a.csv")).ingestor is None
    no_time = (
        "#datatype,string,long,double,string,string\n,result,table,_value,_field,_measurement\n"
    )
    sink = read(no_time + ",,0,97,utilization_gpu,nvidia_smi\n")
    assert sink.counters["bad_record"] == 1
    assert sink.rows("gpu_sample") == []
