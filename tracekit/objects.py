"""Object stores: what lies below an ``s3://``, ``gs://`` or ``abfs://`` URI, by whole objects.

Through pyarrow.fs, with the credentials of the environment, as the store's own tools take them;
none stands in a URI, and no message repeats what a store answered, which may quote one. What a
connection loses is asked again a few times; after that a StoreError says so. An object is there
whole or not at all, so a cut upload leaves nothing that counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from tracekit.errors import StoreError, UsageError

if TYPE_CHECKING:
    from pyarrow import fs as pafs

T = TypeVar("T")

SCHEMES = ("s3", "gs", "abfs", "abfss")
TRIES = 3
"""Of a whole operation, on top of what the store's own client repeats of a request."""
CLIENT_TRIES = 4
FIRST_WAIT_S = 0.5
CONNECT_S = 10.0
SILENT_S = 30.0
"""After so long without a byte a request is given up."""
AT_ONCE = 8
"""Objects on their way at once: latency, not the processor, is what transfers wait for."""
_CLAIM = b"claimed\n"
_ANSWERS = (
    re.compile(r"AWS Error ([A-Z_]{1,60})(?: \(HTTP status (\d+)\))?"),
    re.compile(r"google::cloud::Status\(([A-Z_]{1,60}):(?:.{0,400}HTTP status code: (\d+))?", re.S),
    re.compile(r"Azure Error: \[([A-Za-z]{0,60})\](?: (\d+))?"),
)
"""What went wrong, and the status of the answer, in the messages of Arrow's three clients."""
_AZURE_ENDPOINT = "AZURE_STORAGE_ENDPOINT"
"""URL of an account that is served elsewhere than by Azure's public cloud, as the library of Delta
Lake reads it too: https://ACCOUNT.blob.example.org or http://127.0.0.1:10000/ACCOUNT."""


def is_uri(path: object) -> bool:
    """Whether it names an object store and no file."""
    return isinstance(path, str) and path.partition("://")[0] in SCHEMES and "://" in path


def local(path: str) -> str:
    """A path, or what a ``file://`` URI names; any other URI as it is."""
    return unquote(path.removeprefix("file://")) if path.startswith("file://") else path


