"""What the fields of DCGM and nvidia-smi are: by number, by old and renamed names, by column.

DCGM renamed hundreds of fields in 2026 and keeps the old names as aliases; exporters print
either. The number of a field never changed, so it is what a sample remembers (``original_name``).
Numbers and names are those of dcgm_fields.h; nvidia-smi's are those of ``--help-query-gpu``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from tracekit.ingest.counters.gpu_words import GPU
from tracekit.ingest.counters.table import unit_of, without_unit
from tracekit.ingest.counters.units import MEMORY, SIZES, Sizes, with_slash
from tracekit.ingest.counters.vocabulary import Meaning


def gpu_meaning(counter: str, scale: float = 1.0, original: str | None = None) -> Meaning:
    """A counter of GPUs; one that is no canonical name is a gauge without a unit."""
    if counter in GPU:
        return GPU.meaning(counter, scale, original)
    return Meaning(counter, None, "gauge", scale, original)


# Number, canonical name, scale, dmon's short name, names (the old one first).
_DCGM = """
100 sm_clock 1e6 SMCLK DEV_SM_CLOCK
101 memory_clock 1e6 MMCLK DEV_MEM_CLOCK
112 clock_event_reasons 1 DVCCTR DEV_CLOCK_THROTTLE_REASONS DEV_CLOCKS_EVENT_REASONS
113 sm_clock_max 1e6 SMMAX DEV_MAX_SM_CLOCK
140 memory_temperature 1 MMTMP DEV_MEMORY_TEMP DEV_MEMORY_TEMP_CELSIUS
150 gpu_temperature 1 TMPTR DEV_GPU_TEMP DEV_GPU_TEMP_CELSIUS
155 power 1 POWER DEV_POWER_USAGE DEV_BOARD_POWER_WATTS
156 energy 1 TOTEC DEV_TOTAL_ENERGY_CONSUMPTION
158 gpu_slowdown_temperature 1 SDTMP DEV_SLOWDOWN_TEMP DEV_GPU_TEMP_SLOWDOWN_CELSIUS
163 power_limit_default 1 PMDEF DEV_POWER_MGMT_LIMIT_DEF DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS
164 power_limit 1 EPLMT DEV_ENFORCED_POWER_LIMIT DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS
190 performance_state 1 PSTAT DEV_PSTATE DEV_GPU_PSTATE
191 fan_speed 0.01 FANSP DEV_FAN_SPEED
200 pcie_tx 1e3 TXTPT DEV_PCIE_TX_THROUGHPUT
201 pcie_rx 1e3 RXTPT DEV_PCIE_RX_THROUGHPUT
202 pcie_replays 1 RPCTR DEV_PCIE_REPLAY_COUNTER DEV_PCIE_REPLAY_TOTAL
203 gpu_utilisation 0.01 GPUTL DEV_GPU_UTIL DEV_GPU_UTIL_RATIO
204 memory_copy_utilisation 0.01 MCUTL DEV_MEM_COPY_UTIL
230 xid 1 XIDER DEV_XID_ERRORS DEV_XID_ERROR
235 pcie_generation_max 1 PCIMG DEV_PCIE_MAX_LINK_GEN
236 pcie_width_max 1 PCIMW DEV_PCIE_MAX_LINK_WIDTH
237 pcie_generation 1 PCILG DEV_PCIE_LINK_GEN
238 pcie_width 1 PCILW DEV_PCIE_LINK_WIDTH
240 power_violation 1 PVIOL DEV_POWER_VIOLATION
241 thermal_violation 1 TVIOL DEV_THERMAL_VIOLATION
242 sync_boost_violation 1 SBVIO DEV_SYNC_BOOST_VIOLATION
243 board_limit_violation 1 BLVIO DEV_BOARD_LIMIT_VIOLATION
244 low_utilisation_violation 1 LUVIO DEV_LOW_UTIL_VIOLATION
245 reliability_violation 1 RVIOL DEV_RELIABILITY_VIOLATION
250 memory_total 1048576 FBTTL DEV_FB_TOTAL
251 memory_free 1048576 FBFRE DEV_FB_FREE
252 memory_used 1048576 FBUSD DEV_FB_USED
254 memory_used_ratio 1 FBUSP DEV_FB_USED_PERCENT DEV_FB_USED_RATIO
310 ecc_sbe_volatile 1 ESVTL DEV_ECC_SBE_VOL_TOTAL
311 ecc_dbe_volatile 1 EDVTL DEV_ECC_DBE_VOL_TOTAL
312 ecc_sbe_aggregate 1 ESATL DEV_ECC_SBE_AGG_TOTAL
313 ecc_dbe_aggregate 1 EDATL DEV_ECC_DBE_AGG_TOTAL
390 retired_pages_sbe 1 RPSBE DEV_RETIRED_SBE DEV_PAGE_RETIRED_SBE_TOTAL
391 retired_pages_dbe 1 RPDBE DEV_RETIRED_DBE DEV_PAGE_RETIRED_DBE_TOTAL
392 retired_pages_pending 1 RPPEN DEV_RETIRED_PENDING DEV_PAGE_RETIRED_PENDING
393 remapped_rows_uncorrectable 1 URMPS DEV_UNCORRECTABLE_REMAPPED_ROWS DEV_ROW_REMAP_UNCORRECTABLE_TOTAL
394 remapped_rows_correctable 1 CRMPS DEV_CORRECTABLE_REMAPPED_ROWS DEV_ROW_REMAP_CORRECTABLE_TOTAL
395 row_remap_failure 1 RRF DEV_ROW_REMAP_FAILURE DEV_ROW_REMAP_FAILED
396 row_remap_pending 1 RRP DEV_ROW_REMAP_PENDING
409 nvlink_crc_flit_errors 1 NFELT DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL DEV_NVLINK_CRC_FLIT_ERROR_TOTAL
419 nvlink_crc_data_errors 1 NDELT DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL DEV_NVLINK_CRC_DATA_ERROR_TOTAL
429 nvlink_replays 1 NRELT DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL DEV_NVLINK_REPLAY_ERROR_TOTAL
439 nvlink_recoveries 1 NRCLT DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL DEV_NVLINK_RECOVERY_ERROR_TOTAL
449 nvlink_throughput 1e6 NBWLT DEV_NVLINK_BANDWIDTH_TOTAL DEV_NVLINK_THROUGHPUT_TOTAL
1001 graphics_active 1 GRACT PROF_GR_ENGINE_ACTIVE PROF_GR_ENGINE_UTIL_RATIO
1002 sm_active 1 SMACT PROF_SM_ACTIVE PROF_SM_UTIL_RATIO
1003 sm_occupancy 1 SMOCC PROF_SM_OCCUPANCY PROF_SM_OCCUPANCY_RATIO
1004 tensor_active 1 TENSO PROF_PIPE_TENSOR_ACTIVE PROF_TENSOR_UTIL_RATIO
1005 dram_active 1 DRAMA PROF_DRAM_ACTIVE PROF_DRAM_UTIL_RATIO
1006 fp64_active 1 FP64A PROF_PIPE_FP64_ACTIVE PROF_FP64_UTIL_RATIO
1007 fp32_active 1 FP32A PROF_PIPE_FP32_ACTIVE PROF_FP32_UTIL_RATIO
1008 fp16_active 1 FP16A PROF_PIPE_FP16_ACTIVE PROF_FP16_UTIL_RATIO
1009 pcie_tx 1 PCITX PROF_PCIE_TX_BYTES
1010 pcie_rx 1 PCIRX PROF_PCIE_RX_BYTES
1011 nvlink_tx 1 NVLTX PROF_NVLINK_TX_BYTES
1012 nvlink_rx 1 NVLRX PROF_NVLINK_RX_BYTES
1206 nvlink_link_errors 1 NLRCVE DEV_NVLINK_COUNT_RX_ERRORS DEV_NVLINK_RX_ERROR_TOTAL
1212 nvlink_link_failures 1 NLLRF DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS DEV_NVLINK_RECOVERY_FAILED_TOTAL
1213 nvlink_recoveries 1 NLLR DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS DEV_NVLINK_RECOVERY_EVENT_TOTAL
1420 sw_power_cap_time 1 CLKPCNS DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS
1421 sync_boost_time 1 CLKBSTNS DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS
1422 sw_thermal_time 1 CLKSWTHNS DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS
1423 hw_thermal_time 1 CLKHWTHNS DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS
1424 hw_power_brake_time 1 CLKEPBSNS DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS
"""  # noqa: E501  # a table: one field a line
_DCGM_V1 = {
    "dcgm_sm_clock": 100,
    "dcgm_memory_clock": 101,
    "dcgm_memory_temp": 140,
    "dcgm_gpu_temp": 150,
    "dcgm_power_usage": 155,
    "dcgm_total_energy_consumption": 156,
    "dcgm_pcie_tx_throughput": 200,
    "dcgm_pcie_rx_throughput": 201,
    "dcgm_pcie_replay_counter": 202,
    "dcgm_gpu_utilization": 203,
    "dcgm_mem_copy_utilization": 204,
    "dcgm_xid_errors": 230,
    "dcgm_power_violation": 240,
    "dcgm_thermal_violation": 241,
    "dcgm_fb_free": 251,
    "dcgm_fb_used": 252,
    "dcgm_ecc_sbe_volatile_total": 310,
    "dcgm_ecc_dbe_volatile_total": 311,
}
"""Names of the first exporter, which a few clusters still run."""

REASONS = {
    "gpu_idle": "gpu_idle",
    "applications_clocks_setting": "clocks_setting",
    "sw_power_cap": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_power_brake_slowdown": "hw_power_brake",
    "sw_thermal_slowdown": "sw_thermal",
    "sync_boost": "sync_boost",
}
"""nvidia-smi's names of single reasons, and those of their counters here."""

