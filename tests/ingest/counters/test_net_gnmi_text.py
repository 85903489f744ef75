"""Notifications of gNMI as text: gnmic's prototext, and gnmi_cli's older form with angles."""

from __future__ import annotations

from memory_sink import MemorySink, source_of
from net_samples import NOTIFIED

from tracekit.ingest import ingestor, recognise
from tracekit.ingest.base import IngestOptions
from tracekit.ingest.counters import prototext

AT = 1795227155033276021


def read(text: str) -> MemorySink:
    source = source_of(text.encode(), "out.txt")
    assert recognise(source).ingestor == "gnmi", recognise(source)
    sink = MemorySink()
    ingestor("gnmi").read(source, sink, IngestOptions())
    return sink


def rows(sink: MemorySink) -> list[tuple[object, ...]]:
    found = sink.rows("net_sample", "place", "node", "port", "counter", "time_ns", "counted")
    return [tuple(r) for r in found]


EXPECTED = [
    (1, "leaf01", "Ethernet1/1", "rx_bytes", AT, 2**64 - 1),
    (1, "leaf01", "Ethernet1/1", "tx_dropped_packets", AT, 7),
]


def test_a_notification_as_text_is_the_notification() -> None:
    assert rows(read(NOTIFIED)) == EXPECTED
    angles = NOTIFIED.replace("{", "<").replace("}", ">")
    assert rows(read(angles)) == EXPECTED
    assert rows(read(NOTIFIED.replace(": {", " {"))) == EXPECTED
    assert rows(read(" ".join(NOTIFIED.split()) + "\n")) == EXPECTED
    assert rows(read("username: me\npassword: \n" + NOTIFIED)) == [(3, *r[1:]) for r in EXPECTED]


def test_an_answer_may_hold_a_tree_of_json() -> None:
    """gnmi_cli -get: what a container holds is JSON in a text."""
    text = """\
notification: <
  timestamp: 1795227155033276021
  update: <
    path: <
      elem: < name: "interfaces" >
      elem: < name: "interface" key: < key: "name" value: "et 1" > >
      elem: < name: "state" >
    >
    val: <
      json_ietf_val: "{\\"counters\\":{\\"in-octets\\":\\"55\\",\\"x\\":\\"\\\\u00e9\\"}}"
    >
  >
>
"""
    sink = read(text)
    assert sink.rows("net_sample", "port", "counter", "counted") == [("et 1", "rx_bytes", 55)]
    assert sink.counters["other_leaf"] == 1


def test_a_message_that_breaks_off_costs_itself() -> None:
    whole = NOTIFIED.replace("sync_response: true\n", "")
    begun = "\n".join(whole.splitlines()[:12]) + "\n"
    sink = read(whole + begun + whole)
    assert [r[3] for r in rows(sink)] == ["rx_bytes", "tx_dropped_packets"] * 2
    assert sink.counters["bad_record"] == 1
    assert read(whole + begun).counters["bad_record"] == 1
    assert sink.facts["status"] == "partial"


def test_texts_and_repeated_fields_are_what_they_say() -> None:
    text = 'a { b: "x\\"y\\101\\x41\\n" b: \'z\' c: -1.5e3, d { e: true }; d < e: 1 > # words\n}\n'
    (told,) = prototext.messages([(7, text)])
    inner = [{"e": ["true"]}, {"e": ["1"]}]
    assert told == (7, "a", {"b": ['x"yAA\n', "z"], "c": ["-1.5e3"], "d": inner})


def test_depth_and_length_have_a_limit() -> None:
    deep = "a {" * 60 + "}" * 60 + "\nb { c: 1 }\n"
    told = list(prototext.messages(enumerate(deep.splitlines(), 1)))
    assert told[0] == (1, "a", None)
    assert told[-1] == (2, "b", {"c": ["1"]})
