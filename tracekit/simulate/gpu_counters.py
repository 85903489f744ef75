"""Writes what GPUs count: scrapes of dcgm-exporter, nvidia-smi's tables, XIDs in kernel logs.

One scrape file a host; every fourth host has no exporter and keeps a table of nvidia-smi instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from msgspec import Struct

from tracekit.simulate import health as h
from tracekit.simulate.activity import Floats
from tracekit.simulate.noise import generator
from tracekit.simulate.telemetry import CAPTURE, Telemetry, whole

BUSY_HZ, IDLE_HZ, MEMORY_HZ = 1.98e9, 345e6, 2.619e9
LIMIT_WATTS, IDLE_WATTS = 700.0, 112.0
WARMING_S = 12.0
"""Time in which a GPU gets to within a third of the temperature that its load asks for."""
SMI_ZONE_HOURS = 2
"""nvidia-smi prints the hosts' local time, which is this far ahead of UTC."""
SMI_ZONE = f"+{SMI_ZONE_HOURS:02d}:00"
_MIB = 1 << 20


def uuid_of(seed: int, rank: int) -> str:
    """The UUID of a rank's GPU."""
    text = generator(seed, "uuid", rank).bytes(16).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def pci_of(local: int) -> str:
    """The PCI address of a host's GPU, as NCCL's log has it too."""
    return f"00000000:{0x17 + 0x11 * local:02X}:00.0"


def has_exporter(host_index: int) -> bool:
    """Whether a host runs dcgm-exporter; the others keep a table of nvidia-smi."""
    return host_index % 4 != 3


class _Gpu(Struct):
    """One GPU's series, at each tick."""

    gauges: dict[str, Floats]
    counted: dict[str, list[int]]