# nvidia-smi's query name and the canonical one; units are read from the column or the value.
_SMI = """
fan.speed fan_speed
pstate performance_state
clocks_event_reasons.active clock_event_reasons
clocks_event_reasons_counters.sw_power_cap sw_power_cap_time
clocks_event_reasons_counters.sync_boost sync_boost_time
clocks_event_reasons_counters.sw_thermal_slowdown sw_thermal_time
clocks_event_reasons_counters.hw_thermal_slowdown hw_thermal_time
clocks_event_reasons_counters.hw_power_brake_slowdown hw_power_brake_time
memory.total memory_total
memory.used memory_used
memory.free memory_free
utilization.gpu gpu_utilisation
utilization.memory memory_copy_utilisation
ecc.errors.corrected.volatile.total ecc_sbe_volatile
ecc.errors.corrected.aggregate.total ecc_sbe_aggregate
ecc.errors.uncorrected.volatile.total ecc_dbe_volatile
ecc.errors.uncorrected.aggregate.total ecc_dbe_aggregate
retired_pages.single_bit_ecc.count retired_pages_sbe
retired_pages.double_bit.count retired_pages_dbe
retired_pages.pending retired_pages_pending
remapped_rows.correctable remapped_rows_correctable
remapped_rows.uncorrectable remapped_rows_uncorrectable
remapped_rows.pending row_remap_pending
remapped_rows.failure row_remap_failure
temperature.gpu gpu_temperature
temperature.memory memory_temperature
power.draw power
power.draw.instant power
power.draw.average power
enforced.power.limit power_limit
power.limit power_limit
power.default_limit power_limit_default
clocks.current.sm sm_clock
clocks.sm sm_clock
clocks.current.memory memory_clock
clocks.mem memory_clock
clocks.max.sm sm_clock_max
pcie.link.gen.current pcie_generation
pcie.link.gen.gpucurrent pcie_generation
pcie.link.gen.max pcie_generation_max
pcie.link.width.current pcie_width
pcie.link.width.max pcie_width_max
"""

