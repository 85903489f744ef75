"""What names say."""

from __future__ import annotations

import pytest

from tracekit import values
from tracekit.ingest.kineto import collectives
from tracekit.ingest.kineto.model import CommArgs
from tracekit.ingest.traces import names


@pytest.mark.parametrize(
    ("name", "library", "op"),
    [
        (
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
            "nccl",
            "all_reduce",
        ),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "nccl",
            "all_reduce",
        ),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevComm*)", "nccl", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", "nccl", "all_gather"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "nccl", "send_recv"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)", "nccl", "broadcast"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "nccl", "unknown"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "nccl", "unknown"),
        ("void deep_ep::internode::dispatch<true, 8>(int4*, float*)", "deepep", "dispatch"),
        ("void dpsk::ep::intranode::combine<c10::BFloat16>(int4*)", "deepep", "combine"),
        ("void dpsk::ep::internode::cached_notify<false>(int)", "deepep", "unknown"),
        ("void nvshmemi_transfer_rma_put(nvshmem_x*)", "nvshmem", "unknown"),
        (
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16>(char*)",
            "symm_mem",
            "all_reduce",
        ),
        (
            "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
            "custom_all_reduce",
            "all_reduce",
        ),
        ("mscclpp::AllreducePacket(int)", "mscclpp", "all_reduce"),
        ("hccl::all_gather", "hccl", "all_gather"),
        ("gloo:all_reduce", "gloo", "all_reduce"),
    ],
)
def test_communication_kernels(name: str, library: str, op: str) -> None:
    shown = names.classify_kernel(name)
    assert (shown.klass, shown.library, shown.op) == ("communication", library, op)


@pytest.mark.parametrize(
    "name",
    [
        "hipLaunchKernel_fill",
        "hipblasLt_gemm",
        "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
        "void fbgemm_gpu::permute_2D_lengths_kernel<int>(int)",
        "ampere_fp16_s1688gemm_fp16_256x64_ldg8_f2f_tn",
        "void at::native::(anonymous namespace)::vectorized_gather_kernel<16, long>(char*)",
        "triton_red_fused_add_mean_mul_pow_rsqrt_0",
        "cancclation_kernel",
        "moe_dispatch_kernel",
    ],
)
def test_compute_kernels(name: str) -> None:
    assert names.classify_kernel(name) == names.COMPUTE


def test_reduction_of_old_kernel_names() -> None:
    shown = names.classify_kernel("ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*)")
    assert (shown.reduction, shown.dtype) == ("sum", "half")


@pytest.mark.parametrize(
    ("given", "op"),
    [
        ("allreduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("all_to_allv", "all_to_all"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("broadcast", "broadcast"),
        ("send", "send"),
        ("recv", "recv"),
        ("wait", "wait"),
        ("barrier", "barrier"),
        ("startCoalescing", "unknown"),
        ("something", "unknown"),
    ],
)
def test_collective_names(given: str, op: str) -> None:
    assert names.collective_name(given) == op


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("ProfilerStep#12", "profiler_step"),
        ("ProfilerStep#", None),
        ("nccl:_all_gather_base", "collective"),
        ("gloo:all_reduce", "collective"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "python_input"),
        ("torch/utils/data/dataloader.py(630): __next__", "python_input"),
        ("dataloader", "python_input"),
        ("data_loading", "python_input"),
        ("Get Batch", "python_input"),
        ("fetch_next_batch", "python_input"),
        ("batch-generator", "python_input"),
        ("data", "python_input"),
        ("data prep", "python_input"),
        ("data_iter", "python_input"),
        ("database", None),
        ("data parallel", None),
        ("aten::data", None),
        ("dataloader_workers_exit", None),
        ("FSDP::fetch_batch_of_params", None),
        ("load_state", None),
        ("prefetch", None),
        ("Python GC", "python_gc"),
        ("<built-in function collect>", "python_gc"),
        ("save_checkpoint", "checkpoint"),
        ("torch.save", "checkpoint"),
        ("torch/serialization.py(850): save", "checkpoint"),
        ("torch/distributed/checkpoint/state_dict_saver.py(100): async_save", "checkpoint"),
        ("megatron/checkpointing.py(300): save_checkpoint", "checkpoint"),
        ("torch/utils/checkpoint.py(400): checkpoint", None),
        ("CheckpointFunctionBackward", None),
        ("activation_checkpoint", None),
        ("forward", None),
    ],
)
def test_domains(name: str, domain: str | None) -> None:
    assert names.special_domain(name) == domain


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3_trace.json", 3),
        ("rank-12.json", 12),
        ("rank-0.Apr_03_18_51_38.1102.pt.trace.json", 0),
        ("kineto_7.json", 7),
        ("worker0.pt.trace.json", 0),
        ("host1_4711.1700000000.pt.trace.json", None),
        ("x-TP-0-DP-0-PP-0-EP-0.trace.json", None),
        ("franking3.json", None),
    ],
)
def test_rank_of_name(name: str, rank: int | None) -> None:
    assert names.rank_of_name(name) == rank


