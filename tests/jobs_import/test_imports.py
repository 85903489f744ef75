"""Job descriptions from other programs' configuration, and the order of three transports."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tracekit.errors import InputError
from tracekit.expect import expect
from tracekit.expect.options import changed
from tracekit.job import JobDescription
from tracekit.jobs_import import (
    import_description,
    load_descriptions,
    read_topology,
)
from tracekit.jobs_import.arguments import dumped, flags
from tracekit.jobs_import.cluster import MAX_HOSTS, expand_hosts

DEEPSPEED = json.dumps(
    {
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "reduce_bucket_size": "auto",
            "offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "cpu"},
        },
        "gradient_accumulation_steps": 4,
        "train_micro_batch_size_per_gpu": 1,
    }
)
LLAMA_3_8B = json.dumps(
    {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "torch_dtype": "bfloat16",
    }
)
TRAINER = "accelerate launch train.py --per_device_train_batch_size 1 \\\n"
TRAINER += " --gradient_accumulation_steps 4 --model_max_length 2048 --bf16 True --max_steps 50\n"


def pod(gpus: int, replicas: int, nics: int = 0) -> str:
    limits: dict[str, object] = {"nvidia.com/gpu": gpus}
    if nics:
        limits["vpc.amazonaws.com/efa"] = str(nics)
    env = [
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "HF_TOKEN", "value": "planted-secret"},
        {"name": "NCCL_SECRET", "value": "not a transport option!"},
    ]
    container = {"name": "c", "resources": {"limits": limits}, "env": env}
    spec = {"replicas": replicas, "template": {"spec": {"containers": [container]}}}
    return json.dumps(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "llama"},
            "spec": {"pytorchReplicaSpecs": {"Worker": spec}},
        }
    )


YAML = """
apiVersion: v1
kind: Pod
metadata: {name: trainer}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}
  containers:
  - name: c
    resources: {limits: {nvidia.com/gpu: 4}}
"""


def read(text: str) -> JobDescription:
    return import_description(text, "given")[1]


def test_deepspeed() -> None:
    job = read(DEEPSPEED)
    assert job.parallelism.zero_stage == 3
    assert job.schedule.microbatches == 4
    assert job.batch.micro == 1
    assert job.model.dtype == "bfloat16"
    assert any("offload_param to cpu" in n for n in job.notes)
    assert any("auto in reduce_bucket_size" in n for n in job.notes)
    sized = read(json.dumps({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2,
                             "gradient_accumulation_steps": 4}))  # fmt: skip
    assert sized.parallelism.dp == 4
    wrong = read(json.dumps({"train_batch_size": 33, "train_micro_batch_size_per_gpu": 2,
                             "gradient_accumulation_steps": 4}))  # fmt: skip
    assert wrong.parallelism.dp is None
    assert any("no multiple" in n for n in wrong.notes)


def test_huggingface() -> None:
    model = read(LLAMA_3_8B).model
    assert (model.layers, model.hidden, model.kv_heads, model.ffn) == (32, 4096, 8, 14336)
    job = read(TRAINER)
    assert (job.batch.micro, job.schedule.microbatches) == (1, 4)
    assert (job.model.sequence, job.model.dtype) == (2048, "bfloat16")
    as_json = read(json.dumps({"per_device_train_batch_size": 2, "fsdp": "full_shard auto_wrap"}))
    assert (as_json.batch.micro, as_json.parallelism.zero_stage) == (2, 3)


MEGATRON_DUMP = """
------------------------ arguments ------------------------
  bf16 ............................................ True
  ffn_hidden_size ................................. 49152
  global_batch_size ............................... 1536
  hidden_size ..................................... 12288
[default0]:  micro_batch_size ........................... 1
  num_attention_heads ............................. 96
  num_layers ...................................... 96
  num_layers_per_virtual_pipeline_stage ........... 2
  padded_vocab_size ............................... 51200
  pipeline_model_parallel_size .................... 8
  recompute_granularity ........................... full
  seq_length ...................................... 2048
  tensor_model_parallel_size ...................... 8
  use_distributed_optimizer ....................... True
  world_size ...................................... 1024