_SMI_DMON = {
    "pwr": "power",
    "gtemp": "gpu_temperature",
    "temp": "gpu_temperature",
    "mtemp": "memory_temperature",
    "sm": "gpu_utilisation",
    "mem": "memory_copy_utilisation",
    "mclk": "memory_clock",
    "pclk": "sm_clock",
    "pviol": None,  # percent of time at the limit: a share, not a time
    "tviol": None,
    "fb": "memory_used",
    "sbecc": "ecc_sbe_aggregate",
    "dbecc": "ecc_dbe_aggregate",
    "pci": "pcie_replays",
    "rxpci": "pcie_rx",
    "txpci": "pcie_tx",
    "smutil": "sm_active",
    "smocc": "sm_occupancy",
    "tensor": "tensor_active",
    "anyten": "tensor_active",
    "gract": "graphics_active",
    "grutil": "graphics_active",
    "dram": "dram_active",
    "drambw": "dram_active",
    "fp64": "fp64_active",
    "fp32": "fp32_active",
    "fp16": "fp16_active",
    "pcitx": "pcie_tx",
    "pcirx": "pcie_rx",
    "nvltx": "nvlink_tx",
    "nvlrx": "nvlink_rx",
}

# Words that authors give to columns, without their unit.
_COLUMNS = {
    "temperature": "gpu_temperature",
    "temp": "gpu_temperature",
    "temperaturegpu": "gpu_temperature",
    "temperaturememory": "memory_temperature",
    "gputemperature": "gpu_temperature",
    "gputemp": "gpu_temperature",
    "gpucoretemperature": "gpu_temperature",
    "memorytemperature": "memory_temperature",
    "memorytemp": "memory_temperature",
    "hbmtemp": "memory_temperature",
    "power": "power",
    "powerdraw": "power",
    "powerusage": "power",
    "gpupower": "power",
    "powerlimit": "power_limit",
    "utilization": "gpu_utilisation",
    "utilizationgpu": "gpu_utilisation",
    "gpuutil": "gpu_utilisation",
    "gpuutilization": "gpu_utilisation",
    "util": "gpu_utilisation",
    "utilizationmemory": "memory_copy_utilisation",
    "smactive": "sm_active",
    "smact": "sm_active",
    "smoccupancy": "sm_occupancy",
    "tensoractive": "tensor_active",
    "dramactive": "dram_active",
    "smclock": "sm_clock",
    "gpufrequency": "sm_clock",
    "clocksm": "sm_clock",
    "clockscurrentsm": "sm_clock",
    "clockscurrentmemory": "memory_clock",
    "clockssm": "sm_clock",
    "smclk": "sm_clock",
    "memclock": "memory_clock",
    "clockmem": "memory_clock",
    "clocksmem": "memory_clock",
    "pciereplay": "pcie_replays",
    "pciereplays": "pcie_replays",
    "memoryclock": "memory_clock",
    "memoryused": "memory_used",
    "memused": "memory_used",
    "gpumemoryused": "memory_used",
    "fbused": "memory_used",
    "memorytotal": "memory_total",
    "smclocks": "sm_clock",
    "framebuffermemused": "memory_used",
    "tensorcoreutilization": "tensor_active",
    "throttlereasons": "clock_event_reasons",
    "throttlereason": "clock_event_reasons",
    "clockeventreasons": "clock_event_reasons",
    "pcietx": "pcie_tx",
    "pcierx": "pcie_rx",
    "nvlinktx": "nvlink_tx",
    "nvlinkrx": "nvlink_rx",
    "energy": "energy",
}

