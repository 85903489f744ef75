"""Lines in which training programs report a step, in files as they are."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from step_lines import read_steps, steps_of

import nccl_logs
from tracekit import api
from tracekit.ingest import files, recognise
from tracekit.ingest.nccl import log
from tracekit.ingest.steplog import parts, phases, reader, timers, words
from tracekit.ingest.steplog.formats import FORMATS, StepFormat
from tracekit.ingest.steplog.reader import MAX_LINE_BYTES, _found, _parts

LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "megatron": (
        " [2024-05-01 10:00:00] iteration       20/    5000 | consumed samples:         2560 | "
        "elapsed time per iteration (ms): 1250.5 | throughput per GPU (TFLOP/s/GPU): 412.0 | "
        "learning rate: 1.500000E-04 | global batch size:   128 | lm loss: 6.9E+00 | "
        "loss scale: 1.0 | grad norm: 1.250 | number of skipped iterations:   0 |",
        {
            "step": 20, "total_steps_count": 5000, "dur_ns": 1_250_500_000, "is_averaged": True,
            "samples_count": 2560, "learning_rate": 1.5e-4, "loss": 6.9, "grad_norm": 1.25,
            "model_flops_per_s": 412e12, "time_ns": 1_714_557_600 * 10**9,
        },
    ),
    "tf_tutorial": (
        "2024-05-01 10:00:00.500000: step 2720, loss = 2.63 (68.5 examples/sec; 3.740 sec/batch)",
        {"step": 2720, "loss": 2.63, "dur_ns": 3_740_000_000,
         "time_ns": 1_714_557_600_500 * 10**6},
    ),
    "mxnet": (
        "2024-05-01 10:00:00,500 Node[0] Epoch[3] Batch [20-40]\tSpeed: 1203.45 samples/sec\t"
        "accuracy=0.512500\tlr=0.100000",
        {"step": 40, "epoch": 3, "learning_rate": 0.1, "dur_ns": None,
         "time_ns": 1_714_557_600_500 * 10**6},
    ),
    "nanogpt": (
        "iter 100: loss 3.2512, time 135.22ms, mfu 12.50%",
        {"step": 100, "dur_ns": 135_220_000, "loss": 3.2512, "mfu_ratio": 0.125, "time_ns": None},
    ),
    "torchtitan": (
        "[rank0]:[titan] 2024-05-01 10:00:00,123 - root - INFO - \x1b[31mstep: 10  "
        "\x1b[32mloss:  7.1234  \x1b[38;2;180;60;0mgrad_norm:  1.2500  \x1b[33mmemory: "
        "23.40GiB(24.64%)  \x1b[34mtps: 6,123  \x1b[36mtflops: 1,312.10  \x1b[35mmfu: 25.00%",
        {
            "step": 10, "loss": 7.1234, "grad_norm": 1.25, "mfu_ratio": 0.25, "tag": 0,
            "model_flops_per_s": 1312.1e12, "time_ns": 1_714_557_600_123 * 10**6, "dur_ns": None,
        },
    ),
    "deepspeed": (
        "[2024-05-01 10:00:00,500] [INFO] [timer.py:215:stop] epoch=0/micro_step=40/"
        "global_step=10, RunningAvgSamplesPerSec=12.3, CurrSamplesPerSec=12.5, MemAllocated=1.0GB",
        {"step": 10, "time_ns": 1_714_557_600_500 * 10**6},
    ),
    "deepspeed_steps": (
        "[2024-05-01 10:00:00,500] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, "
        "lr=[1e-05], mom=[(0.9, 0.999)]",
        {"step": 10, "learning_rate": 1e-5, "tag": 0},
    ),
    "maxtext": (
        "2024-05-01T12:00:00.123456789+02:00 completed step: 7, seconds: 5.125, TFLOP/s/device: "
        "123.0, Tokens/s/device: 4567.8, total_weights: 65536, loss: 8.5",
        {
            "step": 7, "dur_ns": 5_125_000_000, "loss": 8.5, "model_flops_per_s": 123e12,
            "time_ns": 1_714_557_600_123_456_789,
        },
    ),
    "nemo": (
        "Training epoch 0, iteration 9/99 | lr: 1e-05 | global_batch_size: 8 | global_step: 10 | "
        "reduced_train_loss: 11.0 | train_step_timing in s: 5.5 | consumed_samples: 88",
        {"step": 10, "dur_ns": 5_500_000_000, "loss": 11.0, "samples_count": 88},
    ),
    "xtuner": (
        "[XTuner][RANK 12][2024-05-01 10:00:00][INFO] Epoch 1 Step 173/400 data_time: 332.4590 "
        "lr: 6.000000e-05 time: 48.4550 text_tokens: 65536 reduced_consumed_tokens: 1048576 "
        "total_loss: 1.25000000, reduced_llm_loss: 1.25 grad_norm: 0.50000000 max_memory: 60.12 GB "
        "reserved_memory: 70.10 GB tgs: 1352.5 exp_tgs: 172.1 e2e_tgs: 172.1 eta: 1:02:03",
        # The time of a step leaves the wait for its data out.
        {"step": 173, "total_steps_count": 400, "tag": 12, "dur_ns": 380_914_000_000,
         "input_wait_ns": 332_459_000_000, "loss": 1.25, "grad_norm": 0.5, "learning_rate": 6e-5,
         "time_ns": 1_714_557_600 * 10**9},
    ),
    "plain": (
        "2024-05-01 10:00:00,500 - INFO - rank 3 Epoch: [2/10] Step: 1200/5000, Loss: 2.25, "
        "LR: 1.5e-4, data_time: 0.250s, step_time: 1.500s",
        {"step": 1200, "total_steps_count": 5000, "epoch": 2, "tag": 3, "loss": 2.25,
         "learning_rate": 1.5e-4, "dur_ns": 1_500_000_000, "input_wait_ns": 250_000_000,
         "time_ns": 1_714_557_600_500 * 10**6},
    ),
    "llama_factory": (
        '{"current_steps": 10, "total_steps": 800, "loss": 2.25, "lr": 1e-05, "epoch": 0.5, '
        '"percentage": 1.25, "elapsed_time": "1 day, 2:00:50", "remaining_time": "0:07:30"}',
        {
            "step": 10, "total_steps_count": 800, "loss": 2.25, "learning_rate": 1e-5,
            "elapsed_ns": (26 * 3600 + 50) * 10**9, "time_ns": None, "dur_ns": None,
        },
    ),
    "swift": (
        "{'loss': 2.25, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'memory(GiB)': 20.1, "
        "'train_speed(iter/s)': 0.5, 'epoch': 0.1, 'global_step/max_steps': '10/800', "
        "'percentage': '1.25%', 'elapsed_time': '1d 2h 3m 4s', 'remaining_time': '3m 0s'}",
        {
            "step": 10, "total_steps_count": 800, "loss": 2.25, "grad_norm": 1.5,
            "elapsed_ns": (26 * 3600 + 184) * 10**9, "dur_ns": None,
        },
    ),
    "lerobot": (
        "INFO 2024-05-01 10:00:00 ot_train.py:351 step:31K smpl:2M ep:3K epch:12.01 loss:0.125 "
        "grdn:1.500 lr:1.0e-05 updt_s:0.300 data_s:0.200",
        {
            "step": 31_000, "dur_ns": 500_000_000, "input_wait_ns": 200_000_000, "loss": 0.125,
            "grad_norm": 1.5, "time_ns": 1_714_557_600 * 10**9, "is_averaged": True,
        },
    ),
    "levanter": (
        "2024-05-01T10:00:00 - 0 - tqdm_loggable.tqdm_logging - tqdm_logging.py:145 - INFO :: "
        "Progress on:train 1.23kit/10.0kit rate:1.1s/it remaining:2:45:03 elapsed:15:12 "
        "postfix:loss=3.5",
        {"step": 1230, "loss": 3.5, "dur_ns": None},
    ),
    "espnet": (
        "[gpu01] 2024-05-01 10:00:00,500 (trainer:737) INFO: 2epoch:train:51-100batch: "
        "iter_time=2.500e-01, forward_time=0.100, loss_ctc=12.3, loss=2.250, backward_time=0.1, "
        "optim0_lr0=1.000e-04, train_time=1.250",
        {
            "step": 100, "epoch": 1, "dur_ns": 1_250_000_000, "input_wait_ns": 250_000_000,
            "loss": 2.25, "learning_rate": 1e-4, "time_ns": 1_714_557_600_500 * 10**6,
        },
    ),
    "marian": (
        "[2024-05-01 10:00:00] Ep. 1 : Up. 12,500 : Sen. 1,234,567 : Cost 2.25000000 * 234,567 @ "
        "5,432 after 1,234,567 : Time 12.34s : 12345.67 words/s : gNorm 1.5000 : L.r. 1.0000e-04",
        {
            "step": 12_500, "loss": 2.25, "grad_norm": 1.5, "learning_rate": 1e-4, "dur_ns": None,
            "time_ns": 1_714_557_600 * 10**9,
        },
    ),
    "opennmt": (
        "[2024-05-01 10:00:00,500 INFO] Step 50/100000; acc: 5.1; ppl: 1234.5; xent: 7.1; "
        "lr: 0.00001; sents:    3000; bsz:  400/ 300/10; 12345/9876 tok/s;     12 sec;",
        {"step": 50, "total_steps_count": 100_000, "loss": 7.1, "learning_rate": 1e-5},
    ),
    "nemo_rl": ("===================== Step 12/1000 =====================",
                {"step": 12, "total_steps_count": 1000}),
    "rsl_rl": ("        \x1b[1m Learning iteration 10/1500 \x1b[0m   ",
               {"step": 10, "total_steps_count": 1500}),
    "coqui": (
        "\x1b[1m   --> TIME: 2024-05-01 10:00:00 -- STEP: 25/5000 -- GLOBAL_STEP: 1025\x1b[0m",
        {"step": 1025, "time_ns": 1_714_557_600 * 10**9},
    ),
    "counted": (
        "[2024-05-01 10:00:00] [  12/200] loss: 2.2500, lr: 1.00e-03",
        {
            "step": 12, "total_steps_count": 200, "loss": 2.25, "learning_rate": 1e-3,
            "time_ns": 1_714_557_600 * 10**9,
        },
    ),
    "composer": ("[batch=10/4800]:", {"step": 10, "total_steps_count": 4800}),
    "mmengine": (
        "05/01 10:00:00 - mmengine - INFO - Epoch(train)  [3][  50/4000]  base_lr: 2.0000e-03 "
        "lr: 1.5000e-03  eta: 1 day, 2:03:04  time: 0.5000  data_time: 0.0100  memory: 7000  "
        "grad_norm: 12.5000  loss: 2.2500  loss_cls: 1.0000",
        {
            "step": 50, "epoch": 2, "total_steps_count": 4000, "dur_ns": 500_000_000,
            "is_averaged": True, "learning_rate": 1.5e-3, "loss": 2.25, "grad_norm": 12.5,
            "time_ns": None,
        },
    ),
    "pytorch_example": (
        "Epoch: [3][  15/5005]\tTime  0.154 ( 7.519)\tData  0.001 ( 7.237)\t"
        "Loss 6.9078e+00 (6.9080e+00)\tAcc@1   0.00 (  0.02)",
        {
            "step": 15, "epoch": 3, "total_steps_count": 5005, "dur_ns": 154_000_000,
            "is_averaged": False, "input_wait_ns": 1_000_000, "running_dur_ns": 7_519_000_000,
            "running_input_wait_ns": 7_237_000_000, "loss": 6.9078,
        },
    ),
    "timm": (
        "Train: 2 [  50/1251 (  4%)]  Loss:  6.940000 (6.9500)  Time: 0.420s,  609.76/s  "
        "(0.520s,  492.31/s)  LR: 1.000e-05  Data: 0.010 (0.030)",
        {
            "step": 50, "epoch": 2, "total_steps_count": 1251, "dur_ns": 420_000_000,
            "input_wait_ns": 10_000_000, "running_dur_ns": 520_000_000,
            "running_input_wait_ns": 30_000_000, "loss": 6.94, "learning_rate": 1e-5,
        },
    ),
    "metric_logger": (
        "Epoch: [4]  [  20/1412]  eta: 7:19:24  lr: 0.000200  loss: 1.5000 (1.4612)  "
        "time: 0.6450  data: 0.0125  max mem: 30424",
        {
            "step": 20, "epoch": 4, "total_steps_count": 1412, "dur_ns": 645_000_000,
            "is_averaged": True, "input_wait_ns": 12_500_000, "running_dur_ns": None,
            "loss": 1.5, "learning_rate": 2e-4,
        },
    ),
    "detectron2": (
        "[03/01 11:27:04 d2.utils.events]:  eta: 1 day, 2:03:04  iter: 1259  total_loss: 1.012  "
        "loss_cls: 0.714  time: 0.3322  data_time: 0.0334  lr: 0.01  max_mem: 3961M",
        {
            "step": 1259, "epoch": None, "dur_ns": None, "running_dur_ns": 332_200_000,
            "input_wait_ns": 33_400_000, "loss": 1.012, "learning_rate": 0.01, "time_ns": None,
            "elapsed_ns": (60 * 86_400 + 11 * 3600 + 27 * 60 + 4) * 10**9,
        },
    ),
    "tf_models": (
        "I0501 10:00:00.500000 139735407601536 model_lib_v2.py:652] Step 700 per-step time 0.736s "
        "loss=1.774",
        {"step": 700, "dur_ns": 736_000_000, "is_averaged": True, "loss": 1.774, "time_ns": None},
    ),
    "paddle": (
        "2024-05-01 10:00:00 [INFO]\t[TRAIN] epoch: 3, iter: 40/500, loss: 1.8769, lr: 0.009295, "
        "batch_cost: 0.3483, reader_cost: 0.00205, ips: 5.7421 samples/sec | ETA 00:02:40",
        {
            "step": 40, "epoch": None, "total_steps_count": 500, "dur_ns": 348_300_000,
            "is_averaged": True, "input_wait_ns": 2_050_000, "loss": 1.8769,
            "learning_rate": 0.009295, "time_ns": 1_714_557_600 * 10**9,
        },
    ),
    "paddle_detection": (
        "[05/01 10:00:00] ppdet.engine.callbacks INFO: Epoch: [0] [2090/7312] learning_rate: "
        "0.000029 loss: 4.441298 loss_cls: 1.255100 eta: 67 days, 8:58:02 batch_cost: 0.4535 "
        "data_cost: 0.2961 ips: 35.2787 images/s",
        {
            "step": 2090, "epoch": 0, "total_steps_count": 7312, "dur_ns": 453_500_000,
            "is_averaged": True, "input_wait_ns": 296_100_000, "loss": 4.441298,
            "learning_rate": 0.000029, "time_ns": None,
        },
    ),
    "modded_nanogpt": (
        "step:5100/20000 train_loss:2.1995 train_time:221774ms step_avg:43.49ms",
        {
            "step": 5100, "total_steps_count": 20000, "elapsed_ns": 221_774 * 10**6,
            "dur_ns": None, "loss": 2.1995, "time_ns": None,
        },
    ),
    "yolox": (
        "2024-05-01 10:00:00.500 | INFO     | yolox.core.trainer:after_iter:260 - epoch: 2/300, "
        "iter: 150/1242, gpu mem: 20174Mb, iter_time: 0.158s, data_time: 0.001s, total_loss: 11.4, "
        "iou_loss: 4.2, lr: 2.512e-04, size: 320, ETA: 17:40:01",
        {
            "step": 150, "epoch": 1, "total_steps_count": 1242, "dur_ns": 158_000_000,
            "is_averaged": True, "input_wait_ns": 1_000_000, "loss": 11.4,
            "learning_rate": 2.512e-4, "time_ns": 1_714_557_600_500 * 10**6,
        },
    ),
    "fairseq": (
        "2024-05-01 10:00:00 | INFO | train_inner | epoch 001:   2800 / 160368 loss=9.255, "
        "ppl=611.12, wps=57.3, ups=0.04, wpb=1613, num_updates=2750, lr=2.8e-05, gnorm=3.23",
        {
            "step": 2750, "epoch": None, "loss": 9.255, "learning_rate": 2.8e-5,
            "grad_norm": 3.23, "time_ns": 1_714_557_600 * 10**9,
        },
    ),
    "nanotron": (
        "10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: 327281 / 378950 | consumed_tokens: "
        "85.8G | elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 22.8K | "
        "tokens_per_sec_per_gpu: 11.4K | global_batch_size: 64 | lm_loss: 2.38 | lr: 1e-05 | "
        "model_tflops_per_gpu: 38.3 | hardware_tflops_per_gpu: 38.3 | grad_norm: 1.25",
        {
            "step": 327281, "total_steps_count": 378950, "dur_ns": 11_500_000_000, "loss": 2.38,
            "learning_rate": 1e-5, "model_flops_per_s": 38.3e12, "grad_norm": 1.25,
            "time_ns": None,
        },
    ),
    "olmo": (
        "2024-05-01 10:00:00.500 host-1:0  olmo.train:908  INFO    [step=2/739328,epoch=0]\n"
        "    optim/total_grad_norm=0.0002\n    train/CrossEntropyLoss=12.18",
        {
            "step": 2, "total_steps_count": 739328, "epoch": None, "loss": 12.18,
            "time_ns": 1_714_557_600_500 * 10**6,
        },
    ),
    "verl": (
        "(TaskRunner pid=16292) step:2 - global_seqlen/min:538646.000 - actor/pg_loss:0.001 - "
        + "critic/rewards/mean:0.011 - " * 200
        + "actor/lr:1e-06 - timing_s/gen:74.020 - timing_s/step:np.float64(96.551) - perf/x:1",
        {"step": 2, "dur_ns": 96_551_000_000, "loss": 0.001, "learning_rate": 1e-6},
    ),
    "tf_slim": (
        "INFO:tensorflow:global step 7: loss = 6.2500 (1.500 sec/step)",
        {"step": 7, "loss": 6.25, "dur_ns": 1_500_000_000, "is_averaged": False},
    ),
    "keras": (
        "18/18 - 2s - 85ms/step - loss: 13.7642 - mae: 3.6384 - learning_rate: 0.001",
        {
            "step": 18, "epoch": 0, "total_steps_count": 18, "dur_ns": 85_000_000,
            "is_averaged": True, "loss": 13.7642, "learning_rate": 0.001, "time_ns": None,
        },
    ),
    "mllog": (
        ':::MLLOG {"namespace": "", "time_ms": 1714557600500, "event_type": "POINT_IN_TIME", '
        '"key": "train_loss", "value": 1.75, "metadata": {"file": "run.py", "lineno": 9, '
        '"step_num": 10, "lr": 0.001}}',
        {
            "step": 10, "loss": 1.75, "learning_rate": 0.001, "dur_ns": None,
            "time_ns": 1_714_557_600_500 * 10**6,
        },
    ),
    "mllog_samples": (
        ':::MLLOG {"namespace": "", "time_ms": 1714557600500, "event_type": "POINT_IN_TIME", '
        '"key": "tracked_stats", "value": {"train_step_time": 0.25, "reduced_train_loss": 1.75}, '
        '"metadata": {"file": "run.py", "lineno": 9, "samples_count": 320}}',
        {
            "step": 10, "samples_count": 320, "loss": 1.75, "dur_ns": 250_000_000,
            "time_ns": 1_714_557_600_500 * 10**6,
        },
    ),
    "litgpt": (
        "Epoch 2 | iter 640 step 40 | loss train: 2.250, val: n/a | iter time: 350.25 ms (step) "
        "remaining time: 1 day, 2:03:04",
        {"step": 640, "epoch": 2, "loss": 2.25, "dur_ns": 350_250_000},
    ),
    "lingua": (
        "0: INFO    25-05-01 10:00:00.123456 - 0:10:00 - step: 120  acc: 0  loss:  2.2500  "
        "grad: 5.00e-01  flops: 3.40e+14  wps: 1.20e+04  iter:  0.5250  data:  0.02  lr: 1.00e-03  "
        "mem: 80%  pow: 600.0 W",
        {
            "step": 120, "loss": 2.25, "grad_norm": 0.5, "learning_rate": 1e-3,
            "dur_ns": 525_000_000, "input_wait_ns": 20_000_000,
        },
    ),
    "wenet": (
        "2024-05-01 10:00:00,500 DEBUG TRAIN | steps/sec 2.5| Batch 3/120 loss 2.250000 "
        "loss_att 1.500000 lr 0.00100000 grad_norm 0.500000 rank 5",
        {
            "step": 120, "epoch": 3, "loss": 2.25, "learning_rate": 1e-3, "grad_norm": 0.5,
            "tag": 5, "time_ns": 1_714_557_600_500 * 10**6,
        },
    ),
    "dlrm": (
        "Finished training it 1024/2048 of epoch 0, 12.50 ms/it, loss 0.500000",
        {
            "step": 1024, "total_steps_count": 2048, "epoch": 0, "loss": 0.5,
            "dur_ns": 12_500_000, "is_averaged": True,
        },
    ),
    "open_clip": (
        "2024-05-01,10:00:00 | INFO | Train Epoch: 2 [   512/10240 (0%)] Data (t): 0.125 "
        "Batch (t): 0.500, 1024.00/s, 128.000/s/gpu LR: 0.000500 Logit Scale: 14.286 "
        "Contrastive_loss: 5.5000 (5.6000) Loss: 5.5000 (5.6000)",
        {
            "step": 1, "epoch": 2, "total_steps_count": 20, "samples_count": 512, "loss": 5.5,
            "learning_rate": 0.0005, "dur_ns": 500_000_000, "is_averaged": True,
            "input_wait_ns": 125_000_000,
        },
    ),
    "dllogger": (
        'DLLL {"timestamp": "1714557600.500000", "datetime": "2024-05-01 10:00:00.500000", '
        '"elapsedtime": "93.5", "type": "LOG", "step": [2, 79], "data": {"train.loss": 6.5, '
        '"train.lr": 0.25, "train.data_time": 0.001}}',
        {
            "step": 79, "epoch": 2, "loss": 6.5, "learning_rate": 0.25, "dur_ns": None,
            "time_ns": 1_714_557_600_500 * 10**6,
        },
    ),
    "tqdm": (
        "Epoch 1:  50%|█████     | 500/1000 [1:02:03<10:00,  2.50it/s, v_num=0]",
        {"step": 500, "epoch": 1, "total_steps_count": 1000, "elapsed_ns": 3723 * 10**9},
    ),
}  # fmt: skip
"""By format: a line as the program writes it, and what it says."""
BEFORE = {
    "mllog_samples": (
        ':::MLLOG {"namespace": "", "time_ms": 1714557600000, "event_type": "POINT_IN_TIME", '
        '"key": "global_batch_size", "value": 32, "metadata": {"file": "run.py", "lineno": 5}}'
    )
}
"""By format: what stands before, without which the line says no step."""


@pytest.mark.parametrize("known", sorted(LINES))
def test_each_program_says_its_step_in_its_own_words(known: str) -> None:
    line, expected = LINES[known]
    (row,) = read_steps(f"{BEFORE.get(known, 'first')}\n{line}\nlast\n")
    assert {"format": row["format"], "place": row["place"]} == {"format": known, "place": 2}
    assert {name: row[name] for name in expected} == pytest.approx(expected)


OTHER_WORDS: dict[str, tuple[str, dict[str, Any]]] = {
    "build-nanogpt": (
        "step   125 | loss: 6.012345 | lr 6.0000e-04 | norm: 0.5000 | dt: 338.25ms | "
        "tok/sec: 1,550,000.12",
        {"step": 125, "dur_ns": 338_250_000, "loss": 6.012345, "grad_norm": 0.5,
         "learning_rate": 6e-4},
    ),
    "llm.c": (
        "step  125/19560 | loss 5.100000 (+1.20z)| norm 0.8000 (+0.10z)| lr 3.00e-04 | "
        "532.25 ms | 49.2% bf16 MFU | 983000 tok/s",
        {"step": 125, "total_steps_count": 19560, "dur_ns": 532_250_000, "loss": 5.1},
    ),
    "a loop with units in its names": (
        "global_step=125 loss=2.5 step_time_ms=526.5 data_time_ms=12.5",
        {"step": 125, "dur_ns": 526_500_000, "input_wait_ns": 12_500_000, "loss": 2.5},
    ),
    "a loop in JSON's words": (
        'INFO {"iteration": 125, "train_loss": 2.5, "iter_time": "0.75s", "norm": 1.5}',
        {"step": 125, "dur_ns": 750_000_000, "loss": 2.5, "grad_norm": 1.5},
    ),
    "a loop with a length in brackets": (
        "[rank3] 10:00:00 step 125 loss 2.5 (1503.5 ms)",
        {"step": 125, "dur_ns": 1_503_500_000, "loss": 2.5},
    ),
    "a loop that took its time": (
        "step 125: train loss 2.500000 (took 526.125 ms)",
        {"step": 125, "dur_ns": 526_125_000, "loss": 2.5},
    ),
    "a loop that states no length": (
        "[2024-05-01 10:00:00] Train Iter 125 - Loss 2.5 (took 0.5)",
        {"step": 125, "dur_ns": None, "loss": 2.5, "time_ns": 1_714_557_600 * 10**9},
    ),
    "icefall": (
        "2024-05-01 10:00:00,500 INFO [train.py:546] (0/7) Epoch 1, batch 50, batch avg loss "
        "0.6246, total avg loss: 0.6274, batch size: 10",
        {"step": 50, "epoch": 1, "loss": 0.6246, "dur_ns": None},
    ),
    "a loop with its times in MMCV's words": (
        "[05/20 15:24:40] eta: 0:05:32 - epoch: 5/20 - batch: 9/13 - loss_cls: 0.25 - "
        "total_loss: 0.5 - time: 12.5000 - data_time: 12.2500 - lr: 0.009097 - max_mem: 9540M",
        {"step": 9, "total_steps_count": 13, "epoch": 5, "dur_ns": 12_500_000_000,
         "input_wait_ns": 12_250_000_000},
    ),
    "a loop with its rate": (
        "global step 10, epoch: 0, batch: 9, loss: 5.5, speed: 1.25 step/s",
        {"step": 10, "epoch": 0, "dur_ns": 800_000_000},
    ),
    "a loop with its rate by name": (
        "Step 10: loss=5.5 steps_per_sec=0.5 batch=32",
        {"step": 10, "dur_ns": 2_000_000_000},
    ),
    "a loop with commas between thousands": (
        "Step 1,250/10,000, loss 2.5, 1.25 s/it",
        {"step": 1250, "total_steps_count": 10_000, "loss": 2.5, "dur_ns": 1_250_000_000},
    ),
    "a loop with a comma behind its step": (
        "step 5, 100 samples, loss 2.5",
        {"step": 5, "total_steps_count": None, "loss": 2.5},
    ),
    "a loop with its pace": (
        "Iteration 125: loss=2.5, 1.25 s/it",
        {"step": 125, "dur_ns": 1_250_000_000},
    ),
    "PaddleOCR": (
        "[2024/05/01 10:00:00] openrec INFO: epoch: [1/2], global_step: 110, lr: 0.000005, loss: "
        "63.990349, avg_reader_cost: 0.01058 s, avg_batch_cost: 0.18164 s, avg_samples: 64.0, ips: "
        "352.35357 samples/s, eta: 0:32:12",
        {
            "step": 110, "epoch": None, "total_steps_count": None, "dur_ns": 181_640_000,
            "input_wait_ns": 10_580_000, "loss": 63.990349, "learning_rate": 0.000005,
            "time_ns": 1_714_557_600 * 10**9,
        },
    ),
    "PaddleSeg of 2021": (
        "2024-05-01 10:00:00 [INFO]\t[TRAIN] epoch=1, iter=5/100, loss=2.8735, lr=0.009639, "
        "batch_cost=0.8913, reader_cost=0.2592 | ETA 00:01:24",
        {"step": 5, "dur_ns": 891_300_000, "input_wait_ns": 259_200_000, "loss": 2.8735},
    ),
    "modded-nanogpt without a loss": (
        "step:2/1750 train_time:130ms step_avg:65.1ms",
        {"step": 2, "total_steps_count": 1750, "elapsed_ns": 130_000_000, "loss": None},
    ),
    "Megatron-LM of 2019": (
        " iteration      100/  320000 | elapsed time per iteration (ms): 500.0 | learning rate "
        "1.500E-05 | lm loss 9.250000E+00 | loss scale 8192.0 |",
        {"step": 100, "dur_ns": 500_000_000, "learning_rate": 1.5e-5, "loss": 9.25},
    ),
    "ALCF's Megatron-DeepSpeed": (
        "[2024-05-01 10:00:00.500000][INFO][training_log:661] -  iteration=       2/  635782 | "
        "consumed_samples=        1536 | consumed_tokens=     6291456 | "
        "elapsed_time_per_iteration_ms=19570.0 | learning_rate=9.4372e-09 | global_batch_size=768 "
        "| lm loss=11.125 | loss_scale=1.0 | grad_norm=6.5 | actual_seqlen= 4096 |",
        {"step": 2, "total_steps_count": 635782, "dur_ns": 19_570_000_000, "loss": 11.125,
         "samples_count": 1536, "tokens_count": 6291456, "learning_rate": 9.4372e-9,
         "grad_norm": 6.5, "time_ns": 1_714_557_600_500 * 10**6},
    ),
    "GPT-NeoX": (
        " samples/sec: 7.750 | iteration       34/   10000 | elapsed time per iteration (ms): "
        "4000.5 | learning rate: 2.000E-06 | approx flops per GPU: 112.9TFLOPS | lm_loss: "
        "1.125000E+01 | number of skipped iterations:   0 | number of nan iterations:   0 |",
        {"step": 34, "dur_ns": 4_000_500_000, "learning_rate": 2e-6, "loss": 11.25},
    ),
    "MMCV by epochs": (
        "2024-05-01 10:00:00,500 - mmdet - INFO - Epoch [1][1200/7500]\tlr: 0.00125, eta: 4:44:04, "
        "time: 0.593, data_time: 0.031, memory: 6836, loss_rpn_cls: 0.0927, loss: 0.4606",
        {
            "step": 1200, "epoch": 0, "dur_ns": 593_000_000, "learning_rate": 1.25e-3,
            "loss": 0.4606, "time_ns": 1_714_557_600_500 * 10**6,
        },
    ),
    "MMCV by iterations": (
        "2024-05-01 10:00:00,500 - mmseg - INFO - Iter [200/40000]\tlr: 9.998e-03, eta: 1:05:45, "
        "time: 0.141, data_time: 0.008, memory: 22159, decode.loss_ce: 1.2669, loss: 1.7573",
        {"step": 200, "epoch": None, "total_steps_count": 40000, "loss": 1.7573},
    ),
    "MMEngine with slashes in its date": (
        "2024/05/01 10:00:00 - mmengine - INFO - Epoch(train)  [1][  24/1051]  lr: 5.2e-06  "
        "eta: 2 days, 3:59:15  time: 8.9139  data_time: 7.4351  memory: 13646  loss: 8.125",
        {"step": 24, "input_wait_ns": 7_435_100_000, "time_ns": 1_714_557_600 * 10**9},
    ),
    "semseg": (
        "[2024-05-01 10:00:00,500 INFO train.py line 338 28028] Epoch: [1/120][180/3368] "
        "Data 0.002 (0.574) Batch 0.818 (3.887) Remain 436:08:39 Loss 11.8774 Accuracy 0.3469.",
        {
            "format": "pytorch_example", "step": 180, "epoch": 0, "dur_ns": 818_000_000,
            "running_dur_ns": 3_887_000_000, "running_input_wait_ns": 574_000_000,
        },
    ),
    "Swin": (
        "[2024-05-01 10:00:00 swin](main.py 272): INFO Train: [5/300][10/1251]\teta 0:08:16 "
        "lr 0.000003\ttime 0.4000 (0.5000)\tloss 6.9000 (6.9100)\tgrad_norm 1.5000 (1.6)",
        {
            "format": "pytorch_example", "step": 10, "dur_ns": 400_000_000, "loss": 6.9,
            "running_dur_ns": 500_000_000, "input_wait_ns": None, "grad_norm": 1.5,
        },
    ),
    "Detectron2 with a date": (
        "2024-05-01 10:00:00,500 - INFO - detectron2.utils.events  -  eta: 0:08:24  iter: 719  "
        "total_loss: 0.8492  loss_cls: 0.139  time: 1.8043  data_time: 0.0030  lr: 0.006",
        {"step": 719, "elapsed_ns": None, "time_ns": 1_714_557_600_500 * 10**6},
    ),
    "fairseq in JSON": (
        '2024-05-01 10:00:00 | INFO | train_inner | {"epoch": 27, "update": 26.267, "loss": '
        '"8.206", "wps": "1195.4", "num_updates": "33700", "lr": "0.00017", "gnorm": "1.833"}',
        {"step": 33700, "loss": 8.206, "learning_rate": 1.7e-4, "grad_norm": 1.833},
    ),
    "Ultralytics": (
        "      2/400      16.4G      1.307      5.759      1.569          7       1280: 100%|"
        "██████████| 60/60 [06:06<00:00,  6.11s/it]",
        {"format": "tqdm", "step": 60, "epoch": 2, "elapsed_ns": 366 * 10**9},
    ),
    "nanoGPT of early 2023": (
        "iter 1631: loss 4.0863, time 561.94ms",
        {"format": "nanogpt", "step": 1631, "dur_ns": 561_940_000, "mfu_ratio": None},
    ),
    "nanotron's short steps": (
        "01/17/2024 14:02:16 [INFO|DP=0|PP=0|TP=0|ip-1]: iteration: 991 / 1000 | consumed_tokens: "
        "634K | elapsed_time_per_iteration_ms: 272 | tokens_per_sec: 2.35K | lm_loss: 9.63",
        {"step": 991, "dur_ns": 272_000_000},
    ),
    "NeMo-RL's time below": (
        "========== Step 12/1000 ==========\n  • Loss: 0.5\n  • Total step time: 45.25s",
        {"step": 12, "dur_ns": 45_250_000_000},
    ),
    "RSL-RL's time below": (
        " Learning iteration 10/1500 \n  Value function loss: 0.5\n  Iteration time: 1.25s",
        {"step": 10, "dur_ns": 1_250_000_000},
    ),
    "Coqui's numbers below": (
        "   --> TIME: 2024-05-01 10:00:00 -- STEP: 25/5000 -- GLOBAL_STEP: 1025\n"
        "     | > loss: 2.25000  (2.5)\n     | > current_lr: 0.0002 \n"
        "     | > step_time: 0.5000  (0.6)\n     | > loader_time: 0.2500  (0.1)",
        {
            "step": 1025, "loss": 2.25, "learning_rate": 2e-4, "dur_ns": 500_000_000,
            "input_wait_ns": 250_000_000,
        },
    ),
    "ms-swift in JSON": (
        '{"loss": 2.25, "grad_norm": 1.5, "global_step/max_steps": "10/800", "percentage": '
        '"1.25%", "elapsed_time": "20s", "remaining_time": "3m 0s"}',
        {"step": 10, "elapsed_ns": 20 * 10**9, "loss": 2.25},
    ),
    "Megatron-SWIFT": (
        "{'loss': 2.25, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'iteration': '10/800', "
        "'elapsed_time': '1m 3s', 'memory(GiB)': 20.2}",
        {"step": 10, "total_steps_count": 800, "elapsed_ns": 63 * 10**9},
    ),
    "LeRobot's first steps": (
        "INFO 2024-05-01 10:00:00 ot_train.py:351 step:200 smpl:2K loss:6.9 updt_s:0.1 data_s:0.1",
        {"format": "lerobot", "step": 200},
    ),
    "OLMo-core": (
        "2024-05-01 10:00:00.500 host:0\tolmo_core.train:1\tINFO\t[step=7/100,epoch=1]\n"
        "    train/CE loss=3.5",
        {"step": 7, "loss": 3.5},
    ),
    "GluonCV": (
        "INFO:root:[Epoch 0] [Batch 49], LR: 1.00E-05, Speed: 123.456 samples/sec, CE=0.5",
        {"step": 49, "epoch": 0, "dur_ns": None, "time_ns": None},
    ),
    "MXNet of 2016": (
        "INFO:root:Epoch[1] Batch [50]\tSpeed: 4320.55 samples/sec\tTrain-accuracy=0.9125",
        {"step": 50, "epoch": 1},
    ),
    "DeepSpeed of 2020": (
        "[INFO 2024-05-01 10:00:00] rank:0 step=50, skipped=0, lr=[0.001], mom=[[0.9, 0.999]]",
        {"step": 50, "learning_rate": 1e-3, "time_ns": 1_714_557_600 * 10**9},
    ),
}  # fmt: skip
"""By program: its line in the words of another time, and what it says."""


@pytest.mark.parametrize("program", sorted(OTHER_WORDS))
def test_a_line_in_the_words_of_another_time_is_read(program: str) -> None:
    line, expected = OTHER_WORDS[program]
    (row,) = read_steps(f"first\n{line}\nlast\n")
    assert {name: row[name] for name in expected} == pytest.approx(expected)


ODD_LINES = {
    "megatron": (
        LINES["megatron"][0],
        LINES["megatron"][0].replace("throughput per GPU (TFLOP/s/GPU): 412.0 | ", ""),
        LINES["megatron"][0].replace("elapsed time", "consumed tokens: 77 | elapsed time"),
        LINES["megatron"][0].replace("lm loss: 6.900000E+00 | ", ""),
        LINES["megatron"][0].partition("]")[2],
        "12: " + LINES["megatron"][0],
        "[rank3]:" + LINES["megatron"][0],
        LINES["megatron"][0].replace("]", "+02:00]", 1),
        LINES["megatron"][0].partition("]")[2] + " 2024-05-01 10:00:00",
    ),
    "tqdm": (
        LINES["tqdm"][0],
        "100%|██████████| 5/5 [00:07<00:00,  1.40s/it]",
        "Epoch 12:   7%|▋         | 7/100 [123:04:05<01:00, ?it/s]",
        "loss 50% of 3 | Epoch 1: 8%|▊| 8/100 [01:02<?, 2.00it/s]",
        "8%|▊| 8/100 [1:2<?, 2.00it/s] 9%|▉| 9/100 [01:02<10:00, 2.00it/s]",
        "8%|▊| 8/100 [123:45<?, 2.00it/s]",
        "Zehn %|▊| 8/100 [00:45<?, 2.00it/s]",
    ),
}


def lines_of_a_shape(known: StepFormat) -> list[str]:
    """A format's line with other digits in each, as many of them or one more; and odd ones."""
    rng = random.Random(5)  # noqa: S311 - no secret
    usual, *others = ODD_LINES.get(known.name, (LINES[known.name][0],))
    found = (text for text in usual.splitlines() if re.search(known.pattern, text))
    usual = re.sub(r"\x1b\[[0-9;]*m", "", next(found, usual))
    usual = re.sub(r"( - critic/rewards/mean:[\d.]+){9,}", "", usual)

    def other(at: re.Match[str]) -> str:
        return at[1] or rng.choice("123456789")

    lines = [re.sub(r"(\d+[-/]\d\d[-/]\d\d)|[1-9]", other, usual) for _ in range(900)]
    lines += [re.sub(r"(?<!\d)([2-9])(?!\d)", r"\g<1>\g<1>", line) for line in lines[:20]]
    lines += [
        *others,
        usual.replace(".", "x"),
        usual.replace("-01 ", "-41 "),
        usual.replace("10:00:00", "24:00:00"),
        usual + " \u2588 " + "z" * 300,
    ]
    rng.shuffle(lines)
    return lines


