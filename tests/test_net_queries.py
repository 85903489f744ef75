"""Descriptive queries over network counters, from files to rows."""

from __future__ import annotations

import json
from pathlib import Path

from tracekit.api import ingest

STORM = """\
1795227155
admin@leaf-21:~$ show pfcwd stats
      QUEUE       STATUS    STORM DETECTED/RESTORED    TX OK/DROP    RX OK/DROP
-----------  -----------  -------------------------  ------------  ------------
Ethernet0:3      stormed                        1/0       100/300       100/300
"""
PAUSE = {
    "COUNTERS_PORT_NAME_MAP": {"Ethernet4": "oid:0x1"},
    "COUNTERS:oid:0x1": {
        "EST_PORT_STAT_PFC_3_RECENT_PAUSE_TIME_US": "1200",
        "EST_PORT_STAT_PFC_3_RECENT_PAUSE_TIMESTAMP": "1795227154000000",
    },
}
FULL = "/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed:255\n"


def test_events_carry_their_port_queue_priority_and_machine(tmp_path: Path) -> None:
    (tmp_path / "storm.txt").write_text(STORM)
    (tmp_path / "leaf07-db.json").write_text(json.dumps(PAUSE))
    (tmp_path / "gpu-11-sysfs.txt").write_text(FULL)
    run = ingest([tmp_path], run=tmp_path / "run")
    rows = run.query("port_events").to_dicts()
    keys = ("time_ns", "code", "node", "port", "queue", "priority", "counter", "pause_ns")
    assert [tuple(row[k] for k in keys) for row in rows] == [
        (1795227154 * 10**9, "pfc-pause", "leaf07", "Ethernet4", None, 3, None, 1_200_000),
        (1795227155 * 10**9, "pfcwd-storm", "leaf-21", "Ethernet0", 3, None, None, None),
        (None, "counter-saturated", "gpu-11", "mlx5_0/1", None, None, "link_downed", None),
    ]


def test_sources_and_levels_of_a_switch(tmp_path: Path) -> None:
    lines = [
        {
            "ts": f"{1795227155 + second}",
            "port": "swp1",
            "qdisc": [{"kind": "tbf", "handle": "1:", "root": True, "backlog": depth, "drops": 0}],
        }
        for second, depth in enumerate((0, 1514, 96000, 300))
    ]
    path = tmp_path / "switch.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    run = ingest([path], run=tmp_path / "run")
    (source,) = run.query("net_sources").to_dicts()
    assert source["interval_ns"] == 1e9
    assert (source["ports_count"], source["moments_count"], source["time_source"]) == (
        1,
        4,
        "content",
    )
    (level,) = run.query("port_levels").to_dicts()
    assert (level["node"], level["port"], level["counter"]) == (
        "switch",
        "swp1",
        "tx_queue_depth_bytes",
    )
    assert (level["max_value"], level["p50_value"], level["last_value"]) == (96000, 907, 300)
