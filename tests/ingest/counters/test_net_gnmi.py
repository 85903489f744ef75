"""gNMI telemetry: raw notifications and both outputs of gnmic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from net_cases import SHARED, golden, ingest, ingest_path, table

FAMILY = "gnmi"
NS = 1795227155033276021


def elem(*parts: str | tuple[str, dict[str, str]]) -> dict[str, Any]:
    return {
        "elem": [{"name": p} if isinstance(p, str) else {"name": p[0], "key": p[1]} for p in parts]
    }


RAW = {
    "update": {
        "timestamp": str(NS),
        "prefix": elem("interfaces", ("interface", {"name": "Ethernet1/1"})),
        "update": [
            {"path": elem("state", "counters", "in-octets"), "val": {"uintVal": "42425"}},
            {"path": elem("state", "counters", "out-discards"), "val": {"uintVal": "7"}},
            {"path": elem("config", "mtu"), "val": {"uintVal": "9000"}},
            {"path": elem("state", "description"), "val": {"stringVal": "secret words"}},
        ],
    }
}
GNMIC = {
    "source": "leaf01:57400",
    "subscription-name": "queues",
    "timestamp": NS,
    "time": "2026-11-21T02:12:35.033276021Z",
    "prefix": "qos/interfaces/interface[interface-id=Ethernet1/1]",
    "updates": [
        {
            "Path": "output/queues/queue[name=Ethernet1/1-3]/state",
            "values": {
                "output/queues/queue/state": {"dropped-pkts": "9", "max-queue-len": "4096"},
            },
        }
    ],
}
EVENT = [
    {
        "name": "counters",
        "timestamp": NS,
        "tags": {"interface_name": "Ethernet1/1", "source": "leaf01"},
        "values": {
            "/interfaces/interface/state/counters/in-discards": 5,
            "/interfaces/interface/state/oper-status": "UP",
        },
    }
]


@pytest.mark.parametrize(
    ("message", "wanted", "node", "is_proven"),
    [
        (
            [RAW, {"syncResponse": True}],
            """
            1 Ethernet1/1 rx_bytes cumulative 42425 bytes
            1 Ethernet1/1 tx_dropped_packets cumulative 7 packets
            """,
            None,
            True,
        ),
        (
            GNMIC,
            """
            1 Ethernet1/1/q3 tx_queue_dropped_packets cumulative 9 packets
            1 Ethernet1/1/q3 tx_queue_shared_watermark watermark 4096 bytes
            """,
            "leaf01",
            False,
        ),
        (EVENT, "1 Ethernet1/1 rx_dropped_packets cumulative 5 packets", "leaf01", False),
    ],
    ids=["raw", "gnmic-json", "gnmic-event"],
)
def test_golden(message: Any, wanted: str, node: str | None, is_proven: bool) -> None:
    sink = ingest(json.dumps(message), FAMILY, "telemetry.json")
    assert table(sink) == golden(wanted)
    rows = sink.rows("net_sample")
    assert {(r["time_ns"], r["time_source"], r["node"]) for r in rows} == {(NS, "content", node)}
    assert ("parsed_from_documentation" in sink.counters) != is_proven
    assert "secret" not in repr(sink.__dict__)


@pytest.mark.parametrize(
    ("digits", "rows"),
    [
        ("-231", "1 Ethernet1/1/l2 optic_rx_power gauge -2.31 dBm"),
        (-231, "1 Ethernet1/1/l2 optic_rx_power gauge -2.31 dBm"),
        (int("1" * 400), ""),  # no float holds it
    ],
)
def test_transceiver_power_in_decimals(digits: object, rows: str) -> None:
    update = {
        "update": {
            "timestamp": str(NS),
            "update": [
                {
                    "path": elem(
                        "components",
                        ("component", {"name": "Ethernet1/1"}),
                        "transceiver",
                        "physical-channels",
                        ("channel", {"index": "2"}),
                        "state",
                        "input-power",
                        "instant",
                    ),
                    "val": {"decimalVal": {"digits": digits, "precision": 2}},
                }
            ],
        }
    }
    assert table(ingest(json.dumps([update]), FAMILY)) == golden(rows)


def test_line_protocol_with_guarded_spaces() -> None:
    text = (
        "ports,interface_name=Ethernet1/1,host=a\\ b,source=leaf01 "
        f'/interfaces/interface/state/counters/out_discards=9i,name="x y=1" {NS}\n'
        "no line at all\n"
        f"ports,interface_name=Ethernet1/2,source=leaf02 "
        f"/interfaces/interface/state/counters/in_errors=3u {NS}\n"
    )
    sink = ingest(text, FAMILY, "telegraf.out")
    assert table(sink) == golden(
        """
        1 Ethernet1/1 tx_dropped_packets cumulative 9 packets
        3 Ethernet1/2 rx_errors cumulative 3 packets
        """
    )
    assert sink.rows("net_sample", "node", "time_ns") == [("leaf01", NS), ("leaf02", NS)]
    assert (sink.counters["bad_record"], sink.places["bad_record"]) == (1, 2)


def test_a_stream_of_lines_is_a_series() -> None:
    lines = [json.dumps({**GNMIC, "timestamp": NS + i * 10**9}) for i in range(3)]
    rows = ingest("\n".join([lines[0], "oops", *lines[1:]]), FAMILY).rows("net_sample")
    assert sorted({r["time_ns"] for r in rows}) == [NS, NS + 10**9, NS + 2 * 10**9]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            "telegraf_canonical_field_names_responses.json",
            """
            1 eth42 rx_packets cumulative 5678 packets
            1 eth42 tx_packets cumulative 5125 packets
            """,
        ),
        (
            "telegraf_canonical_field_names_expected.out",
            """
            1 eth42 rx_packets cumulative 5678 packets
            1 eth42 tx_packets cumulative 5125 packets
            """,
        ),
        ("telegraf_tagging_name_based_responses.json", ""),
        ("telegraf_tagging_name_based_expected.out", ""),
        ("telegraf_issue_12831_expected.out", ""),
        ("telegraf_issue_12831_responses.json", ""),
    ],
)
def test_recorded_notifications(name: str, wanted: str) -> None:
    path: Path = SHARED / "gnmi" / name
    if not path.exists():
        pytest.skip("the notifications are not here (../shared/data/counters)")
    sink = ingest_path(path, FAMILY)
    assert table(sink) == golden(wanted)
    assert sink.facts["status"] == "ok"
    assert sink.counters["other_leaf"] > 0
    assert "bad_record" not in sink.counters