class GpuCounters:
    """The counters of all GPUs of a job."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.t = telemetry
        self.top = telemetry.plan.topology
        rng = telemetry.generator("latched")
        self.latched = int(rng.integers(len(telemetry.ranks)))
        """The GPU that still shows an XID of last week."""

    def write(self, output: Path) -> None:
        """All files."""
        for host in self.top.hosts:
            ranks = self.top.ranks_of_host(host)
            ticks = self.t.ticks("gpu", host)
            gpus = {r: self._series(r, ticks) for r in ranks}
            stamps = self.t.stamps(ticks, host)
            if has_exporter(self.top.host_index(ranks[0])):
                with (output / f"dcgm.{host}.prom").open("w", encoding="ascii") as file:
                    file.writelines(self._scrapes(host, stamps, gpus))
            else:
                path = self.t.folder(output, host) / "nvidia-smi.csv"
                with path.open("w", encoding="ascii") as file:
                    file.writelines(self._table(stamps, gpus))
            lines = list(self._kernel_log(host, ranks))
            if lines:
                (self.t.folder(output, host) / "xid.log").write_text("".join(lines))

    # --- what a GPU does ------------------------------------------------------------------------

    def _series(self, rank: int, ticks: Floats) -> _Gpu:
        t, act = self.t, self.t.activity
        rng = t.generator("gpu", rank)
        count = len(ticks)
        at = act.step_at(ticks)
        is_on = at >= 0
        spans = np.diff(ticks, prepend=ticks[0] - t.interval_s * 1e9)

        def share(kind: str) -> Floats:
            grown = act.grown(kind, rank, ticks)
            shares: Floats = np.clip(np.diff(grown, prepend=grown[0]) / spans, 0.0, 1.0)
            return shares

        def now(values: Floats, outside: float = 0.0) -> Floats:
            return np.where(is_on, values[np.maximum(at, 0)], outside)

        compute, talk = share("compute"), share("talk")
        slowness = t.of_steps(lambda s: s.slowness.get(rank, 1.0))
        held = t.of_steps(lambda s: s.held.get(rank, 0.0))
        bits = t.of_steps(lambda s: s.reasons.get(rank, 0))
        other = now(t.of_steps(lambda s: s.neighbour.get(rank, 0.0)))
        # A reading of clock and reasons is a moment: held down, or not.
        is_held = is_on & (rng.random(count) < now(held))
        usual = BUSY_HZ - 15e6 * rng.integers(0, 6, count)
        clock = np.where(is_held, usual / now(slowness, 1.0), usual)
        reasons = np.where(is_on, h.POWER_CAP, h.IDLE) | np.where(is_held, now(bits), 0).astype(int)
        work = np.clip(compute + other, 0.0, 1.0)
        speed = 1.0 / (1.0 + now(held) * (now(slowness, 1.0) - 1.0))
        load = np.minimum(1.0, 1.05 * work + 0.35 * np.minimum(talk, 1 - work)) * speed
        power = IDLE_WATTS + (LIMIT_WATTS - IDLE_WATTS) * load + rng.normal(0, 4, count)
        target = 31.0 + 30.0 * load + now(t.of_steps(lambda s: s.heat_celsius.get(rank, 0.0)))
        place = float(rng.normal(0, 1.2))
        heat = _slowly(target, spans / 1e9) + place + rng.normal(0, 0.3, count)
        nvlink = act.grown("nvlink", rank, ticks)
        rate = np.diff(nvlink, prepend=nvlink[0]) / spans * 1e9
        wire = act.grown("tx", rank, ticks)
        pcie = np.diff(wire, prepend=wire[0]) / spans * 1e9 + is_on * 2e7
        width = now(t.of_steps(lambda s: s.pcie_width.get(rank, 16)), 16)
        used = np.where(is_on, 61_400.0 + 400 * float(rng.random()), 620.0) * _MIB
        gauges = {
            "sm_clock": np.where(is_on, clock, IDLE_HZ),
            "memory_clock": np.full(count, MEMORY_HZ),
            "reasons": reasons.astype(float),
            "temperature": np.round(heat),
            "memory_temperature": np.round(heat + 7),
            "power": power,
            "utilisation": np.where(is_on, 1.0, 0.0) * np.minimum(1.0, np.maximum(0.97, work)),
            "sm_active": np.clip(0.92 * work + 0.08 * np.minimum(talk, 1 - work), 0, 1),
            "tensor_active": np.clip(0.55 * compute / now(slowness, 1.0), 0, 1),
            "dram_active": np.clip(0.35 * work, 0, 1),
            "memory_used": used + np.where(other > 0, 8_200.0 * _MIB, 0.0),
            "processes": np.where(is_on, 1.0, 0.0) + (other > 0),
            "nvlink_tx": rate,
            "pcie_tx": pcie,
            "pcie_width": width,
            "xid": now(
                t.of_steps(lambda s: float(s.xids.get(rank, (0,))[-1])),
                outside=0.0,
            ),
            "remap_pending": now(t.of_steps(lambda s: float(63 in s.xids.get(rank, ())))),
        }
        gauges["xid"] = np.maximum.accumulate(gauges["xid"])  # the last one stays
        if "latched-xid" in t.decoys and rank == self.latched:
            gauges["xid"] = np.where(gauges["xid"] > 0, gauges["xid"], 31.0)
        return _Gpu(gauges, self._counted(rank, ticks, gauges, held, bits, rng))

    def _counted(
        self, rank: int, ticks: Floats, gauges: dict[str, Floats], held: Floats, bits: Floats,
        rng: np.random.Generator,
    ) -> dict[str, list[int]]:  # fmt: skip
        t, act = self.t, self.t.activity
        base = rng.integers(10**6, 10**9, 6)

        def of(mask: int) -> Floats:
            return act.time_grown(ticks, held * ((bits.astype(int) & mask) != 0))

        ones = np.ones(len(t.health))
        at_cap = act.time_grown(ticks, 0.9 * ones)
        errors = t.of_steps(lambda s: s.nvlink_errors_per_s.get(rank, 0.0))
        replays = t.of_steps(lambda s: 6.0 if rank in s.pcie_width else 0.0)
        # What happened stays counted; the first repetition of a step counts.
        failed = [i for i, s in enumerate(t.health) if s.memory_errors.get(rank)]
        memory = np.zeros(len(ticks))
        if failed:
            since = min(act.onset_ns(i) for i in failed)
            memory[ticks >= max(since, 0.0)] = t.health[failed[0]].memory_errors[rank]
        spans = np.diff(ticks, prepend=ticks[0]) / 1e9
        energy_mj = np.cumsum(gauges["power"] * spans * 1e3)
        damaged = act.time_grown(ticks, errors) / 1e9
        return {
            "energy": whole(energy_mj, float(base[0]) * 1e3),
            "power_violation": whole(at_cap, float(base[1])),
            "sw_power_cap": whole(at_cap, float(base[1])),
            "thermal_violation": whole(of(h.SOFTWARE_HEAT | h.HARDWARE_HEAT), 0.0),
            "sw_thermal": whole(of(h.SOFTWARE_HEAT), 0.0),
            "hw_thermal": whole(of(h.HARDWARE_HEAT), 0.0),
            "brake": whole(of(h.BRAKE), 0.0),
            "nvlink_replays": whole(damaged, float(base[2] % 40)),
            "nvlink_recoveries": whole(damaged / 900.0, 0.0),
            "pcie_replays": whole(act.time_grown(ticks, replays) / 1e9, float(base[3] % 9)),
            "ecc_sbe": whole(np.zeros(len(ticks)), float(base[4] % 30)),
            "ecc_dbe": whole(memory, 0.0),
        }

    # --- files ----------------------------------------------------------------------------------

    def _scrapes(self, host: str, stamps: list[int], gpus: dict[int, _Gpu]) -> Iterator[str]:
        labels = {
            r: (
                f'gpu="{self.t.local(r)}",UUID="{uuid_of(self.t.plan.seed, r)}",'
                f'pci_bus_id="{pci_of(self.t.local(r))}",device="nvidia{self.t.local(r)}",'
                f'modelName="{self.top.gpu.name}",Hostname="{host}"'
            )
            for r in gpus
        }
        for i, stamp in enumerate(stamps):
            for name, kind, key, unit, form in _FIELDS:
                if i == 0:
                    yield f"# HELP {name} {key.replace('_', ' ')}\n# TYPE {name} {kind}\n"
                for rank, gpu in gpus.items():
                    value = gpu.gauges[key][i] / unit if key in gpu.gauges else gpu.counted[key][i]
                    yield f"{name}{{{labels[rank]}}} {value:{form}} {stamp // 1_000_000}\n"

    def _table(self, stamps: list[int], gpus: dict[int, _Gpu]) -> Iterator[str]:
        yield (
            "timestamp, index, uuid, pci.bus_id, name, clocks.current.sm [MHz], "
            "clocks.current.memory [MHz], temperature.gpu, power.draw [W], power.limit [W], "
            "utilization.gpu [%], memory.used [MiB], memory.total [MiB], "
            "pcie.link.gen.current, pcie.link.gen.max, pcie.link.width.current, "
            "pcie.link.width.max, clocks_event_reasons.active, "
            "ecc.errors.corrected.volatile.total, ecc.errors.uncorrected.volatile.total\n"
        )
        for i, stamp in enumerate(stamps):
            when = datetime.fromtimestamp(stamp // 10**9, UTC) + timedelta(hours=SMI_ZONE_HOURS)
            text = f"{when:%Y/%m/%d %H:%M:%S}.{stamp // 10**6 % 1000:03d}"
            for rank, gpu in gpus.items():
                g = {name: float(values[i]) for name, values in gpu.gauges.items()}
                local = self.t.local(rank)
                yield (
                    f"{text}, {local}, {uuid_of(self.t.plan.seed, rank)}, {pci_of(local)}, "
                    f"{self.top.gpu.name}, {g['sm_clock'] / 1e6:.0f} MHz, "
                    f"{g['memory_clock'] / 1e6:.0f} MHz, {g['temperature']:.0f}, "
                    f"{g['power']:.2f} W, {LIMIT_WATTS:.2f} W, {g['utilisation'] * 100:.0f} %, "
                    f"{g['memory_used'] / _MIB:.0f} MiB, {self.top.gpu.memory_bytes // _MIB} MiB, "
                    f"5, 5, {g['pcie_width']:.0f}, 16, 0x{int(g['reasons']):016x}, "
                    f"{gpu.counted['ecc_sbe'][i]}, {gpu.counted['ecc_dbe'][i]}\n"
                )

    def _kernel_log(self, host: str, ranks: list[int]) -> Iterator[str]:
        """Lines of ``journalctl -k -o short-iso``: an old XID that harms nobody, and new ones."""
        clock = self.t.clocks[host]

        def line(true_ns: float, rank: int, xid: int, text: str) -> str:
            stamp = self.t.epoch_ns + clock.read(int(true_ns))
            when = datetime.fromtimestamp(stamp // 10**9, UTC)
            bus = f"PCI:0000:{0x17 + 0x11 * self.t.local(rank):02x}:00"
            return (
                f"{when:%Y-%m-%dT%H:%M:%S}+00:00 {host} kernel: NVRM: Xid ({bus}): {xid}, "
                f"pid={20_000 + rank}, name=python, {text}\n"
            )

        if "latched-xid" in self.t.decoys and self.latched in ranks:
            week_ns = -6.4 * 86_400e9
            yield line(week_ns, self.latched, 31, "Ch 00000018, MMU Fault: ENGINE GRAPHICS")
        for rank in ranks:
            events = [i for i, s in enumerate(self.t.health) if rank in s.xids]
            if not events:
                continue
            onset = max(0.0, min(self.t.activity.onset_ns(i) for i in events))
            for turn, xid in enumerate(self.t.health[events[0]].xids[rank]):
                yield line(onset + turn * 1.1e9, rank, xid, _XID_TEXTS[xid])


def gpu_job_toml(telemetry: Telemetry, *, is_known: bool) -> list[str]:
    """What a user would say of the GPUs: nvidia-smi's zone, and whose GPU is whose.

    ``is_known``: NCCL's logs tell the ranks' PCI addresses, so nobody need say them again.
    """
    top = telemetry.plan.topology
    lines = []
    for index, host in enumerate(top.hosts):
        if not has_exporter(index):
            path = f"{CAPTURE}/{host}/nvidia-smi.csv"
            lines += ["", "[[source]]", f'path = "{path}"', f'host = "{host}"',
                      f'timezone = "{SMI_ZONE}"']  # fmt: skip
    if not is_known:
        for rank in telemetry.ranks:
            uuid = uuid_of(telemetry.plan.seed, rank)
            lines += ["", "[[rank]]", f"rank = {rank}", f'device = "{uuid}"']
    return lines


def _slowly(target: Floats, spans_s: Floats) -> Floats:
    """A temperature that follows what the load asks for."""
    values = np.empty(len(target))
    value = float(target[0])
    for i, wanted in enumerate(target):
        value += (float(wanted) - value) * (1 - np.exp(-float(spans_s[i]) / WARMING_S))
        values[i] = value
    return values


_XID_TEXTS = {
    48: "DBE (double bit error) ECC error detected at address 0x0000001e",
    63: "Row Remapper: new row marked for remapping, reset gpu to activate",
    74: "NVLink: fatal error detected on link 3",
}

# Name, type, series, what it is divided by, and how it is printed.
_FIELDS: tuple[tuple[str, str, str, float, str], ...] = (
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "sm_clock", 1e6, ".0f"),
    ("DCGM_FI_DEV_MEM_CLOCK", "gauge", "memory_clock", 1e6, ".0f"),
    ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gauge", "reasons", 1.0, ".0f"),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "temperature", 1.0, ".0f"),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "memory_temperature", 1.0, ".0f"),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "power", 1.0, ".3f"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "energy", 1.0, "d"),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "utilisation", 0.01, ".0f"),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", "xid", 1.0, ".0f"),
    ("DCGM_FI_DEV_FB_USED", "gauge", "memory_used", float(_MIB), ".0f"),
    ("DCGM_FI_DEV_PCIE_LINK_WIDTH", "gauge", "pcie_width", 1.0, ".0f"),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "pcie_replays", 1.0, "d"),
    ("DCGM_FI_DEV_POWER_VIOLATION", "counter", "power_violation", 1.0, "d"),
    ("DCGM_FI_DEV_THERMAL_VIOLATION", "counter", "thermal_violation", 1.0, "d"),
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", "counter", "sw_power_cap", 1.0, "d"),
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", "counter", "sw_thermal", 1.0, "d"),
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", "counter", "hw_thermal", 1.0, "d"),
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", "counter", "brake", 1.0, "d"),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "ecc_sbe", 1.0, "d"),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "ecc_dbe", 1.0, "d"),
    ("DCGM_FI_DEV_ROW_REMAP_PENDING", "gauge", "remap_pending", 1.0, ".0f"),
    ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "counter", "nvlink_replays", 1.0, "d"),
    ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "counter", "nvlink_recoveries", 1.0, "d"),
    ("DCGM_FI_PROF_SM_ACTIVE", "gauge", "sm_active", 1.0, ".6f"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "tensor_active", 1.0, ".6f"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "dram_active", 1.0, ".6f"),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "pcie_tx", 1.0, ".0f"),
    ("DCGM_FI_PROF_NVLINK_TX_BYTES", "gauge", "nvlink_tx", 1.0, ".0f"),
)