@pytest.mark.parametrize("known", FORMATS, ids=lambda f: f.name)
def test_lines_of_one_shape_say_what_each_says_alone(known: StepFormat) -> None:
    lines = lines_of_a_shape(known)
    rows = pl.DataFrame({"place": range(len(lines)), "line": lines}).with_row_index()
    block = words.Block("\n".join(lines).encode())
    texts, _ = block.pieces(MAX_LINE_BYTES)
    assert _parts(rows, known, texts, is_tagged=False) is not None
    assert _parts(rows, known, words.Texts(texts.column), is_tagged=False) is None
    at_once, alone = (
        _found(rows, known, block, None, t) for t in (texts, words.Texts(texts.column))
    )
    assert at_once.equals(alone)
    assert at_once["step"].n_unique() > 5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("412.0", 412.0), ("0.1", 0.1), ("-2.5E-04", -2.5e-4), ("6.900001E+00", 6.900001),
        ("1e22", 1e22), ("-0.0", -0.0), ("123456789012.345", 123456789012.345),
        ("7", 7.0), ("0.00000000000001", 1e-14),
        ("1e-23", None), ("1234567890123.456", None), ("+1.5", None), ("1.", None), ("nan", None),
    ],
)  # fmt: skip
def test_decimals_are_read_to_the_last_bit(text: str, value: float | None) -> None:
    """Beside whole numbers of up to 16 digits and clocks; what has another form is left as text."""
    lines = [f"at 1:02:0{n % 10} of 123456789012345{n % 10}: {text} and {n:02}" for n in range(90)]
    texts, _ = words.Block("\n".join(lines).encode()).pieces(MAX_LINE_BYTES)
    pattern = r"at (?P<clock>[0-9:]+) of (?P<count>\d+): (?P<value>\S+) and (?P<n>\d)(?P<none>x)?"
    found = parts.parts_of(texts, np.arange(90), [parts.sought(pattern)])
    assert found is not None
    told = found.real("value")
    assert (None if told is None else told.to_list()) == (None if value is None else [value] * 90)
    if value is not None and told is not None:
        assert str(told[0]) == str(value)
    assert found.text("value").to_list() == [text] * 90
    assert found.text("none").null_count() == 90
    count, clock = found.whole("count"), found.clock_s("clock")
    assert count is not None
    assert clock is not None
    assert count.to_list() == [1234567890123450 + n % 10 for n in range(90)]
    assert clock[9] == 3600 + 2 * 60 + 9
    assert found.whole("value") is None or text == "7"


