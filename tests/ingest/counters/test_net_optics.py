"""Light, current and temperature of transceivers, lane by lane."""

from __future__ import annotations

from collections import Counter

import pytest
from net_cases import golden, ingest, table
from printed_numbers import balance, of_measures

ETHTOOL = """\
	Identifier                                : 0x11 (QSFP28)
	Module temperature                        : 35.25 degrees C / 95.45 degrees F
	Module voltage                            : 3.2812 V
	Laser tx bias current (Channel 1)         : 7.424 mA
	Transmit avg optical power (Channel 1)    : 0.9120 mW / -0.40 dBm
	Rcvr signal avg optical power(Channel 1)  : 0.8912 mW / -0.50 dBm
	Rcvr signal avg optical power(Channel 2)  : 0.0000 mW / -inf dBm
	Module temperature high alarm threshold   : 75.00 degrees C / 167.00 degrees F
	Laser bias current high alarm (Chan 1)    : Off
"""
SONIC = """\
Ethernet0: SFP EEPROM detected
        Vendor Name: Someone
        ChannelMonitorValues:
                RX1Power: 0.3802dBm
                RX2Power: N/A
                TX1Bias: 6.7500mA
        ModuleMonitorValues:
                Temperature: 30.9258C
                Vcc: 3.2824Volts
Ethernet4: SFP EEPROM Not detected
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            ETHTOOL,
            """
            2 eth3 optic_temperature gauge 35.25 celsius
            3 eth3 optic_voltage gauge 3.2812 V
            4 eth3/l1 optic_tx_bias gauge 7.424 mA
            5 eth3/l1 optic_tx_power gauge -0.4 dBm
            6 eth3/l1 optic_rx_power gauge -0.5 dBm
            """,
        ),
        (
            SONIC,
            """
            4 Ethernet0/l1 optic_rx_power gauge 0.3802 dBm
            6 Ethernet0/l1 optic_tx_bias gauge 6.75 mA
            8 Ethernet0 optic_temperature gauge 30.9258 celsius
            9 Ethernet0 optic_voltage gauge 3.2824 V
            """,
        ),
    ],
    ids=["ethtool", "sonic"],
)
def test_golden(text: str, wanted: str) -> None:
    sink = ingest(text, "optics", "ethtool-m_eth3.txt")
    assert table(sink) == golden(wanted)
    documented = {"parsed_from_documentation": 1} if text.startswith("Ethernet") else {}
    assert sink.counters == {**documented, "no_value": 1}
    assert sink.facts["status"] == "ok"


@pytest.mark.parametrize(("text", "found"), [(ETHTOOL, 5), (SONIC, 4)])
def test_every_number_that_is_measured_is_a_row(text: str, found: int) -> None:
    told = balance(of_measures(text), ingest(text, "optics", "ethtool-m_eth3.txt"))
    assert (told.found, told.missing) == (found, Counter()), told


def test_a_value_without_its_unit_is_named() -> None:
    sink = ingest(ETHTOOL.replace("3.2812 V", "secret"), "optics", "eth3.txt")
    assert (sink.counters["bad_record"], sink.places["bad_record"]) == (1, 3)
    assert "secret" not in repr(sink.__dict__)


def test_the_table_of_eos() -> None:
    text = (
        "leaf3#show interfaces transceiver\n"
        "If device is externally calibrated, only calibrated values are printed.\n"
        "                               Bias      Optical   Optical\n"
        "          Temp       Voltage   Current   Tx Power  Rx Power\n"
        "Port      (Celsius)  (Volts)   (mA)      (dBm)     (dBm)     Last Update\n"
        "-----     ---------  --------  --------  --------  --------  -------------------\n"
        "Et1         29.24      3.28      6.27     -2.43    -30.00     0:00:02 ago\n"
        "Et2/1       N/A        N/A       N/A       N/A       N/A      N/A\n"
    )
    sink = ingest(text, "optics", "dom.txt")
    assert table(sink) == golden(
        """
        7 Et1 optic_temperature gauge 29.24 celsius
        7 Et1 optic_voltage gauge 3.28 V
        7 Et1 optic_tx_bias gauge 6.27 mA
        7 Et1 optic_tx_power gauge -2.43 dBm
        7 Et1 optic_rx_power gauge -30 dBm
        """
    )
    assert set(sink.rows("net_sample", "node")) == {"leaf3"}
    assert sink.counters["no_value"] == 5


def test_tables_of_eos_in_detail() -> None:
    """One table a quantity: of its five numbers the first is measured, the others are limits."""
    head = "                      High Alarm  High Warn   Low Alarm   Low Warn\n"
    text = (
        "leaf3#show interfaces transceiver detail\n"
        + head
        + "           Temperature   Threshold   Threshold   Threshold   Threshold\n"
        "Port       (Celsius)     (Celsius)   (Celsius)   (Celsius)   (Celsius)\n"
        "-------    ------------  ----------  ----------  ----------  ----------\n"
        "Et5/1      31.25         85.00       80.00       -10.00      -5.00\n"
        + head
        + "           Rx Power      Threshold   Threshold   Threshold   Threshold\n"
        "Port       (dBm)         (dBm)       (dBm)       (dBm)       (dBm)\n"
        "-------    ------------  ----------  ----------  ----------  ----------\n"
        "Et5/1      -0.75         5.00        4.00        -12.00      -11.00\n"
        "Et5/2      N/A           5.00        4.00        -12.00      -11.00\n"
    )
    sink = ingest(text, "optics", "dom.txt")
    assert table(sink) == golden(
        """
        6 Et5/1 optic_temperature gauge 31.25 celsius
        11 Et5/1 optic_rx_power gauge -0.75 dBm
        """
    )
    assert set(sink.rows("net_sample", "node")) == {"leaf3"}
    assert sink.counters == {"no_value": 1}


def test_details_of_nxos() -> None:
    """A block a port; what stands below a lane's heading is the lane's, alarms are marks."""
    text = """\
Ethernet1/7
    transceiver is present
    type is QSFP-100G-SR4
    nominal bitrate is 25500 MBit/sec
Lane Number:1 Common Diagnostic Information
           SFP Detail Diagnostics Information (internal calibration)
                Measurement     High        Low         High          Low
  Temperature   40.50 C        75.00 C     -5.00 C     70.00 C        0.00 C
  Voltage        3.25 V         3.63 V      2.97 V      3.46 V        3.13 V
Lane Number:2 Network Lane
           SFP Detail Diagnostics Information (internal calibration)
  Current           N/A        11.80 mA     4.00 mA    10.80 mA       5.00 mA
  Tx Power     -14.25 dBm --    1.69 dBm  -11.30 dBm   -1.30 dBm     -7.30 dBm
  Transmit Fault Count = 3
  Note: ++  high-alarm; +  high-warning; --  low-alarm; -  low-warning

Ethernet1/8
    transceiver is not present
"""
    sink = ingest(text, "optics", "leaf9-optics.txt")
    assert table(sink) == golden(
        """
        8 Ethernet1/7 optic_temperature gauge 40.5 celsius
        9 Ethernet1/7 optic_voltage gauge 3.25 V
        13 Ethernet1/7/l2 optic_tx_power gauge -14.25 dBm
        14 Ethernet1/7/l2 optic_tx_faults cumulative 3 None
        """
    )
    assert sink.counters == {"no_value": 1}
