"""Files of GPU counters: every number in its unit, blanks as none, damage told and survived."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_files import SHARED, ingest, real, values
from memory_sink import MemorySink, source_of

from tracekit.ingest import files, ingestor, recognise
from tracekit.ingest.base import IngestOptions
from tracekit.ingest.counters import fields, gpu_table
from tracekit.ingest.counters.names import pci_address

S = 10**9


# --- names ----------------------------------------------------------------------------------------


def test_every_alias_of_a_field_is_the_same_counter() -> None:
    path = SHARED / "dcgm_fields_table.tsv"
    if not path.exists():
        pytest.skip("shared/data is not here")
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    names = header.split("\t")
    checked = 0
    for line in lines:
        row = dict(zip(names, line.split("\t"), strict=False))
        meaning = fields.of_dcgm(row["name"])
        if meaning is None:
            continue
        checked += 1
        assert meaning.original == f"dcgm {row['id']}", row["name"]
        for alias in filter(None, row["aliases"].split(",")):
            assert fields.of_dcgm(alias.strip()) == meaning, alias
        assert fields.of_dmon_short(row["dmon_short"]) == meaning, row["dmon_short"]
    assert checked > 60


@pytest.mark.parametrize(
    ("header", "counter", "scale"),
    [
        ("temperature_C", "gpu_temperature", 1.0),
        ("utilization_gpu_percent", "gpu_utilisation", 0.01),
        ("power_W", "power", 1.0),
        ("clocks.current.sm [MHz]", "sm_clock", 1e6),
        ("memory.used [MiB]", "memory_used", 2.0**20),
        ("clocks_throttle_reasons.active", "clock_event_reasons", 1.0),
        ("clocks_event_reasons_counters.sw_power_cap [us]", "sw_power_cap_time", 1e3),
        ("DCGM_FI_DEV_GPU_TEMP", "gpu_temperature", 1.0),
        ("DCGM_FI_DEV_GPU_UTIL", "gpu_utilisation", 0.01),
        ("sm_active", "sm_active", 1.0),
        ("weather", None, None),
    ],
)
def test_a_column_is_known_by_its_name_and_unit(
    header: str, counter: str | None, scale: float | None
) -> None:
    found = fields.of_column(header)
    assert (found.counter if found else None) == counter
    assert (found.scale if found else None) == scale


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:9B:00.0", "00000000:9b:00.0"),
        ("PCI:0000:9b:00", "00000000:9b:00.0"),
        ("9b:00.1", "00000000:9b:00.1"),
        ("0000:9b:00", "00000000:9b:00.0"),
        ("nvidia0", None),
    ],
)
def test_every_spelling_of_a_pci_address_is_one(text: str, expected: str | None) -> None:
    assert pci_address(text) == expected


# --- CSV ------------------------------------------------------------------------------------------


def test_nvidia_smi_s_csv_is_read_with_its_units_and_words() -> None:
    text = (
        "timestamp, index, uuid, pci.bus_id, temperature.gpu, power.draw [W], "
        "clocks.current.sm [MHz], clocks_event_reasons.active, "
        "clocks_event_reasons.hw_thermal_slowdown, pstate, utilization.gpu [%], "
        "ecc.errors.uncorrected.volatile.total, fan.speed [%]\n"
        "2026/07/21 03:01:07.500, 0, GPU-a, 00000000:9B:00.0, 61, 387.20 W, 1965 MHz, "
        "0x0000000000000044, Active, P0, 98 %, 2, [N/A]\n"
    )
    sink = ingest(text, kind="nvidia_smi")
    found = {r["counter"]: r["value"] if r["value"] is not None else r["counted"]
             for r in sink.rows("gpu_sample")}  # fmt: skip
    assert found == {
        "gpu_temperature": 61,
        "power": 387.2,
        "sm_clock": 1.965e9,
        "clock_event_reasons": 0x44,
        "clock_event.hw_thermal": 1,
        "performance_state": 0,
        "gpu_utilisation": 0.98,
        "ecc_dbe_volatile": 2,
    }
    assert {r["device_id"] for r in sink.rows("gpu_sample")} == {"GPU-a"}
    assert sink.facts["time_basis"] == "local"  # no zone: of no use beside other files
    assert sink.facts["window_start_ns"] == 1784602867500 * 10**6
    assert sink.counters["local_time"] == 1


def test_without_units_nvidia_smi_s_own_hold() -> None:
    text = "timestamp, index, clocks.sm, memory.used\n2026/07/21 03:01:07, 0, 1965, 3\n"
    sink = ingest(text)
    assert values(sink, "sm_clock") == [1.965e9]
    assert values(sink, "memory_used") == [3 * 2**20]


def test_a_repeated_header_costs_nothing_and_a_damaged_row_costs_itself() -> None:
    text = (
        "timestamp,gpu,temperature_C,power_W\n"
        "2026-07-21T03:01:07Z,0,60,300\n"
        "timestamp,gpu,temperature_C,power_W\n"
        "2026-07-21T03:01:08Z,0,61\n"
        "yesterday,0,70,300\n"
        "2026-07-21T03:01:09Z,0,warm,300\n"
    )
    sink = ingest(text, kind="gpu_csv")
    assert values(sink, "gpu_temperature") == [60]
    assert values(sink, "power") == [300]
    assert sink.counters["bad_time"] == 1
    assert sink.counters["bad_number"] == 1
    assert sink.counters["bad_row"] == 2
    assert sink.shapes["bad_number"] == "aaaa"
    assert sink.facts["status"] == "partial"


@pytest.mark.parametrize("year", [1823, 2127, 2410, 9999])
def test_a_damaged_year_costs_its_own_row(year: int) -> None:
    # 9999 is beyond 64 bits of nanoseconds.
    rows = [f"{y}/03/01 10:00:0{i}.000, 0, 350.10" for i, y in enumerate((2024, year, 2024))]
    sink = ingest("timestamp, index, power.draw [W]\n" + "\n".join(rows) + "\n")
    assert values(sink, "power") == [350.1, 350.1]
    assert sink.counters["bad_time"] == 1


HEADER = "timestamp, index, clocks_throttle_reasons.active, power.draw [W], clocks.sm [MHz]\n"
ROW = "2024/03/01 10:00:{:02d}.000, 0, 0x0000000000000004, 350.10 W, 1980 MHz\n"


@pytest.mark.parametrize(
    "damaged",
    [
        # A cell is lost: 135 W would be bits, the power brake among them.
        "2024/03/01 10:00:{:02d}.000, 0, 135.10 W, 1980 MHz\n",
        # Two rows run into one.
        "2024/03/01 10:00:{:02d}.000, 0, 0x002024/03/01 10:00:09.000, 0, 0x84, 350.10 W\n",
        # A cell that is none: who knows what its neighbours are.
        "2024/03/01 10:00:{:02d}.000, 0, 0x0000000000000080, 35q.10 W, 1980 MHz\n",
    ],
)
def test_damaged_rows_are_no_state_of_the_gpu(damaged: str) -> None:
    lines = [(damaged if i in (7, 20) else ROW).format(i) for i in range(40)]
    sink = ingest(HEADER + "".join(lines))
    assert set(values(sink, "clock_event_reasons")) == {4.0}
    assert sink.counters["bad_row"] == 2
    assert len(values(sink, "power")) == 38
    assert sink.facts["status"] == "partial"
    assert {r["place"] for r in sink.rows("gpu_sample")} == set(range(2, 42)) - {9, 22}


def test_a_column_without_numbers_takes_no_other_with_it() -> None:
    lines = [ROW.format(i).replace("350.10 W", "broken") for i in range(20)]
    sink = ingest(HEADER + "".join(lines))
    assert len(values(sink, "clock_event_reasons")) == 20
    assert values(sink, "power") == []


@pytest.mark.parametrize("host", ["[N/A]", "N/A", "-", "[Unknown Error]", "localhost", "null"])
def test_a_word_for_no_host_is_none(host: str) -> None:
    sink = ingest(f"timestamp,host,gpu,power_W\n2026-07-21T03:01:07Z,{host},0,300\n")
    assert [r["node"] for r in sink.rows("gpu_sample")] == [None]
    assert "host_name" not in sink.facts


@pytest.mark.parametrize("model", ["[N/A]", "N/A", "[Unknown Error]", "[Not Supported]", "-"])
def test_a_word_for_no_model_is_none(model: str) -> None:
    for given, expected in ((model, None), ("NVIDIA H100", "NVIDIA H100")):
        text = f"timestamp,index,name,power.draw [W]\n2026/07/01 10:00:00.000, 0, {given}, 80 W\n"
        (device,) = ingest(text).rows("device")
        assert device["model"] == expected


def test_an_xid_of_any_length_is_that_xid() -> None:
    line = "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): {}, pid=7, text\n"
    sink = ingest("".join(line.format(x) for x in ("9999", "99999", "123456789")))
    assert [r["code"] for r in sink.rows("log_event")] == ["xid-9999", "xid-99999", "xid-123456789"]


def test_a_number_of_any_kind_costs_at_most_its_own_sample() -> None:
    odd = ["0x1F", "1e308", "9" * 500, "-0x1F", "0x" + "f" * 300, "NaN", "+Inf", "-1", "1e400"]
    text = "".join(
        f'DCGM_FI_DEV_{name}{{gpu="{i}",UUID="GPU-{i}",Hostname="h"}} {number}\n'
        for i, number in enumerate(["31", *odd, "32"])
        for name in ("POWER_USAGE", "ECC_DBE_VOL_TOTAL", "FB_USED", "TOTAL_ENERGY_CONSUMPTION")
    )
    sink = ingest(text)
    assert values(sink, "ecc_dbe_volatile") == [31, 31, 32]
    power = values(sink, "power")
    assert [power[0], power[1], power[-1]] == [31, 31, 32]


@pytest.mark.parametrize("encoding", ["no-such", "rot13", "utf-7", "hex", "utf-32"])
def test_a_dump_in_an_encoding_that_is_none_is_damaged(encoding: str) -> None:
    good = "<nvidia_smi_log><gpu id='0000:9b:00.0'><uuid>GPU-a</uuid></gpu></nvidia_smi_log>"
    sink = ingest(f'<?xml version="1.0" encoding="{encoding}"?>{good}<?xml version="1.0" ?>{good}')
    assert sink.counters["bad_document"] == 1
    assert sink.facts["status"] == "partial"
    assert [r["uuid"] for r in sink.rows("device")] == ["GPU-a"]


@pytest.mark.parametrize("stamp", ["{}", "2026-07-21 12:00:{:02d}", "2026-07-21T12:00:{:02d}Z"])
def test_times_that_are_read_together_are_those_of_each_alone(
    stamp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "timestamp,gpu,power_w,sm_clock_mhz"
    begin = 1763800000 if stamp == "{}" else 0
    rows = [f"{stamp.format(begin + n)},{n % 2},{300 + n},1980" for n in range(20)]
    odd = [head, "N/A,0,310,1980", ",0,311,1980", "7/21/2026 12:00:30,0,312,1980"]
    text = "\n".join([head, *rows[:7], *odd, *rows[7:], ""])
    told = []
    for least in (1, 1000):
        monkeypatch.setattr(gpu_table, "MIN_TEXTS", least)
        sink = ingest(text, "x.csv", "gpu_csv")
        told.append((sink.rows("gpu_sample"), sink.facts, sink.counters))
    assert told[0] == told[1]
    assert len(told[0][0]) == 2 * 21


def test_a_share_above_one_is_refused() -> None:
    text = "timestamp,gpu,utilization_gpu_percent\n2026-07-21T03:01:07Z,0,1.40737488355328e+16\n"
    sink = ingest(text)
    assert values(sink, "gpu_utilisation") == []
    assert sink.counters["impossible_number"] == 1


def test_a_share_that_neither_one_nor_percent_can_be_is_listed_as_not_read() -> None:
    sink = ingest("time,gpu,sm_active,power_W\n1700000000,0,880,300\n")
    assert values(sink, "sm_active") == []
    assert sink.counters["column_not_read_of_no_unit"] == 1
    assert "column_not_read" not in sink.counters


@pytest.mark.parametrize("stamp", ["2026-07-21 03:01:07", "2026-07-21T03:01:07.5"])
def test_a_time_without_a_zone_is_local(stamp: str) -> None:
    sink = ingest(f"time,gpu,power_W\n{stamp},0,300\n")
    assert (sink.facts["time_basis"], sink.counters["local_time"]) == ("local", 1)
    assert ingest(f"time,gpu,power_W\n{stamp}Z,0,300\n").facts["time_basis"] == "epoch"


def test_a_lone_quote_costs_its_own_row() -> None:
    rows = [f"17000000{i:02d},{i % 2},{300 + i}" for i in range(50)]
    rows[20] = '1700000020,0,"320'
    sink = ingest("time,gpu,power_W\n" + "\n".join(rows) + "\n")
    assert sorted(values(sink, "power")) == [300 + i for i in range(50) if i != 20]
    assert sorted(sink.rows("gpu_sample", "place", "value"))[20] == (23, 321)
    assert (sink.counters["bad_row"], sink.places["bad_row"]) == (1, 22)


# --- dmon, XML, lists -----------------------------------------------------------------------------


def test_dcgmi_dmon_is_read_by_position_and_states_no_time() -> None:
    text = (
        "#Entity   SMACT        TMPTR        POWER                  \n"
        "ID                     C            W                      \n"
        "GPU 0     N/A          60           350.123                \n"
        "GPU 1     0.500                     351.000                \n"
        "GPU 0     0.900        61           12345678901234567...   \n"
        "GPU-I 3   0.100        50           1                      \n"
        "dmon was stopped due to receiving a signal.\n"
    )
    sink = ingest(text, kind="dcgm")
    rows = sink.rows("gpu_sample", "nvml_index", "counter", "value", "time_ns")
    assert rows == [
        (0, "gpu_temperature", 60.0, 0),
        (0, "power", 350.123, 0),
        (1, "sm_active", 0.5, 0),
        (1, "power", 351.0, 0),
        (0, "sm_active", 0.9, 1),
        (0, "gpu_temperature", 61.0, 1),
    ]
    assert sink.facts["time_basis"] == "ticks"
    assert sink.counters["cut_number"] == 1


def test_nvidia_smi_dmon_is_read_with_its_units_and_its_local_time() -> None:
    text = (
        "#Date       Time        gpu   pwr gtemp    sm  mclk  pclk rxpci\n"
        "#YYYYMMDD   HH:MM:SS    Idx     W     C     %   MHz   MHz  MB/s\n"
        " 20260721   03:01:07      0   631    63   100  2619  1980     -\n"
    )
    sink = ingest(text, kind="nvidia_smi")
    assert sink.rows("gpu_sample", "counter", "value") == [
        ("power", 631.0),
        ("gpu_temperature", 63.0),
        ("gpu_utilisation", 1.0),
        ("memory_clock", 2.619e9),
        ("sm_clock", 1.98e9),
    ]
    assert sink.facts["time_basis"] == "local"


def test_a_capture_of_many_outputs_is_read_by_its_parts() -> None:
    sink = real("nvidia_smi/linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt")
    power = [r["value"] for r in sink.rows("gpu_sample")
             if (r["counter"], r["original_name"]) == ("power", "nvidia-smi dmon pwr")]  # fmt: skip
    assert power == [69.0] * 5 + [631.0, 634.0, 633.0, 634.0, 636.0]
    assert values(sink, "nvlink_links_active") == [18]
    # The table, -q and --query-gpu, before and under load, dmon, and nothing of pmon.
    assert sorted(values(sink, "gpu_utilisation")) == [0.0] * 8 + [1.0] * 8


def test_links_of_every_gpu_are_counted() -> None:
    sink = real("nvidia_smi/nvidia-smi.nvlink.status.a100.txt")
    assert values(sink, "nvlink_links_active") == [12] * 8
    assert values(sink, "nvlink_links_inactive") == [0] * 8
    text = "GPU 0: A (UUID: GPU-aaaa)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n"
    assert values(ingest(text), "nvlink_links_inactive") == [1]


def test_counts_of_links_are_those_of_their_gpu() -> None:
    """nvlink -e of NVLink 4 and 5, and -gt d: each the sum over the GPU's links."""
    text = (
        "2026-07-14T08:12:38Z\nGPU 0: A (UUID: GPU-aaaa)\n"
        "\t Link 0: Replay Errors: 2\n\t Link 0: CRC Errors: 7\n\n\t Link 1: Replay Errors: 10\n"
        "\t Link 1: Data Tx: 3 KiB\n\t Link 1: Raw Tx: 9 KiB\n\t Link 0: Data Rx: N/A\n"
        "GPU 1: B (UUID: GPU-bbbb)\n\t Link 0: Rx bytes: 5\n\t Link 0: Symbol BER: 15e-255\n"
        "\t Link 0: Link recovery failed events: 1\n"
    )
    sink = ingest(text)
    rows = {(r["nvml_index"], r["counter"], r["counted"]) for r in sink.rows("gpu_sample")}
    assert rows == {
        (0, "nvlink_replays", 12), (0, "nvlink_crc_flit_errors", 7), (0, "nvlink_tx_bytes", 3072),
        (1, "nvlink_rx_bytes", 5), (1, "nvlink_link_failures", 1),
    }  # fmt: skip
    assert sink.counters["other_metric"] == 2