-------------------- end of arguments ---------------------
"""


def test_megatron_dump() -> None:
    job = read(MEGATRON_DUMP)
    p = job.parallelism
    assert (p.tp, p.pp, p.vpp, p.zero_stage) == (8, 8, 6, 1)
    assert job.schedule.kind == "interleaved-1f1b"
    assert (job.model.layers, job.model.vocabulary, job.world_size) == (96, 51200, 1024)
    assert job.framework == "megatron"
    assert any("recomputed" in n for n in job.notes)
    assert job.schedule.recompute == "full"
    assert dumped("no dump here") == {}


def test_megatron_command_line() -> None:
    job = read(
        "torchrun --nproc_per_node=8 pretrain_gpt.py --tensor-model-parallel-size 2 \\\n"
        "  --pipeline-model-parallel-size=4 --num-layers 24 --hidden-size 1024 "
        "--num-attention-heads 16 --seq-length 2048 --micro-batch-size 4 --global-batch-size 64 "
        "--lr-decay -1 --fp16 --sequence-parallel # comment --num-experts 8"
    )
    assert (job.parallelism.tp, job.parallelism.pp, job.model.dtype) == (2, 4, "float16")
    assert job.schedule.kind == "1f1b"
    assert job.model.experts is None
    assert any("sequence parallel" in n for n in job.notes)
    assert flags("--a -1 --b") == {"a": "-1", "b": True}
    uneven = read("--num-layers 10 --pipeline-model-parallel-size 4 --micro-batch-size 1"
                  " --num-layers-per-virtual-pipeline-stage 2")  # fmt: skip
    assert uneven.parallelism.vpp is None
    assert any("do not divide" in n for n in uneven.notes)


TORCHTITAN = """
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 8
global_batch_size = 256
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 8
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 1
"""


def test_torchtitan() -> None:
    job = read(TORCHTITAN)
    p = job.parallelism
    assert (p.tp, p.pp, p.dp, p.dp_replicate, p.zero_stage) == (8, 4, 8, 2, 3)
    assert expect(job).microbatches == 32  # 4 accumulated pipelines of 8 make the global batch
    saving = read(TORCHTITAN + '[activation_checkpoint]\nmode = "selective"\n')
    assert saving.schedule.recompute == "selective"
    assert job.schedule.kind == "interleaved-1f1b"
    assert (job.schedule.microbatches, job.batch.micro, job.batch.global_) == (8, 1, 256)
    left = read("[experimental]\npipeline_parallel_degree = 2\n[training]\nseq_len = 10\n"
                "data_parallel_shard_degree = -1\n")  # fmt: skip
    assert left.parallelism.pp == 2
    assert any("what the other dimensions leave" in n for n in left.notes)
    odd = read(TORCHTITAN.replace("Interleaved1F1B", "Mystery"))
    assert odd.schedule.kind is None
    assert any("mystery" in n for n in odd.notes)


SCONTROL = """JobId=4242 JobName=pretrain
   UserId=alice(1000) GroupId=alice(1000)
   StartTime=2026-07-21T02:00:00 EndTime=2026-07-22T02:00:00 Deadline=N/A
   NodeList=gpu[01-02,7]
   NumNodes=3 NumCPUs=96 NumTasks=3 CPUs/Task=32
   NtasksPerN:B:S:C=1:0:*:* CoreSpec=*
   TRES=cpu=96,node=3,billing=96,gres/gpu=24
