"""Writes what the network counts: dumps of SONiC's COUNTERS_DB, ``ethtool -S``, sysfs of NICs.

A switch counts as it sees it: what it sends on a host's port is what that host gets, and pause
frames that it gets were sent by the host. Ports of other jobs' machines are on the same switches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from tracekit.simulate.activity import Floats
from tracekit.simulate.telemetry import Telemetry, whole

PACKET_BYTES = 4096.0
HEADERS_RATIO = 1.02
"""Bytes on the wire over those of the messages."""
USUAL_PAUSE_RATIO = 0.002
"""Share of a transfer's time that a healthy lossless fabric pauses, both ways."""
USUAL_MARK_RATIO = 0.003
FRAME_US = 20.0
"""Pause that one frame asks for, on average."""
LOSSLESS, BEST_EFFORT = 3, 0
"""Priority (and queue) of the job's traffic, and of everything else's."""
UPLINKS = 4
STRANGERS = 2
"""Ports of a leaf that lead to machines of other jobs."""
RESET_S = (8.0, 38.0)
"""When after the captured steps the decoy resets a NIC's counters."""


class Nic(Struct, frozen=True):
    """A host's NIC, the ranks that use it, and the port of the leaf that it hangs on."""

    machine: str
    """Name of the host (or pod) that it is read on."""
    index: int
    """Its number there."""
    host_index: int
    ranks: tuple[int, ...]
    leaf: str
    port: str


class _Readings(Struct):
    """Cumulative readings and levels of one port at each tick, by the writer's own names."""

    counted: dict[str, list[int]] = field(default_factory=dict)
    levels: dict[str, list[int]] = field(default_factory=dict)