def test_counts_of_links_as_dcgmi_prints_them() -> None:
    head = "| GPU ID: {} | NVLINK Error Counts                      |\n"
    sink = ingest(
        f"{head.format(0)}|Link 0     | CRC FLIT Error           | 7    |\n"
        "|Link 0     | Replay Error             | 2    |\n"
        "|Link 1     | Replay Error             | 10   |\n"
        "|Link 1     | CRC Data Error           | N/A  |\n+------+\n"
        f"{head.format(3)}|Link 0     | Recovery Error           | 1    |\n"
        "|Link 0     | A New Error              | 4    |\n",
        "nvlink.txt",
    )
    rows = {(r["nvml_index"], r["counter"], r["counted"]) for r in sink.rows("gpu_sample")}
    assert rows == {
        (0, "nvlink_crc_flit_errors", 7), (0, "nvlink_replays", 12), (3, "nvlink_recoveries", 1),
    }  # fmt: skip
    assert sink.counters["other_metric"] == 1


def test_the_xml_dump_gives_the_gpu_and_not_its_instances() -> None:
    sink = real("nvidia_smi/a100-sxm4-v12.xml")
    found = {r["counter"]: r["value"] if r["value"] is not None else r["counted"]
             for r in sink.rows("gpu_sample")}  # fmt: skip
    assert found["gpu_temperature"] == 27
    assert found["power"] == 67.03
    assert found["power_limit"] == 500
    assert found["sm_clock"] == 1.275e9
    assert found["sm_clock_max"] == 1.41e9
    assert (found["pcie_width"], found["pcie_width_max"]) == (16, 16)
    assert found["memory_total"] == 81920 * 2**20
    assert found["clock_event.hw_thermal"] == 0
    assert found["ecc_dbe_volatile"] == 0
    assert {r["device_id"] for r in sink.rows("gpu_sample")} == {
        "GPU-513536b6-7d19-9063-b049-1e69664bb298"
    }


XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log {doctype}>
<nvidia_smi_log><timestamp>Fri Aug  4 11:44:30 2023</timestamp>
<gpu id="00000000:01:00.0"><uuid>GPU-a</uuid>
<temperature><gpu_temp>{heat}</gpu_temp></temperature></gpu>{end}
"""


def test_entities_are_refused_and_nothing_is_fetched(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("27 C")
    for doctype in (f'[<!ENTITY x SYSTEM "{secret.as_uri()}">]', '[<!ENTITY x "27 C">]'):
        sink = ingest(XML.format(doctype=doctype, heat="&x;", end="</nvidia_smi_log>"))
        assert "gpu_sample" not in sink.tables
        assert sink.facts["status"] == "partial"


def test_a_cut_xml_keeps_what_came_before_and_a_second_dump_is_read() -> None:
    good = XML.format(doctype='SYSTEM "x.dtd"', heat="61 C", end="</nvidia_smi_log>")
    cut = XML.format(doctype='SYSTEM "x.dtd"', heat="62 C", end="<gpu")
    sink = ingest(good + cut)
    assert values(sink, "gpu_temperature") == [61, 62]
    assert sink.facts["status"] == "partial"
    assert sink.facts["window_start_ns"] == 1691149470 * S


def test_columns_that_no_gpu_has_are_listed_once_and_the_others_read() -> None:
    """System power, a fan and a phase beside counters of GPUs: listed, not dropped in silence."""
    text = "timestamp,gpu,gpu_util [%],power_w,sys_power_w,fan0_rpm,phase\n"
    text += "".join(f"{1784601666 + i},{i % 2},90,600,5400,9000,train\n" for i in range(4))
    sink = MemorySink()
    ingestor("gpu_csv").read(source_of(text.encode(), "t.csv"), sink, IngestOptions())
    assert sink.counters["column_not_read"] == 3
    assert set(sink.rows("gpu_sample", "counter")) == {"gpu_utilisation", "power"}
    text = text.replace(",sys_power_w,fan0_rpm,phase", "").replace(",5400,9000,train", "")
    sink = MemorySink()
    ingestor("gpu_csv").read(source_of(text.encode(), "t.csv"), sink, IngestOptions())
    assert "column_not_read" not in sink.counters


# --- tables that say when, in which unit, and how many --------------------------------------------


@pytest.mark.parametrize(
    ("header", "cell"),
    [
        ("time_unix_ns", "1784592000000000000"), ("unix_ts", "1784592000"),
        ("epoch_seconds", "1784592000.0"), ("timestamp_unix_ms", "1784592000000"),
        ("_timestamp", "1784592000"),
    ],
)  # fmt: skip
def test_a_time_is_told_by_its_words_and_digits(header: str, cell: str) -> None:
    sink = ingest(f"{header},node,gpu,power_w\n{cell},n1,0,690.5\n", "t.csv", "gpu_csv")
    (row,) = sink.rows("gpu_sample")
    assert (row["time_ns"], row["value"], row["time_source"]) == (1784592000 * S, 690.5, "content")


def test_a_table_that_was_read_more_than_once_and_says_no_times_has_none() -> None:
    """The file's time is of one moment: of two readings of a GPU at least one was another."""
    text = "reading,gpu,power_w,sm_clock_mhz\n0,0,690,1980\n0,1,50,345\n2,0,691,1980\n"
    sink = ingest(text, "t.csv", "gpu_csv")
    assert values(sink, "power") == [690, 50, 691]
    assert {(r["time_ns"], r["time_source"]) for r in sink.rows("gpu_sample")} == {(None, None)}
    assert sink.counters["no_time"] == 3
    once = ingest("gpu,power_w,sm_clock_mhz\n0,690,1980\n1,50,345\n", "t.csv", "gpu_csv")
    assert all(r["time_ns"] is not None for r in once.rows("gpu_sample"))
    assert "no_time" not in once.counters
    long = "gpu,metric,value\n0,power_w,690\n0,temp_c,50\n"
    assert "no_time" not in ingest(long, "t.csv", "gpu_csv").counters
    assert ingest(long + "0,power_w,1\n", "t.csv", "gpu_csv").counters["no_time"] == 3