"""


def test_slurm() -> None:
    job = read(SCONTROL)
    assert (job.id, job.name, job.world_size) == ("4242", "pretrain", 24)
    assert job.hardware.gpus_per_node == 8
    assert [(e.rank, e.host) for e in job.rank][::8] == [(0, "gpu01"), (8, "gpu02"), (16, "gpu7")]
    assert any("2026-07-21T02:00:00 to 2026-07-22" in n for n in job.notes)


def test_slurm_json() -> None:
    content = {
        "jobs": [
            {
                "job_id": 7,
                "name": "x",
                "nodes": "n[1-2]",
                "allocation_nodes": 2,
                "time": {"start": 1_784_602_867, "end": 1_784_606_467},
                "tres": {"allocated": [{"type": "gres", "name": "gpu:h100", "count": 16}]},
            },
            {"job_id": 8},
        ]
    }
    job = read(json.dumps(content))
    assert (job.id, job.world_size, job.hardware.gpus_per_node) == ("7", 16, 8)
    assert any("2026-07-21T03:01:07+00:00" in n for n in job.notes)
    assert any("2 jobs" in n for n in job.notes)
    modern = {"jobs": [{"job_id": 9, "nodes": "a,b", "tasks": {"set": True, "number": 4},
                        "start_time": {"set": True, "number": 1_784_602_867}}]}  # fmt: skip
    assert [e.host for e in read(json.dumps(modern)).rank] == ["a", "a", "b", "b"]


def test_host_lists() -> None:
    assert list(expand_hosts("a[1-2]-ib[0,3],b")) == ["a1-ib0", "a1-ib3", "a2-ib0", "a2-ib3", "b"]
    assert list(expand_hosts("(null)")) == []
    assert list(expand_hosts("a[1-x],b[]")) == ["a1-x", "b"]


@pytest.mark.parametrize(
    "text",
    [
        "a[1-50000000]",
        "a[1-99999][1-99999]",
        "a[" + ",".join(["1-99999"] * 100) + "]",
        "a[0-9999]b[0-9999]c[0-9999]d[0-9999]",
    ],
)
def test_a_list_of_too_many_hosts_places_nobody_and_says_so(text: str) -> None:
    assert len(list(expand_hosts(text))) == MAX_HOSTS + 1
    job = read(f"JobId=7 NumNodes=2 NumTasks=2 NodeList={text}")
    assert not job.rank
    assert any("100,000 hosts" in note for note in job.notes)


@pytest.mark.parametrize(
    "text",
    ["a[" * 100_000, "a[1" * 50_000, "a[]" * 100_000, "a[1-" + "9" * 5000 + "]"],
)
def test_brackets_without_end_are_read_at_once(text: str) -> None:
    assert len(list(expand_hosts(text))) < 100_001


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        ("NCCL_IB_HCA", True),
        ("FI_PROVIDER", True),
        ("UCX_TLS", True),
        ("NCCL_AUTH_TOKEN", False),
        ("UCX_PASSWORD", False),
        ("FI_KEY", False),
    ],
)
def test_of_a_pod_s_environment_only_known_settings_are_kept(name: str, is_kept: bool) -> None:
    job = read(YAML + f"    env: [{{name: {name}, value: hunter2}}]\n")
    assert ("hunter2" in " ".join(job.notes)) == is_kept


@pytest.mark.parametrize(
    "line",
    [
        "creationTimestamp: 2024-99-99",
        "x: !!int abc",
        "x: !!float abc",
        "x: !!bool maybe",
        "x: " + "9" * 5000,
        "x: 0b__",
    ],
)
def test_values_that_yaml_cannot_hold_do_not_matter(line: str) -> None:
    assert read(YAML + line + "\n").world_size == 4


def test_replicas_that_multiply_beyond_any_cluster_are_not_believed() -> None:
    pods = "  replicas: 2147483647\n  template:\n    replicas: 2147483647\n    spec:\n"
    spec = "\n".join(f"    {line}" for line in YAML.split("spec:\n")[1].splitlines())
    job = read("apiVersion: v1\nkind: Job\nspec:\n" + pods + spec + "\n")
    assert job.world_size is None
    assert any("not believed" in note for note in job.notes)


ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**31,
    10**30,
    1.5,
    "x",
    "",
    "9" * 5000,
    [],
    {},
    [[]],
    [{}],
    {"a": []},
]


def changed_somewhere(value: Any, odd: Any) -> Iterator[Any]:
    """The document with one of its values, at any depth, replaced."""
    yield odd
    if isinstance(value, dict):
        for key, item in value.items():
            yield from ({**value, key: other} for other in changed_somewhere(item, odd))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            for other in changed_somewhere(item, odd):
                yield [*value[:at], other, *value[at + 1 :]]


SAMPLES = {
    "pod": json.loads(pod(4, 2, 2)),
    "slurm": {
        "jobs": [
            {"job_id": 7, "name": "a", "nodes": "a[1-2]", "node_count": {"number": 2},
             "tasks": {"number": 4}, "tasks_per_node": {"number": 2},
             "time": {"start": {"number": 9}},
             "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 4}]}}
        ]
    },
    "deepspeed": {
        "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}},
        "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
    },
    "model": {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 9, "torch_dtype": "bf16"},
    "trainer": {"per_device_train_batch_size": 2, "fsdp": "full_shard", "bf16": True},
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_values_of_any_type_are_no_bug(name: str) -> None:
    assert read(json.dumps(SAMPLES[name]))
    for odd in ODD:
        for document in changed_somewhere(SAMPLES[name], odd):
            with contextlib.suppress(InputError):
                read(json.dumps(document))


@pytest.mark.parametrize("value", ['"8"', "1.5", "true", "[]", "{}", "9" * 5000, "2147483648"])
@pytest.mark.parametrize("key", ["shard", "replicate"])
def test_degrees_of_any_type_are_no_bug(key: str, value: str) -> None:
    text = f"[parallelism]\ntensor_parallel_degree = 2\ndata_parallel_{key}_degree = {value}\n"
    with contextlib.suppress(InputError):
        read(text)


@pytest.mark.parametrize("text", ["\n" * 200_000, "[\n" * 100_000, "[a ... " + " " * 200_000 + "b"])
def test_arguments_are_looked_for_at_once(text: str) -> None:
    assert not dumped(text)  # quadratic patterns take minutes for each


def test_kubernetes_keeps_no_secret() -> None:
    job = read(pod(4, 2, 2))
    hw = job.hardware
    assert (job.world_size, hw.gpus_per_node, hw.nvlink_domain, hw.nics_per_node) == (8, 4, 4, 2)
    text = " ".join(job.notes)
    assert "NCCL_DEBUG=INFO" in text
    assert "secret" not in text
    assert "transport option" not in text


AFFINITY = """
  affinity:
    nodeAffinity:
      %s:
        nodeSelectorTerms:
        - matchExpressions:
          - {key: nvidia.com/gpu.product, operator: %s, values: [%s]}
