"""A lake by where it is: in a folder, or in an object store."""

from __future__ import annotations

import os
from pathlib import Path

from tracekit.fleet.lake import Lake
from tracekit.fleet.lake import make_lake as make_local
from tracekit.fleet.object_lake import ObjectLake, make_object_lake
from tracekit.objects import is_uri

AnyLake = Lake | ObjectLake


def lake_at(root: str | Path) -> AnyLake:
    """The lake of that root. StoreError where there is none."""
    return ObjectLake(str(root)) if is_uri(root) else Lake(root)


def make_lake(root: str | Path) -> AnyLake:
    """The same, made where nothing is there yet. StoreError where something else is."""
    return make_object_lake(os.fspath(root)) if is_uri(root) else make_local(root)
