"""Interfaces in the JSON of Junos and of NVUE."""

from __future__ import annotations

import json
from typing import Any

import pytest
from memory_sink import MemorySink, source_of
from net_cases import ingest

from tracekit.ingest import recognise


def data(**values: str) -> list[dict[str, Any]]:
    return [{name.replace("__", "-"): [{"data": text}] for name, text in values.items()}]


def said(sink: MemorySink) -> set[tuple[Any, ...]]:
    return {
        (r["port"], r["counter"], r["priority"], r["queue"],
         r["value"] if r["counted"] is None else r["counted"])
        for r in sink.rows("net_sample")
    }  # fmt: skip


def test_junos_wraps_each_value() -> None:
    port = {
        **data(name="et-0/0/1", oper__status="down", mtu="9216")[0],
        "traffic-statistics": data(input__bytes="8812345678901", output__bps="800"),
        "output-error-list": data(output__drops="1009", mtu__errors="3"),
        "ethernet-fec-statistics": data(fec_nccw_count="5"),
    }
    text = json.dumps({"interface-information": [{"physical-interface": [port]}]})
    assert recognise(source_of(text.encode(), "leaf1.json")).ingestor == "port_trees"
    sink = ingest(text, "port_trees", "leaf1.json")
    assert said(sink) == {
        ("et-0/0/1", "link_up", None, None, 0.0),
        ("et-0/0/1", "rx_bytes", None, None, 8812345678901),
        ("et-0/0/1", "tx_rate", None, None, 100.0),
        ("et-0/0/1", "tx_dropped_packets", None, None, 1009),
        ("et-0/0/1", "fec_uncorrectable_codewords", None, None, 5),
    }
    assert sink.counters["other_metric"] == 2


def test_nvue_names_its_ports_or_is_about_the_one_of_the_files_name() -> None:
    link = {"link": {"stats": {"in-bytes": 5, "out-drops": 9, "strange": 1}}}
    sink = ingest(json.dumps({"swp1": link}), "port_trees", "x.json")
    assert said(sink) == {
        ("swp1", "rx_bytes", None, None, 5), ("swp1", "tx_dropped_packets", None, None, 9),
    }  # fmt: skip
    assert sink.counters["other_metric"] == 1
    assert {row[0] for row in said(ingest(json.dumps(link), "port_trees", "swp3.json"))} == {"swp3"}
    qos = {
        "egress-queue-stats": {"3": {"ecn-marked": 88123, "tx-bytes": 33}},
        "pfc-stats": {"3": {"rx-pause-frames": 77001, "rx-pause-duration": 99}},
    }
    assert said(ingest(json.dumps(qos), "port_trees", "leaf1_swp1.json")) == {
        ("swp1", "tx_queue_ecn_marked_packets", None, 3, 88123),
        ("swp1", "tx_queue_bytes", None, 3, 33), ("swp1", "rx_pfc_packets", 3, None, 77001),
        ("swp1", "rx_pfc_duration", 3, None, 99),
    }  # fmt: skip


@pytest.mark.parametrize("text", ['{"link": {"mtu": 3}}', '{"interface-information": "x"}'])
def test_other_json_is_not_taken(text: str) -> None:
    assert recognise(source_of(text.encode(), "x.json")).ingestor != "port_trees"