def test_colours_are_left_out_wherever_they_first_stand() -> None:
    filler = b"x" * MAX_LINE_BYTES
    text = b"\x1b[31mstep\x1b[0m 1\n" + filler + b"\n\x1b[38;2;1;2;3mlate\x1b[31mr\x1b[K \x1b7 kept"
    assert reader._without_colours(text) == b"step 1\n" + filler + b"\nlater \x1b7 kept"
    colours = [LINES["torchtitan"][0]] * 90
    assert len(read_steps("\n".join(colours) + "\n")) == 90


def test_few_lines_of_a_shape_or_long_ones_are_asked_one_by_one() -> None:
    lines = [f"step {n} " + "ab"[: n % 3] * n for n in range(90)]
    texts, _ = words.Block("\n".join(lines).encode()).pieces(MAX_LINE_BYTES)
    pattern = [parts.sought(r"step (?P<step>\d+)")]
    assert parts.parts_of(texts, np.arange(90), pattern) is None
    long = [f"step {n:03} " + "z" * parts.MAX_SHAPE_BYTES for n in range(90)]
    texts, _ = words.Block("\n".join(long).encode()).pieces(MAX_LINE_BYTES)
    assert parts.parts_of(texts, np.arange(90), pattern) is None


def test_what_is_asked_of_a_shape_asks_for_no_digit() -> None:
    """All lines that differ in digits alone are one: a pattern that tells 1 from 2 would be
    answered for the wrong ones."""
    asked = [
        p for f in FORMATS for p in (*map(re.escape, f.markers), f.within, f.without, f.pattern)
    ]
    asked += [pattern for known in FORMATS for _, pattern in known.fields]
    asked += [p for known in FORMATS for p in (known.below_marker, known.batch)]
    asked += [log._ANY_WORD, phases.KEYS, timers.KEYS, reader._IN_TAG, reader._IN_POD, reader._DATE]
    asked += [reader._STAMP, reader._YEARLESS, reader._TAG]
    for pattern in filter(None, asked):
        counts = re.sub(r"\[[^]]*0-9[^]]*\]|\{\d+(?:,\d*)?\}|\?P<\w+>|\\u\w{4}", "", pattern)
        assert not re.search(r"[0-9]", counts), pattern


