"""job.toml: what is accepted, what is refused and how, merging, writing, matching paths."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soaks import examples
from tracekit.errors import InputError
from tracekit.job import (
    JobDescription,
    PathMatcher,
    is_job_file,
    load_job,
    load_jobs,
    merge_jobs,
    parse_job,
    places,
    said_of,
    to_toml,
)
from tracekit.job.paths import glob_pattern

LAB = sorted(Path(__file__).parents[1].glob("../shared/data/lab/*/job.toml"))

FULL = """
name = "llama-ft"
id = "4711"
world_size = 64
backend = "nccl"
framework = "torchtitan"

[parallelism]
tp = 8
pp = 2
dp = 4
ep = 1
cp = 1
vpp = 2
zero_stage = 1
order = "tp-cp-ep-dp-pp"

[schedule]
kind = "Interleaved1F1B"
microbatches = 8

[model]
layers = 32
hidden = 4096
heads = 32
kv_heads = 8
ffn = 14336
vocabulary = 128256
sequence = 8192
parameters = 8_030_261_248
experts = 8
top_k = 2
dtype = "BFloat16"

[batch]
global = 1024
micro = 1

[hardware]
gpu = "NVIDIA H100 80GB HBM3"
gpus_per_node = 8
nics_per_node = 8
nic_bytes_per_s = 50e9
nvlink_domain = 8
nvlink_bytes_per_s = 450e9
peak_flops_per_s = 989e12
gpu_memory_bytes = 85899345920
sharp = false
rails = 8
oversubscription = 1

[prices]
gpu_hour = 2.5
kilowatt_hour = 0.2
currency = "USD"

[clocks]
shared = false

[[rank]]
rank = 0
host = "gpu-11"
device = "00000000:9a:00.0"
path = "node0/rank0*.json.gz"

[[port]]
node = "leaf1"
port = "Ethernet4"
host = "gpu-11"
rank = 0
nic = "mlx5_0"

