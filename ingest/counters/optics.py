"""Light and temperature of transceivers.

``ethtool -m``, dumps of SONiC, EOS's table and its tables in detail (one a quantity, with the
thresholds beside it), and NX-OS's details (a block a port, lanes apart). Thresholds are not read.
"""

from __future__ import annotations

import re

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.names import port_of_name
from tracekit.ingest.counters.net_samples import NetSamples, is_missing
from tracekit.ingest.counters.net_words import meaning, own
from tracekit.ingest.counters.printed_tables import prompt
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.lines import Line, lines, shape

KIND = "optics"

_ETHTOOL = re.compile(
    rb"^[ \t]*Identifier[ \t]+: 0x[0-9a-f]{2} \(|^[ \t]*Module temperature[ \t]+: -?[\d.]+ degrees",
    re.M,
)
_SONIC = re.compile(rb"^\w[\w/-]{1,40}: (?:SFP EEPROM (?:N/A|detected|Not detected))", re.M)
_SONIC_PORT = re.compile(r"(\w[\w/-]{1,40}): SFP EEPROM")
_FIELD = re.compile(r"([^:]{2,80}?)\s*: ?(.*)$")
_CHANNEL = re.compile(r"\(Channel (\d{1,2})\)")
_DBM = re.compile(r"(-?(?<![\d.])[\d.]++(?:e-?\d++)?|-?inf) ?dBm", re.I)
_AMOUNT = re.compile(r"(-?[\d.]{1,20}) ?(?:degrees C|C|V|Volts|mA)\b")
_ETHTOOL_NAMES = (
    ("Rcvr signal avg optical power", "optic_rx_power"),
    ("Receiver signal average optical power", "optic_rx_power"),
    ("Transmit avg optical power", "optic_tx_power"),
    ("Laser output power", "optic_tx_power"),
    ("Laser tx bias current", "optic_tx_bias"),
    ("Laser bias current", "optic_tx_bias"),
    ("Module temperature", "optic_temperature"),
    ("Module voltage", "optic_voltage"),
)
_EOS = re.compile(
    rb"^Port[ \t]+\(Celsius\)[ \t]+\(Volts\)[ \t]+\(mA\)[ \t]+\(dBm\)[ \t]+\(dBm\)", re.M
)
_EOS_ROW = re.compile(
    r"((?:Et|Ethernet)\d\S{0,30})((?:[ \t]+(?:N/A|-?\d{1,6}(?:\.\d{1,6})?)){5})(?=\s|$)"
)
_EOS_COLUMNS = (
    "optic_temperature", "optic_voltage", "optic_tx_bias", "optic_tx_power", "optic_rx_power",
)  # fmt: skip
_EOS_QUANTITY = re.compile(
    r"\s+(Temperature|Voltage|Current|Tx Power|Rx Power)(?:\s+Threshold){4}\s*$"
)
_EOS_VALUE = re.compile(
    r"((?:Et|Ethernet)\d\S{0,30})\s+(N/A|-?\d{1,6}(?:\.\d{1,6})?)(?:\s+(?:N/A|-?[\d.]{1,12})){4}$"
)
_DETAIL = re.compile(
    rb"^[ \t]+(?:Temperature|Voltage|Current|Tx Power|Rx Power)(?:[ \t]+Threshold){4}[ \t]*\r?$"
    rb"|^[ \t]+SFP Detail Diagnostics Information",
    re.M,
)
_NXOS_PORT = re.compile(r"(?:Ethernet|fc|mgmt)\d[\d/]{0,12}$")
_NXOS_LANE = re.compile(r"Lane Number:\s?(\d{1,2})\s+(?:(Network Lane)|Common)")
_NXOS_VALUE = re.compile(
    r"(Temperature|Voltage|Current|Tx Power|Rx Power)\s+"
    r"(?:(-?[\d.]{1,12}) (?:C|V|mA|dBm)|(N/A|--))\s"
)
_NXOS_FAULTS = re.compile(r"(Transmit Fault Count) = (\d{1,12})$")
_QUANTITIES = {
    "Temperature": "optic_temperature",
    "Voltage": "optic_voltage",
    "Current": "optic_tx_bias",
    "Tx Power": "optic_tx_power",
    "Rx Power": "optic_rx_power",
}
_SONIC_FIELD = re.compile(r"(RX|TX)(\d{1,2})(Power|Bias)$")


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise either dump by its first fields."""
    if b"SFP EEPROM" in head and _SONIC.search(head):
        return Recognition(KIND, "transceivers as SONiC prints them", KIND)
    if b": 0x" in head and _ETHTOOL.search(head):
        return Recognition(KIND, "a transceiver as ethtool -m prints it", KIND)
    if b"(Celsius)" in head and _EOS.search(head):
        return Recognition(KIND, "transceivers as EOS prints them", KIND)
    if _DETAIL.search(head):
        return Recognition(KIND, "transceivers in detail (EOS, NX-OS)", KIND)
    return None


def read(source: SourceFile, sink: Sink) -> None:
    """Stream the measured values into net_sample."""
    with source.open() as stream:
        reading = Reading(sink, stream, None, "line")
        parser = _Parser(NetSamples(sink, source), reading, port_of_name(source.name))
        for line in lines(stream):
            parser.line(line)
        reading.finish(parser.samples, streams.stream_problem(stream))


class _Parser:
    def __init__(self, samples: NetSamples, reading: Reading, port: str | None) -> None:
        self.samples = samples
        self._reading = reading
        self._name_port = port
        self._port = port
        self._lane: int | None = None
        self._quantity: str | None = None
        """What EOS's table in detail is of."""
        self._is_documented = False

    def _documented(self) -> None:
        if not self._is_documented:
            self._is_documented = True
            self._reading.from_documentation("The dump of a transceiver")

    def line(self, line: Line) -> None:
        text = line.text.strip()
        if not text:
            return
        if port_line := _SONIC_PORT.match(line.text):
            self._port = port_line[1]
            self._documented()
            self._reading.good()
        elif (stamp := times.of_line(text)) is not None:
            self.samples.at(stamp)
        elif typed := prompt(text):
            self.samples.of(typed[0])
            words = typed[1].split()
            self._port = words[-1] if "ethtool" in words and len(words) > 2 else self._name_port
            self._quantity = self._lane = None
        elif quantity := _EOS_QUANTITY.match(line.text):
            self._quantity = quantity[1]
        elif self._quantity is not None and (cell := _EOS_VALUE.match(text)):
            self._reading.good()
            self._value(line.number, cell[1], self._quantity, cell[2])
        elif block := _NXOS_PORT.match(line.text.rstrip()):
            self._port, self._lane = block[0], None
            self._reading.good()
        elif lane := _NXOS_LANE.match(text):
            self._lane = int(lane[1]) if lane[2] else None
        elif measured := _NXOS_VALUE.match(text):
            self._reading.good()
            self._value(line.number, self._port, measured[1], measured[2] or "N/A")
        elif faults := _NXOS_FAULTS.match(text):
            what = own("optic_tx_faults")
            self.samples.add(
                line.number, self._port, what, faults[2], original=faults[1], lane=self._lane
            )
        elif row := _EOS_ROW.match(text):
            self._documented()
            self._reading.good()
            for counter, cell in zip(_EOS_COLUMNS, row[2].split(), strict=True):
                printed = None if is_missing(cell) else cell
                self.samples.add(line.number, row[1], meaning(counter), printed, original=counter)
        elif field := _FIELD.match(text):
            self._reading.good()
            self._field(line.number, field[1], field[2])

    def _value(self, place: int, port: str | None, quantity: str, cell: str) -> None:
        printed = None if is_missing(cell) else cell
        what = meaning(_QUANTITIES[quantity])
        self.samples.add(place, port, what, printed, original=quantity, lane=self._lane)

    def _field(self, place: int, name: str, value: str) -> None:
        if "threshold" in name.lower() or "alarm" in name.lower() or "warning" in name.lower():
            return
        lane: int | None = None
        counter: str | None = None
        if lane_field := _SONIC_FIELD.match(name):
            lane = int(lane_field[2])
            counter = f"optic_{lane_field[1].lower()}_{lane_field[3].lower()}"
            counter = counter if counter != "optic_rx_bias" else None
        elif name in ("Temperature", "Vcc"):
            counter = "optic_temperature" if name == "Temperature" else "optic_voltage"
        else:
            counter = next((c for start, c in _ETHTOOL_NAMES if name.startswith(start)), None)
            channel = _CHANNEL.search(name)
            lane = int(channel[1]) if channel else None
        if counter is None:
            return
        amount = _DBM.search(value) if "power" in counter else _AMOUNT.match(value)
        printed = amount[1] if amount else None
        if printed is not None and "inf" in printed.lower():
            # No light at all is minus infinity: no number that a sample can hold.
            printed = None
        elif amount is None and not is_missing(value):
            self._reading.bad(place, "a value without its unit", shape(value))
            return
        self.samples.add(place, self._port, meaning(counter), printed, original=name, lane=lane)