@pytest.mark.parametrize(
    "line",
    [
        "iter 100: loss is bad, time 1ms, mfu unknown",
        "completed step: five, seconds: 5.1",
        "elapsed time per iteration (ms): 5.1",
        "Step 20K loss 2.3",
        "Epoch [3/10] loss 2.3",
        "[3/10] val loss 2.3",
        "worker[3/10] loss 2.3",
        "[3/10] Building",
        "Downloading: 100%|█████| 1.20G/1.20G [00:10<00:00, 120MB/s]",
        "Map: 100%|█████| 1000/1000 [00:10<00:00, 100 examples/s] it/s",
        "[batch=first]: it/s",
        "Epoch(val) [1][50/4000]    bbox_mAP: 0.1  data_time: 0.0100  time: 0.0500",
        "Test: [15/196]\tTime  0.154 ( 7.519)\tLoss 6.9e+00 (6.9e+00)\tData 0.1 (0.1)",
        "Test: 2 [  50/1251]  Time: 0.420 (0.520)  Loss:  6.94 (6.95)  Data: 0.010",
        "Test:  [  20/1412]  eta: 7:19:24  loss: 1.5 (1.4)  time: 0.6  data: 0.0  max mem: 3",
        "2024-05-01 10:00:00 | INFO | train | epoch 001 | loss 9.2 | num_updates 2750 | lr 2e-05",
        "Iter(val) [ 50/4000]  data_time: 0.0100  time: 0.0500",
        "step 250: train loss 2.5012, val loss 2.6011",
        "eval step 10 loss 1.2",
        "validation_loss 2.5 at step 7",
        "step 0.5s loss 1.2",
        "step 1.5 loss 1.2",
        "batch=32 loss 2.5",
        "the loss of a step 5 times as long",
        "INFO:tensorflow:global step 7: accuracy: 0.5 (1.500 sec/step)",
        'DLLL {"timestamp": "1714557600.5", "type": "LOG", "step": [2], "data": {"loss": 6.5}}',
        'DLLL {"timestamp": "1714557600", "type": "LOG", "step": [2, 9], "data": {"val.loss": 6}}',
        ':::MLLOG {"namespace": "", "time_ms": 1714557600500, "key": "tracked_stats", "value": '
        '{"throughput": 1.9}, "metadata": {"file": "a.py", "lineno": 161, "step": 3072}}',
        "[INFO 2024-05-01 10:00:00] 0/2650, SamplesPerSec=13.2, MemAllocated=0.26GB",
    ],
)
def test_a_line_that_only_resembles_one_is_none(line: str) -> None:
    assert read_steps(f"{line}\n{LINES['nanogpt'][0]}\n")[0]["place"] == 2


