"""An expectation from a job description, and the command that prints it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracekit.cli import main
from tracekit.errors import UsageError
from tracekit.expect import expect
from tracekit.expect.options import changed, read_setting, sweep
from tracekit.expect.result import points_to_dict, to_csv, to_text
from tracekit.job import JobDescription, parse_job

GPT3 = b"""
world_size = 512
[parallelism]
tp = 8
pp = 8
[schedule]
kind = "1f1b"
[model]
layers = 96
hidden = 12288
heads = 96
sequence = 2048
vocabulary = 51200
dtype = "bfloat16"
[batch]
global = 64
micro = 1
[hardware]
gpu = "NVIDIA A100-SXM4-80GB"
gpus_per_node = 8
nics_per_node = 8
nic_bytes_per_s = 25e9
"""


def gpt3() -> JobDescription:
    return parse_job(GPT3, "job.toml")


def test_gpt3_over_64_nodes() -> None:
    found = expect(gpt3(), step_s=20.0, tokens=300e9)
    assert found.sizes["dp"] == 8
    assert found.microbatches == 8
    rows = {(r.group_kind, r.op): r for r in found.traffic}
    tensor = rows["tp", "all_reduce"]
    assert tensor.domain == "nvlink"
    assert tensor.calls_per_step == 4 * 12 * 8
    assert tensor.message_bytes == 50_331_648
    assert tensor.bytes_per_step == pytest.approx(8 * 4.2279e9, rel=1e-4)
    data = rows["dp", "all_reduce"]
    assert data.domain == "network"
    assert data.bytes_per_s == 25e9
    assert data.bytes_per_step == pytest.approx(2 * 7 / 8 * 174_615_822_336 / 64 * 2)
    assert rows["pp", "send"].calls_per_step == 16
    (bubble,) = (b for b in found.bubbles if b.schedule == "1f1b")
    assert bubble.is_given
    assert bubble.bubble_ratio == pytest.approx(7 / 15)
    assert found.utilisation.mfu_ratio == pytest.approx(
        (found.utilisation.model_flops_per_step or 0) / (20 * 512 * 312e12)
    )
    assert (found.utilisation.recomputed_flops_per_step or 0) == pytest.approx(
        1.503657e18 / 8, rel=1e-3
    )
    assert found.training_days is not None
    assert found.unknown == []
    assert any("dp = 8" in a for a in found.assumptions)


def test_zero_3_gathers_a_layer_at_a_time() -> None:
    job = changed(gpt3(), [("tp", "1"), ("pp", "1"), ("zero", "3"), ("world_size", "64")])
    rows = {r.op: r for r in expect(job).traffic}
    sent = sum(r.bytes_per_step or 0 for r in rows.values())
    assert sent == pytest.approx(3 * 63 / 64 * 174_615_822_336 * 2)  # one microbatch
    assert rows["all_gather"].calls_per_step == 2 * 96
    one = {r.op for r in expect(changed(job, [("zero", "1")])).traffic}
    assert one == {"reduce_scatter", "all_gather"}


def test_experts_and_contexts() -> None:
    job = changed(gpt3(), [("ep", "4"), ("cp", "2"), ("experts", "16"), ("top_k", "2")])
    rows = {r.group_kind: r for r in expect(job).traffic}
    assert rows["ep"].message_bytes == 1024 * 2 * 12288 * 2
    assert rows["ep"].calls_per_step == 4 * 12 * 16
    assert rows["cp"].calls_per_step == 2 * 12 * 16
    assert rows["cp"].bytes_per_step == pytest.approx(12 * 16 * 3 * 0.5 * 2 * 2048 * 1536 * 2)


def test_what_is_missing_is_named_and_nothing_guessed() -> None:
    found = expect(parse_job(b"[parallelism]\ntp = 2\npp = 2\ndp = 2\n", "job.toml"))
    assert all(r.bytes_per_step is None for r in found.traffic)
    assert found.bubbles == []
    assert {"model.layers", "batch.global", "hardware.nvlink_domain"} <= set(found.unknown)
    assert "UNKNOWN" in to_text([({}, found)], ())


def test_sharp_halves_an_all_reduce_in_the_network() -> None:
    def ideal(job: JobDescription) -> float:
        return next(r.ideal_s_per_step or 0.0 for r in expect(job).traffic if r.group_kind == "dp")

    assert ideal(changed(gpt3(), [("sharp", "true")])) < 0.6 * ideal(gpt3())


def test_sweep_of_nics_changes_what_crosses_the_network() -> None:
    points = [(k, expect(j)) for k, j in sweep(gpt3(), ["nics=1,2,4,8"])]
    speeds = [next(r.bytes_per_s for r in f.traffic if r.group_kind == "dp") for _, f in points]
    assert speeds == [25e9 / 8, 25e9 / 4, 25e9 / 2, 25e9]
    assert [k for k, _ in points] == [{"nics": n} for n in "1248"]
    lines = to_csv(points).splitlines()
    assert lines[0].startswith("nics,group_kind,op,")
    assert len(lines) == 1 + 4 * len(points[0][1].traffic)
    assert len(points_to_dict(points, ())["points"]) == 4
    thin = changed(gpt3(), [("oversubscription", "2")])
    assert next(r.bytes_per_s for r in expect(thin).traffic if r.group_kind == "dp") == 12.5e9


@pytest.mark.parametrize("text", ["tp", "=4", "tp="])
def test_settings_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError):
        read_setting(text)


def test_a_field_that_does_not_exist_has_a_hint() -> None:
    with pytest.raises(UsageError) as raised:
        changed(gpt3(), [("layer", "4")])
    assert "layers" in (raised.value.hint or "")
    for name, hint in (
        ("parallelism.foo", "parallelism has tp, pp, dp"),
        ("model.layer", "did you mean model.layers?"),
        ("Model.layer", "did you mean model.layers?"),
        ("zzz", "fields of parallelism"),
    ):
        with pytest.raises(UsageError) as raised:
            changed(gpt3(), [(name, "4")])
        assert (raised.value.hint or "").startswith(hint)
    with pytest.raises(UsageError):
        list(sweep(gpt3(), ["nics"]))
    with pytest.raises(UsageError):
        list(sweep(gpt3(), ["tp=" + ",".join("1" * 40), "pp=" + ",".join("1" * 40)]))
    with pytest.raises(UsageError, match="5,000 combinations are too many"):
        list(sweep(gpt3(), ["nics=" + ",".join(map(str, range(1, 5001)))]))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["expect", *arguments])
        return (ended.value.code, *capsys.readouterr())

    path = tmp_path / "job.toml"
    path.write_bytes(GPT3)
    code, out, err = run("--job", str(path), "--set", "pp=4", "--format", "json")
    assert code == 0, err
    assert json.loads(out)["layout"]["pp"] == 4
    code, out, _ = run("--job", str(path), "--step-time", "20")
    assert "dominates" in out
    assert "MFU" in out
    swept = run("--job", str(path), "--sweep", "pp=1,2", "--format", "csv")
    assert {line.split(",")[0] for line in swept[1].splitlines()} == {"pp", "1", "2"}
    code, out, _ = run("--job", str(path), "--step-time", "inf", "--format", "json")
    assert (code, out) == (2, "")
    code, _, err = run()
    assert code == 2
    assert "hint:" in err


def test_each_level_has_an_over_subscription_of_its_own() -> None:
    def speed(**fields: str) -> float | None:
        job = changed(gpt3(), list(fields.items()))
        return next(r.bytes_per_s for r in expect(job).traffic if r.group_kind == "dp")

    thin = {"oversubscription": "2", "spine_oversubscription": "3"}
    # A data-parallel group reaches over tp 8 x dp 8 = 64 GPUs.
    assert speed() == 25e9
    assert speed(**thin) == pytest.approx(25e9 / 6)
    assert speed(**thin, spine_gpus="64") == 12.5e9
    assert speed(**thin, spine_gpus="8") == pytest.approx(25e9 / 6)
    assert speed(**thin, leaf_gpus="64", spine_gpus="256") == 25e9
    assert speed(**thin, leaf_gpus="8", spine_gpus="256") == 12.5e9
    # Four members below each leaf bring an array in once, over four GPUs' share of the uplinks.
    assert speed(**thin, leaf_gpus="32", spine_gpus="256") == 25e9
    assert speed(leaf_gpus="32", spine_gpus="256", oversubscription="8") == 12.5e9
    points = list(sweep(changed(gpt3(), [("leaf_gpus", "8")]), ["oversubscription=1,2,4"]))
    swept = [next(r for r in expect(j).traffic if r.group_kind == "dp") for _, j in points]
    assert [r.bytes_per_s for r in swept] == [25e9, 12.5e9, 6.25e9]


def test_a_step_may_be_several_pipelines_of_microbatches() -> None:
    base = changed(gpt3(), [("microbatches", "8"), ("global", "256")])  # 4 x 8 x dp 8
    found = expect(base)
    assert found.microbatches == 32
    once = expect(changed(gpt3(), [("microbatches", "8"), ("global", "64")]))
    for one, many in zip(once.traffic, found.traffic, strict=True):
        times = 4 if one.group_kind in ("tp", "pp") else 1
        assert many.bytes_per_step == pytest.approx(times * (one.bytes_per_step or 0))
    # The bubble is each pipeline's.
    assert [b.bubble_ratio for b in found.bubbles] == [b.bubble_ratio for b in once.bubbles]
    odd = expect(changed(base, [("global", "100")]))
    assert odd.microbatches == 8
    assert any("no multiple" in a for a in odd.assumptions)


def test_the_least_time_of_a_step_stands_beside_the_measured_one() -> None:
    found = expect(gpt3(), step_s=20.0)
    t = found.step_time
    assert t is not None
    bubble_s = t.compute_s * 7 / 8  # 1F1B: (p-1)/m of the busy time
    assert t.serial_s == pytest.approx(t.compute_s + t.communication_s + bubble_s)
    assert t.measured_ratio == pytest.approx(20 / t.serial_s)
    assert "measured 20 s" in to_text([({}, found)], ())
    assert expect(changed(gpt3(), [("gpu", "unheard of")])).step_time is None


def test_more_than_the_peak_draws_a_remark() -> None:
    assert expect(gpt3(), step_s=20.0).remarks == []
    found = expect(gpt3(), step_s=0.5)
    assert found.utilisation.mfu_ratio is not None and found.utilisation.mfu_ratio > 1
    assert "REMARK    no GPU computes at" in to_text([({}, found)], ())
    assert points_to_dict([({}, found)], ())["remarks"] == found.remarks


def test_names_of_the_command_line_and_of_files_do_not_steer_the_terminal() -> None:
    text = to_text([({"dtype": "a\x1b[2J"}, expect(gpt3()))], ("b\x07",))
    assert not {"\x1b", "\x07"} & set(text)


def test_recomputation_is_said_or_open() -> None:
    def tensor(**fields: str) -> tuple[float | None, int]:
        rows = expect(changed(gpt3(), list(fields.items()))).traffic
        row = next(r for r in rows if r.group_kind == "tp")
        return row.calls_per_step, len(row.choices)

    assert tensor() == (4 * 12 * 8, 1)
    assert tensor(recompute="full") == (6 * 12 * 8, 0)
    assert tensor(recompute="selective") == (4 * 12 * 8, 0)


def test_what_is_open_is_a_range() -> None:
    row = next(r for r in expect(gpt3()).traffic if r.group_kind == "dp")
    own = 2 * 7 / 8 * 2 / 64
    assert row.range_bytes == pytest.approx(
        (own * 174_615_822_336, own * (174_615_822_336 + 51200 * 12288))
    )
    assert [c.words for c in row.choices] == ["embeddings not tied"]
    exact = changed(gpt3(), [("parameters", "175000000000"), ("zero", "0")])
    row = next(r for r in expect(exact).traffic if r.group_kind == "dp")
    assert row.choices == ()
    assert row.assumed == ()


def test_a_gpu_is_known_by_its_whole_name() -> None:
    from tracekit.expect.hardware import gpu_named

    for text, peak in (
        ("NVIDIA H100 80GB HBM3", 990e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("H200", 990e12),
    ):
        found = gpu_named(text)
        assert found is not None and found.bf16_flops_per_s == peak, text
    assert gpu_named("NVIDIA H20") is None
    h100 = gpu_named("H100")
    assert h100 is not None and h100.bf16_flops_per_clock is not None
    assert h100.bf16_flops_per_clock * 1.83e9 == pytest.approx(989e12, rel=1e-3)