"""


def test_kubernetes_as_people_write_it() -> None:
    job = read(YAML)
    assert (job.world_size, job.hardware.gpus_per_node) == (4, 4)
    assert job.hardware.gpu == "NVIDIA-A100-SXM4-80GB"
    found = expect(changed(job, [("model.parameters", "8e9")]))
    assert not any("hardware.gpu" in field for field in found.unknown)


@pytest.mark.parametrize(
    ("words", "gpu"),
    [
        (("requiredDuringSchedulingIgnoredDuringExecution", "In", "NVIDIA-H100"), "NVIDIA-H100"),
        (("requiredDuringSchedulingIgnoredDuringExecution", "In", "A100, H100"), None),
        (("requiredDuringSchedulingIgnoredDuringExecution", "NotIn", "Tesla-T4"), None),
        (("preferredDuringSchedulingIgnoredDuringExecution", "In", "NVIDIA-H100"), None),
    ],
)
def test_the_gpu_that_a_pod_asks_for(words: tuple[str, str, str], gpu: str | None) -> None:
    lines = [line for line in YAML.splitlines() if "nodeSelector" not in line]
    assert read("\n".join(lines) + AFFINITY % words).hardware.gpu == gpu


def test_pods_of_several_gpus_have_no_one_gpu() -> None:
    job = read(YAML + "---" + YAML.replace("A100-SXM4-80GB", "H100-80GB-HBM3"))
    assert (job.world_size, job.hardware.gpu) == (8, None)


def test_aliases_and_foreign_tags_are_not_read() -> None:
    bomb = YAML + "a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]\n"
    tag = YAML + "x: !!python/object/apply:os.system [true]\n"
    for text in (bomb, tag):
        with pytest.raises(InputError):
            read(text)


def test_contradictions_are_noted(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(DEEPSPEED)
    (tmp_path / "args.txt").write_text(TRAINER.replace("steps 4", "steps 8"))
    job = load_descriptions([tmp_path / "ds.json", tmp_path / "args.txt"])
    assert job.schedule.microbatches == 8
    assert any("microbatches: 4 against 8" in n for n in job.notes)


def test_what_nobody_knows(tmp_path: Path) -> None:
    for text in ("hello", "{}", "[a]\nb = 1\n", '{"jobs": []}', "<system></nothing>"):
        with pytest.raises(InputError):
            read(text)
    with pytest.raises(InputError, match="cannot be read"):
        load_descriptions([tmp_path / "absent.json"])


XML = """<system version="1"><cpu numaid="0" arch="x86_64">
 <pci busid="0000:15:00.0" class="0x060400" vendor="0x1000">
  <pci busid="0000:16:00.0" class="0x030200"><gpu dev="0" sm="90" rank="0" gdr="1">
   <nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu></pci>
  <pci busid="0000:17:00.0" class="0x030200"><gpu dev="1" sm="90" rank="1" gdr="1">
   <nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu></pci>
  <pci busid="0000:18:00.0" class="0x020700"><nic>
   <net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1"/></nic></pci>
 </pci>
 <pci busid="0000:25:00.0" class="0x060400">
  <pci busid="0000:26:00.0" class="0x030200"><gpu dev="2" sm="90"/></pci>
  <pci busid="0000:27:00.0" class="0x030200"><gpu dev="3" sm="90"/></pci>
  <pci busid="0000:28:00.0" class="0x020700"><nic><net name="mlx5_1" speed="400000"/></nic></pci>
 </pci></cpu></system>"""


def test_nccl_topology_gives_the_nearest_nic_of_every_gpu() -> None:
    found = read_topology(XML)
    assert found is not None
    assert found.nearest == {
        "GPU0": ("mlx5_0",),
        "GPU1": ("mlx5_0",),
        "GPU2": ("mlx5_1",),
        "GPU3": ("mlx5_1",),
    }
    job = read(XML)
    assert (job.hardware.gpus_per_node, job.hardware.nics_per_node) == (4, 2)
    assert job.hardware.nic_bytes_per_s == 50e9
    assert any("share their nearest NIC: GPU0 GPU1; GPU2 GPU3" in n for n in job.notes)
    assert read_topology("<!DOCTYPE x>" + XML) is None


MATRIX = """\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tPIX\tSYS\t0-31\t0
GPU1\tNV18\t X \tSYS\tNODE\t32-63\t1
NIC0\tPIX\tSYS\t X \tSYS
NIC1\tSYS\tNODE\tSYS\t X