def test_what_stands_among_many_steps_is_read_too() -> None:
    """Only what no step has taken is searched for other words."""
    call = (
        "AllReduce: opCount 1 sendbuff 0x1 recvbuff 0x2 count 5 datatype 9 op 0 root 0 "
        "comm 0x7f0000000000 [nranks=2] stream 0x1"
    )
    between = [
        "saving checkpoint to /x",
        nccl_logs.info(call),
        "Traceback (most recent call last):",
        '  File "/a/train.py", line 3, in main',
        "ValueError: x",
    ]
    steps = [LINES["maxtext"][0]] * 50
    tables = nccl_logs.read("\n".join([*steps, *between, *steps]) + "\n").tables
    assert [r["place"] for r in tables["job_step"]] == [*range(1, 51), *range(56, 106)]
    assert {(r["code"], r["place"]) for r in tables["log_event"]} == {
        ("checkpoint-save", 51),
        ("python-exception", 53),
    }
    assert [r["place"] for r in tables["nccl_op"]] == [52]


@pytest.mark.parametrize("at", [0, words.HEAD_SHAPES - 1, words.HEAD_SHAPES, 2 * words.HEAD_SHAPES])
def test_a_word_is_found_wherever_it_stands_in_a_block(at: int) -> None:
    block = words.Block([b"\xff"] * at + [b"a word"] + [b" "] * words.HEAD_SHAPES)
    assert block.holds(words.any_of([b"none", b"word"]))
    assert not block.holds(words.any_of([b"none", b"wordy"]))