def test_a_group_is_known_by_its_members() -> None:
    assert values.group_id([1, 0]) == values.group_id((0, 1))
    assert values.group_id([0, 10]) != values.group_id([0, 1])
    assert len(values.group_id([0])) == 16


def test_cut_lists_are_rebuilt_from_start_and_stride() -> None:
    cut = "[0, 8, 16, ..., 240]"
    assert collectives.group_ranks(cut, 32) == ((0, 8, 16, 240), False)
    ranks, complete = collectives.group_ranks(cut, 32, 0, 8)
    assert complete
    assert ranks == tuple(range(0, 256, 8))
    assert collectives.group_ranks(cut, 32, 0, 1) == ((0, 8, 16, 240), False), "240 is not in 0..31"
    assert collectives.group_ranks("[]", 1) == (None, False)
    assert collectives.group_ranks("[0, 1]", 2) == ((0, 1), True)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("push hf_abcdefghijklmnopqrstuvwx", "push ***"),
        ("GET https://me:pass@host/x", "GET https://me:***@host/x"),
        ('API_KEY="abc123def"', 'API_KEY="***"'),
        ("Authorization: Bearer abc.def123", "Authorization: Bearer ***"),
        ("secret: abc12345", "secret: ***"),
        ("train --token hunter2 -v", "train --token *** -v"),
        ("train --hf-token=hunter2", "train --hf-token=***"),
        ("x -api-key  hunter2", "x -api-key  ***"),
    ],
)
def test_secrets_are_cut_out(name: str, kept: str) -> None:
    assert names.redact(name) == kept


@pytest.mark.parametrize(
    "name",
    [
        "void moe::token::dispatch<128, 4>(int4*)",
        "tokenizer.py(3): __call__",
        "nn.Module: TokenEmbedding_0",
        "build --tokenizer-type GPT2BPETokenizer",
        "run --token --verbose",
        "embed_tokens: forward",
        "Optimizer.step#AdamW.step",
        "nccl:all_reduce",
    ],
)
def test_ordinary_names_are_left_alone(name: str) -> None:
    assert names.redact(name) == name


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("python", "python"),
        ("/opt/conda/bin/python3.10 train.py --token=hunter2", "python3.10"),
        ("train --password hunter2", "train"),
        ("token=hunter2", None),
        ("", None),
        (None, None),
    ],
)
def test_of_a_process_only_its_program_is_kept(name: str | None, kept: str | None) -> None:
    assert names.program(name) == kept


@pytest.mark.parametrize("field", sorted(set(CommArgs.__struct_fields__) - {"seq"}))
def test_calls_with_other_arguments_share_no_metadata(field: str) -> None:
    """But for its number, nothing that a call says is taken from another call."""
    plain = CommArgs(collective="allreduce", seq=1)
    numbered = CommArgs(collective="allreduce", seq=2)
    other = CommArgs(collective="allreduce", seq=1)
    setattr(other, field, "7")
    assert collectives.key_of_args(numbered) == collectives.key_of_args(plain)
    assert collectives.key_of_args(other) != collectives.key_of_args(plain)
    listed = CommArgs(group_ranks=[0, 1], in_split=[3], out_split=[4])
    assert hash(collectives.key_of_args(listed))
