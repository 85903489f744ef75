"""The script that ``tracekit capture`` prints: it runs anywhere, and writes what is read here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from memory_sink import MemorySink
from msgspec.structs import replace

from tracekit.capture import KINDS, script
from tracekit.errors import UsageError
from tracekit.ingest import files, ingestor, recognise
from tracekit.ingest.base import IngestOptions

SH = shutil.which("sh")
Started = subprocess.Popen[str]
pytestmark = pytest.mark.skipif(SH is None, reason="there is no sh")


def shell(text: str, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PATH": path} if path is not None else {})}
    return subprocess.run(
        [str(SH), "-s", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )


@pytest.fixture(scope="module", autouse=True)
def host_capture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Started]]:
    """A capture of this host and where it goes, begun before the others: it takes real seconds.

    Four, so that a busy machine reads twice as well.
    """
    folder = tmp_path_factory.mktemp("host")
    group = folder / "job"
    group.mkdir()
    (group / "cpu.stat").write_text("nr_periods 100\nnr_throttled 7\nthrottled_time 5000\n")
    text = f"CGROUP={group}\n{script(('host',), seconds=4, interval=1)}"
    (folder / "script").write_text(text)
    with subprocess.Popen(
        [str(SH), str(folder / "script"), str(folder / "out")],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as started:  # fmt: skip
        yield folder / "out", started
        started.terminate()


@pytest.mark.parametrize("what", [c for n in (1, 2, 5) for c in combinations(KINDS, n)])
def test_every_choice_is_a_valid_script(what: tuple[str, ...]) -> None:
    done = subprocess.run(
        [str(SH), "-n"], input=script(what), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_it_runs_where_nothing_is_installed(tmp_path: Path) -> None:
    """A bare host: only the coreutils are there; what is absent is skipped without a word."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("date", "mkdir", "cat", "rm", "sleep", "hostname", "uname", "head", "sed", "tr"):
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    done = shell(script(seconds=1), str(tmp_path / "out"), path=str(tools))
    assert done.returncode == 0
    assert done.stderr.startswith("written: ")
    assert len(done.stderr.splitlines()) == 1
    (host,) = (tmp_path / "out").iterdir()
    names = {p.name for p in host.iterdir()}
    assert {"profile_steps.py", "nccl.env"} <= names
    assert not [p for p in host.iterdir() if p.stat().st_size == 0]


@pytest.mark.slow  # takes the second that it samples
def test_samples_of_interfaces_are_json_with_their_time(tmp_path: Path) -> None:
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command")
    done = shell(script(("nic",), seconds=1), str(tmp_path / "out"))
    assert done.returncode == 0
    (host,) = (tmp_path / "out").iterdir()
    rows = [json.loads(line) for line in (host / "net.jsonl").read_text().splitlines()]
    assert rows
    for row in rows:
        assert row["ts"] > 1.7e9
        assert row["host"] == host.name
        assert all("stats64" in link for link in row["link"])


@pytest.mark.slow  # takes the seconds that it is about
def test_samples_are_taken_for_the_whole_time_however_long_the_rest_took(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin" / "lscpu"  # asked once, before the samples
    slow.write_text("#!/bin/sh\nsleep 1.2\necho CPUs\n")
    slow.chmod(0o755)
    text = f"PATH={tmp_path / 'bin'}:$PATH\n{script(('host',), seconds=1)}"
    assert shell(text, str(tmp_path / "out")).returncode == 0
    (host,) = (tmp_path / "out").iterdir()
    assert (host / "lscpu.txt").read_text() == "CPUs\n"
    assert (host / "storage.txt").stat().st_size or (host / "pressure.txt").stat().st_size


FAKE_SMI = """\
#!/bin/sh
now=$(date '+%Y/%m/%d %H:%M:%S.000')
case "$1" in
--query-gpu*) echo "timestamp, index, uuid, power.draw [W]"; echo "$now, 0, GPU-a, 300.00 W";;
--query-comp*) echo "timestamp, gpu_uuid, pid, process_name"; echo "$now, GPU-a, 7, /bin/py --k";;
-q) echo "<?xml version='1.0'?><nvidia_smi_log><timestamp>$(LC_ALL=C date '+%a %b %d %H:%M:%S %Y')"
    echo "</timestamp><gpu><uuid>GPU-a</uuid><processes/></gpu></nvidia_smi_log>";;
esac
"""


def test_times_of_nvidia_smi_are_utc_wherever_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvidia-smi prints no zone: what is captured in Tokyo needs no job.toml."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(FAKE_SMI)
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("TZ", "JST-9")
    began = time.time()
    done = shell(script(("dcgm",), seconds=1), str(tmp_path / "out"),
                 path=f"{tools}:{os.environ['PATH']}")  # fmt: skip
    assert done.returncode == 0
    (host,) = (tmp_path / "out").iterdir()
    names = {"nvidia-smi.utc.csv", "gpu-processes.utc.csv", "nvidia-smi.utc.xml"}
    assert names <= {p.name for p in host.iterdir()}
    for name in names:
        (source,) = files.expand([host / name])
        found = recognise(source)
        assert found.ingestor is not None
        sink = MemorySink()
        ingestor(found.ingestor).read(source, sink, IngestOptions())
        assert sink.facts["time_basis"] == "epoch"
        assert "local_time" not in sink.counters
        for moment in sink.rows("gpu_sample", "time_ns"):
            assert began - 2 <= moment / 1e9 <= time.time() + 2
        # Under any other name nobody knows the zone.
        plain = replace(source, name=name.replace(".utc", ""))
        ingestor(found.ingestor).read(plain, (other := MemorySink()), IngestOptions())
        assert other.facts["time_basis"] == "local"


def test_what_it_cannot_capture_is_refused() -> None:
    with pytest.raises(UsageError, match="'moon'"):
        script(("nic", "moon"))
    with pytest.raises(UsageError, match="nothing to capture was named"):
        script(())


def test_what_it_takes_of_a_host_is_read(host_capture: tuple[Path, Started]) -> None:
    """Pressure only where the kernel has it; a control group where one is named; disks anywhere."""
    folder, started = host_capture
    _, said = started.communicate(timeout=60)
    assert started.returncode == 0, said
    (host,) = folder.iterdir()
    for name, kind, table in (
        ("pressure.txt", "pressure", "host_sample"),
        ("storage.txt", "storage", "storage_sample"),
    ):
        (source,) = files.expand([host / name])
        assert recognise(source).ingestor == kind
        sink = MemorySink()
        ingestor(kind).read(source, sink, IngestOptions())
        rows = sink.table(table).to_pylist()
        assert len({r["time_ns"] for r in rows}) >= 2
        assert {r["time_source"] for r in rows} == {"content"}
        assert not sink.counters.keys() & {"bad_record", "dump_without_time"}
        if table == "host_sample":
            assert {r["counted"] for r in rows if r["counter"] == "cpu_throttled_periods"} == {7}
