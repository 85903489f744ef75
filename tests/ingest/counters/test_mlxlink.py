"""The state of a port as mlxlink prints it."""

from __future__ import annotations

import json

import pytest
from memory_sink import source_of
from net_cases import ingest

from tracekit.ingest import recognise

TEXT = """\
root@gpu-11:~# mlxlink -d mlx5_3 -c -m

Operational Info
----------------
State                              : Active
Physical state                     : LinkUp
Speed                              : NDR
Width                              : 4x

Physical Counters and BER Info
------------------------------
Time Since Last Clear [Min]        : 10232.1
Symbol Errors                      : 4
Symbol BER                         : 15E-255
Effective Physical Errors          : 3
Raw Physical Errors Per Lane       : 1201,33
Raw Physical BER                   : 6E-11
Link Down Counter                  : 1

Module Info
-----------
Identifier                         : OSFP
Temperature [C]                    : 54 [-5..75]
Voltage [mV]                       : 3250.0 [3000..3600]
Rx Power Current [dBm]             : 1.23,-7.41 [-8..5]
Tx Power Current [dBm]             : N/A
"""
JSON = json.dumps({"status": {"code": 0}, "result": {"output": {
    "Operational Info": {"State": "Active", "Speed": "IB-NDR", "Width": "4x"},
    "Physical Counters and BER Info": {
        "Time Since Last Clear [Min]": "10232.1", "Symbol Errors": "4", "Symbol BER": "15E-255",
        "Effective Physical Errors": "3", "Raw Physical BER": "6E-11", "Link Down Counter": "1",
        "Raw Physical Errors Per Lane": {"values": ["1201", "33"]}},
    "Module Info": {"Temperature [C]": "54 [-5..75]", "Voltage [mV]": "3250.0 [3000..3600]",
                    "Rx Power Current [dBm]": {"values": ["1.23", "-7.41"]}},
}}})  # fmt: skip
ROWS = {
    ("link_up", None, 1.0), ("link_speed", None, 4e11), ("link_width", None, 4.0),
    ("rx_symbol_errors", None, 4), ("symbol_ber", None, 15e-255), ("link_downed", None, 1),
    ("effective_physical_errors", None, 3), ("raw_physical_errors_per_lane", 0, 1201),
    ("raw_physical_errors_per_lane", 1, 33), ("fec_pre_ber", None, 6e-11),
    ("optic_temperature", None, 54.0), ("optic_voltage", None, 3.25),
    ("optic_rx_power", 0, 1.23), ("optic_rx_power", 1, -7.41),
}  # fmt: skip


@pytest.mark.parametrize(("text", "name"), [(TEXT, "x.txt"), (JSON, "gpu-11-mlx5_3.json")])
def test_text_and_json_say_the_same(text: str, name: str) -> None:
    assert recognise(source_of(text.encode(), name)).ingestor == "mlxlink"
    sink = ingest(text, "mlxlink", name)
    rows = sink.rows("net_sample")
    assert {(r["counter"], r["lane"], r["value"] if r["counted"] is None else r["counted"])
            for r in rows} == ROWS  # fmt: skip
    assert {r["port"] for r in rows} == {"mlx5_3"}
    assert sink.counters["other_metric"] == 1


def test_readings_have_the_times_above_them_and_a_port_of_their_own() -> None:
    one = "Physical Counters and BER Info\n-----------\nLink Down Counter : {}\n"
    text = "".join(
        f"2026-07-14T08:12:{second}Z\nmlxlink -d {port} -c\n{one.format(count)}"
        for second, port, count in ((38, "mlx5_0", 1), (38, "mlx5_1", 2), (48, "mlx5_0", 3))
    )
    rows = ingest(text, "mlxlink", "x.txt").rows("net_sample")
    said = [(r["port"], r["time_ns"] // 10**9 - 1784016700, r["counted"]) for r in rows]
    assert sorted(said) == [("mlx5_0", 58, 1), ("mlx5_0", 68, 3), ("mlx5_1", 58, 2)]


@pytest.mark.parametrize(
    "text", ["Operational Info\nState : Active\n", '{"Module Info": {"a": 1}}']
)
def test_other_texts_are_not_taken(text: str) -> None:
    assert recognise(source_of(text.encode(), "x.txt")).ingestor != "mlxlink"


def test_an_answer_without_output_is_a_bad_record() -> None:
    text = '{"result": {"Operational Info": {"State": "Active"}}}'
    assert ingest(text, "mlxlink", "x.json").counters["bad_record"] == 1


def test_a_field_without_cells_is_left_out() -> None:
    text = '{"result": {"output": {"Operational Info": {"State": {"values": []}}}}}'
    assert not ingest(text, "mlxlink", "x.json").rows("net_sample")