def test_a_unit_in_a_column_of_its_own_is_the_metrics() -> None:
    text = (
        "time,node,gpu,metric,unit,value\n"
        "1784592000,n1,0,power_draw,W,690.5\n1784592000,n1,0,mem_used,GiB,60.5\n"
        "1784592000,n1,0,mem_used,MiB,7\n1784592000,n1,0,gpu_temp,,61\n"
        "1784592000,n1,0,power_draw,furlongs,1\n"
    )
    sink = ingest(text, "t.csv", "gpu_csv")
    assert values(sink, "power") == [690.5]
    assert sorted(values(sink, "memory_used")) == [7 * 2**20, 60.5 * 2**30]
    assert values(sink, "gpu_temperature") == [61]
    assert sink.counters["other_metric"] == 1


def test_a_decimal_comma_beside_semicolons_is_a_point() -> None:
    """With both marks nobody knows which it is: that row is left out."""
    header = "timestamp;gpu;power_w;temp_c\n"
    rows = "1784592000;0;690,5;61\n1784592001;0;691,25;1.234,5\n"
    sink = ingest(header + rows, "t.csv", "gpu_csv")
    assert values(sink, "power") == [690.5]
    assert values(sink, "gpu_temperature") == [61]
    assert (sink.counters["bad_number"], sink.counters["bad_row"]) == (1, 1)


