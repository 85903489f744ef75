"""CSV of network counters that somebody made: by their headers, or as job.toml explains them."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_sink import MemorySink, source_of
from msgspec.structs import replace
from net_cases import golden, ingest, table

from tracekit.errors import InputError
from tracekit.ingest import ingestor, recognise
from tracekit.ingest.base import IngestOptions
from tracekit.ingest.counters.columns import UnknownColumnError, check_columns, is_network
from tracekit.ingest.counters.gpu_words import GPU
from tracekit.ingest.counters.net_table import TABLE
from tracekit.ingest.counters.net_words import NET
from tracekit.job import parse_job
from tracekit.runs import columns_of

FAMILY = "net_csv"
FOREIGN = """\
zeit;schalter;buchse;raus;xoff;pg;steht
2026-11-21T02:12:35Z;leaf01;Eth1/1;1.5;17;Q3;up
2026-11-21T02:12:36Z;leaf01;Eth1/1;9007199254.740993;n/a;Q4;down
"""
SAID = {
    "time": "zeit", "host": "schalter", "port": "buchse", "priority": "pg",
    "tx_bytes": "raus [MB]", "rx_pfc_packets": "xoff", "link_up": "steht",
}  # fmt: skip


def mapped(text: str, said: dict[str, str]) -> MemorySink:
    return ingest(replace(source_of(text.encode(), "x.csv"), columns=tuple(said.items())), FAMILY)


def test_columns_are_what_job_toml_says() -> None:
    found = recognise(source_of(FOREIGN.encode(), "x.csv"))
    assert (found.kind, found.status) == ("table", "unrecognised")
    sink = mapped(FOREIGN, SAID)
    # A float of 9,007,199,254,740,993 bytes would end in 992.
    assert table(sink) == golden(
        """
        2 Eth1/1/p3 tx_bytes cumulative 1500000 bytes
        2 Eth1/1/p3 rx_pfc_packets cumulative 17 packets
        2 Eth1/1/p3 link_up gauge 1 1 or 0
        3 Eth1/1/p4 tx_bytes cumulative 9007199254740993 bytes
        3 Eth1/1/p4 link_up gauge 0 1 or 0
        """
    )
    row = sink.rows("net_sample")[0]
    assert (row["node"], row["node_source"], row["direction"]) == ("leaf01", "file", "tx")
    assert (row["original_name"], row["time_source"]) == ("raus", "content")
    assert row["time_ns"] == 1_795_227_155 * 10**9
    assert sink.counters == {"no_value": 1}


def test_metrics_of_a_long_table_are_what_job_toml_says() -> None:
    text = (
        "t,was,if,zahl\n1795227155,sent,p1,3\n1795227155,rx_crc_errors,p1,4\n"
        "1795227155,paused,p1,2.5\n1795227155,other,p1,1\n"
    )
    said = {
        "time": "t", "metric": "was", "value": "zahl", "port": "if",
        "tx_bytes": "sent [words]", "rx_pfc_duration": "paused [ms]",
    }  # fmt: skip
    sink = mapped(text, said)
    assert table(sink) == golden(
        """
        2 p1 tx_bytes cumulative 12 bytes
        3 p1 rx_crc_errors cumulative 4 packets
        4 p1 rx_pfc_duration cumulative 2500 us
        """
    )
    assert sink.counters["other_metric"] == 1


def test_canonical_metrics_of_a_long_table_need_no_words() -> None:
    text = "time,buchse,metric,value\n1795227155,swp1,tx_bytes,40\n1795227155,swp1,other,4\n"
    sink = mapped(text, {"port": "buchse"})
    assert table(sink) == ["2 swp1 tx_bytes cumulative 40 bytes"]
    assert sink.counters == {"other_metric": 1}


def test_a_table_with_canonical_headers_needs_no_words() -> None:
    text = (
        'timestamp,switch,interface,queue,rx_rate [Gb/s],PortXmitData,"a, b"\n'
        '1795227155.5,leaf01,swp1,UC3,8,10,"x, y"\n'
    )
    sink = ingest(text, FAMILY, "x.csv")
    assert table(sink) == golden(
        """
        2 swp1/q3 rx_rate gauge 1e+09 bytes/s
        2 swp1/q3 tx_bytes cumulative 40 bytes
        """
    )
    assert sink.facts["status"] == "ok"


@pytest.mark.parametrize(
    "text",
    [
        "time,port\n1,a\n",  # no counter
        "time,tx_bytes,rx_bytes\n1,2,3\n",  # no port
        "port,tx_bytes\na,1\n",  # one counter and no time may be anything
        "time,port,tx_bytes [W]\n1,a,2\n",  # no such unit
        "time,port,bytes\n1,a,2\n",
    ],
)
def test_what_declares_no_counters_is_not_taken(text: str) -> None:
    assert recognise(source_of(text.encode(), "x.csv")).ingestor is None


def test_bad_rows_and_cells_lose_nothing_else() -> None:
    text = (
        "time,port,tx_bytes,rx_bytes\n"
        "1795227155,a,1,2\nyesterday,a,1,2\n1795227156,a,1\ntime,port,tx_bytes,rx_bytes\n"
        "1795227157,a,-5,soon\n1795227158,a,99999999999999999999999,4\n\n1795227159,a,5,6\n"
    )
    sink = ingest(text, FAMILY, "x.csv")
    assert table(sink) == golden(
        """
        2 a tx_bytes cumulative 1 bytes
        2 a rx_bytes cumulative 2 bytes
        7 a rx_bytes cumulative 4 bytes
        9 a tx_bytes cumulative 5 bytes
        9 a rx_bytes cumulative 6 bytes
        """
    )
    assert sink.counters == {"bad_record": 2, "bad_number": 3}
    assert sink.facts["status"] == "partial"


@pytest.mark.parametrize(
    ("text", "said", "message"),
    [
        (FOREIGN, {"tx_bytes": "Q"}, "line 1 has no column 'Q', which job.toml says is tx_bytes"),
        (FOREIGN, {"port": "buchse"}, "line 1 and job.toml name no counter"),
        ("no table at all", {"tx_bytes": "Q"}, "line 1 is no header of a table"),
    ],
)  # fmt: skip
def test_a_mapping_that_does_not_fit_says_so_with_its_line(
    text: str, said: dict[str, str], message: str
) -> None:
    source = replace(source_of(text.encode(), "x.csv"), columns=tuple(said.items()))
    found = recognise(source)
    assert (found.status, found.reason[: len(message)]) == ("unreadable", message)
    with pytest.raises(InputError, match=r"x\.csv: line 1"):
        ingestor(FAMILY).read(source, MemorySink(), IngestOptions())


@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        ({"port": "a", "tx_byte": "b"}, "'tx_byte' is no counter", "did you mean tx_bytes?"),
        ({"tx_bytes": "b [MHz]"}, "tx_bytes is not measured in 'MHz'", "its units: bytes, octets"),
        ({"tx_bytes": "b", "power": "P"}, "power is of a GPU", "one table holds counters of GPUs"),
        ({"port": "b", "uuid": "u"}, "uuid is of a GPU", "one table holds counters of GPUs"),
    ],
)
def test_counters_and_units_that_there_are_not_are_refused(
    said: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(UnknownColumnError, match=message) as caught:
        check_columns(said)
    assert caught.value.hint.startswith(hint)


def test_every_counter_has_a_unit_that_can_be_said_and_no_name_means_two_things() -> None:
    assert not {*NET} & {*GPU}
    for word in NET.values():
        check_columns({"port": "p", word.name: "x"})
        if word.unit not in ("1 or 0", None):
            check_columns({word.name: f"x [{word.unit}]"})
    assert not is_network({"time": "t", "power": "P", "host": "h", "metric": "m", "value": "v"})
    assert all(is_network({role: "x"}) for role in ("port", "priority", "queue", "lane"))
    assert set(TABLE.roles) >= {"time", "host", "port"}


def test_job_toml_maps_it_and_names_the_line_of_a_mistake(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    text = '[[source]]\npath = "ports.csv"\ncolumns = { port = "if", tx_byts = "out" }\n'
    file.write_text(text)
    with pytest.raises(InputError, match=r"job\.toml.*'tx_byts' is no counter"):
        columns_of(parse_job(text.encode(), str(file)))
    good = text.replace("tx_byts", "tx_bytes")
    find = columns_of(parse_job(good.encode(), str(file)))
    assert find(str(tmp_path / "ports.csv")) == (("port", "if"), ("tx_bytes", "out"))


def test_a_row_without_a_machine_is_not_of_the_machine_of_the_row_before() -> None:
    text = "time,host,port,tx_bytes\n1763800000,a1,eth0,5\n1763800000,N/A,eth0,6\n"
    sink = ingest(source_of(text.encode(), "x.csv"), FAMILY)
    assert [(r["node"], r["counted"]) for r in sink.rows("net_sample")] == [("a1", 5), (None, 6)]


def test_a_rate_without_its_unit_is_not_read() -> None:
    """8.0 is none of bytes a second, though its name is the counter's."""
    text = "time,port,rx_bytes,rx_rate,tx_rate [Gbit/s]\n1784602867,eth0,5,8.0,8.0\n"
    sink = ingest(source_of(text.encode(), "x.csv"), "net_csv")
    assert sink.rows("net_sample", "counter", "value", "counted") == [
        ("rx_bytes", None, 5), ("tx_rate", 1e9, None)]  # fmt: skip
    assert sink.counters["column_not_read"] == 1
