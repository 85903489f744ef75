"""The keys beside ``traceEvents``: who wrote the trace, on which devices, as which rank.

Only what is on the allow-list is kept: anyone may add keys to a trace, secrets included.
"""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Struct, field

from tracekit.ingest.kineto.collectives import rank_list
from tracekit.ingest.traces import names

VERSION_KEYS = (
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
    "roctracer_version",
    "hip_runtime_version",
    "hip_driver_version",
    "torch_version",
    "pytorch_version",
    "nccl_version",
)
"""Keys whose values are kept as versions."""

_VERSION = re.compile(r"[0-9][0-9A-Za-z.+\-]{0,31}")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,252}")
_TRACE_ID = re.compile(r"[0-9A-Fa-f\-]{1,64}")
_WORD = re.compile(r"[A-Za-z0-9_:,. \-]{1,64}")
_BASE_KEY = b'"baseTimeNanoseconds"'
_BASE = re.compile(rb'(?<!\\)"baseTimeNanoseconds"\s*:\s*"?(-?\d{1,19})"?')


class PgConfig(Struct):
    """One process group that ``distributedInfo`` lists."""

    name: str | None
    description: str | None
    backend: str | None
    size: int | None
    ranks: tuple[int, ...] | None


class Header(Struct):
    """What is kept of the keys."""

    schema_version: str | None = None
    base_ns: int | None = None
    trace_id: str | None = None
    host_name: str | None = None
    backend: str | None = None
    rank: int | None = None
    world_size: int | None = None
    versions: list[str] = field(default_factory=list)
    groups: list[PgConfig] = field(default_factory=list)
    groups_count: int | None = None
    """How many there are in the process: those that it is no member of are not listed."""
    devices: list[dict[str, Any]] = field(default_factory=list)

    @property
    def only_group(self) -> tuple[int, ...] | None:
        """Global ranks of the only group there is, in its order; None where there may be others."""
        if self.groups_count != 1 or len(self.groups) != 1:
            return None
        ranks = self.groups[0].ranks
        return ranks if ranks is not None and len(ranks) == self.groups[0].size else None


def parse(header: bytes, tail: bytes) -> Header:
    """Facts from the text before and after the events."""
    result = Header()
    before = _keys(header.rstrip(), b"]}")
    after = _keys(b'{"traceEvents":[]' + tail.rstrip().rstrip(b"\0"), b"}") if tail.strip() else {}
    _fill(result, {**before, **after})
    if result.base_ns is None:
        result.base_ns = find_base(header) if header else None
    if result.base_ns is None and tail:
        result.base_ns = find_base(tail)
    return result


def find_base(text: bytes) -> int | None:
    """``baseTimeNanoseconds`` in a stretch of text."""
    base = _BASE.search(text)
    return int(base[1]) if base else None


def last_base(text: bytes) -> int | None:
    """The last ``baseTimeNanoseconds`` in a stretch of text that is not 0."""
    end = len(text)
    while (end := text.rfind(_BASE_KEY, 0, end)) >= 0:  # the pattern alone is fifty times slower
        base = _BASE.match(text, end)
        if base and int(base[1]):
            return int(base[1])
    return None


def _keys(text: bytes, closing: bytes) -> dict[str, Any]:
    if not text or text == b"[":
        return {}
    decoded = text.decode("utf-8", "replace")
    for candidate in (decoded + closing.decode(), decoded, decoded + "}"):
        try:
            value = json.loads(candidate, strict=False)
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, dict) else {}
    return _salvage(decoded)


def _salvage(text: str) -> dict[str, Any]:
    """Values of known keys from text that is no JSON as a whole."""
    known: dict[str, Any] = {}
    decoder = json.JSONDecoder(strict=False)
    for key in (
        "schemaVersion",
        "trace_id",
        "host_name",
        "distributedInfo",
        "deviceProperties",
        *VERSION_KEYS,
    ):
        key_match = re.search(rf'(?<!\\)"{key}"\s*:\s*', text)
        if key_match:
            try:
                known[key] = decoder.raw_decode(text, key_match.end())[0]
            except (ValueError, RecursionError):
                continue
    return known


def _fill(result: Header, keys: dict[str, Any]) -> None:
    version = keys.get("schemaVersion")
    result.schema_version = str(version) if isinstance(version, int) else _match(_WORD, version)
    result.base_ns = _int(keys.get("baseTimeNanoseconds"))
    result.trace_id = _match(_TRACE_ID, keys.get("trace_id"))
    result.host_name = _match(_HOST, keys.get("host_name"))
    info = keys.get("distributedInfo")
    if isinstance(info, dict):
        _fill_distributed(result, info)
        if "nccl_version" in info:
            keys = {**keys, "nccl_version": info["nccl_version"]}
    for key in VERSION_KEYS:
        value = keys.get(key)
        text = str(value) if isinstance(value, int) else value
        if _match(_VERSION, text):
            result.versions.append(f"{key}={text}")
    devices = keys.get("deviceProperties")
    if isinstance(devices, list):
        result.devices = [d for d in devices if isinstance(d, dict)]


def _fill_distributed(result: Header, info: dict[str, Any]) -> None:
    result.backend = _match(_WORD, info.get("backend"))
    result.rank = _int(info.get("rank"))
    if result.rank is not None and not 0 <= result.rank < 2**31:
        result.rank = None
    result.world_size = _int(info.get("world_size"))
    if result.world_size is not None:
        result.world_size = min(max(result.world_size, 0), 2**31 - 1)  # what nobody believes
    result.groups_count = _int(info.get("pg_count"))
    configs = info.get("pg_config")
    if isinstance(configs, str):
        try:
            configs = json.loads(configs)
        except (ValueError, RecursionError):
            configs = None
    for config in configs if isinstance(configs, list) else []:
        if not isinstance(config, dict):
            continue
        ranks = config.get("ranks")
        listed = rank_list(ranks) if isinstance(ranks, str) or _is_ints(ranks) else None
        is_cut = isinstance(ranks, str) and "..." in ranks
        size = _int(config.get("pg_size"))
        if listed is not None and (is_cut or (size is not None and size != len(listed))):
            listed = listed or None
        name = config.get("pg_name", config.get("uid"))
        result.groups.append(
            PgConfig(
                _label(name),
                _label(config.get("pg_desc")),
                _match(_WORD, config.get("backend_config")),
                size if size is not None else (len(listed) if listed and not is_cut else None),
                listed or None,
            )
        )


def _is_ints(value: object) -> bool:
    if not isinstance(value, list) or not {int}.issuperset(map(type, value)):
        return False
    return not value or (min(value) > -(2**31) and max(value) < 2**31)


def _label(value: object) -> str | None:
    if isinstance(value, int):
        return str(value)
    return names.redact(value[:200]) if isinstance(value, str) and value else None


def _int(value: object) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value.strip()):
        value = int(value)
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return value if is_int and abs(value) < 2**63 else None  # type: ignore[return-value,arg-type]


def _match(pattern: re.Pattern[str], value: object) -> str | None:
    return value if isinstance(value, str) and pattern.fullmatch(value) else None
