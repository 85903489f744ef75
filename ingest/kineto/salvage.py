"""placeholder"""
from __future__ import annotations
from typing import Any
def fragments(text: bytes) -> list[bytes]: return []
def complete(text: bytes) -> bytes | None: return None
def decode(decoder: Any, fragments: Any, place: int, sink: Any) -> Any: raise NotImplementedError
def odd_events(reader: Any, odd: Any) -> Any: return []
