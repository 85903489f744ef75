"""What SONiC's command line prints: exactly those numbers, with port, priority, queue, kind."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from net_cases import SHARED, golden, ingest, ingest_path, table

from tracekit.ingest import files, recognise

FAMILY = "sonic_cli"

PFC = """\
  Port Rx    PFC0    PFC3
---------  ------  ------
Ethernet0   1,200     N/A
Ethernet4       0   1,403

  Port Tx    PFC0    PFC3
---------  ------  ------
Ethernet0       7       8
"""
QUEUES = """\
For namespace :
     Port    TxQ    Counter/pkts    Counter/bytes    Drop/pkts    Drop/bytes
---------  -----  --------------  ---------------  -----------  ------------
Ethernet0    UC3              60               43           39             1
Ethernet0   MC10              83               96           74             9

For namespace :
             Port    Voq    Counter/pkts    Credit-WD-Del/pkts
-----------------  -----  --------------  --------------------
leaf9|Ethernet0     VOQ1               5                     6
"""
PORTS = """\
    IFACE    STATE    RX_OK        RX_BPS       RX_PPS    RX_UTIL    RX_ERR    RX_OVR
---------  -------  -------  ------------  -----------  ---------  --------  --------
Ethernet0        U        8  2000.00 MB/s  247000.00/s     64.00%        10       100
Ethernet4        D        4   204.80 KB/s     200.00/s        N/A         0       N/A
"""
WATERMARKS = """\
Ingress headroom per PG: (Namespace asic1)
     Port    PG0    PG3
---------  -----  -----
Ethernet0    200    N/A
Ingress PG dropped packets:
     Port    PG0    PG3
---------  -----  -----
Ethernet0      5      6
Egress shared pool occupancy per multicast queue:
     Port    MC10
---------  ------
Ethernet0      77
Headroom pool maximum occupancy: (Namespace asic1)
                 Pool    Bytes
---------------------  -------
ingress_lossless_pool   432640
"""
WATCHDOG = """\
      QUEUE       STATUS    STORM DETECTED/RESTORED    TX OK/DROP    TX LAST OK/DROP
-----------  -----------  -------------------------  ------------  -----------------
Ethernet0:3      stormed                        1/0       100/300              0/200
Ethernet4:4          N/A                        2/2         9/0                0/0
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            PFC,
            """
            3 Ethernet0/p0 rx_pfc_packets cumulative 1200 packets
            4 Ethernet4/p0 rx_pfc_packets cumulative 0 packets
            4 Ethernet4/p3 rx_pfc_packets cumulative 1403 packets
            8 Ethernet0/p0 tx_pfc_packets cumulative 7 packets
            8 Ethernet0/p3 tx_pfc_packets cumulative 8 packets
            """,
        ),
        (
            QUEUES,
            """
            4 Ethernet0/q3 tx_queue_packets cumulative 60 packets
            4 Ethernet0/q3 tx_queue_bytes cumulative 43 bytes
            4 Ethernet0/q3 tx_queue_dropped_packets cumulative 39 packets
            4 Ethernet0/q3 tx_queue_dropped_bytes cumulative 1 bytes
            5 Ethernet0/q10 tx_multicast_queue_packets cumulative 83 packets
            5 Ethernet0/q10 tx_multicast_queue_bytes cumulative 96 bytes
            5 Ethernet0/q10 tx_multicast_queue_dropped_packets cumulative 74 packets
            5 Ethernet0/q10 tx_multicast_queue_dropped_bytes cumulative 9 bytes
            10 leaf9|Ethernet0/q1 voq_packets cumulative 5 packets
            10 leaf9|Ethernet0/q1 voq_credit_deleted_packets cumulative 6 packets
            """,
        ),
        (
            PORTS,
            """
            3 Ethernet0 link_up gauge 1 1 or 0
            3 Ethernet0 rx_packets cumulative 8 packets
            3 Ethernet0 rx_rate gauge 2e+09 bytes/s
            3 Ethernet0 rx_packet_rate gauge 247000 packets/s
            3 Ethernet0 rx_utilisation gauge 0.64 ratio
            3 Ethernet0 rx_errors cumulative 10 packets
            3 Ethernet0 rx_oversize_packets cumulative 100 packets
            4 Ethernet4 link_up gauge 0 1 or 0
            4 Ethernet4 rx_packets cumulative 4 packets
            4 Ethernet4 rx_rate gauge 204800 bytes/s
            4 Ethernet4 rx_packet_rate gauge 200 packets/s
            4 Ethernet4 rx_errors cumulative 0 packets
            """,
        ),
        (
            WATERMARKS,
            """
            4 Ethernet0/q0 rx_pg_headroom_watermark watermark 200 bytes
            8 Ethernet0/q0 rx_pg_dropped_packets cumulative 5 packets
            8 Ethernet0/q3 rx_pg_dropped_packets cumulative 6 packets
            12 Ethernet0/q10 tx_multicast_queue_shared_watermark watermark 77 bytes
            16 asic1:ingress_lossless_pool pool_headroom_watermark watermark 432640 bytes
            """,
        ),
        (
            WATCHDOG,
            """
            3 Ethernet0/q3 pfcwd_stormed gauge 1 1 or 0
            3 Ethernet0/q3 pfcwd_storms_detected cumulative 1 count
            3 Ethernet0/q3 pfcwd_storms_restored cumulative 0 count
            3 Ethernet0/q3 pfcwd_tx_packets cumulative 100 packets
            3 Ethernet0/q3 pfcwd_tx_dropped_packets cumulative 300 packets
            3 Ethernet0/q3 pfcwd_tx_packets_last gauge 0 packets
            3 Ethernet0/q3 pfcwd_tx_dropped_packets_last gauge 200 packets
            4 Ethernet4/q4 pfcwd_storms_detected cumulative 2 count
            4 Ethernet4/q4 pfcwd_storms_restored cumulative 2 count
            4 Ethernet4/q4 pfcwd_tx_packets cumulative 9 packets
            4 Ethernet4/q4 pfcwd_tx_dropped_packets cumulative 0 packets
            4 Ethernet4/q4 pfcwd_tx_packets_last gauge 0 packets
            4 Ethernet4/q4 pfcwd_tx_dropped_packets_last gauge 0 packets
            """,
        ),
    ],
    ids=["pfc", "queues", "ports", "watermarks", "watchdog"],
)
def test_golden(text: str, wanted: str) -> None:
    sink = ingest(text, FAMILY)
    assert table(sink) == golden(wanted)
    assert sink.facts["status"] == "ok"
    assert set(sink.counters) <= {"no_value"}


