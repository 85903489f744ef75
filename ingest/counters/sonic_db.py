"""Dumps of SONiC's COUNTERS_DB: what the switch has counted since it started, never cleared.

Three layouts: keys to fields; keys to ``{"type", "ttl", "expireat", "value"}`` as redis-dump and
sonic-db-dump write them, where ``expireat`` of a key that never expires is the moment of the dump;
and either below ``{"id": "COUNTERS_DB", "data": ...}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile
from tracekit.ingest.counters import times
from tracekit.ingest.counters.documents import documents
from tracekit.ingest.counters.net_samples import Event, NetSamples, decimal, integer, write_events
from tracekit.ingest.counters.net_words import meaning, own
from tracekit.ingest.counters.status import Reading
from tracekit.ingest.counters.vocabulary import Meaning

KIND = "sonic_db"

_KEYS = re.compile(
    rb'"(?:COUNTERS|(?:USER|PERSISTENT|PERIODIC)_WATERMARKS|RATES):oid:0x[0-9a-f]{1,16}"\s*:\s*\{'
    rb'|"COUNTERS_(?:PORT|QUEUE|PG|LAG|RIF)_NAME_MAP"\s*:\s*\{'
)
_PFC = re.compile(r"(?:SAI|EST)_PORT_STAT_PFC_(\d)_(\w{1,60})")
_FEC_BIN = re.compile(r"SAI_PORT_STAT_IF_IN_FEC_CODEWORD_ERRORS_S(\d{1,2})")

_PFC_NAMES = {
    "RX_PKTS": "rx_pfc_packets",
    "TX_PKTS": "tx_pfc_packets",
    "ON2OFF_RX_PKTS": "rx_pfc_transitions",
    "RX_PAUSE_DURATION_US": "rx_pfc_duration",
    "TX_PAUSE_DURATION_US": "tx_pfc_duration",
    "RECENT_PAUSE_TIME_US": "rx_pfc_recent_duration",
}
_PORT_NAMES = {
    "IF_IN_OCTETS": "rx_bytes",
    "IF_IN_UCAST_PKTS": "rx_unicast_packets",
    "IF_IN_NON_UCAST_PKTS": "rx_nonunicast_packets",
    "IF_IN_MULTICAST_PKTS": "rx_multicast_packets",
    "IF_IN_BROADCAST_PKTS": "rx_broadcast_packets",
    "IF_IN_DISCARDS": "rx_dropped_packets",
    "IF_IN_ERRORS": "rx_errors",
    "IF_OUT_OCTETS": "tx_bytes",
    "IF_OUT_UCAST_PKTS": "tx_unicast_packets",
    "IF_OUT_NON_UCAST_PKTS": "tx_nonunicast_packets",
    "IF_OUT_MULTICAST_PKTS": "tx_multicast_packets",
    "IF_OUT_BROADCAST_PKTS": "tx_broadcast_packets",
    "IF_OUT_DISCARDS": "tx_dropped_packets",
    "IF_OUT_ERRORS": "tx_errors",
    "ETHER_RX_OVERSIZE_PKTS": "rx_oversize_packets",
    "ETHER_TX_OVERSIZE_PKTS": "tx_oversize_packets",
    "ETHER_STATS_UNDERSIZE_PKTS": "rx_undersize_packets",
    "PAUSE_RX_PKTS": "rx_pause_packets",
    "PAUSE_TX_PKTS": "tx_pause_packets",
    "IF_IN_FEC_CORRECTABLE_FRAMES": "fec_corrected_codewords",
    "IF_IN_FEC_NOT_CORRECTABLE_FRAMES": "fec_uncorrectable_codewords",
    "IF_IN_FEC_SYMBOL_ERRORS": "fec_symbol_errors",
    "IF_IN_FEC_CORRECTED_BITS": "fec_corrected_bits",
    "TRIM_PACKETS": "trimmed_packets",
    "TX_TRIM_PACKETS": "tx_trimmed_packets",
    "DROPPED_TRIM_PACKETS": "trim_dropped_packets",
}
_QUEUE_NAMES = {
    "PACKETS": "packets",
    "BYTES": "bytes",
    "DROPPED_PACKETS": "dropped_packets",
    "DROPPED_BYTES": "dropped_bytes",
    "WRED_DROPPED_PACKETS": "wred_dropped_packets",
    "WRED_DROPPED_BYTES": "wred_dropped_bytes",
    "WRED_ECN_MARKED_PACKETS": "ecn_marked_packets",
    "WRED_ECN_MARKED_BYTES": "ecn_marked_bytes",
    "TRIM_PACKETS": "trimmed_packets",
    "TX_TRIM_PACKETS": "trim_sent_packets",
    "DROPPED_TRIM_PACKETS": "trim_dropped_packets",
    "CREDIT_WD_DELETED_PACKETS": "credit_deleted_packets",
    "SHARED_WATERMARK_BYTES": "shared_watermark",
    "CURR_OCCUPANCY_BYTES": "depth_bytes",
}
_PG_NAMES = {
    "PACKETS": "rx_pg_packets",
    "BYTES": "rx_pg_bytes",
    "DROPPED_PACKETS": "rx_pg_dropped_packets",
    "SHARED_WATERMARK_BYTES": "rx_pg_shared_watermark",
    "XOFF_ROOM_WATERMARK_BYTES": "rx_pg_headroom_watermark",
}
_POOL_NAMES = {
    "WATERMARK_BYTES": "pool_shared_watermark",
    "XOFF_ROOM_WATERMARK_BYTES": "pool_headroom_watermark",
}
_WATCHDOG = {
    "PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED": "pfcwd_storms_detected",
    "PFC_WD_QUEUE_STATS_DEADLOCK_RESTORED": "pfcwd_storms_restored",
    "PFC_WD_QUEUE_STATS_TX_PACKETS": "pfcwd_tx_packets",
    "PFC_WD_QUEUE_STATS_TX_DROPPED_PACKETS": "pfcwd_tx_dropped_packets",
    "PFC_WD_QUEUE_STATS_RX_PACKETS": "pfcwd_rx_packets",
    "PFC_WD_QUEUE_STATS_RX_DROPPED_PACKETS": "pfcwd_rx_dropped_packets",
    "PFC_WD_QUEUE_STATS_TX_PACKETS_LAST": "pfcwd_tx_packets_last",
    "PFC_WD_QUEUE_STATS_TX_DROPPED_PACKETS_LAST": "pfcwd_tx_dropped_packets_last",
    "PFC_WD_QUEUE_STATS_RX_PACKETS_LAST": "pfcwd_rx_packets_last",
    "PFC_WD_QUEUE_STATS_RX_DROPPED_PACKETS_LAST": "pfcwd_rx_dropped_packets_last",
}
_WATCHDOG_TIMES = {
    "PFC_WD_DETECTION_TIME": "pfcwd_detection_time",
    "PFC_WD_RESTORATION_TIME": "pfcwd_restoration_time",
    "PFC_WD_DETECTION_TIME_LEFT": "pfcwd_detection_time_left",
    "PFC_WD_RESTORATION_TIME_LEFT": "pfcwd_restoration_time_left",
}
_WATCHDOG_SILENT = frozenset(
    {
        "PFC_WD_ACTION",
        "PFC_WD_STATUS",
        "BIG_RED_SWITCH_MODE",
    }
)
_RATES = {
    "RX_BPS": "rx_rate",
    "TX_BPS": "tx_rate",
    "RX_PPS": "rx_packet_rate",
    "TX_PPS": "tx_packet_rate",
    "FEC_PRE_BER": "fec_pre_ber",
    "FEC_POST_BER": "fec_post_ber",
    "FEC_PRE_BER_MAX": "fec_pre_ber_max",
}
_QUEUE_TYPES = {"SAI_QUEUE_TYPE_MULTICAST": "tx_multicast_queue_"}
_MAPS = {
    "COUNTERS_PORT_NAME_MAP": "port",
    "COUNTERS_SYSTEM_PORT_NAME_MAP": "port",
    "COUNTERS_FABRIC_PORT_NAME_MAP": "port",
    "COUNTERS_QUEUE_NAME_MAP": "queue",
    "COUNTERS_FABRIC_QUEUE_NAME_MAP": "queue",
    "COUNTERS_VOQ_NAME_MAP": "voq",
    "COUNTERS_PG_NAME_MAP": "pg",
    "COUNTERS_BUFFER_POOL_NAME_MAP": "pool",
}
_TABLES = {
    "COUNTERS": "",
    "RATES": "",
    "USER_WATERMARKS": "",
    "PERSISTENT_WATERMARKS": "_persistent",
    "PERIODIC_WATERMARKS": "_periodic",
}


def sniff(head: bytes, name: str) -> Recognition | None:
    """Recognise a dump by its keys."""
    if b"COUNTERS" not in head and b"_WATERMARKS:oid" not in head:
        return None
    if _KEYS.search(head):
        return Recognition(KIND, "a dump of SONiC's COUNTERS_DB", KIND)
    return None


class _Owner(NamedTuple):
    """Whose counters an object holds."""

    kind: str
    """port, queue, voq, pg or pool."""
    port: str
    number: int | None
    prefix: str


def read(source: SourceFile, sink: Sink) -> None:
    """Every dump of the file into net_sample; storms and the newest pauses into log_event."""
    with source.open() as stream:
        reading = Reading(sink, stream, "SONiC COUNTERS_DB", "event")
        samples = NetSamples(sink, source)
        dump = _Dump(sink, samples, reading)
        for document in documents(stream):
            if document.problem or not isinstance(document.value, dict):
                reading.bad(document.line, document.problem or "no table of keys")
                continue
            reading.good()
            dump.read(document.value, document.stamp_ns)
        write_events(sink, dump.events)
        dump.finish()
        reading.finish(samples, streams.stream_problem(stream))


class _Dump:
    def __init__(self, sink: Sink, samples: NetSamples, reading: Reading) -> None:
        self.events: list[Event] = []
        self._sink = sink
        self._samples = samples
        self._reading = reading
        self._place = 0
        self._others = 0
        self._unnamed = 0
        self._unnamed_place: int | None = None

    def read(self, document: dict[str, Any], stamp_ns: int | None) -> None:
        data = document.get("data")
        keys = data if isinstance(data, dict) and "id" in document else document
        owners = dict(_owners(keys))
        for key, entry in keys.items():
            self._place += 1
            fields, time_ns = _fields(entry)
            table, _, oid = key.partition(":")
            if fields is None:
                self._others += 1
                continue
            if table not in _TABLES or not oid.startswith("oid:"):
                self._others += table not in _MAPS and not table.endswith("_MAP")
                continue
            owner = owners.get(oid)
            if owner is None:
                self._unowned(fields)
                continue
            self._samples.at(time_ns if time_ns is not None else stamp_ns)
            if table == "RATES":
                self._rates(owner, fields)
            else:
                self._counters(owner, fields, table, time_ns or stamp_ns)

    def finish(self) -> None:
        if self._others:
            self._sink.count(
                "other_object",
                self._others,
                severity="info",
                doc="Objects of the database that count no port, queue, priority group or pool: "
                "not read.",
            )
        if self._unnamed:
            self._sink.count(
                "unnamed_object",
                self._unnamed,
                doc="Counters of a port, queue or group that no name map names: not read.",
                place=self._unnamed_place,
            )

    def _unowned(self, fields: dict[str, Any]) -> None:
        names = ("SAI_PORT_STAT", "SAI_QUEUE_STAT", "SAI_INGRESS_PRIORITY", "SAI_BUFFER_POOL")
        if any(str(f).startswith(names) for f in fields):
            self._unnamed += 1
            self._unnamed_place = self._unnamed_place or self._place
        else:
            self._others += 1

    def _add(
        self,
        owner: _Owner,
        what: Meaning,
        printed: object,
        original: str,
        priority: int | None = None,
        direction: str | None = None,
    ) -> None:
        self._samples.add(
            self._place,
            owner.port,
            what,
            printed,
            original=original,
            priority=priority,
            queue=owner.number,
            direction=direction,
        )

    def _rates(self, owner: _Owner, fields: dict[str, Any]) -> None:
        for name, printed in fields.items():
            what = meaning(_RATES[name]) if name in _RATES else own(name, "gauge")
            self._add(owner, what, printed, f"RATES {name}")

    def _counters(
        self, owner: _Owner, fields: dict[str, Any], table: str, time_ns: int | None
    ) -> None:
        suffix = _TABLES[table]
        has_pauses = False
        for name, stored in fields.items():
            printed = stored
            original = name if table == "COUNTERS" else f"{table} {name}"
            if name in _WATCHDOG_SILENT:
                continue
            if name.endswith("_RECENT_PAUSE_TIMESTAMP"):
                has_pauses = True
                continue
            priority: int | None = None
            if pfc := _PFC.fullmatch(name):
                priority = int(pfc[1])
                known = _PFC_NAMES.get(pfc[2])
                what = meaning(known) if known else own(f"pfc_{pfc[2]}")
            else:
                what = self._meaning(owner, name)
            if what.kind == "watermark" and table != "USER_WATERMARKS":
                # Three maxima of the same thing, each over its own time: never mixed.
                what = what._replace(counter=what.counter + (suffix or "_since_read"))
            if name in _WATCHDOG_TIMES:
                microseconds = decimal(stored)
                printed = None if microseconds is None else microseconds / 1000
            direction = what.direction or _direction(name)
            self._add(owner, what, printed, original, priority, direction)
        if "PFC_WD_STATUS" in fields:
            self._watchdog(owner, fields, time_ns)
        if has_pauses:
            self._newest_pauses(owner, fields)

    def _meaning(self, owner: _Owner, name: str) -> Meaning:
        if owner.kind in ("queue", "voq"):
            if name in _WATCHDOG or name in _WATCHDOG_TIMES:
                return meaning(_WATCHDOG.get(name) or _WATCHDOG_TIMES[name])
            short = name.removeprefix("SAI_QUEUE_STAT_")
            for table in ("USER_", "PERSISTENT_", "PERIODIC_"):
                if short == f"{table}WATERMARK_BYTES":
                    short = "SHARED_WATERMARK_BYTES"
            known = _QUEUE_NAMES.get(short)
            if known:
                return meaning(owner.prefix + known)
            is_level = "WATERMARK" in name or "OCCUPANCY" in name
            return own(name.removeprefix("SAI_"), "gauge" if is_level else "cumulative")
        if owner.kind == "pg":
            known = _PG_NAMES.get(name.removeprefix("SAI_INGRESS_PRIORITY_GROUP_STAT_"))
        elif owner.kind == "pool":
            known = _POOL_NAMES.get(name.removeprefix("SAI_BUFFER_POOL_STAT_"))
        else:
            known = _PORT_NAMES.get(name.removeprefix("SAI_PORT_STAT_"))
            if fec_bin := _FEC_BIN.fullmatch(name):
                return Meaning(f"fec_codewords_with_{fec_bin[1]}_symbol_errors", "count")
        if known:
            return meaning(known)
        is_level = "WATERMARK" in name or "OCCUPANCY" in name or name.endswith("_QLEN")
        return own(name.removeprefix("SAI_"), "gauge" if is_level else "cumulative")

    def _watchdog(self, owner: _Owner, fields: dict[str, Any], time_ns: int | None) -> None:
        status = fields["PFC_WD_STATUS"]
        is_known = status in ("stormed", "operational")
        stormed = int(status == "stormed") if is_known else None
        self._add(owner, meaning("pfcwd_stormed"), stormed, "PFC_WD_STATUS")
        if stormed:
            where = self._samples.where(port=owner.port, queue=owner.number)
            self.events.append(Event(self._place, time_ns, "pfcwd-storm", "error", where))

    def _newest_pauses(self, owner: _Owner, fields: dict[str, Any]) -> None:
        for priority in range(8):
            stem = f"EST_PORT_STAT_PFC_{priority}_RECENT_PAUSE_"
            microseconds = integer(fields.get(f"{stem}TIMESTAMP"))
            if not microseconds:
                continue
            when = microseconds * 1000
            if not times.EARLIEST_NS <= when < times.LATEST_NS or self._samples.is_local:
                continue
            duration = integer(fields.get(f"{stem}TIME_US"))
            details = self._samples.where(port=owner.port, priority=priority, duration_us=duration)
            self.events.append(Event(self._place, when, "pfc-pause", "info", details))


def _fields(entry: Any) -> tuple[dict[str, Any] | None, int | None]:
    """The fields of a key, and when it was read where the layout says so."""
    if not isinstance(entry, dict):
        return None, None
    value = entry.get("value")
    if isinstance(value, dict) and ("ttl" in entry or "type" in entry or "expireat" in entry):
        ttl = decimal(entry.get("ttl"))
        is_lasting = ttl is not None and ttl < 0
        when = times.parse(str(entry["expireat"])) if is_lasting and "expireat" in entry else None
        return value, when
    return entry, None


def _owners(keys: dict[str, Any]) -> Iterator[tuple[str, _Owner]]:
    types, _ = _fields(keys.get("COUNTERS_QUEUE_TYPE_MAP"))
    for map_name, kind in _MAPS.items():
        names, _ = _fields(keys.get(map_name))
        for name, oid in (names or {}).items():
            if not isinstance(oid, str) or not oid.startswith("oid:"):
                continue
            port, _, index = name.rpartition(":")
            if kind in ("port", "pool"):
                yield oid, _Owner(kind, name, None, "")
            elif port and index.isdigit() and len(index) < 6:
                type_ = str((types or {}).get(oid))
                prefix = "voq_" if kind == "voq" else _QUEUE_TYPES.get(type_, "tx_queue_")
                yield oid, _Owner(kind, port, int(index), prefix)


def _direction(name: str) -> str | None:
    words = name.split("_")
    if "IN" in words or "RX" in words or "INGRESS" in words:
        return "rx"
    return "tx" if "OUT" in words or "TX" in words or "QUEUE" in words else None
