"""What job.toml may say of the columns of a table, and which ingestor then reads it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from tracekit.ingest.base import Recognition, SourceFile
from tracekit.ingest.counters import device_table, fields, gpu_table, net_table
from tracekit.ingest.counters.device_headers import column_of
from tracekit.ingest.counters.device_samples import Column
from tracekit.ingest.counters.gpu_words import GPU
from tracekit.ingest.counters.net_words import NET, is_word
from tracekit.ingest.counters.table import unit_of


class UnknownColumnError(ValueError):
    """job.toml names a counter or a unit that there is not."""

    def __init__(self, message: str, key: str, hint: str) -> None:
        super().__init__(message)
        self.key = key
        self.hint = hint


def is_network(columns: Mapping[str, str]) -> bool:
    """Whether the columns are those of network counters: a port or a counter of one says so."""
    return any(k in net_table.OWN_ROLES or (is_word(k) and k not in GPU) for k in columns)


def is_of_devices(columns: Mapping[str, str]) -> bool:
    """Whether keys are counters of numbered devices, as headers name them (``gpu0_power_w``)."""
    known = {*gpu_table.TABLE.roles, *net_table.TABLE.roles, *GPU}
    return any(
        key not in known and not is_word(key) and isinstance(column_of(0, key), Column)
        for key in columns
    )


def check_columns(columns: Mapping[str, str]) -> None:
    """Refuse what job.toml may not say of columns. Raises UnknownColumnError."""
    if is_of_devices(columns):
        for key in columns:
            if key not in device_table.ROLES and isinstance(why := column_of(0, key), str):
                raise UnknownColumnError(
                    f"columns: {key[:80]!r} is no counter of a device: {why}",
                    key,
                    "as headers name them: gpu0_power_w, ib3_tx_bytes_s; time and host are parts",
                )
        return
    roles = {*gpu_table.TABLE.roles, *net_table.TABLE.roles}
    known = [*gpu_table.TABLE.roles, *net_table.OWN_ROLES, *GPU, *NET]
    for key in columns:
        if key not in known:
            close = difflib.get_close_matches(key[:60].lower(), known, n=1, cutoff=0.5)
            parts = ", ".join(dict.fromkeys((*gpu_table.TABLE.roles, *net_table.TABLE.roles)))
            raise UnknownColumnError(
                f"columns: {key[:80]!r} is no counter and no part of a table",
                key,
                f"did you mean {close[0]}?"
                if close
                else f"parts: {parts}; counters: docs/counters.md",
            )
    of_network = is_network(columns)
    theirs = net_table.TABLE.roles if of_network else gpu_table.TABLE.roles
    for key, text in columns.items():
        if key in theirs:
            continue
        if key in roles or is_word(key) != of_network:
            raise UnknownColumnError(
                f"columns: {key} is of a GPU, the others are of a network",
                key,
                "one table holds counters of GPUs or of ports; split the file",
            )
        unit = unit_of(text)
        try:
            if of_network:
                net_table.counter_of(key, unit, text)
            else:
                fields.of_counter(key, unit, text)
        except ValueError as error:
            raise UnknownColumnError(
                f"columns: {key} is not measured in {unit!r}", key, f"its units: {error}"
            ) from None


def recognise_mapped(source: SourceFile, head: bytes) -> Recognition | None:
    """What a file is whose columns job.toml explains; None where it explains none."""
    if not source.columns:
        return None
    if is_of_devices(dict(source.columns)):
        return device_table.recognise(source, head)
    if is_network(dict(source.columns)):
        return net_table.recognise(source, head)
    return gpu_table.recognise(source, head)