def test_a_storm_is_an_event() -> None:
    events = ingest(WATCHDOG, FAMILY).rows("log_event", "code", "severity", "fields", "time_ns")
    assert events == [("pfcwd-storm", "error", ["port=Ethernet0", "queue=3"], None)]


def test_counts_since_a_clear_say_so() -> None:
    sink = ingest(f"Last cached time was 2026-11-21 02:12:36.5\n{PFC}", FAMILY)
    assert sink.rows("log_event", "code", "time_ns") == [("counters-cleared", None)]
    assert len(table(sink)) == 5


def test_counts_over_a_period_are_windows_and_say_how_long() -> None:
    sink = ingest("The rates are calculated within 3 seconds period\n" + PORTS, FAMILY)
    kinds = {r["counter"]: (r["kind"], r["interval_ns"]) for r in sink.rows("net_sample")}
    assert kinds["rx_packets"] == ("window", 3_000_000_000)
    assert kinds["rx_rate"] == ("gauge", 3_000_000_000)


def test_a_typed_command_names_the_switch_and_a_line_its_time() -> None:
    text = f"2026-11-21T02:12:36Z\nadmin@leaf-21:~$ show pfc counters\n{PFC}"
    rows = ingest(text, FAMILY).rows("net_sample")
    assert {(r["node"], r["node_source"]) for r in rows} == {("leaf-21", "file")}
    assert {(r["time_ns"], r["time_source"]) for r in rows} == {
        (1795227156 * 10**9, "content"),
    }


def test_a_line_of_local_time_stamps_too() -> None:
    sink = ingest(f"2026-11-21 02:12:36\n{WATCHDOG}", FAMILY)
    assert set(sink.rows("net_sample", "time_ns")) == {1795227156 * 10**9}
    assert sink.rows("log_event", "time_ns") == [1795227156 * 10**9]
    assert sink.facts["time_basis"] == "local"


def test_repeated_dumps_are_a_series() -> None:
    text = f"1795227155.25\n{PFC}\n1795227156.25\n{PFC}"
    rows = ingest(text, FAMILY).rows("net_sample")
    assert Counter(r["time_ns"] for r in rows) == {
        1795227155250000000: 5,
        1795227156250000000: 5,
    }