_SHORT = {
    "pwr": "power", "pow": "power", "temp": "temperature", "tmp": "temperature",
    "utilisation": "utilization", "mem": "memory",
    "hbm": "memory", "vram": "memory", "clk": "clock", "freq": "clock", "frequency": "clock",
}  # fmt: skip
"""Words in full."""

# What Weights & Biases calls the metrics of a GPU (docs.wandb.ai, "System metrics"): their units
# are known.
_WANDB = {
    "gpu": ("gpu_utilisation", "%"),
    "memory": ("memory_copy_utilisation", "%"),
    "memoryAllocated": ("memory_used_ratio", "%"),
    "memoryAllocatedBytes": ("memory_used", "bytes"),
    "smClock": ("sm_clock", "MHz"),
    "memoryClock": ("memory_clock", "MHz"),
    "enforcedPowerLimitWatts": ("power_limit", "W"),
}


def of_wandb(name: str) -> Meaning | None:
    """A metric of ``system.gpu.N.`` by its last name; None for those that others know as well."""
    meant = _WANDB.get(name)
    return _scaled(*meant, f"wandb {name}") if meant else None


# Columns of ``amd-smi metric --csv`` and ``monitor --csv``, whose cells bear no units.
_AMD_SMI = {
    "gfx_activity": ("gpu_utilisation", "%"),
    "umc_activity": ("memory_copy_utilisation", "%"),
    "socket_power": ("power", "W"),
    "hotspot_temperature": ("gpu_temperature", "C"),
    "mem_temperature": ("memory_temperature", "C"),
    "gfx_clk": ("sm_clock", "MHz"),
    "gfx": ("gpu_utilisation", "%"),
    "gfx_clock": ("sm_clock", "MHz"),
    "mem_clock": ("memory_clock", "MHz"),
    "vram_used": ("memory_used", "MB"),
    "vram_total": ("memory_total", "MB"),
}