class NetCounters:
    """The counters of all ports of a job's network."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.t = telemetry
        self.top = telemetry.plan.topology
        self.nics = self._nics()
        with_ranks = [n for n in self.nics if n.ranks]
        turn = int(telemetry.generator("reset").integers(len(with_ranks)))
        self.reset = with_ranks[turn]
        """The NIC whose counters begin again."""

    def _nics(self) -> list[Nic]:
        ranks_of: dict[tuple[str, int], list[int]] = {}
        by_key: dict[tuple[str, int], int] = {}
        for rank in self.t.ranks:
            key = (self.t.host_name(rank), self.t.rail(rank))
            ranks_of.setdefault(key, []).append(rank)
            by_key[key] = self.top.host_index(rank)
        rails = self.top.gpus_per_host
        nics = []
        for (machine, index), ranks in ranks_of.items():
            host_index = by_key[machine, index]
            pod, place = divmod(host_index, self.top.hosts_per_pod)
            leaf = f"leaf{pod * rails + index + 1:02d}"
            nics.append(Nic(machine, index, host_index, tuple(ranks), leaf, f"Ethernet{4 * place}"))
        return nics

    def job_toml(self) -> list[str]:
        """Lines that say where ports lead, as who wired the cluster knows."""
        lines = []
        for nic in self.nics:
            rank = [f"rank = {nic.ranks[0]}"] if len(nic.ranks) == 1 else []
            where = [f'host = "{nic.machine}"', *rank]
            for node, port in (
                (nic.leaf, nic.port),
                (nic.machine, f"mlx5_{nic.index}/1"),
                (nic.machine, f"eth{nic.index}"),
            ):
                lines += ["", "[[port]]", f'node = "{node}"', f'port = "{port}"', *where]
                if node == nic.leaf:
                    lines.append(f'nic = "mlx5_{nic.index}"')
        for leaf in self.leaves:
            for k in range(UPLINKS):
                lines += ["", "[[port]]", f'node = "{leaf}"', f'port = "{_uplink(k)}"',
                          f'host = "spine{k + 1:02d}"']  # fmt: skip
        return lines

    @property
    def leaves(self) -> list[str]:
        """Leaf switches that the job's NICs hang on."""
        return sorted({n.leaf for n in self.nics})

    def write(self, output: Path) -> None:
        """All files."""
        for leaf in self.leaves:
            self._switch(output, leaf, self._leaf_ports(leaf))
        for k in range(UPLINKS):
            self._switch(output, f"spine{k + 1:02d}", self._spine_ports(k))
        for machine in dict.fromkeys(n.machine for n in self.nics):
            self._host(output, machine, [n for n in self.nics if n.machine == machine])

    # --- what a port sees -----------------------------------------------------------------------

    def _of(self, value: str, rank: int) -> Floats:
        """A number of each captured step's health for a rank; 0 where nothing is wrong."""
        return self.t.of_steps(lambda s: float(getattr(s, value).get(rank, 0.0)))

    def _towards(self, nic: Nic, ticks: Floats) -> _Sums:
        """What went to and from a NIC, summed over its ranks, as its cable carries it."""
        act = self.t.activity
        sums = _Sums(len(ticks))
        rng = self.t.generator("pauses", nic.leaf, nic.port)
        usual = USUAL_PAUSE_RATIO * float(rng.uniform(0.7, 1.3))
        for rank in nic.ranks:
            sums.got += act.grown("rx", rank, ticks) * HEADERS_RATIO
            sums.sent += act.grown("tx", rank, ticks) * HEADERS_RATIO
            sums.lost += act.grown("lost", rank, ticks, self._of("loss_per_timeout", rank))
            sums.timeouts += act.grown("lost", rank, ticks)
            sums.pausing_us += (
                act.grown("wire", rank, ticks, usual + self._of("pausing", rank)) / 1e3
            )
            sums.paused_us += act.grown("wire", rank, ticks, usual + self._of("paused", rank)) / 1e3
            packets = HEADERS_RATIO / PACKET_BYTES
            marked = USUAL_MARK_RATIO + self._of("marked", rank)
            sums.marked += act.grown("rx", rank, ticks, marked) * packets
            damage = self._of("damage_ratio", rank)
            sums.damaged += act.grown("rx", rank, ticks, damage) * packets
            sums.damaged_out += act.grown("tx", rank, ticks, damage) * packets
            sums.stalls += act.grown("wire", rank, ticks, self._of("stalls_per_s", rank)) / 1e9
            sums.foreign += act.time_grown(ticks, self._of("foreign_bytes_per_s", rank)) / 1e9
        return sums

    def _leaf_ports(self, leaf: str) -> dict[str, _Readings]:
        ticks = self.t.ticks("switch", leaf)
        ports: dict[str, _Readings] = {}
        nics = [n for n in self.nics if n.leaf == leaf]
        for nic in nics:
            queue = [
                max((s.queue_bytes.get(r, 0.0) for r in nic.ranks), default=0.0)
                for s in self.t.health
            ]
            sums = self._towards(nic, ticks)
            ports[nic.port] = self._port(leaf, nic.port, ticks, sums, np.array(queue))
        rng = self.t.generator("strangers", leaf)
        for k in range(STRANGERS):
            name = f"Ethernet{128 + 4 * k}"
            ports[name] = self._port(leaf, name, ticks, self._stranger(ticks, rng))
        for k in range(UPLINKS):
            ports[_uplink(k)] = self._port(leaf, _uplink(k), ticks, self._rising(leaf, k, ticks))
        return ports

    def _rising(self, leaf: str, uplink: int, ticks: Floats) -> _Sums:
        """What a leaf sends up one uplink; as much comes down it."""
        sums = _Sums(len(ticks))
        shares = self._shares(leaf)
        for nic in self.nics:
            if nic.leaf == leaf:
                for rank in nic.ranks:
                    sums.sent += self.t.activity.grown("spine", rank, ticks, shares[uplink])
        sums.sent *= HEADERS_RATIO
        rng = self.t.generator("background", leaf, uplink)
        sums.sent += np.cumsum(rng.exponential(2e5 * self.t.interval_s, len(ticks)))
        sums.got += sums.sent
        # A leaf's uplink is at the other end: what rises is what the port sends.
        sums.marked += sums.sent / PACKET_BYTES * USUAL_MARK_RATIO
        return sums

    def _shares(self, leaf: str) -> list[Floats]:
        """Of each uplink in each captured step: what hashing gives it of a leaf's flows."""
        rng = self.t.generator("hash", leaf)
        even = np.clip(rng.normal(1 / UPLINKS, 0.02, UPLINKS), 0.15, 0.35)
        even = even / even.sum()
        ranks = {r for n in self.nics if n.leaf == leaf for r in n.ranks}
        alone = np.array([even[0] + even[1], 0.0, *even[2:]])
        rows = [alone if s.colliding & ranks else even for s in self.t.health]
        return list(np.array(rows).T)

    def _spine_ports(self, uplink: int) -> dict[str, _Readings]:
        name = f"spine{uplink + 1:02d}"
        ticks = self.t.ticks("switch", name)
        ports = {}
        for i, leaf in enumerate(self.leaves):
            below = self._rising(leaf, uplink, ticks)
            below.sent, below.got = below.got, below.sent
            ports[f"Ethernet{4 * i}"] = self._port(name, f"Ethernet{4 * i}", ticks, below)
        return ports

    def _stranger(self, ticks: Floats, rng: np.random.Generator) -> _Sums:
        """A port of another job: busy in its own rhythm, with its own little troubles."""
        sums = _Sums(len(ticks))
        period = rng.uniform(5, 40)
        wave = 1 + np.sin(ticks / 1e9 / period * 2 * np.pi + rng.uniform(0, 6))
        rate = 4e9 * rng.random() * wave * self.t.interval_s
        sums.got += np.cumsum(rate)
        sums.sent += np.cumsum(rate * 0.9)
        busy_us = sums.got / self.top.nic_bytes_per_s * 1e6
        sums.pausing_us += busy_us * USUAL_PAUSE_RATIO
        sums.paused_us += busy_us * USUAL_PAUSE_RATIO
        sums.marked += sums.got / PACKET_BYTES * USUAL_MARK_RATIO
        sums.lost += sums.got / PACKET_BYTES * 2e-6
        return sums

    # --- switches -------------------------------------------------------------------------------

    def _port(
        self, node: str, port: str, ticks: Floats, sums: _Sums, queue: Floats | None = None
    ) -> _Readings:
        """The fields of a port, its lossless queue and its best-effort queue."""
        rng = self.t.generator("port", node, port)
        base = rng.integers(10**9, 10**14, 4).astype(float)
        old = rng.integers(0, 400, 3).astype(float)
        at = self.t.activity.step_at(ticks)
        depth = np.zeros(len(ticks)) if queue is None else np.where(at >= 0, queue[at], 0.0)
        level = depth * rng.uniform(0.8, 1.0, len(ticks)) + rng.uniform(3e4, 9e4, len(ticks))
        busy = np.where(at >= 0, level, 0.0)
        packets_out, packets_in = sums.got / PACKET_BYTES, sums.sent / PACKET_BYTES
        other = sums.foreign / PACKET_BYTES
        return _Readings(
            {
                "IF_IN_OCTETS": whole(sums.sent, base[0]),
                "IF_OUT_OCTETS": whole(sums.got + sums.foreign, base[1]),
                "IF_IN_UCAST_PKTS": whole(packets_in, np.floor(base[0] / PACKET_BYTES)),
                "IF_OUT_UCAST_PKTS": whole(packets_out + other, np.floor(base[1] / PACKET_BYTES)),
                "IF_IN_DISCARDS": whole(np.zeros(len(ticks)), old[0]),
                "IF_OUT_DISCARDS": whole(sums.lost, old[1]),
                "IF_IN_ERRORS": whole(sums.damaged_out, old[2]),
                "IF_OUT_ERRORS": whole(np.zeros(len(ticks))),
                "IF_IN_FEC_CORRECTABLE_FRAMES": whole(packets_in * 1e-3, base[2] / 1e6),
                "IF_IN_FEC_NOT_CORRECTABLE_FRAMES": whole(sums.damaged_out, old[2]),
                f"PFC_{LOSSLESS}_RX_PKTS": whole(sums.pausing_us / FRAME_US, base[3] / 1e9),
                f"PFC_{LOSSLESS}_TX_PKTS": whole(sums.paused_us / FRAME_US, base[3] / 2e9),
                f"PFC_{LOSSLESS}_RX_PAUSE_DURATION_US": whole(sums.pausing_us, base[3] / 1e8),
                f"PFC_{LOSSLESS}_TX_PAUSE_DURATION_US": whole(sums.paused_us, base[3] / 2e8),
                f"{LOSSLESS}:PACKETS": whole(packets_out, base[1] / PACKET_BYTES / 2),
                f"{LOSSLESS}:BYTES": whole(sums.got, base[1] / 2),
                f"{LOSSLESS}:DROPPED_PACKETS": whole(sums.lost, old[1]),
                f"{LOSSLESS}:WRED_ECN_MARKED_PACKETS": whole(sums.marked, base[3] / 1e7),
                f"{BEST_EFFORT}:PACKETS": whole(other, base[2] / PACKET_BYTES),
                f"{BEST_EFFORT}:BYTES": whole(sums.foreign, base[2]),
                f"{BEST_EFFORT}:DROPPED_PACKETS": whole(np.zeros(len(ticks)), old[0]),
            },
            {f"{LOSSLESS}:SHARED_WATERMARK_BYTES": whole(busy)},
        )

    def _switch(self, output: Path, node: str, ports: dict[str, _Readings]) -> None:
        """A dump of the database every interval, one a line."""
        ticks = self.t.ticks("switch", node)
        names = list(ports)
        oid = {n: f"oid:0x10000000{i + 2:05x}" for i, n in enumerate(names)}
        queues = {
            f"{n}:{q}": f"oid:0x15000000{8 * i + q:05x}"
            for i, n in enumerate(names)
            for q in (BEST_EFFORT, LOSSLESS)
        }
        with (output / f"{node}.counters_db.json").open("w", encoding="ascii") as file:
            for i, stamp in enumerate(self.t.stamps(ticks)):
                when = stamp / 1e9

                def entry(value: dict[str, str], when: float = when) -> dict[str, object]:
                    return {"type": "hash", "ttl": -1, "expireat": round(when, 6), "value": value}

                document: dict[str, object] = {
                    "COUNTERS_PORT_NAME_MAP": entry(oid),
                    "COUNTERS_QUEUE_NAME_MAP": entry(queues),
                }
                for name in names:
                    readings = ports[name]
                    all_fields = {**readings.counted, **readings.levels}
                    document[f"COUNTERS:{oid[name]}"] = entry(
                        {
                            f"SAI_PORT_STAT_{f}": str(v[i])
                            for f, v in all_fields.items()
                            if ":" not in f
                        }
                    )
                    for queue in (BEST_EFFORT, LOSSLESS):
                        document[f"COUNTERS:{queues[f'{name}:{queue}']}"] = entry(
                            {
                                f"SAI_QUEUE_STAT_{f.partition(':')[2]}": str(v[i])
                                for f, v in all_fields.items()
                                if f.startswith(f"{queue}:")
                            }
                        )
                file.write(json.dumps(document, separators=(",", ":")) + "\n")

    # --- hosts ----------------------------------------------------------------------------------

    def _host(self, output: Path, machine: str, nics: list[Nic]) -> None:
        folder = self.t.folder(output, machine)
        host = self.top.host(nics[0].ranks[0])
        ticks = self.t.ticks("nic", machine)
        stamps = self.t.stamps(ticks, host)
        dumps = {n.index: self._nic(n, ticks) for n in nics}
        for nic in nics:
            with (folder / f"ethtool.eth{nic.index}.txt").open("w", encoding="ascii") as file:
                file.writelines(_ethtool(stamps, dumps[nic.index]))
        with (folder / "sysfs_ib.txt").open("w", encoding="ascii") as file:
            for i, stamp in enumerate(stamps):
                file.write(f"{stamp / 1e9:.6f}\n")
                for nic in nics:
                    file.writelines(self._sysfs(nic, dumps[nic.index], i))

    def _nic(self, nic: Nic, ticks: Floats) -> dict[str, list[int]]:
        """What a NIC counts, by name; sysfs names stand behind a slash."""
        rng = self.t.generator("nic", nic.machine, nic.index)
        base = rng.integers(10**9, 10**14, 4).astype(float)
        sums = self._towards(nic, ticks)
        before = self._sender_to(nic)
        caused = self._towards(before, ticks) if before is not None else _Sums(len(ticks))
        rail = [n for n in self.nics if n.index == nic.index]
        notices = np.mean([self._towards(n, ticks).marked for n in rail], axis=0) * 0.5
        in_, out = sums.got + sums.foreign, sums.sent
        packets_in, packets_out = in_ / PACKET_BYTES, out / PACKET_BYTES
        counters = {
            "rx_packets_phy": whole(packets_in, base[0] / PACKET_BYTES),
            "tx_packets_phy": whole(packets_out, base[1] / PACKET_BYTES),
            "rx_bytes_phy": whole(in_, base[0]),
            "tx_bytes_phy": whole(out, base[1]),
            "rx_discards_phy": whole(np.zeros(len(ticks))),
            "rx_out_of_buffer": whole(np.zeros(len(ticks)), base[3] % 90),
            "rx_crc_errors_phy": whole(sums.damaged, base[3] % 7),
            "rx_symbol_err_phy": whole(sums.damaged, base[3] % 5),
            "link_down_events_phy": whole(np.zeros(len(ticks)), base[3] % 3),
            "rx_prio3_pause": whole(sums.paused_us / FRAME_US, base[2] / 1e9),
            "rx_prio3_pause_duration": whole(sums.paused_us, base[2] / 1e8),
            "tx_prio3_pause": whole(sums.pausing_us / FRAME_US, base[2] / 3e9),
            "tx_prio3_pause_duration": whole(sums.pausing_us, base[2] / 3e8),
            "rx_prio3_bytes": whole(sums.got, base[0] / 2),
            "rx_prio0_bytes": whole(sums.foreign, base[0] / 4),
            "outbound_pci_stalled_wr_events": whole(sums.stalls, base[3] % 11),
            "outbound_pci_buffer_overflow": whole(np.zeros(len(ticks))),
            "counters/port_xmit_data": whole(out / 4, base[1] / 4),
            "counters/port_rcv_data": whole(in_ / 4, base[0] / 4),
            "counters/port_xmit_packets": whole(packets_out, base[1] / PACKET_BYTES),
            "counters/port_rcv_packets": whole(packets_in, base[0] / PACKET_BYTES),
            "counters/symbol_error": whole(np.minimum(sums.damaged, 65_535.0)),
            "counters/link_downed": whole(np.zeros(len(ticks)), base[3] % 3),
            "hw_counters/np_ecn_marked_roce_packets": whole(sums.marked, base[3] / 1e8),
            "hw_counters/np_cnp_sent": whole(sums.marked * 0.5, base[3] / 2e8),
            "hw_counters/rp_cnp_handled": whole(notices, base[3] / 2e8),
            "hw_counters/rp_cnp_ignored": whole(np.zeros(len(ticks))),
            "hw_counters/out_of_sequence": whole(sums.lost, base[3] % 50),
            "hw_counters/packet_seq_err": whole(caused.lost * 0.9, base[3] % 40),
            "hw_counters/local_ack_timeout_err": whole(caused.timeouts, base[3] % 4),
            "hw_counters/roce_adp_retrans": whole(caused.timeouts * 2, base[3] % 9),
            "hw_counters/rx_icrc_encapsulated": whole(sums.damaged, 0.0),
            "hw_counters/lifespan": [10] * len(ticks),
        }
        if "counter-reset" in self.t.decoys and nic == self.reset:
            self._begin_again(counters, ticks)
        return counters

    def _sender_to(self, nic: Nic) -> Nic | None:
        """The NIC to which this one sends in a ring: what is lost there, this one sends again."""
        rail = [n for n in self.nics if n.index == nic.index]
        return rail[(rail.index(nic) + 1) % len(rail)] if len(rail) > 1 else None

    def _begin_again(self, counters: dict[str, list[int]], ticks: Floats) -> None:
        """A driver that was reloaded, some time after the captured steps."""
        rng = self.t.generator("reset", "when")
        last_ns = self.t.activity.ends_ns[-1]
        at = int(np.searchsorted(ticks, last_ns + rng.uniform(*RESET_S) * 1e9))
        for name, values in counters.items():
            if name != "hw_counters/lifespan" and at < len(values):
                start = values[at]
                values[at:] = [v - start for v in values[at:]]

    def _sysfs(self, nic: Nic, counted: dict[str, list[int]], i: int) -> Iterator[str]:
        root = f"/sys/class/infiniband/mlx5_{nic.index}/ports/1"
        ratio = min(s.speed_ratio.get(r, 1.0) for s in self.t.health for r in nic.ranks)
        lanes = max(1, round(4 * ratio))
        gbits = self.top.nic_bytes_per_s * 8e-9 * lanes / 4
        yield f"{root}/rate:{gbits:g} Gb/sec ({lanes}X NDR)\n"
        yield f"{root}/state:4: ACTIVE\n"
        for name, values in counted.items():
            if "/" in name:
                yield f"{root}/{name}:{values[i]}\n"


