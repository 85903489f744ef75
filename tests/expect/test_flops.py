"""Parameters, FLOPs and times against the published figures."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tracekit.errors import UsageError
from tracekit.expect import expect, flops, memory
from tracekit.expect.hardware import GPUS, gpu_named
from tracekit.expect.options import changed
from tracekit.job import JobDescription

# a, h, l, t, p, n, B -> teraFLOP/s a GPU, % of peak, petaFLOP/s in all, s an iteration
TABLE_1 = [
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 44, 4.4, 3.528),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 44, 8.8, 3.697),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 46, 18.2, 3.696),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 43, 34.6, 9.399),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 44, 70.8, 14.453),
    (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 45, 143.8, 16.058),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 47, 227.1, 24.817),
    (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 50, 297.4, 37.614),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 52, 410.2, 54.085),
    (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163, 52, 502.0, 102.630),
]
VOCABULARY, SEQUENCE, A100 = 51_200, 2048, 312e12


def redone(layers: int, hidden: int, samples: int) -> float:
    """FLOPs of a step that recomputes all activations: 96 B s l h^2 (1 + s/(6h) + V/(16 l h))."""
    fields = {"layers": layers, "hidden": hidden, "heads": 8, "global": samples}
    more = {"sequence": SEQUENCE, "vocabulary": VOCABULARY}
    job = changed(JobDescription(), [(k, str(v)) for k, v in {**fields, **more}.items()])
    found = expect(job).utilisation.recomputed_flops_per_step
    assert found is not None
    return found


@pytest.mark.parametrize("row", TABLE_1, ids=lambda r: f"{r[0]}B")
def test_table_1_of_megatron(row: tuple[float, ...]) -> None:
    billions, _, hidden, layers, _, _, gpus, batch, tera, percent, peta, iteration = row
    h, l_, n, b = int(hidden), int(layers), int(gpus), int(batch)
    parameters = flops.megatron_parameters(l_, h, VOCABULARY, SEQUENCE)
    assert parameters / 1e9 == pytest.approx(billions, rel=5e-3, abs=0.06)
    assert tera / 312 * 100 == pytest.approx(percent, abs=0.6)
    assert tera * n / 1e3 == pytest.approx(peta, rel=5e-3)
    work = redone(l_, h, b)
    took = work / (n * tera * 1e12)
    assert took == pytest.approx(iteration, abs=5e-4)
    assert flops.utilisation_ratio(work, took, n, A100) == pytest.approx(tera / 312)


def test_gpt3() -> None:
    shape = {"layers": 96, "hidden": 12288, "vocabulary": VOCABULARY}
    assert round(flops.megatron_parameters(**shape, sequence=SEQUENCE)) == 174_615_822_336
    work = {b: redone(96, 12288, b) for b in (512, 1024, 1536)}
    assert work[512] == pytest.approx(1.503657e18, rel=1e-6)
    assert work[1024] == pytest.approx(3.007314e18, rel=1e-6)
    assert work[1536] == pytest.approx(4.510971e18, rel=1e-6)
    # The slides print 3.00 EFLOP beside 11,156 days; only F(B=1024) gives that many.
    assert 1e5 * work[1024] / A100 / flops.DAY_S == pytest.approx(11_156.05, abs=0.01)


@pytest.mark.parametrize(
    ("tokens", "parameters", "gpus", "tera", "days"),
    [
        (300e9, 175e9, 1024, 140, 33.91),
        (450e9, 1e12, 3072, 163, 83.21),
        (300e9, 175e9, 1040, 140, 33.39),
    ],
)
def test_days(tokens: float, parameters: float, gpus: int, tera: float, days: float) -> None:
    found = flops.training_days(tokens, parameters, gpus, tera * 1e12)
    assert found == pytest.approx(days, abs=0.005)
    less = flops.training_days(tokens, parameters, gpus, tera * 1e12, with_recomputation=False)
    assert less == pytest.approx(found * 0.75)


def test_the_general_form_is_the_megatron_one_for_a_plain_block() -> None:
    shape = flops.Shape(layers=96, hidden=12288, heads=96, sequence=2048, vocabulary=VOCABULARY)
    # 72 B s l h^2 (1 + s/(6h) + V/(12 l h))
    parts = 1 + 2048 / (6 * 12288) + VOCABULARY / (12 * 96 * 12288)
    whole = 72 * 8 * 2048 * 96 * 12288**2 * parts
    assert 8 * 2048 * flops.flops_per_token(shape) == pytest.approx(whole)
    causal = flops.flops_per_token(shape) - flops.flops_per_token(shape, is_causal=True)
    assert causal == pytest.approx(96 * 12288**2 * 6 * 2048 / 12288)


def test_active_experts_and_gates_count() -> None:
    plain = flops.Shape(1, 100, 10, 1, 1, ffn=400)
    two = flops.flops_per_token(plain)
    gated = flops.flops_per_token(replace(plain, is_gated=True))
    assert gated - two == pytest.approx(100**2 * 6 * 4)
    routed = flops.flops_per_token(replace(plain, experts=64, top_k=2))
    assert routed - two == pytest.approx(100**2 * 12 * 4)


def test_llama_3_8b_has_its_parameters() -> None:
    shape = flops.Shape(32, 4096, 32, 8192, 128_256, kv_heads=8, ffn=14_336, is_gated=True)
    assert flops.parameters_of(shape, is_tied=False) == pytest.approx(8_030_261_248, rel=1e-4)


def test_states_of_gpt3_are_2_8_terabytes_and_zero_splits_them() -> None:
    assert memory.model_state_bytes(175e9) == pytest.approx(2.8e12)
    assert memory.model_state_bytes(8.0, 1, 4) == 8 * (2 + 2 + 3)
    assert memory.model_state_bytes(8.0, 2, 4) == 8 * (2 + 0.5 + 3)
    assert memory.model_state_bytes(8.0, 3, 4) == 8 * 4
    assert memory.activation_bytes_per_layer(1, 10, 10) == 3400
    assert memory.activation_bytes_per_layer(1, 10, 10, 2) == 2200


def test_no_utilisation_of_nothing() -> None:
    with pytest.raises(UsageError):
        flops.utilisation_ratio(1.0, 0.0, 1, 1.0)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA L40S", "L40S"),
        ("Radeon", None),
        (None, None),
    ],
)
def test_gpus_are_known_by_what_profilers_call_them(text: str | None, name: str | None) -> None:
    found = gpu_named(text)
    assert (found.name if found else None) == name


def test_critical_intensities() -> None:
    found = {n: GPUS[n].critical_intensity for n in ("H100", "B200", "A100")}
    assert found["H100"] == pytest.approx(295.5, abs=0.05)
    assert found["B200"] == pytest.approx(281.25)
    assert found["A100"] == pytest.approx(156.0)
