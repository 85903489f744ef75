"""A run that lies in an object store, copied into the cache: whole, or not at all."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from tracekit import cache
from tracekit.errors import DamagedRunError, StoreError
from tracekit.objects import Objects
from tracekit.store import damage
from tracekit.store.manifest import Manifest, load, manifests_dir, mark, work_path

_GENERATION = re.compile(r"manifests/(\d+)\.json")


def latest_number(run: Objects) -> int:
    """The highest generation of a run; 0 where there is none."""
    numbered = (_GENERATION.fullmatch(name) for name in run.sizes("manifests"))
    return max((int(match[1]) for match in numbered if match), default=0)


def manifest_of(run: Objects) -> Manifest | None:
    """The latest generation of a run, or None where there is no run."""
    number = latest_number(run)
    name = manifest_name(number)
    said = run.read(name) if number else None
    if said is None:
        return None
    return Manifest.from_json(said.decode("utf-8", "replace"), f"{run.uri}/{name}")


def manifest_name(generation: int) -> str:
    """Where a generation's manifest lies in its run."""
    return f"manifests/{generation:06d}.json"


def copied(run: Objects, manifest: Manifest, folder: Path) -> None:
    """Copy a generation of a run into a folder, the manifest last.

    DamagedRunError where an object is not what the manifest says, even when read once more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark(folder)
    sizes = {f.path: f.file_bytes for f in manifest.files}
    left = {n: size for n, size in sizes.items() if _size(folder / n) != size}
    run.download(left, folder)
    try:
        damage.verify(folder, manifest.files)
    except DamagedRunError:
        run.download(sizes, folder)
        try:
            damage.verify(folder, manifest.files)
        except DamagedRunError as error:
            inside = error.message.removeprefix(f"{folder}/")
            raise DamagedRunError(
                f"{run.uri}/{inside}", hint="remove the run, and ingest its sources again"
            ) from None
    draft = work_path(folder)
    draft.parent.mkdir(exist_ok=True)
    draft.write_text(manifest.to_json(), encoding="utf-8")
    manifests_dir(folder).mkdir(exist_ok=True)
    draft.replace(folder / manifest_name(manifest.generation))
    with contextlib.suppress(OSError):
        draft.parent.rmdir()


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def fetched(uri: str) -> Path:
    """The folder of the cache that holds the latest generation of a run.

    StoreError where there is no run, or the store cannot be read.
    """
    run = Objects(uri)
    manifest = manifest_of(run)
    if manifest is None:
        raise StoreError(
            f"{run.uri}: not a run (no manifest)",
            hint="tracekit lake ls LAKE names the runs of a lake; of raw files make one with "
            "tracekit ingest PATH --lake LAKE, from where they are files",
        )
    folder = cache.run_folder([(run.uri, manifest.generation, 0)], manifest.key, "fetched")
    if not cache.is_kept(folder) or not _is_whole(folder):
        folder = cache.make_folder(folder)
        copied(run, manifest, folder)
        cache.trim()
    cache.touch(folder)
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether what an earlier command copied is still what it was."""
    try:
        manifest = load(folder)
        if manifest is not None:
            damage.verify_if_small(folder, manifest.files)
    except StoreError:
        cache.drop(folder)
        return False
    return manifest is not None