class _Sums:
    """What a port's cable carried up to each tick, and what happened to it."""

    def __init__(self, count: int) -> None:
        self.got: Floats = np.zeros(count)
        """Bytes towards the host (or, of an uplink, down it)."""
        self.sent: Floats = np.zeros(count)
        self.lost: Floats = np.zeros(count)
        """Packets, on the way to the host."""
        self.timeouts: Floats = np.zeros(count)
        self.pausing_us: Floats = np.zeros(count)
        """That the host asked of the switch."""
        self.paused_us: Floats = np.zeros(count)
        """That the switch asked of the host."""
        self.marked: Floats = np.zeros(count)
        self.damaged: Floats = np.zeros(count)
        self.damaged_out: Floats = np.zeros(count)
        """By the cable, from the host."""
        self.stalls: Floats = np.zeros(count)
        self.foreign: Floats = np.zeros(count)
        """Bytes of the other class, towards the host."""


def _ethtool(stamps: list[int], counted: dict[str, list[int]]) -> Iterator[str]:
    for i, stamp in enumerate(stamps):
        yield f"{stamp / 1e9:.6f}\nNIC statistics:\n"
        for name, values in counted.items():
            if "/" not in name:
                yield f"     {name}: {values[i]}\n"


def _uplink(number: int) -> str:
    return f"Ethernet{256 + 4 * number}"