_UNITS = ("0..1", "Hz", "W", "degrees Celsius", "bytes", "bytes/s", "ns", "mJ")
"""Of the canonical units of GPUs those that sources write in several sizes."""
_DEFAULT_UNIT = {"0..1": "%", "Hz": "MHz", "bytes": "MiB", "ns": "us", "bytes/s": "MB/s"}
"""What nvidia-smi means where it prints no unit (``nounits``)."""


@cache
def _dcgm() -> tuple[dict[str, Meaning], dict[str, Meaning]]:
    by_name: dict[str, Meaning] = {}
    by_short: dict[str, Meaning] = {}
    by_id: dict[int, Meaning] = {}
    for line in _DCGM.strip().splitlines():
        number, counter, scale, short, *names = line.split()
        meaning = gpu_meaning(counter, float(scale), f"dcgm {number}")
        by_id[int(number)] = meaning
        by_short[short] = meaning
        for name in names:
            by_name[f"DCGM_FI_{name}"] = meaning
    for name, number_v1 in _DCGM_V1.items():
        by_name[name] = by_id[number_v1]
    return by_name, by_short


def of_dcgm(name: str) -> Meaning | None:
    """A metric of dcgm-exporter, by its old or renamed name; None for one that is not mapped."""
    by_name = _dcgm()[0]
    return by_name.get(name) or by_name.get(name.removesuffix("_total"))


def of_dmon_short(short: str) -> Meaning | None:
    """A column of ``dcgmi dmon`` by its short name; older versions cut it to five letters."""
    by_short = _dcgm()[1]
    return by_short.get(short) or by_short.get(short[:5])


@cache
def _smi() -> dict[str, str]:
    names = dict(line.split() for line in _SMI.strip().splitlines())
    for name, event in REASONS.items():
        names[f"clocks_event_reasons.{name}"] = f"clock_event.{event}"
    return names


_REASONS = "clocks_event_reasons"
"""What newer drivers call them."""


def of_smi(name: str, unit: str | None) -> Meaning | None:
    """A field of ``nvidia-smi --query-gpu`` by its query name, and the unit that it prints."""
    name = name.replace("clocks_throttle_reasons", _REASONS)
    counter = _smi().get(name)
    return _scaled(counter, unit, f"nvidia-smi {name}") if counter else None


_EXPORTED = (
    ("_clock_hz", "Hz"), ("_bytes", "bytes"), ("_ratio", "ratio"), ("_watts", "W"), ("", None),
)  # fmt: skip
"""How metrics of nvidia_gpu_exporter end, and the unit that the fields' numbers were turned to."""


_SECOND = frozenset(
    ("power_draw_instant", "power_draw_average", "enforced_power_limit", "clocks_sm", "clocks_mem",
     "pcie_link_gen_gpucurrent")
)  # fmt: skip
"""Fields beside one that means the same: a scrape holds both."""


def of_smi_metric(name: str) -> Meaning | None:
    """A metric of nvidia_gpu_exporter: ``nvidia_smi_`` and a field's name, dots as underscores."""
    said = name.removeprefix("nvidia_smi_").replace("clocks_throttle_reasons", _REASONS)
    for end, unit in _EXPORTED:
        if said.endswith(end) and (counter := _smi_joined().get(said[: len(said) - len(end)])):
            return _scaled(counter, unit, name[:80])
    return None


@cache
def _smi_joined() -> dict[str, str]:
    joined = {field.replace(".", "_"): counter for field, counter in _smi().items()}
    return {name: counter for name, counter in joined.items() if name not in _SECOND}


def of_smi_dmon(name: str, unit: str | None) -> Meaning | None:
    """A column of ``nvidia-smi dmon`` by its name and unit."""
    counter = _SMI_DMON.get(name.lower())
    return _scaled(counter, unit, f"nvidia-smi dmon {name}") if counter else None