Legend:
  X    = Self
NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""


def test_nvidia_smi_matrix() -> None:
    found = read_topology(MATRIX)
    assert found is not None
    assert found.nearest == {"GPU0": ("mlx5_0",), "GPU1": ("mlx5_1",)}
    assert found.nvlink_domain == 2
    assert read(MATRIX).hardware.gpus_per_node == 2


@pytest.mark.parametrize("order", [0, 1])
def test_three_transports_of_llama_3_8b(tmp_path: Path, order: int) -> None:
    """One pod of 4 A100 over NVLink, 4 pods with EFA, 4 pods over sockets: 16, 40, 80 minutes."""
    ideal = []
    off = {}
    for name, spec, speed, minutes in (
        ("nvlink", pod(4, 1), "50e9", 16 + 21 / 60),
        ("efa", pod(1, 4, 1), "12.5e9", 39 + 32 / 60),
        ("socket", pod(1, 4), "2.5e9", 80 + 29 / 60),
    ):
        folder = tmp_path / name
        folder.mkdir()
        files = {"ds.json": DEEPSPEED, "model.json": LLAMA_3_8B, "args.txt": TRAINER,
                 "pod.json": spec}  # fmt: skip
        for file, text in files.items():
            (folder / file).write_text(text)
        job = load_descriptions([folder / f for f in sorted(files, reverse=bool(order))])
        job = changed(job, [("gpu", "A100"), ("nic", speed)])
        found = expect(job, step_s=minutes * 60 / 50)
        rows = {r.op: r for r in found.traffic}
        assert found.step_time is not None
        off[name] = (found.step_time.dominant, found.step_time.measured_ratio)
        sent = sum(r.bytes_per_step or 0 for r in found.traffic)
        assert sent == pytest.approx(144.54e9, rel=2e-3)
        assert rows["all_gather"].domain == ("nvlink" if name == "nvlink" else "network")
        ideal.append(sum(r.ideal_s_per_step or 0 for r in found.traffic))
    assert ideal == sorted(ideal)
    assert ideal[2] > 3 * ideal[1] > 6 * ideal[0]
    # Over NVLink arithmetic dominates, else the gathers. What no formula has (offloading to the
    # CPU, host-side work) is 18, 35 and 37 s a step: the faster the network, the farther off.
    assert [dominant for dominant, _ in off.values()] == ["compute", *["dp all_gather"] * 2]
    assert [ratio for _, ratio in off.values()] == pytest.approx([11.2, 3.7, 1.6], rel=0.03)
