"""The physical layer of EOS's ports: what FEC and PCS count, port by port."""

from __future__ import annotations

import re
from collections import Counter

from net_cases import golden, ingest, table

PHY = """\
leaf5#show interfaces phy detail
Current System Time: Tue Jun 14 17:36:41 2016
Ethernet5/2
                              Current State     Changes            Last Change
  PHY state                   linkUp                 43    4 days, 0:45:30 ago
  HW resets                                           0                  never
  Oper speed                  100Gbps
  PCS high BER                ok                      2   5 days, 18:32:37 ago
  PCS err blocks              22                          5 days, 18:32:37 ago
  PCS BER                     98                      2   5 days, 18:32:37 ago
  Forward Error Correction    Reed-Solomon
  Reed-Solomon codeword size  528
  FEC alignment lock          ok                      1   5 days, 18:32:37 ago
  FEC corrected codewords     1718                   43    4 days, 0:45:30 ago
  FEC uncorrected codewords   12                      2    4 days, 0:45:30 ago
  FEC lane corrected symbols
    Lane 0                    40                      6    4 days, 0:45:30 ago
    Lane 1                    51                      7    4 days, 0:45:30 ago
  Bad EEPROM checksums                                0                  never
Coherent transceiver phy
  Model                       Cl10010 (1.0)
  FEC corrected codewords     999                    43    4 days, 0:45:30 ago
                              Current           Average
  Estimated pre-FEC BER       3.2e-09          1.67e-08
  FEC word error rate         0.0                  98.9
Ethernet6/1
                              Current State     Changes            Last Change
  FEC corrected codewords     N/A                     0                  never
  FEC uncorrected codewords                           5                  never
  FEC lane corrected symbols
    Lane 0                                            3                  never
"""


def test_golden() -> None:
    sink = ingest(PHY, "eos_phy", "phy.txt")
    assert table(sink) == golden(
        """
        9 Ethernet5/2 pcs_errored_blocks gauge 22 None
        10 Ethernet5/2 pcs_bit_errors gauge 98 None
        14 Ethernet5/2 fec_corrected_codewords cumulative 1718 count
        15 Ethernet5/2 fec_uncorrectable_codewords cumulative 12 count
        17 Ethernet5/2/l0 fec_symbol_errors cumulative 40 count
        18 Ethernet5/2/l1 fec_symbol_errors cumulative 51 count
        24 Ethernet5/2 fec_pre_ber gauge 3.2e-09 ratio
        25 Ethernet5/2 fec_word_error_rate gauge 0 None
        """
    )
    assert sink.counters == {
        "parsed_from_documentation": 1, "other_chip": 1, "no_value": 1, "local_time": 1,
    }  # fmt: skip
    assert set(sink.rows("net_sample", "node")) == {"leaf5"}


def test_every_state_of_these_labels_is_in_the_rows() -> None:
    block = PHY.split("Coherent")[0]
    read = Counter(
        r["value"] if r["counted"] is None else r["counted"]
        for r in ingest(block, "eos_phy", "phy.txt").rows("net_sample")
    )
    # The state stands below its heading, whatever the label; "codeword size" is a setting.
    states = [
        line[30:48].strip()
        for line in block.splitlines()
        if re.match(r" +(FEC|PCS|Lane)", line) and "size" not in line
    ]
    assert read == Counter(float(s) for s in states if s[:1].isdigit())
    assert len(read) == 6


def test_a_collectors_stamps_count_before_the_switchs_own_clock() -> None:
    block = PHY.split("Coherent")[0].split("\n", 1)[1]
    sink = ingest(f"2016-06-14T15:36:40Z\n{block}2016-06-14T15:36:50Z\n{block}", "eos_phy")
    assert {t - 1465918600 * 10**9 for t in sink.rows("net_sample", "time_ns")} == {0, 10**10}
    assert sink.facts["time_basis"] == "epoch"
    assert len(sink.rows("net_sample")) == 12


def test_a_port_is_needed() -> None:
    sink = ingest(
        "  FEC corrected codewords     1718    43    4 days, 0:45:30 ago\n", "eos_phy", "phy.txt"
    )
    assert table(sink) == []
    assert sink.facts["status"] == "empty"
