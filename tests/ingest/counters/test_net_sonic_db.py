"""Dumps of COUNTERS_DB in all layouts: names, types, times, and the three kinds of maxima."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from net_cases import SHARED, golden, ingest, ingest_path, table

FAMILY = "sonic_db"
PORT, UC, MC, VOQ, PG, POOL = (f"oid:0x{n}00" for n in (1, 2, 3, 4, 5, 6))
MAPS = {
    "COUNTERS_PORT_NAME_MAP": {"Ethernet0": PORT},
    "COUNTERS_QUEUE_NAME_MAP": {"Ethernet0:3": UC, "Ethernet0:10": MC},
    "COUNTERS_QUEUE_TYPE_MAP": {UC: "SAI_QUEUE_TYPE_UNICAST", MC: "SAI_QUEUE_TYPE_MULTICAST"},
    "COUNTERS_VOQ_NAME_MAP": {"leaf9|Ethernet4:2": VOQ},
    "COUNTERS_PG_NAME_MAP": {"Ethernet0:3": PG},
    "COUNTERS_BUFFER_POOL_NAME_MAP": {"ingress_lossless_pool": POOL},
}
KEYS: dict[str, dict[str, Any]] = {
    **MAPS,
    f"COUNTERS:{PORT}": {
        "SAI_PORT_STAT_IF_IN_OCTETS": "18446744073709551615",
        "SAI_PORT_STAT_IF_OUT_DISCARDS": "9",
        "SAI_PORT_STAT_IF_IN_ERRORS": "N/A",
        "SAI_PORT_STAT_PFC_3_RX_PKTS": "203",
        "SAI_PORT_STAT_PFC_3_TX_PKTS": "213",
        "SAI_PORT_STAT_PFC_3_RX_PAUSE_DURATION": "5",
        "EST_PORT_STAT_PFC_3_ON2OFF_RX_PKTS": "12",
        "EST_PORT_STAT_PFC_3_RX_PAUSE_DURATION_US": "12000000",
        "EST_PORT_STAT_PFC_3_RECENT_PAUSE_TIME_US": "1200000",
        "EST_PORT_STAT_PFC_3_RECENT_PAUSE_TIMESTAMP": "1795227155000000",
        "SAI_PORT_STAT_IF_IN_FEC_CODEWORD_ERRORS_S15": "7",
    },
    f"COUNTERS:{UC}": {
        "SAI_QUEUE_STAT_DROPPED_PACKETS": "39",
        "SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES": "61",
        "PFC_WD_STATUS": "stormed",
        "PFC_WD_ACTION": "drop",
        "PFC_WD_DETECTION_TIME": "600000",
        "PFC_WD_DETECTION_TIME_LEFT": "400000",
        "PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED": "1",
    },
    f"COUNTERS:{MC}": {"SAI_QUEUE_STAT_PACKETS": "60"},
    f"COUNTERS:{VOQ}": {"SAI_QUEUE_STAT_CREDIT_WD_DELETED_PACKETS": "4"},
    f"COUNTERS:{PG}": {"SAI_INGRESS_PRIORITY_GROUP_STAT_DROPPED_PACKETS": "800"},
    f"USER_WATERMARKS:{UC}": {"SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES": "100"},
    f"PERSISTENT_WATERMARKS:{UC}": {"SAI_QUEUE_STAT_PERSISTENT_WATERMARK_BYTES": "200"},
    f"USER_WATERMARKS:{POOL}": {"SAI_BUFFER_POOL_STAT_XOFF_ROOM_WATERMARK_BYTES": "432640"},
    f"RATES:{PORT}": {"RX_BPS": "2.e9"},
    "COUNTERS:oid:0x9900": {"SAI_PORT_STAT_IF_IN_OCTETS": "1"},
    "COUNTERS:DATAACL:RULE_1": {"Bytes": "1"},
}
WANTED = golden(
    """
    7 Ethernet0 rx_bytes cumulative 18446744073709551615 bytes
    7 Ethernet0 tx_dropped_packets cumulative 9 packets
    7 Ethernet0/p3 rx_pfc_packets cumulative 203 packets
    7 Ethernet0/p3 tx_pfc_packets cumulative 213 packets
    7 Ethernet0/p3 pfc_rx_pause_duration cumulative 5 None
    7 Ethernet0/p3 rx_pfc_transitions cumulative 12 count
    7 Ethernet0/p3 rx_pfc_duration cumulative 12000000 us
    7 Ethernet0/p3 rx_pfc_recent_duration gauge 1.2e+06 us
    7 Ethernet0 fec_codewords_with_15_symbol_errors cumulative 7 count
    8 Ethernet0/q3 tx_queue_dropped_packets cumulative 39 packets
    8 Ethernet0/q3 tx_queue_shared_watermark_since_read watermark 61 bytes
    8 Ethernet0/q3 pfcwd_detection_time gauge 600 ms
    8 Ethernet0/q3 pfcwd_detection_time_left gauge 400 ms
    8 Ethernet0/q3 pfcwd_storms_detected cumulative 1 count
    8 Ethernet0/q3 pfcwd_stormed gauge 1 1 or 0
    9 Ethernet0/q10 tx_multicast_queue_packets cumulative 60 packets
    10 leaf9|Ethernet4/q2 voq_credit_deleted_packets cumulative 4 packets
    11 Ethernet0/q3 rx_pg_dropped_packets cumulative 800 packets
    12 Ethernet0/q3 tx_queue_shared_watermark watermark 100 bytes
    13 Ethernet0/q3 tx_queue_shared_watermark_persistent watermark 200 bytes
    14 ingress_lossless_pool pool_headroom_watermark watermark 432640 bytes
    15 Ethernet0 rx_rate gauge 2e+09 bytes/s
    """
)


def in_layout(layout: str) -> str:
    if layout == "plain":
        return json.dumps(KEYS, indent=2)
    if layout == "named":
        return json.dumps({"id": "COUNTERS_DB", "data": KEYS})
    dumped = {
        key: {"expireat": 1602532804.133384, "ttl": -0.001, "type": "hash", "value": value}
        for key, value in KEYS.items()
    }
    return json.dumps(dumped)


@pytest.mark.parametrize("layout", ["plain", "named", "dumped"])
def test_every_layout_gives_the_same_numbers(layout: str) -> None:
    sink = ingest(in_layout(layout), FAMILY, "leaf01.json")
    assert table(sink) == WANTED
    assert sink.counters == {"no_value": 1, "other_object": 1, "unnamed_object": 1}
    assert sink.places["unnamed_object"] == 16
    times = {(r["time_ns"], r["time_source"]) for r in sink.rows("net_sample")}
    wanted = (1602532804133384000, "content") if layout == "dumped" else (None, None)
    assert times == {wanted}


def test_storms_and_newest_pauses_are_events() -> None:
    sink = ingest(in_layout("plain"), FAMILY)
    assert sink.rows("log_event", "time_ns", "code", "severity", "fields") == [
        (
            1795227155000000000,
            "pfc-pause",
            "info",
            ["port=Ethernet0", "priority=3", "duration_us=1200000"],
        ),
        (None, "pfcwd-storm", "error", ["port=Ethernet0", "queue=3"]),
    ]


def test_a_key_that_will_expire_has_no_time() -> None:
    text = in_layout("dumped").replace('"ttl": -0.001', '"ttl": 30.0')
    assert {r["time_ns"] for r in ingest(text, FAMILY).rows("net_sample")} == {None}


def test_a_cut_dump_is_said_to_be_cut() -> None:
    text = in_layout("plain")
    sink = ingest(text[: text.index('"432640"') + 4], FAMILY)
    assert table(sink) == WANTED[:-2]
    assert sink.facts["status"] == "partial"
    assert sink.counters["bad_record"] == 1


@pytest.mark.parametrize(
    ("name", "rows", "layout"),
    [
        ("mock_tables__counters_db.json", 1453, "plain"),
        ("mock_tables__t1__counter_db.json", 9010, "dumped"),
        ("vinted_counters_db_data.json", 171, "named"),
    ],
)
def test_recorded_dumps_hold_every_field_of_a_named_object(
    name: str, rows: int, layout: str
) -> None:
    path: Path = SHARED / "sonic" / name
    if not path.exists():
        pytest.skip("SONiC's dumps are not here (../shared/data/counters)")
    sink = ingest_path(path, FAMILY)
    assert sink.facts["status"] == "ok"
    samples = sink.rows("net_sample")
    assert len(samples) == rows
    keys = json.loads(path.read_text())
    keys = keys.get("data", keys)
    keys = {k: v["value"] if layout == "dumped" else v for k, v in keys.items()}
    names = {
        oid: port
        for kind in ("PORT", "FABRIC_PORT", "SYSTEM_PORT")
        for port, oid in keys.get(f"COUNTERS_{kind}_NAME_MAP", {}).items()
    }
    for oid, port in names.items():
        stored = {
            k: v
            for k, v in keys.get(f"COUNTERS:{oid}", {}).items()
            if str(v).isdigit() and not k.endswith("TIMESTAMP")
        }
        read = {
            r["original_name"]: int(r["counted"] if r["counted"] is not None else r["value"])
            for r in samples
            if r["port"] == port and r["queue"] is None and "RATES" not in r["original_name"]
        }
        assert read == {k: int(v) for k, v in stored.items()}