[[source]]
path = "switch.csv"
host = "leaf1"
timezone = "Europe/Berlin"
start = 2026-07-21T02:41:07+02:00
interval = 0.25
attempt = 2
columns = { time = "t", power = "P \\"draw\\" [mW]" }
"""


def job(text: str, path: str = "/jobs/a/job.toml") -> JobDescription:
    return parse_job(text.encode(), path)


def refusal(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        job(text)
    assert caught.value.message.startswith("/jobs/a/job.toml: ")
    return caught.value


def test_everything_is_optional() -> None:
    assert job("") == JobDescription(files=("/jobs/a/job.toml",))


def test_every_field_is_read() -> None:
    full = job(FULL)
    assert full.parallelism.order == ("tp", "cp", "ep", "dp", "pp")
    assert full.schedule.kind == "interleaved-1f1b"
    assert full.batch.global_ == 1024
    assert full.hardware.nic_bytes_per_s == 50e9
    assert full.rank[0].base == "/jobs/a"
    assert full.source[0].start is not None
    assert full.source[0].start.isoformat() == "2026-07-21T02:41:07+02:00"
    assert full.source[0].columns == {"time": "t", "power": 'P "draw" [mW]'}


@pytest.mark.skipif(not LAB, reason="the shared samples are not here")
def test_the_lab_descriptions_load() -> None:
    for path in LAB:
        description = load_job(path)
        assert [r.host for r in description.rank] == ["host0", "host1", "host2", "host3"]
        assert description.clocks.shared is True
        assert {p.node for p in description.port} == {"switch"}


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[parallelism]\ntpp = 1", "line 2: [parallelism] unknown key 'tpp'", "did you mean tp?"),
        ("nmae = 'x'", "line 1: unknown key 'nmae'", "did you mean name?"),
        ("tp = 8", "line 1: unknown key 'tp'", "tp belongs in [parallelism]"),
        ("[[rank]]\nrank = 0\nhots = 'a'", "line 3: [[rank]] number 1 unknown key 'hots'", "host?"),
        ("[[rank]]\nrank = 0\nbase = '/'", "unknown key 'base'", "known keys here: rank, host"),
        ("files = []", "unknown key 'files'", "known keys here: name"),
        ("[[rank]]\nhost = 'a'", "rank[0]: missing required field rank", None),
        ("[[rank]]\nrank = '0'", "rank[0].rank: expected int, got str", None),
        ("[[rank]]\nrank = -1", "rank[0].rank: expected int >= 0", None),
        ("[rank]\nrank = 0", "rank: expected a list of tables, [[rank]]", None),
        ("[[model]]\nlayers = 1", "model: expected a table, [model]", None),
        ("rank = [1]", "rank: expected a list of tables", None),
        ("[clocks]\nshared = 1", "clocks.shared: expected bool, got int", None),
        ("[model]\nlayers = 99999999999999999999", "model.layers: expected int <= ", None),
        ("[hardware]\nrails = 0", "hardware.rails: expected int >= 1", None),
        ("[hardware]\nnic_bytes_per_s = inf", "expected a finite number", None),
        ("[prices]\ngpu_hour = nan", "expected a finite number", None),
        ("[schedule]\nkind = 'magic'", "schedule.kind: expected one of gpipe, 1f1b", None),
        ("[parallelism]\norder = 'tp-tp'", "a dimension appears more than once", None),
        ("[parallelism]\norder = 'tp-xx'", "parallelism.order", None),
        ("[[rank]]\nrank = 1\n[[rank]]\nrank = 1", "[[rank]] '1' appears more than once", None),
        ("[[source]]\npath = 'a'\nstart = 2026-01-01T00:00:00", "a time without offset", "end it"),
        ("[[source]]\npath = 'a'\ntimezone = 'Mars/Olympus'", "no known time zone", "an IANA name"),
        ("[[source]]\npath = 'a'\ntimezone = '../../etc/passwd'", "no known time zone", "IANA"),
        ("name = 'x", "not valid TOML", None),
        ("a = " + "[" * 100_000, "longer than", None),
        ("a = " + "[" * 20_000, "not valid TOML: nested", None),
        ("a = [[[[[[[[1]]]]]]]]", "nested deeper than 6 levels", None),
        ("name = 'x'\nname = 'y'", "not valid TOML", None),
        (f"name = '{'x' * 2000}'", "name: expected str of length <= 1024", None),
    ],
)
def test_refusals_name_the_place(text: str, message: str, hint: str | None) -> None:
    error = refusal(text)
    assert message in error.message
    assert hint is None or hint in (error.hint or "")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../other/rank0.json", "leads outside the folder"),
        ("a/../../x", "leads outside the folder"),
        ("a\\\\..\\\\x", "leads outside the folder"),
        ("/etc/passwd", "is absolute"),
        ("C:/traces/x", "is absolute"),
        ("~/x", "is absolute"),
        ("s3://bucket/x", "expected a path relative to the file"),
    ],
)
@pytest.mark.parametrize("table", ["source", "rank"])
def test_paths_stay_in_the_folder(table: str, path: str, message: str) -> None:
    extra = "\nrank = 0" if table == "rank" else ""
    error = refusal(f'[[{table}]]\npath = "{path}"{extra}')
    assert f"{table}[0].path" in error.message
    assert message in error.message


def test_not_utf8_too_large_and_absent(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="byte 8 is not UTF-8"):
        parse_job(b"name = '\xff'", "job.toml")
    with pytest.raises(InputError, match="is not read"):
        parse_job(b"#" * 9_000_000, "job.toml")
    with pytest.raises(InputError, match="cannot be read"):
        load_job(tmp_path / "job.toml")


def test_an_error_shows_no_control_characters_and_no_values() -> None:
    error = refusal('"\\u001b[31mevil" = 1')
    assert "\x1b" not in error.message
    assert "hunter2" not in refusal("[model]\nlayers = 'hunter2'").message


@pytest.mark.slow
@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
@settings(max_examples=examples(60, 300))
def test_hostile_bytes_are_refused_or_read(data: bytes) -> None:
    try:
        parse_job(data, "job.toml")
    except InputError as error:
        assert error.message.startswith("job.toml: ")


@pytest.mark.parametrize(
    ("name", "head", "expected"),
    [
        ("a/job.toml", b"", True),
        ("a/llama.job.toml", b"", True),
        ("traces.tar!job.toml", b"", True),
        ("x.toml", b"[parallelism]\ntp = 8\n[[rank]]\nrank = 0", True),
        ("torchtitan.toml", b"[job]\n[model]\nname = 'llama3'\n[parallelism]", False),
        ("pyproject.toml", b"[build-system]", False),
        ("x.toml", b"name = 'x'", False),
        ("x.json", b"[parallelism]", False),
    ],
)
def test_is_job_file(name: str, head: bytes, expected: bool) -> None:
    assert is_job_file(name, head) is expected


# --- merging ------------------------------------------------------------------------------------


def test_hosts_have_racks_and_leaf_switches(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    text = "[[host]]\nhost = 'a'\nrack = 'r1'\nleaf = 'l1'\n[[host]]\nhost = 'b'\nrack = 'r1'\n"
    path.write_text(text)
    job = load_job(path)
    assert [(h.host, h.rack, h.leaf) for h in job.host] == [("a", "r1", "l1"), ("b", "r1", None)]
    path.write_text(to_toml(job, {}))
    assert load_job(path).host == job.host
    other = tmp_path / "other.toml"
    other.write_text("[[host]]\nhost = 'b'\nrack = 'r2'\n")
    merged = load_jobs([path, other])
    assert [h.rack for h in merged.host] == ["r1", "r2"]
    assert any(n.startswith("host b: rack: 'r1' against 'r2'") for n in merged.notes)
    path.write_text("[[host]]\nhost = 'a'\n[[host]]\nhost = 'a'\n")
    with pytest.raises(InputError, match=r"\[\[host\]\] 'a' appears more than once"):
        load_job(path)


def test_later_files_win_and_contradictions_are_noted(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text("name = 'x'\n[parallelism]\ntp = 8\npp = 2\n[[rank]]\nrank = 0\nhost = 'a'\n")
    second.write_text(
        "[parallelism]\ntp = 4\ncp = 2\n[[rank]]\nrank = 0\nhost = 'b'\n[[rank]]\nrank = 1\n"
    )
    merged = load_jobs([first, second])
    assert (merged.name, merged.parallelism.tp, merged.parallelism.pp) == ("x", 4, 2)
    assert merged.parallelism.cp == 2
    assert [(r.rank, r.host) for r in merged.rank] == [(0, "b"), (1, None)]
    assert merged.files == (str(first), str(second))
    assert [n.split(" (")[0] for n in merged.notes] == [
        "parallelism.tp: 8 against 4",
        "rank 0: host: 'a' against 'b'",
    ]


def test_no_files_are_an_empty_description() -> None:
    assert load_jobs([]) == JobDescription()


def test_merging_the_same_twice_notes_nothing() -> None:
    full = job(FULL)
    again = merge_jobs(full, full)
    assert again.notes == ()
    assert again.digest() == full.digest()


# --- digest -------------------------------------------------------------------------------------


def test_digest_is_of_content_only() -> None:
    a = job("[[rank]]\nrank = 0\n[[rank]]\nrank = 1 # one\n")
    b = job("[[rank]]\nrank = 1\n[[rank]]\nrank = 0\n", "/elsewhere/job.toml")
    assert a.digest() == b.digest()
    assert a.digest() != job("[[rank]]\nrank = 0\n").digest()
    assert job("").digest() == job("[model]\n").digest()


def test_every_field_changes_the_digest() -> None:
    full = job(FULL)
    digests = {full.digest()}
    lines = FULL.splitlines()
    removable = [i for i, line in enumerate(lines) if " = " in line and "[" not in line]
    required = ("rank = 0", "node = ", "port = ", "path = ")
    removable = [i for i in removable if not lines[i].startswith(required)]
    for index in removable:
        digests.add(job("\n".join(lines[:index] + lines[index + 1 :])).digest())
    assert len(digests) == len(removable) + 1


# --- writing ------------------------------------------------------------------------------------


def test_what_is_written_loads_to_the_same() -> None:
    full = job(FULL)
    assert job(to_toml(full, {})) == full


def test_lines_say_where_their_value_came_from() -> None:
    text = to_toml(
        job("[parallelism]\ntp = 8\n[[rank]]\nrank = 3\nhost = 'a'\n"),
        {
            "parallelism.tp": "inferred from process group mesh_tp",
            "parallelism.pp": "groups named x have 2 and 4 ranks",
            "rank.3.host": "inferred from\nthe file",
        },
    )
    assert "tp = 8  # inferred from process group mesh_tp\n" in text
    assert "# pp = ?  # unknown: groups named x have 2 and 4 ranks\n" in text
    assert "# dp = ?  # unknown\n" in text
    assert '[[rank]]\nrank = 3  # given\nhost = "a"  # inferred from?the file\n' in text


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50))
def test_any_text_survives_writing(name: str) -> None:
    described = JobDescription(name=name, files=("/jobs/a/job.toml",))
    assert job(to_toml(described, {"name": name})) == described


def test_places_are_those_that_the_writer_names() -> None:
    description = job("name = 'x'\n[batch]\nglobal = 8\n[[port]]\nnode = 's'\nport = 'p'\n")
    assert list(places(description)) == ["name", "batch.global", "port.s.p.node", "port.s.p.port"]


# --- paths --------------------------------------------------------------------------------------


def test_paths_match_exactly_before_patterns_and_the_last_pattern_wins() -> None:
    description = job(
        """
        [[source]]
        path = "node0/rank1.json"
        rank = 1
        [[source]]
        path = "node0/*.json"
        rank = 2
        [[source]]
        path = "**/*.json"
        rank = 3
        [[source]]
        path = "n?de0/r*"
        rank = 4
        [[source]]
        path = "traces.tar!rank0.json"
        rank = 5
        [[source]]
        path = "never/*"
        rank = 6
        """
    )
    matcher = PathMatcher(description.source)

    def rank(path: str) -> int | None:
        entry = matcher.find(path)
        return entry.rank if entry else None

    assert rank("/jobs/a/node0/rank1.json") == 1
    assert rank("/jobs/a/x/../node0/other.json") == 2
    assert rank("/jobs/a/deep/er/x.json") == 3
    assert rank("/jobs/a/node0/rest") == 4
    assert rank("/jobs/a/traces.tar!rank0.json") == 5
    assert rank("/jobs/b/node0/rank1.json") is None
    assert [e.path for e in matcher.unused()] == ["never/*"]


def test_all_entries_that_speak_of_a_file_hold() -> None:
    description = job(
        """
        [[source]]
        path = "node0/*.csv"
        host = "n0"
        rank = 1
        [[source]]
        path = "node0/smi.csv"
        columns = { power = "P [mW]" }
        [[source]]
        path = "**/*.csv"
        host = "other"
        timezone = "+02:00"
        [[source]]
        path = "node0/s*.csv"
        rank = 2
        """
    )
    found = said_of(PathMatcher(description.source), "/jobs/a/node0/smi.csv")
    assert found is not None
    assert (found.host, found.rank, found.timezone) == ("n0", 2, "+02:00")
    assert found.columns == {"power": "P [mW]"}
    assert said_of(PathMatcher(description.source), "/jobs/b/smi.csv") is None


@given(
    pattern=st.lists(st.sampled_from(["a", "b", "/", "*", "?", "**"]), min_size=1, max_size=9),
    path=st.text("aab/", max_size=10),
)
@settings(max_examples=examples(100, 400))
def test_wildcards_stay_within_a_folder_or_do_not(pattern: list[str], path: str) -> None:
    """The same as every way to match would find."""
    text = "/" + re.sub(r"\*{3,}", "**", "".join(pattern))
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"((?<=/)\*\*/|\*\*|\*|\?)", text)
    slow = re.compile("".join(words.get(p, re.escape(p)) for p in parts), re.DOTALL)
    assert bool(glob_pattern(text).fullmatch("/" + path)) == bool(slow.fullmatch("/" + path))


@pytest.mark.parametrize("part", ["*a", "**a", "**/a", "**/*a", "*a**/b*a**a*", "?*"])
@pytest.mark.parametrize("word", ["a", "a/", "ab/"])
def test_many_wildcards_take_no_time(part: str, word: str) -> None:
    begun = time.process_time()
    assert not glob_pattern("/" + part * 30 + "X").fullmatch("/" + word * 1300)
    assert time.process_time() - begun < 0.5