def test_a_program_met_later_is_read_among_the_lines_of_one_met_before() -> None:
    """In one block and in a later one; what the first took is no other's."""
    first, second = LINES["megatron"][0], LINES["maxtext"][0]
    both = f"{first} {second}"
    tables = nccl_logs.read("\n".join([first, second, both, first])).tables
    rows = sorted(tables["job_step"], key=lambda r: r["place"])
    assert [(r["format"], r["place"]) for r in rows] == [
        ("megatron", 1), ("maxtext", 2), ("megatron", 3), ("megatron", 4),
    ]  # fmt: skip
    filler = "\n".join(["x" * 1000] * 4400)  # beyond a block
    rows = nccl_logs.read("\n".join([first, filler, first, second])).tables["job_step"]
    assert [(r["format"], r["place"]) for r in rows] == [
        ("megatron", 1), ("megatron", 4402), ("maxtext", 4403),
    ]  # fmt: skip


def test_garbage_long_lines_and_other_encodings_are_passed_over(tmp_path: Path) -> None:
    line = LINES["maxtext"][0].encode()
    data = b"\n".join(
        [b"step log", line, b"\xff\xfe\x80 caf\xe9", b"x" * (10 << 20), b"\x01\x02\r\r\r", line]
    )
    rows = steps_of(tmp_path, data + b"\n")
    assert [r["step"] for r in rows] == [7, 7]
    counts = nccl_logs.read_file(tmp_path / "train.log").counts
    assert counts["garbled_line"] == 1
    assert counts["long_line"] == 1  # a piece of eight megabytes, and the rest