def test_a_line_that_lost_its_columns_costs_only_itself() -> None:
    text = PFC.replace("Ethernet4       0   1,403", "Ethernet4  x     0     1,403 77 9")
    sink = ingest(text, FAMILY)
    assert [line.split()[0] for line in table(sink)] == ["3", "8", "8"]
    assert sink.counters["bad_record"] == 1
    assert sink.places["bad_record"] == 4
    assert sink.facts["status"] == "partial"


def test_a_cell_that_is_no_number_is_named_masked() -> None:
    sink = ingest(PFC.replace("1,200", "hunt2"), FAMILY)
    assert sink.counters["bad_number"] == 1
    assert sink.shapes["bad_number"] == "aaaa9"
    assert "hunt2" not in repr(sink.__dict__)


def test_a_watermark_of_queues_is_known_by_that_word_too() -> None:
    text = "Egress queue watermark per queue:\n     Port    UC0    UC3\n---------  -----  -----\n"
    rows = ingest(f"{text}Ethernet0    416  81120\n", "sonic_cli").rows("net_sample")
    assert [(r["counter"], r["queue"], r["value"]) for r in rows] == [
        ("tx_queue_shared_watermark", 0, 416), ("tx_queue_shared_watermark", 3, 81120),
    ]  # fmt: skip


def test_columns_without_a_title_are_not_guessed() -> None:
    sink = ingest(json.dumps([{"Port": "Ethernet0", "PG0": "5"}]), FAMILY)
    assert table(sink) == []
    assert sink.facts["status"] == "partial"


# --- the recorded outputs ------------------------------------------------------------------------

_CLI = sorted((SHARED / "sonic_cli").glob("*.txt")) if SHARED.exists() else []
_NUMBER = r"-?[\d,]*\.?\d+(?:e-?\d+)?"


def printed_numbers(path: Path) -> Counter[float]:
    """The numbers of the data lines of an output, found by another way than the ingestor's.

    Columns that are not counters are left out: states, names, times of day, an accuracy.
    """
    text = path.read_text()
    if text.lstrip()[:1] in ("{", "["):
        found = re.findall(rf':\s*"?({_NUMBER})"?\s*[,}}\n]', text)
        return Counter(float(f.replace(",", "")) for f in found)
    numbers: Counter[float] = Counter()
    for line in text.splitlines():
        words = line.split()
        is_row = words and re.match(
            r"(?:\w+\|)?Ethernet\d|Ethernet-BP\d|\w+_pool$|BIN\d|sonic_drops", words[0]
        )
        if not is_row or not re.search(r"\d", " ".join(words[1:])):
            continue
        rest = " ".join(words[1:])
        rest = re.sub(r"\d\d/\d\d/\d{4}, [\d:]+|\(\d+%\)|\b(?:PFC|UC|MC|ALL|VOQ)\d+\b", " ", rest)
        factors = {"KB/s": 1e3, "MB/s": 1e6, "B/s": 1, "/s": 1, "%": 0.01}
        for number, unit in re.findall(rf"({_NUMBER})(?: ?([KM]?B/s|/s|%))?(?![\w.])", rest):
            numbers[float(number.replace(",", "")) * factors.get(unit, 1)] += 1
    return numbers


@pytest.mark.skipif(not _CLI, reason="SONiC's outputs are not here (../shared/data/counters)")
@pytest.mark.parametrize("path", _CLI, ids=lambda p: p.stem)
def test_recorded_outputs_give_exactly_the_numbers_they_print(path: Path) -> None:
    (source,) = files.expand([path])
    found = recognise(source)
    if path.stat().st_size == 0:
        assert (found.kind, found.status) == ("empty", "empty")
        return
    assert (found.kind, found.status) == (FAMILY, "ok")
    sink = ingest_path(path, FAMILY)
    assert sink.facts["status"] == "ok"
    assert set(sink.counters) <= {"no_value"}
    values: Counter[float] = Counter()
    for row in sink.rows("net_sample"):
        if row["counter"] not in ("link_up", "pfcwd_stormed"):
            number = row["counted"] if row["kind"] == "cumulative" else row["value"]
            values[float(number)] += 1
    assert {round(v, 14): n for v, n in values.items()} == {
        round(v, 14): n for v, n in printed_numbers(path).items()
    }
    if not values and not sink.rows("log_event"):
        assert sink.facts["reason"]
