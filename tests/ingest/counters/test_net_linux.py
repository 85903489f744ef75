"""ip -s -j link and tc -s -j qdisc: every number that they print, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from memory_sink import MemorySink, source_of

from tracekit.ingest import files, ingestor, recognise
from tracekit.ingest.base import IngestOptions

LINK = {
    "ifindex": 3,
    "ifname": "swp1",
    "mtu": 9000,
    "operstate": "UP",
    "stats64": {
        "rx": {"bytes": 18446744073709551615, "packets": 7, "errors": 1, "dropped": 2},
        "tx": {"bytes": 500, "packets": 5, "errors": 0, "dropped": 9, "carrier_errors": 4},
    },
}
QDISC = {
    "kind": "tbf",
    "handle": "1:",
    "root": True,
    "options": {"rate": 7500000, "burst": 65535},
    "bytes": 470,
    "packets": 5,
    "drops": 6,
    "overlimits": 3,
    "requeues": 0,
    "backlog": 1514,
    "qlen": 1,
}
WANTED = [
    # counter, direction, kind, unit, value, counted
    ("rx_bytes", "rx", "cumulative", "bytes", None, 18446744073709551615),
    ("rx_packets", "rx", "cumulative", "packets", None, 7),
    ("rx_errors", "rx", "cumulative", "packets", None, 1),
    ("rx_dropped_packets", "rx", "cumulative", "packets", None, 2),
    ("tx_bytes", "tx", "cumulative", "bytes", None, 500),
    ("tx_packets", "tx", "cumulative", "packets", None, 5),
    ("tx_errors", "tx", "cumulative", "packets", None, 0),
    ("tx_dropped_packets", "tx", "cumulative", "packets", None, 9),
    ("tx_carrier_errors", "tx", "cumulative", "packets", None, 4),
    ("mtu", None, "gauge", "bytes", 9000.0, None),
    ("link_up", None, "gauge", "1 or 0", 1.0, None),
    ("tx_queue_bytes", "tx", "cumulative", "bytes", None, 470),
    ("tx_queue_packets", "tx", "cumulative", "packets", None, 5),
    ("tx_queue_dropped_packets", "tx", "cumulative", "packets", None, 6),
    ("tx_queue_overlimits", "tx", "cumulative", "count", None, 3),
    ("tx_queue_requeues", "tx", "cumulative", "count", None, 0),
    ("tx_queue_depth_bytes", "tx", "gauge", "bytes", 1514.0, None),
    ("tx_queue_depth_packets", "tx", "gauge", "packets", 1.0, None),
    ("tx_shaper_rate", "tx", "gauge", "bytes/s", 7500000.0, None),
]
COLUMNS = ("counter", "direction", "kind", "unit", "value", "counted")
LAB = Path(__file__).resolve().parents[4] / "shared/data/lab"


def ingest(text: str | bytes, name: str = "leaf01.json") -> MemorySink:
    data = text.encode() if isinstance(text, str) else text
    source = source_of(data, name)
    found = recognise(source)
    assert found.ingestor == "linux_net", found
    sink = MemorySink()
    ingestor("linux_net").read(source, sink, IngestOptions())
    return sink


def wrapped(ts: str, port: str = "swp1", **more: object) -> str:
    body = json.dumps({"port": port, **more, "link": [LINK], "qdisc": [QDISC]})
    return '{"ts": ' + ts + ", " + body[1:]


def test_a_wrapped_sample_gives_every_number() -> None:
    sink = ingest(wrapped("1795227155.033276021", host="host7"))
    assert sink.rows("net_sample", *COLUMNS) == WANTED
    assert {r["time_ns"] for r in sink.rows("net_sample")} == {1795227155033276021}
    assert {r["time_source"] for r in sink.rows("net_sample")} == {"content"}
    assert {(r["node"], r["node_source"]) for r in sink.rows("net_sample")} == {("leaf01", "name")}
    links = sink.rows("link", "node", "port", "peer_host", "link_source")
    assert links == [("leaf01", "swp1", "host7", "file")]
    assert sink.facts["status"] == "ok"
    assert sink.facts["window_start_ns"] == sink.facts["window_end_ns"] == 1795227155033276021


def test_a_whole_machine_s_sample_names_the_machine() -> None:
    """One line of ``tracekit capture``."""
    queue = {"dev": "swp1", **QDISC}
    text = json.dumps({"host": "n17", "link": [LINK], "qdisc": [queue]})
    sink = ingest('{"ts":1795227155.5,' + text[1:], "net.jsonl")
    assert sink.rows("net_sample", *COLUMNS) == WANTED
    assert {(r["node"], r["node_source"]) for r in sink.rows("net_sample")} == {("n17", "file")}
    assert sink.rows("link") == []


def test_the_bare_outputs_give_the_same_numbers() -> None:
    sink = ingest(json.dumps([LINK]) + "\n" + json.dumps([{"dev": "swp1", **QDISC}]))
    assert sink.rows("net_sample", *COLUMNS) == WANTED
    assert set(sink.rows("net_sample", "port")) == {"swp1"}
    assert sink.rows("link") == []


def test_output_of_many_lines_is_one_value() -> None:
    text = json.dumps([LINK], indent=4) + "\n" + json.dumps([{"dev": "swp1", **QDISC}], indent=0)
    assert ingest(text).rows("net_sample", "counter") == [w[0] for w in WANTED]


def test_a_line_with_a_time_stamps_the_next_value() -> None:
    text = f"1795227155\n{json.dumps([LINK])}\n2026-11-21T02:12:36.5Z\n{json.dumps([LINK])}\n"
    sink = ingest(text)
    times = [r["time_ns"] for r in sink.rows("net_sample") if r["counter"] == "tx_dropped_packets"]
    assert times == [1795227155000000000, 1795227156500000000]


def test_only_the_last_of_untimed_dumps_bears_the_file_s_time() -> None:
    text = (json.dumps([LINK]) + "\n") * 2
    sink = ingest(text, "leaf01-20261121T021235Z.json")
    seen = [
        (r["place"], r["time_ns"], r["time_source"])
        for r in sink.rows("net_sample")
        if r["counter"] == "rx_bytes"
    ]
    assert seen == [(1, None, None), (2, 1795227155000000000, "name")]
    assert sink.counters["dump_without_time"] == 1


def test_without_any_time_there_is_none() -> None:
    sink = ingest(json.dumps([LINK]))
    assert set(sink.rows("net_sample", "time_ns", "time_source")) == {(None, None)}
    assert sink.facts["time_basis"] == "none"


def test_times_without_a_zone_stay_local() -> None:
    sink = ingest(wrapped('"2026-11-21 02:12:35.5"'))
    assert set(sink.rows("net_sample", "time_ns")) == {1795227155500000000}
    assert sink.facts["time_basis"] == "local"
    assert sink.counters == {"local_time": 1}


def test_no_time_with_a_zone_stands_beside_those_without() -> None:
    text = wrapped('"2026-11-21 02:12:35"') + "\n" + wrapped("1795227156")
    sink = ingest(text, "leaf01-20261121T021235Z.json")
    times = {(r["place"], r["time_ns"]) for r in sink.rows("net_sample")}
    assert times == {(1, 1795227155000000000), (2, None)}
    assert sink.facts["time_basis"] == "local"
    assert sink.counters["bad_time"] == 1


def test_queues_below_the_root_are_told_apart_from_it() -> None:
    child = {**QDISC, "dev": "swp1", "parent": "8001:a", "drops": 2}
    del child["root"]
    root = {**QDISC, "dev": "swp1", "kind": "mq"}
    sink = ingest(json.dumps([root, child]))
    drops = [
        (r["queue"], r["counted"])
        for r in sink.rows("net_sample")
        if r["counter"] == "tx_queue_dropped_packets"
    ]
    assert sorted(drops, key=str) == [(10, 2), (None, 6)]


def test_a_broken_line_costs_only_itself() -> None:
    good = wrapped("1795227155")
    cut = wrapped("1795227154").partition('ytes"')[0]
    sink = ingest(f"{good}\n{cut}\n{wrapped('1795227156')}\nSECRET=hunter2 no json\n")
    read = [r for r in sink.rows("net_sample") if r["place"] == 2]
    assert cut.endswith('"stats64": {"rx": {"b')
    assert [(r["counter"], r["value"]) for r in read] == [("mtu", 9000.0), ("link_up", 1.0)]
    assert len(sink.rows("net_sample")) == 2 * len(WANTED) + len(read)
    assert sink.counters["bad_record"] == 2
    assert [r["time_ns"] for r in sink.rows("net_sample") if r["counter"] == "mtu"] == [
        1795227155000000000,
        1795227154000000000,
        1795227156000000000,
    ]
    assert sink.places["bad_record"] == 2
    assert sink.facts["status"] == "partial"
    assert "hunter2" not in repr(sink.__dict__)


def test_a_value_that_breaks_off_does_not_take_the_next_one_with_it() -> None:
    broken = json.dumps([LINK], indent=2).partition('"errors"')[0]
    sink = ingest(broken + "\n" + json.dumps([LINK], indent=2))
    assert [r["counter"] for r in sink.rows("net_sample") if r["place"] > 1] == [
        w[0] for w in WANTED[:11]
    ]
    assert sink.facts["status"] == "partial"


@pytest.mark.parametrize("printed", [-1, "x1", 2**64, 1.5, [1], {"a": 1}, True])
def test_what_no_counter_can_be_is_refused_with_its_place(printed: object) -> None:
    link = {**LINK, "stats64": {"rx": {"bytes": 5}, "tx": {"dropped": printed}}}
    sink = ingest(json.dumps([link]))
    assert "tx_dropped_packets" not in sink.rows("net_sample", "counter")
    assert sink.counters["bad_number"] == 1
    assert sink.places["bad_number"] == 1


@pytest.mark.parametrize(
    ("case", "drops"),
    [
        ("ddp-badlink-host1", {"lv0": 0, "lv1": 1644, "lv2": 0, "lv3": 0}),
        ("ddp-healthy", {"lv0": 0, "lv1": 0, "lv2": 0, "lv3": 0}),
        ("moe-hot-expert-rank1", {"lv0": 0, "lv1": 0, "lv2": 0, "lv3": 0}),
    ],
)
def test_recorded_switch_samples(case: str, drops: dict[str, int]) -> None:
    path = LAB / case / "switch.jsonl.gz"
    if not path.exists():
        pytest.skip("the recorded lab jobs are not here (../shared/data/lab)")
    (source,) = files.expand([path])
    assert recognise(source).ingestor == "linux_net"
    sink = MemorySink()
    ingestor("linux_net").read(source, sink, IngestOptions())
    seen: dict[str, int] = {}
    for row in sink.rows("net_sample"):
        if row["counter"] == "tx_queue_dropped_packets":
            seen[row["port"]] = max(seen.get(row["port"], 0), row["counted"])
    assert seen == drops
    assert sink.facts["status"] == "ok"
    assert sink.counters == {}
    assert sorted(sink.rows("link", "port", "peer_host")) == [
        (f"lv{i}", f"host{i}") for i in range(4)
    ]