def test_numbers_that_no_column_holds_are_left_out_and_counted(tmp_path: Path) -> None:
    line = f"completed step: {'9' * 30}, seconds: 1.2.3, TFLOP/s/device: {'9' * 400}"
    good = LINES["maxtext"][0]
    rows = steps_of(tmp_path, f"{line}\n{good}\n".encode())
    assert [(r["step"], r["dur_ns"], r["model_flops_per_s"]) for r in rows] == [
        (None, None, None),
        (7, 5_125_000_000, 123e12),
    ]


def test_numbers_beyond_every_job_end_nothing(tmp_path: Path) -> None:
    """Steps, epochs, durations and times of 19 digits, among lines that are as they should be."""
    text = "".join(
        f"iter {step}: loss 1.0, time 12.00ms, mfu 30.00%\n"
        for step in (0, 1, 2**63 - 1, 2, 2**62, 3, 10**11, 4)
    )
    text += f"iter 5: loss 1.0, time {'9' * 19}.00ms, mfu 30.00%\n"
    (tmp_path / "train.log").write_text(text)
    bar = "Epoch {}: 50%|#####     | {}/9223372036854775807 [9999999999999:00:01<00:01,  1.00it/s]"
    bars = "\n".join(bar.format(epoch, step) for epoch in (0, 2**63 - 1) for step in range(3))
    (tmp_path / "bars.log").write_text(bars + "\n")
    far = "".join(
        f"9999-01-01 00:00:00 completed step: {i}, seconds: {'9' * 20}.0, TFLOP/s/device: 1.0\n"
        for i in range(30)
    )
    (tmp_path / "far.log").write_text(far)
    with api.open(tmp_path / "train.log") as run:
        rows = run.sql("SELECT step, dur_ns FROM job_step ORDER BY place").rows(named=True)
        assert [r["step"] for r in rows] == [0, 1, None, 2, None, 3, None, 4, 5]
        assert [r["dur_ns"] for r in rows] == [12_000_000] * 8 + [None]
        assert run.diagnose().verdict.sentence
    with api.open(tmp_path / "bars.log") as run:
        rows = run.sql("SELECT epoch, total_steps_count, elapsed_ns FROM job_step").rows(named=True)
        assert {r["total_steps_count"] for r in rows} == {None}
        assert {r["epoch"] for r in rows} == {0, None}
        assert run.diagnose().verdict.sentence
    with api.open(tmp_path / "far.log") as run:
        rows = run.sql("SELECT time_ns, dur_ns FROM job_step").rows(named=True)
        assert {(r["time_ns"], r["dur_ns"]) for r in rows} == {(None, None)}
        assert run.diagnose().verdict.sentence