def of_column(header: str) -> Meaning | None:
    """A column that somebody named: a DCGM or nvidia-smi name, or words with a unit at the end."""
    header = header.strip()
    name, unit = without_unit(header), unit_of(header)
    if unit is not None and is_of_lost_case(unit):
        return None
    meaning = of_dcgm(name.upper()) or of_dcgm(f"DCGM_FI_{name.upper()}") or of_smi(name, unit)
    if meaning is not None:
        return meaning
    if unit is None and name in _AMD_SMI:
        meant, printed_unit = _AMD_SMI[name]
        return _scaled(meant, printed_unit, f"amd-smi {name}")
    words, said = _words(name)
    counter = counter_of_words(words if unit is None else [*words, said or ""])
    unit = unit or said
    return _scaled(counter, unit, header[:80], is_smi=False) if counter else None


@cache
def _unit_words() -> dict[str, str]:
    return {u.lower(): u for target in _UNITS for u in _sizes(target)}


def _words(name: str) -> tuple[list[str], str | None]:
    """The words of a header, and the unit that stands behind them.

    Where the case of a rate is lost (mbps, MBPS), nobody knows whether it counts bits or bytes: a
    GPU's tools count bytes.
    """
    words = re.split(r"[^A-Za-z0-9%]+", name)
    last = words[-1] if len(words) > 1 else ""
    if (slashed := with_slash(last)) != last:
        return words[:-1], slashed
    unit = None if is_of_lost_case(last) else _unit_words().get(last.lower())
    return words[: -1 if unit is not None else None], unit


def is_of_lost_case(unit: str) -> bool:
    """Whether a unit may be of bits or of bytes, since all its letters are of one case."""
    return re.fullmatch(r"[kmgt]bps|[KMGT]BPS", unit) is not None


def lacks_unit(header: str) -> bool:
    """Whether nothing in a header of plain words says in which unit its numbers are."""
    name = header.strip()
    is_named = of_dcgm(name.upper()) or of_dcgm(f"DCGM_FI_{name.upper()}") or of_smi(name, None)
    return is_named is None and unit_of(name) is None and _words(name)[1] is None


def counter_of_words(words: Sequence[str]) -> str | None:
    """The canonical name that plain words mean, without their unit; None for others."""
    plain = [w.lower() for w in words]
    for said in (plain, [_SHORT.get(w, w) for w in plain]):
        joined = "".join(said)
        if (counter := _COLUMNS.get(joined) or GPU_BY_LETTERS.get(joined)) is not None:
            return counter
    return None


GPU_BY_LETTERS = {name.replace("_", ""): name for name in GPU}
"""Canonical names without underscores."""


def of_counter(counter: str, unit: str | None, header: str) -> Meaning:
    """A column that job.toml names; its unit as said, else as its header ends, else canonical.

    Raises ValueError for a unit that the counter cannot have; the message names those it can.
    """
    sizes = _sizes(GPU[counter].unit)
    if unit is None:
        words = re.split(r"[^A-Za-z0-9%]+", header.strip())
        unit = next((u for u in sizes if u.lower() == words[-1].lower()), None)
    if unit is None or (not sizes and unit == GPU[counter].unit):
        return gpu_meaning(counter, 1.0, header[:80])
    if unit not in sizes:
        raise ValueError(", ".join(sizes) or "no unit")
    return gpu_meaning(counter, float(sizes[unit]), header[:80])


def _scaled(
    counter: str | None, unit: str | None, original: str, *, is_smi: bool = True
) -> Meaning | None:
    if counter is None:
        return None
    target = GPU[counter].unit if counter in GPU else None
    sizes = _sizes(target)
    if not sizes:
        return gpu_meaning(counter, 1.0, original)
    if unit is None:
        usual = _DEFAULT_UNIT.get(target or "")
        scale = float(sizes[usual]) if usual and is_smi else 1.0
        return gpu_meaning(counter, scale, original)
    unit = unit.removeprefix("GPM:")
    return gpu_meaning(counter, float(sizes[unit]), original) if unit in sizes else None


def scale_of(counter: str, unit: str) -> float | None:
    """What turns a number in this unit into the counter's own; None for a strange unit."""
    target = GPU[counter].unit if counter in GPU else None
    size = _sizes(target).get(unit.removeprefix("GPM:"))
    return None if size is None else float(size)


def has_sizes(counter: str) -> bool:
    """Whether sources write a counter in units of several sizes."""
    return counter in GPU and bool(_sizes(GPU[counter].unit))


def _sizes(target: str | None) -> Sizes:
    """Units that can be turned into a counter's."""
    return MEMORY if target == "bytes" else SIZES[target] if target in _UNITS else {}