def test_of_the_powers_of_nvidia_smi_one_is_read() -> None:
    """The first that stands in the file; the other is listed."""
    head = "timestamp, index, power.draw.instant [W], power.draw [W]\n"
    sink = ingest(head + "2026/07/21 00:00:00.000, 0, 690.50 W, 512.00 W\n", "smi.csv")
    (row,) = sink.rows("gpu_sample")
    assert (row["counter"], row["value"]) == ("power", 690.5)
    assert row["original_name"] == "nvidia-smi power.draw.instant"
    assert sink.counters["column_not_read"] == 1


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("2026/11/20 10:00:00.123, 0, NVIDIA H100 80GB HBM3, 98 %, 668.35 W, 1980 MHz, 58", True),
        ("0, GPU-8f1b2c3d-0123-4567-89ab-0123456789ab, 98 %, 1024 MiB", True),
        ("NVIDIA A100-SXM4-80GB, 98 %, 400.10 W", True),
        ("NVIDIA A100-SXM4-80GB, 98, 400.10", False),  # nounits: nothing says what it is of
        ("0, 98 %, 400.10 W", False),
        ("2026/11/20 10:00:00.123 train.py step 1, loss 2.5, 98 %, done", False),
        ("timestamp, index, utilization.gpu [%], power.draw [W]", False),
    ],
)
def test_rows_of_nvidia_smi_without_their_header_are_named_and_not_guessed(
    tmp_path: Path, line: str, *, is_one: bool
) -> None:
    path = tmp_path / "gpu_h7.log"
    path.write_text(f"{line}\n" * 3)
    found = recognise(files.expand([path])[0])
    assert ("without their header" in found.reason) is is_one
    assert not is_one or (found.kind, found.status, found.ingestor) == (
        "nvidia_smi", "unrecognised", None,
    )  # fmt: skip