@pytest.mark.parametrize(
    ("head", "elapsed_s"),
    [
        ("I1124 19:30:05.500000 140463864982400 own.py:13] ", 28_409_405.5),
        ("11/24 19:30:05 - mmengine - INFO - ", 28_409_405),
        ("[19:30:05] INFO     ", 70_205),
        ("19:30:05,250 | ", 70_205.25),
        ("[rank0]: 19:30:05 ", 70_205),
        ("took 19:30:05 of ", None),
        ("I1124 29:30:05.5 1 own.py:13] ", None),
        ("I1332 19:30:05.5 1 own.py:13] ", None),
    ],
)
def test_a_clock_without_a_year_tells_how_long_steps_took(
    tmp_path: Path, head: str, elapsed_s: float | None
) -> None:
    """19:30:05 on the 24th of November: 329 days since a leap year began."""
    (row,) = steps_of(tmp_path, f"{head}step 1 loss 3.0\n".encode())
    assert row["time_ns"] is None
    assert row["elapsed_ns"] == (None if elapsed_s is None else round(elapsed_s * 1e9))


def test_samples_are_no_steps_where_nobody_says_how_many_a_step_takes(tmp_path: Path) -> None:
    """MLPerf's log says it once, before the first step."""
    text = f"{LINES['mllog_samples'][0]}\n{LINES['nanogpt'][0]}\n"
    assert [r["format"] for r in steps_of(tmp_path, text.encode())] == ["nanogpt"]


def test_what_counts_of_samples_have_in_common_is_a_step_s(tmp_path: Path) -> None:
    """OpenCLIP prints every hundredth step, from the first on; this log lacks its beginning."""
    line = LINES["open_clip"][0]
    text = "".join(line.replace("   512/", f"{512 * step}/") + "\n" for step in (101, 201, 301))
    assert [row["step"] for row in steps_of(tmp_path, text.encode())] == [101, 201, 301]


def test_richs_date_is_read_month_first_and_in_brackets_alone(tmp_path: Path) -> None:
    """Of Spark and Hadoop 11/24/19 would be the year 2011."""
    said = "11/24/25 19:30:05"
    rich, spark = (f"{head} INFO step 1 loss 3.0\n".encode() for head in (f"[{said}]", said))
    (row,) = steps_of(tmp_path, rich)
    assert row["time_ns"] == 1_764_012_605 * 10**9  # 24 November 2025, as if UTC
    (row,) = steps_of(tmp_path, spark)
    assert row["time_ns"] is None
    (row,) = steps_of(tmp_path, rich.replace(b"11/24/25", b"24/11/25"))
    assert row["time_ns"] is None


@pytest.mark.parametrize("at", [0, 40, 4000])
@pytest.mark.parametrize("zeros_count", [4096, 3_000_000])
def test_zeros_where_a_log_was_cut_or_its_host_lost_power_hide_no_step(
    tmp_path: Path, at: int, zeros_count: int
) -> None:
    """logrotate's copytruncate leaves them at the beginning, a power failure anywhere."""
    lines = [f"2024-05-01 10:00:{n % 60:02d} INFO step {n} loss 2.5\n" for n in range(1, 200)]
    text = "".join(lines).encode()
    told = {row["step"] for row in steps_of(tmp_path, text[:at] + bytes(zeros_count) + text[at:])}
    assert len(set(range(1, 200)) - told) <= 1  # the line that they lie in


@pytest.mark.parametrize(
    "text", [bytes(5000), b"\x01\x02" + bytes(100), b"SQLite format 3" + bytes(64)]
)
def test_zeros_alone_or_among_other_bytes_are_no_log(tmp_path: Path, text: bytes) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(text)
    (source,) = files.expand([log])
    assert recognise(source).status == "unrecognised"


def pod_lines(pod: str, *steps: int) -> str:
    return "".join(
        f"[pod/{pod}/pytorch] 2024-05-01 10:00:{n:02d} INFO step {n} loss 2.{n}\n" for n in steps
    )


def test_of_pods_that_print_one_after_the_other_the_steps_are_once(tmp_path: Path) -> None:
    """kubectl logs --prefix -l prints pod after pod; a pod that is made anew goes on."""
    text = (
        pod_lines("job-0-2bcdf", *range(1, 20)) + pod_lines("job-1-4mnpq", *range(1, 20))
        + pod_lines("job-0-xz789", *range(20, 30))
    )  # fmt: skip
    rows = steps_of(tmp_path, text.encode())
    assert [r["step"] for r in rows] == list(range(1, 30))