class Objects:
    """What lies below a URI. Names are relative to it, with ``/`` between their parts."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        said = urlsplit(self.uri)
        # Neither is repeated: it may hold a key.
        if (said.username and said.password) or (said.username and said.scheme in ("s3", "gs")):
            raise UsageError(
                f"{said.scheme}://...: a URI may not hold credentials",
                hint="give them in the environment, as the store's own tools take them",
            )
        if said.query or said.fragment or not said.netloc or said.scheme not in SCHEMES:
            raise UsageError(
                f"{said.scheme}://{said.hostname or ''}{said.path}: not the URI of a place in a "
                "store",
                hint=f"one of {', '.join(s + '://' for s in SCHEMES)}, a bucket, and a path",
            )
        if any(part in (".", "..") for part in said.path.split("/")):
            raise UsageError(f"{self.uri}: '.' and '..' mean nothing in a store")
        if "//" in said.path:
            raise UsageError(
                f"{self.uri}: two slashes in a path",
                hint="one: the library that reads stores takes no empty names",
            )
        self._scheme, self._bucket = said.scheme, said.netloc.partition("@")[0]
        self._account = said.netloc.partition("@")[2].partition(".")[0]
        self._root = (self._bucket + said.path).rstrip("/")

    def below(self, name: str) -> Objects:
        """What lies below a name."""
        inner = Objects(f"{self.uri}/{name}")
        if "_fs" in self.__dict__:
            inner.__dict__["_fs"] = self._fs
        return inner

    def check_bucket(self) -> None:
        """StoreError where the store has no bucket of this name; silent where that is unknown."""
        from pyarrow import fs

        where = Objects(self.uri.partition("://")[0] + "://" + urlsplit(self.uri).netloc)
        where.__dict__["_fs"] = self._fs
        with contextlib.suppress(OSError, ValueError):  # who may not ask is told so later
            if self._fs.get_file_info(where._path("")).type == fs.FileType.NotFound:
                raise StoreError(
                    f"{self.uri}: there is no bucket {self._bucket!r}",
                    hint="look at its name and at the endpoint in the environment; tracekit makes "
                    "no buckets",
                )

    @cached_property
    def _fs(self) -> pafs.FileSystem:
        from pyarrow import fs

        if self._scheme == "gs":
            emulator = urlsplit(_gcs_emulator() or "")
            where = {"scheme": emulator.scheme, "endpoint_override": emulator.netloc}
            return fs.GcsFileSystem(
                anonymous=bool(emulator.netloc),
                retry_time_limit=timedelta(seconds=SILENT_S),
                **(where if emulator.netloc else {}),
            )
        if self._scheme in ("abfs", "abfss"):
            key = os.environ.get("AZURE_STORAGE_ACCOUNT_KEY")
            return fs.AzureFileSystem(
                self._azure_account,
                account_key=key,
                sas_token=None if key else os.environ.get("AZURE_STORAGE_SAS_TOKEN"),
                **self._azure_hosts(),
            )
        return fs.S3FileSystem(
            region=self._region,
            endpoint_override=_endpoint(),
            connect_timeout=CONNECT_S,
            request_timeout=SILENT_S,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=CLIENT_TRIES),
        )

    @cached_property
    def _azure_account(self) -> str:
        account = self._account or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        if not account:
            raise UsageError(
                f"{self.uri}: nothing says whose storage account it is in",
                hint="AZURE_STORAGE_ACCOUNT_NAME, or "
                "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
            )
        return account

    def _azure_hosts(self) -> dict[str, str]:
        """Where the account is served, if the environment says so: as ``.blob.example.org`` for
        one whose host begins with the account, or as ``127.0.0.1:10000`` for a path of its own."""
        said = urlsplit(os.environ.get(_AZURE_ENDPOINT, ""))
        if not said.netloc:
            return {}
        own = said.netloc.removeprefix(self._azure_account)
        host = own if own.startswith(".") else said.netloc
        names = ("blob_storage", "dfs_storage")
        return {
            **{f"{name}_authority": host for name in names},
            **{f"{name}_scheme": said.scheme for name in names},
        }

    @cached_property
    def _region(self) -> str:
        named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if named or _endpoint():
            return named or "us-east-1"
        from pyarrow import fs

        return str(self._asked("cannot be found", lambda: fs.resolve_s3_region(self._bucket)))

    @cached_property
    def delta_options(self) -> dict[str, str]:
        """What Delta Lake is told beside the environment that it reads itself: no secret."""
        common = {
            "connect_timeout": f"{CONNECT_S:.0f}s",
            "timeout": f"{SILENT_S:.0f}s",
            "max_retries": str(CLIENT_TRIES),
            "retry_timeout": f"{TRIES * SILENT_S:.0f}s",
        }
        if self._scheme == "gs":
            emulator = _gcs_emulator()
            if emulator is None:
                return common
            # An account of nobody, which is how that library is told to ask for no token.
            nobody = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
            account = {"gcs_base_url": emulator, "disable_oauth": True} | nobody
            return {
                **common,
                "google_service_account_key": json.dumps(account),
                "allow_http": str(emulator.startswith("http:")).lower(),
            }
        if self._scheme != "s3":
            endpoint = os.environ.get(_AZURE_ENDPOINT)
            at = {"azure_storage_account_name": self._azure_account}
            if endpoint:
                at |= {"azure_endpoint": endpoint.rstrip("/")}
                at |= {"allow_http": str(endpoint.startswith("http:")).lower()}
            return {**common, **at}
        options = {**common, "aws_region": self._region}
        if (_endpoint() or "").startswith("http://"):
            options["aws_allow_http"] = "true"
        return options

    def read(self, name: str) -> bytes | None:
        """The bytes of an object; None where there is none."""

        def ask() -> bytes | None:
            try:
                with self._fs.open_input_file(self._path(name)) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

        return self._asked(f"{name}: cannot be read", ask)

    def ranges(self, name: str, size_bytes: int) -> Callable[[int, int], bytes]:
        """Reads a part of an object of that size: from a byte on, so many bytes."""
        opened: list[Any] = []

        def read(start: int, count: int) -> bytes:
            def ask() -> bytes:
                if not opened:
                    opened.append(self._fs.open_input_file(self._path(name)))
                try:
                    if opened[0].size() != size_bytes:
                        raise OSError("of another size than it should be")
                    data = bytes(opened[0].read_at(count, start))
                    if len(data) != count:
                        raise OSError("shorter than it should be")
                except OSError:
                    opened.clear()
                    raise
                return data

            return self._asked(f"{name}: cannot be read", ask)

        return read

    def write(self, name: str, data: bytes) -> None:
        """Let an object be these bytes."""

        def ask() -> None:
            with self._fs.open_output_stream(self._path(name)) as stream:
                stream.write(data)

        self._asked(f"{name}: cannot be written", ask)

    def sizes(self, name: str = "") -> dict[str, int]:
        """Bytes of every object below a name, by its name relative to here."""
        return {name: size for name, (size, _) in self._listed(name).items()}

    def older_than(self, name: str, age_s: float) -> list[str]:
        """Names of the objects below a name that nobody has changed for so long."""
        limit = time.time() - age_s
        return [name for name, (_, changed) in self._listed(name).items() if changed < limit]

    def _listed(self, name: str) -> dict[str, tuple[int, float]]:
        """Bytes and time of change (epoch s, by the store's clock)."""
        from pyarrow import fs

        where = fs.FileSelector(self._path(name), recursive=True, allow_not_found=True)
        infos = self._asked(f"{name}: cannot be listed", lambda: self._fs.get_file_info(where))
        skip = len(self._path("")) + 1
        return {
            f.path[skip:]: (int(f.size), f.mtime_ns / 1e9 if f.mtime_ns else 0.0)
            for f in infos
            if f.type == fs.FileType.File
        }

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; those that are gone are gone."""

        def delete(name: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.delete_file(self._path(name))

        _at_once(
            lambda name: self._asked(f"{name}: cannot be removed", lambda: delete(name)), [*names]
        )

    def remove_empty(self) -> None:
        """Remove the marks of folders that some stores keep, where no object is left."""
        if not self.sizes(""):
            with contextlib.suppress(OSError):
                self._fs.delete_dir(self._path(""))

    def upload(self, folder: Path, names: Iterable[str]) -> None:
        """Copy files of a folder here, under the same names."""
        from pyarrow import fs

        local = fs.LocalFileSystem()

        def copy(name: str) -> None:
            source = str(folder.resolve() / name)
            fs.copy_files(
                source,
                self._path(name),
                source_filesystem=local,
                destination_filesystem=self._fs,
                use_threads=False,
            )

        _at_once(
            lambda name: self._asked(f"{name}: cannot be written", lambda: copy(name)), [*names]
        )

    def download(self, sizes: Mapping[str, int], folder: Path) -> None:
        """Copy objects into a folder, under the same names; each as long as it should be."""
        from pyarrow import fs

        local = fs.LocalFileSystem()

        def fetch(name: str) -> None:
            target = folder.resolve() / name
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
            try:
                fs.copy_files(
                    self._path(name),
                    str(draft),
                    source_filesystem=self._fs,
                    destination_filesystem=local,
                    use_threads=False,
                )
                if draft.stat().st_size != sizes[name]:
                    raise OSError("shorter than it should be")
                draft.replace(target)
            finally:
                draft.unlink(missing_ok=True)

        _at_once(lambda name: self._asked(f"{name}: cannot be read", lambda: fetch(name)), [*sizes])

    @contextmanager
    def claimed(self, name: str, what: str, dead_after_s: float) -> Iterator[Callable[[], bool]]:
        """Hold a name alone; gives what to call now and then, so that others see it is alive.

        That answers whether it is surely held still. Stores share no exclusive creation, but each
        lists what was written before. So everybody writes a claim of their own and then looks, and
        who sees another's that is alive takes their own back: of two that come at once both may
        go, never do both stay. One that nobody renewed for ``dead_after_s`` is a dead process's.
        StoreError, saying ``what`` is going on, where somebody else holds it.
        """
        own_claim = f"{name}/{secrets.token_hex(12)}"
        renewed = time.monotonic()
        self.write(own_claim, _CLAIM)

        def alive() -> bool:
            nonlocal renewed
            silent_s = time.monotonic() - renewed
            if silent_s > dead_after_s / 20:
                self.write(own_claim, _CLAIM)
                renewed = time.monotonic()
            return silent_s < dead_after_s / 2

        try:
            claims = self._listed(name)
            now = claims.get(own_claim, (0, time.time()))[1]  # by the store's clock
            others = {n: at for n, (_, at) in claims.items() if n != own_claim}
            dead = [n for n, at in others.items() if now - at > dead_after_s]
            if len(dead) < len(others):
                age = max(0.0, now - max(others.values()))
                raise StoreError(
                    f"{self.uri}: {what} (alive {age:.0f} s ago)",
                    hint=f"try again; of a killed one that ends after {dead_after_s / 60:.0f} min",
                )
            self.remove(dead)
            yield alive
        finally:
            with contextlib.suppress(StoreError):  # it dies by itself
                self.remove([own_claim])

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _asked(self, failed: str, ask: Callable[[], T]) -> T:
        """What an operation gives, tried again where a connection may be at fault."""
        for tried in range(TRIES):
            try:
                return ask()
            except (OSError, ValueError) as error:
                why, is_final = _told(error)
                if is_final or tried == TRIES - 1:
                    raise StoreError(f"{self.uri}: {failed} ({why})", hint=_HINT) from None
            time.sleep(FIRST_WAIT_S * 2**tried)
        raise AssertionError


_HINT = "try again; else look at the address, the credentials in the environment and their rights"
_FINAL = ("ACCESS_DENIED", "NO_SUCH_BUCKET", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH")
_FINAL_STATUS = ("401", "403")


def _told(error: OSError | ValueError) -> tuple[str, bool]:
    """Why, in words of ours, and whether asking again is in vain."""
    if isinstance(error, FileNotFoundError):
        return "it is not there", True
    answer = next((m for told in _ANSWERS if (m := told.search(str(error)))), None)
    if answer is None:
        return type(error).__name__ if error.args[:1] and len(error.args) == 1 else (
            os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "failed"
        ), isinstance(error, PermissionError)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", answer[1]).lower().replace("_", " ")
    status = answer[2]
    is_final = answer[1] in _FINAL or status in _FINAL_STATUS
    return f"{words}, HTTP {status}" if status else words or "no connection", is_final


def _gcs_emulator() -> str | None:
    """URL of an emulator of Google's store, by the name that Google's clients give it."""
    said = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    return (said if "://" in said else f"http://{said}") if said else None


def _endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _at_once(do: Callable[[str], None], names: list[str]) -> None:
    with ThreadPoolExecutor(min(AT_ONCE, len(names)) or 1, "objects") as pool:
        for done in [pool.submit(do, name) for name in names]:
            done.result()
