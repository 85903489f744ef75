"""One small own-made file of every format of network counters."""

from __future__ import annotations

import json
from typing import NamedTuple

LINK = {
    "ifname": "swp1",
    "mtu": 9000,
    "operstate": "UP",
    "stats64": {"rx": {"bytes": 123456, "dropped": 2}, "tx": {"bytes": 500, "dropped": 90}},
}
QDISC = {"kind": "tbf", "handle": "1:", "root": True, "options": {}, "bytes": 470, "drops": 644}
RULE = "-" * 40 + "\n"
SYSFS = "/sys/class/infiniband/mlx5_0/ports/1/"


class Sample(NamedTuple):
    """A file: its family and format as in FORMATS, its name, its text, its rows."""

    family: str
    format: str
    name: str
    text: str
    rows_count: int


QUEUING = (
    "Egress Queuing for Ethernet1/51 [System]\n"
    "+-------------------------------------------------------------+\n"
    "|                              QOS GROUP 5                    |\n"
    "+-------------------------------------------------------------+\n"
    "|                           |  Unicast       |Multicast       |\n"
    "+-------------------------------------------------------------+\n"
    "|                   Tx Pkts |       202328436|              17|\n"
    "| WRED/AFD & Tail Drop Byts |              51|              19|\n"
    "+-------------------------------------------------------------+\n"
    "Ingress Queuing for Ethernet1/51\n"
    "PFC Statistics\n"
    "TxPPP:                    23,   RxPPP:                    29\n"
)


NOTIFIED = """\
update: {
  timestamp: 1795227155033276021
  prefix: {
    target: "leaf01"
    elem: {
      name: "interfaces"
    }
    elem: {
      name: "interface"
      key: {
        key: "name"
        value: "Ethernet1/1"
      }
    }
  }
  update: {
    path: { elem: { name: "state" } elem: { name: "counters" } elem: { name: "in-octets" } }
    val: {
      uint_val: 18446744073709551615
    }
  }
  update: {
    path: { elem: { name: "state" } elem: { name: "counters" } elem: { name: "out-discards" } }
    val: { uint_val: 7 }
  }
}

sync_response: true
"""


IP_LINK = """\
2: ens1f0@if3: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP mode DEFAULT
    link/ether 0c:42:a1:00:00:01 brd ff:ff:ff:ff:ff:ff
    RX:  bytes packets errors dropped  missed   mcast
        123456     900      3      17       4      99
    TX:  bytes packets errors dropped carrier collsns
        654321     800      0       0       0       0
"""
PROC_NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo\
 colls carrier compressed
  ib0:  500000    5000    0    3    0     0          0         0  600000    6000    0    0    0\
     0       0          0
"""


SAMPLES: tuple[Sample, ...] = (
    Sample("interface_text", "interfaces as text", "ip.txt", IP_LINK, 14),
    Sample("interface_text", "interfaces of a kernel", "dev.txt", PROC_NET_DEV, 16),
    Sample("gnmi", "notifications as text", "gnmic.txt", NOTIFIED, 2),
    Sample("nxos_queuing", "queues of NX-OS", "queuing.txt", QUEUING, 6),
    Sample(
        "net_capture",
        "outputs of several commands",
        "node-3.txt",
        "=== ethtool -S eth0 ===\nNIC statistics:\n     rx_packets: 1234\n     rx_errors: 7\n"
        "=== perfquery ===\n# Port counters: Lid 12 port 1 (CapMask: 0x5A00)\n"
        "PortSelect:......................1\nSymbolErrorCounter:..............5\n",
        3,
    ),
    Sample("linux_net", "interface statistics", "ip.json", json.dumps([LINK], indent=1), 6),
    Sample("linux_net", "queue statistics", "tc.json", json.dumps([{"dev": "swp1", **QDISC}]), 2),
    Sample(
        "linux_net",
        "wrapped samples",
        "switch.jsonl",
        "\n".join(
            json.dumps({"ts": 1795227155 + i, "port": "swp1", "link": [LINK], "qdisc": [QDISC]})
            for i in range(3)
        ),
        24,
    ),
    Sample(
        "sonic_db",
        "COUNTERS_DB",
        "db.json",
        json.dumps(
            {
                "COUNTERS_PORT_NAME_MAP": {"Ethernet0": "oid:0x1"},
                "COUNTERS:oid:0x1": {
                    "SAI_PORT_STAT_IF_IN_OCTETS": "123456",
                    "SAI_PORT_STAT_PFC_3_RX_PKTS": "789",
                },
            },
            indent=2,
        ),
        2,
    ),
    Sample(
        "sonic_cli",
        "tables",
        "pfc.txt",
        "  Port Rx    PFC0    PFC3\n---------  ------  ------\nEthernet0   1,200   3,456\n",
        2,
    ),
    Sample(
        "sonic_cli",
        "JSON of the same commands",
        "queues.json",
        json.dumps({"Ethernet0": {"UC3": {"dropbytes": "12", "droppacket": "345"}}}),
        2,
    ),
    Sample(
        "infiniband",
        "port counters",
        "perfquery.txt",
        "# Port extended counters: Lid 133 port 1 (CapMask: 0x5A00)\n"
        "PortXmitData:....................37108\nLinkDownedCounter:...............12\n",
        2,
    ),
    Sample(
        "infiniband",
        "error report",
        "ibqueryerrors.txt",
        'Errors for "server mlx4_0"\n'
        "   GUID 0x2c9030042dff1 port 1: [LinkDownedCounter == 48] [PortXmitWait == 4242]\n",
        2,
    ),
    Sample(
        "infiniband",
        "db_csv",
        "ibdiagnet2.db_csv",
        "START_PM_INFO\nNodeGUID,PortGUID,PortNumber,LinkDownedCounter,PortXmitWait\n"
        "0x1,0x1,1,12,3456\nEND_PM_INFO\n",
        2,
    ),
    Sample(
        "ufm",
        "telemetry",
        "ufm.csv",
        "timestamp,source_id,tag,node_guid,port_guid,port_num,PortXmitDataExtended,PortXmitPkts\n"
        "1795227155033276,0x1c3,,0x1c3,0x1c3,7,1234,56\n",
        2,
    ),
    Sample(
        "ufm",
        "answers of UFM's REST API",
        "ufm.json",
        json.dumps(
            {
                "data": {
                    "1795227155": {
                        "Port": {
                            "ec0d9a03007d7f0a_1": {
                                "name": "gpu-11 mlx5_0",
                                "statistics": {
                                    "Infiniband_SymbolErrors": 123,
                                    "Infiniband_CBW": 0.5,
                                },
                            }
                        }
                    }
                }
            }
        ),
        2,
    ),
    Sample(
        "prometheus",
        "metrics of UFM",
        "ufm.prom",
        "# TYPE PortXmitPktsExtended counter\n"
        'PortXmitPktsExtended{source="0x1c3",node_guid="1c3",port_num="2"} 11882 1795227155033\n'
        'PortRcvDataExtended{source="0x1c3",node_guid="1c3",port_num="2"} 456 1795227155033\n',
        2,
    ),
    Sample(
        "monitoring",
        "series of ports",
        "answer.json",
        json.dumps(
            {
                "series": [
                    {
                        "metric": "system.net.bytes_sent",
                        "unit": [{"name": "byte"}, {"name": "second"}],
                        "tag_set": ["host:n7", "device:eth0"],
                        "pointlist": [[1795227155000, 123456], [1795227170000, 7890]],
                    }
                ]
            }
        ),
        2,
    ),
    Sample("nic", "tree of files", "port_rcv_data", "922159499\n", 1),
    Sample(
        "nic",
        "files with values",
        "sysfs.txt",
        f"{SYSFS}counters/port_xmit_data:5678\n{SYSFS}hw_counters/out_of_sequence:1234\n",
        2,
    ),
    Sample(
        "nic",
        "NIC statistics",
        "ethtool_eth0.txt",
        "NIC statistics:\n     rx_bytes_phy: 70123\n     rx_prio3_pause: 1100\n",
        2,
    ),
    Sample(
        "nic",
        "pause settings",
        "ethtool-pause.eth0.txt",
        "Pause parameters for eth0:\nAutonegotiate:  off\nRX:     on\nTX:     off\n",
        2,
    ),
    Sample(
        "nic",
        "RDMA statistics",
        "rdma.txt",
        "link mlx5_0/1 out_of_sequence 678 rp_cnp_handled 7000\n",
        2,
    ),
    Sample(
        "switch_json",
        "answers of Arista EOS",
        "eos.json",
        json.dumps([{"interfaceCounters": {"Ethernet3": {"rxFrames": 123, "txFrames": 0}}}]),
        2,
    ),
    Sample(
        "switch_json",
        "answers of NX-OS",
        "nxapi.json",
        json.dumps(
            {
                "TABLE_pfc_interface": {
                    "ROW_pfc_interface": {"if_name_str": "Eth1/1", "rx-stats": "29"}
                }
            }
        ),
        1,
    ),
    Sample(
        "nxos",
        "interface counters",
        "nxos.txt",
        f"{RULE}Port         InOctets    InUcastPkts\n{RULE}Eth1/33       1162614     14178\n",
        2,
    ),
    Sample(
        "nxos",
        "flow control",
        "nxpfc.txt",
        "Port               Mode Oper(VL bmap)  RxPPP      TxPPP\n"
        "Ethernet1/2        On   On  (8)        1,234      55\n",
        2,
    ),
    Sample(
        "nxos",
        "errors of EOS",
        "eos.txt",
        "Port            FCS    Align   Symbol       Rx    Runts   Giants       Tx\n"
        "Et2               7        1        2       12        3        4        6\n",
        7,
    ),
    Sample(
        "nxos",
        "rates",
        "nxrates.txt",
        "Port                      Description  Intvl  Rx Mbps   Rx %%  Tx Mbps   Tx %%\n"
        "Ethernet1/2               gpu-11 eth0  30/30  80.5      0.2%   40.0      0.1%\n",
        4,
    ),
    Sample(
        "nxos",
        "queues of EOS",
        "queues.txt",
        "Port  Traffic DropPrec DestType OutEnqPkts OutEnqOctets OutDropPkts OutDropOctets\n"
        "        Class\n"
        "Et3/1     TC7    DP0-3       UC       4242       678720           3           480\n",
        4,
    ),
    Sample(
        "show_interface",
        "status of ports",
        "interfaces.txt",
        "Ethernet1 is up, line protocol is up (connected)\n     4242 packets input, 678720 bytes\n",
        3,
    ),
    Sample(
        "port_trees",
        "interfaces of Junos",
        "junos.json",
        json.dumps(
            {
                "interface-information": [
                    {
                        "physical-interface": [
                            {
                                "name": [{"data": "et-0/0/1"}],
                                "oper-status": [{"data": "up"}],
                                "mtu": [{"data": "9216"}],
                                "traffic-statistics": [
                                    {
                                        "input-bytes": [{"data": "123"}],
                                        "output-bps": [{"data": "800"}],
                                    }
                                ],
                                "ethernet-mac-statistics": [{"input-crc-errors": [{"data": "17"}]}],
                            }
                        ]
                    }
                ]
            }
        ),
        4,
    ),
    Sample(
        "port_trees",
        "interfaces of Cumulus Linux",
        "nvue.json",
        json.dumps(
            {
                "swp1": {"link": {"mtu": 9216, "stats": {"in-bytes": 123, "out-drops": 9}}},
                "swp2": {"link": {"stats": {"in-errors": 4, "in-bytes": 7}}},
            }
        ),
        5,
    ),
    Sample(
        "mlxlink",
        "state of a port",
        "mlx5_0.txt",
        "Operational Info\n----------------\nState            : Active\n\n"
        "Physical Counters and BER Info\n------------------------------\n"
        "Symbol Errors    : 44\nRaw Physical BER : 6E-11\n",
        3,
    ),
    Sample(
        "eos_phy",
        "physical layer of EOS",
        "eosphy.txt",
        "Ethernet5/2\n"
        "                              Current State     Changes            Last Change\n"
        "  FEC corrected codewords     1718                   43    4 days, 0:45:30 ago\n"
        "  FEC uncorrected codewords   12                      2    4 days, 0:45:30 ago\n",
        2,
    ),
    Sample(
        "fabric",
        "map of the fabric",
        "ibnetdiscover.txt",
        'Switch\t41 "S-b83fd203006b4a90"\t\t# "MF0;leaf01:MQM8700/U1" enhanced port 0 lid 3 lmc 0\n'
        '[1]\t"H-0c42a10300605e88"[1](c42a10300605e88) \t\t# "gpu-01 mlx5_0" lid 12 4xHDR\n',
        0,
    ),
    Sample(
        "fabric",
        "ports of the fabric",
        "ports.json",
        json.dumps(
            [
                {
                    "physical_state": "Link Up",
                    "name": "b83fd203006b4a90_1",
                    "peer": "0c42a10300605e88_1",
                    "peer_port_dname": "1",
                }
            ]
        ),
        0,
    ),
    Sample(
        "fabric",
        "links of the fabric",
        "links.json",
        json.dumps(
            [
                {
                    "source_guid": "b83fd203006b4a90",
                    "source_port": "1",
                    "source_port_dname": "1",
                    "width": "IB_4x",
                    "severity": "Info",
                    "source_port_node_description": "MF0;leaf01:MQM8700/U1",
                    "destination_guid": "0c42a10300605e88",
                    "destination_port": "1",
                    "destination_port_dname": "HCA-1/1",
                    "destination_port_node_description": "gpu-01 mlx5_0",
                }
            ],
            indent=1,
        ),
        0,
    ),
    Sample(
        "telegraf",
        "points of ports",
        "metrics.out",
        "net,host=gpu-11,interface=eth1 bytes_recv=8i,bytes_sent=9i 1795227155000000000\n",
        2,
    ),
    Sample(
        "gnmi",
        "notifications",
        "notifications.json",
        json.dumps(
            [
                {
                    "update": {
                        "timestamp": "1795227155033276021",
                        "update": [
                            {
                                "path": {
                                    "elem": [
                                        {"name": "interface", "key": {"name": "eth1"}},
                                        {"name": "in-octets"},
                                    ]
                                },
                                "val": {"uintVal": "4242"},
                            }
                        ],
                    }
                }
            ],
            indent=1,
        ),
        1,
    ),
    Sample(
        "gnmi",
        "line protocol",
        "telegraf.out",
        "interfaces,name=eth42,path=/interfaces/interface,source=leaf01 "
        'state/in_octets=5678u,descr="a, b=c" 1673608605875353770\n',
        1,
    ),
    Sample(
        "gnmi",
        "telemetry",
        "gnmic.json",
        json.dumps(
            {
                "source": "leaf01:57400",
                "subscription-name": "ports",
                "timestamp": 1795227155033276021,
                "updates": [
                    {
                        "Path": "interfaces/interface[name=eth1]/state/counters",
                        "values": {"interfaces/interface/state/counters": {"in-octets": "4242"}},
                    }
                ],
            }
        ),
        1,
    ),
    Sample(
        "optics",
        "a transceiver",
        "ethtool-m_eth0.txt",
        "\tIdentifier                  : 0x11 (QSFP28)\n"
        "\tModule temperature          : 35.25 degrees C / 95.45 degrees F\n"
        "\tModule voltage              : 3.2812 V\n",
        2,
    ),
    Sample(
        "optics",
        "transceivers",
        "sonic-eeprom.txt",
        "Ethernet0: SFP EEPROM detected\n"
        "                Temperature: 30.5391C\n"
        "                Vcc: 3.2967Volts\n",
        2,
    ),
    Sample(
        "optics",
        "transceivers in detail",
        "transceiver-details.txt",
        "Ethernet1/1\n"
        "    transceiver is present\n"
        "           SFP Detail Diagnostics Information (internal calibration)\n"
        "  Temperature   35.66 C        75.00 C     -5.00 C     70.00 C        0.00 C\n",
        1,
    ),
    Sample(
        "lldp",
        "neighbours",
        "lldp.txt",
        "LocalPort    RemoteDevice    RemotePortID    Capability    RemotePortDescr\n"
        "-----------  --------------  --------------  ------------  -----------------\n"
        "Ethernet0    gpu-11          eth0            R             none\n",
        0,
    ),
    Sample(
        "net_csv",
        "wide and long tables",
        "ports.csv",
        "time,host,port,tx_bytes,rx_pfc_packets [frames]\n1795227155,leaf01,swp1,4242,17\n",
        2,
    ),
)
