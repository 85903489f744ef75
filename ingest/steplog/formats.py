"""The lines in which training programs report a step: one entry a program.

A pattern's groups say what a line holds, and their names in which unit:

- ``step``, ``total``: number of the step, and of the job's last one; ``epoch`` where steps count
  anew in each, counted from 0 (``epoch_from_1``: from 1);
- ``dur_ms``, ``dur_s``, ``steps_per_s``: how long a step took, the mean since the line before
  where the format is averaged; ``epoch_dur_s`` of all steps of an epoch;
- ``elapsed``: ``1:02:03`` or ``02:03`` since a bar began, ``elapsed_ms``: since the training
  began, as are ``elapsed_days`` beside ``elapsed`` and ``elapsed_words``: ``1h 2m 3s``; ``month``,
  ``day`` and ``day_clock`` where the date has no year;
- ``input_wait_ms``, ``input_wait_s``: how long of that it waited for its input;
  ``running_dur_s`` and ``running_input_wait_s``: means of both since the epoch or the job began;
- ``samples``, ``tokens``: consumed so far; ``loss``, ``learning_rate``, ``grad_norm``;
- ``tflops`` a GPU and ``mfu_percent`` as the program states them;
- ``rank`` that says so, before any tag of a launcher's;
- ``time``, of a user's own pattern alone: seconds, ms, us or ns since the epoch, or a date and a
  clock; without it the line's own date and clock count, as in every format.

Patterns are in the syntax that Python's ``re`` and Rust's ``regex`` share: no looking around, so
that they run in linear time over whole blocks of lines.
"""

from __future__ import annotations

import re

from msgspec import Struct

_NUMBER = r"[-+\d.eE]+"
PLAIN, COUNTED = "plain", "counted"
OF_ONES_OWN = (PLAIN, COUNTED)
"""Formats of nobody's program: told by words alone, in files whose name is a log's."""
_COUNT = r"\d{1,3}(?:,\d{3})+|\d+"
_IS = r"[ \t]*[:=]?[ \t]*[\"']?"
_STEP_TIME = (
    r"(?:(?:step|iter|iteration|batch)[_ ]?(?:time|duration)"
    r"|time[/_ ](?:per[_ ])?(?:step|iter|iteration|batch)|sec[/_](?:step|iter))"
)
_INPUT_TIME = r"\b(?:data|dataloader|data[_ ]?load(?:ing|er)?|fetch|input)[_ ]?(?:time|wait)"
BAR_RATES = ("it/s", "s/it", "ba/s", "s/ba", "batch/s", "s/batch", "batches/s", "step/s", "s/step",
             "steps/s")  # fmt: skip
"""How a bar of steps says its pace: Composer's counts batches."""
_PACE = r"(?:it/s|ba(?:tch(?:es)?)?/s|s(?:teps?/s|/(?:it|ba(?:tch)?|step)))"
"""The same, one way on at each character."""
_OTHER_BARS = (
    # Hugging Face's libraries: weights, data sets, the hub.
    r"[Ss]hards|Loading weights|Map|Filter|Generating \S{1,40} split|Download\w*|Fetching \d+ files"
    r"|Tokeniz\w+|Creating \S{1,20} from Arrow format|Saving the dataset|Flattening the indices"
    r"|Resolving data files|Extracting data files|Computing checksums|Casting|Upload\w*"
    # Lightning, and what evaluates or generates.
    r"|Sanity Checking|Validati\w+|Testing|Predict\w*|Evaluat\w+|[Ee]val|Capturing CUDA graph\w*"
    r"|Processed prompts"
)
"""What bars that are none of the training say of themselves."""


class StepFormat(Struct, frozen=True):
    """One program's line of a step."""

    name: str
    markers: tuple[str, ...]
    """Texts of which each such line holds one: lines without are not looked at further. Empty:
    every line is."""
    pattern: str
    doc: str
    """Who writes it, and from which part of its source the format is known."""
    is_averaged: bool = False
    """Whether its duration is the mean over all steps since the line before."""
    fields: tuple[tuple[str, str], ...] = ()
    """Further patterns of one group each: many small ones are quicker than one of many options. Of
    several for one name the first that finds it counts."""
    within: str = ""
    """A pattern that each of its lines holds, where that is, beside ``pattern``."""
    without: str = ""
    """A pattern that none of its lines holds."""
    is_bar: bool = False
    """Whether it is a progress bar, of which a program may show several."""
    below: tuple[tuple[str, str], ...] = ()
    """Patterns of one group each for the lines below a step's, up to the next step: columns of
    ``job_step``, ``dur_s``, ``input_wait_s``, or ``elapsed_h`` since the training began."""
    below_marker: str = ""
    """A text that each such line holds."""
    batch: str = ""
    """Where ``step`` counts samples: a pattern of one group for how many of them a step takes, or
    several do: what they have in common counts. Without such a line no step is one."""
    is_wait_beside: bool = False
    """Whether the duration that it states leaves the wait for input out."""
    has_commas: bool = False
    """Whether its numbers may have commas between thousands."""
    has_thousands: bool = False
    """Whether its durations and steps may end in K or M, of three digits: 11.5K."""
    has_parts: bool = False
    """Whether its line tells how long the parts of the step took, as ``timers`` reads them."""
    ends_epoch: bool = False
    """Whether only lines of whose steps the last is reached count, each as one more epoch: what is
    said before is a mean since the epoch began, to the ms, of which no difference tells a step."""


_PLAIN_FIELDS = (
    ("epoch", r"(?i)\bepoch\b[\"']?[ \t]*[:=#]?[ \t]*[\[(]?[ \t]*(\d+)(?:[^\d.]|\.?$)"),
    ("dur_ms", rf"(?i)(?:\bdt|{_STEP_TIME})[\"']?{_IS}([\d.]+)[ \t]?ms\b"),
    ("dur_ms", rf"(?i){_STEP_TIME}[_ ]?\(?ms\)?[\"']?{_IS}([\d.]+)"),
    ("dur_ms", r"\b([\d.]+)[ \t]?ms(?:/(?:step|iter|it|batch)\b|[ \t]\|)"),
    ("dur_ms", r"\((?:took )?([\d.]+)[ \t]?ms\)"),
    ("dur_s", rf"(?i)(?:\bdt|{_STEP_TIME})[\"']?{_IS}([\d.]+)[ \t]?s(?:ec|econds)?\b"),
    ("dur_s", rf"(?i){_STEP_TIME}[_ ]?\(?s(?:ec|econds)?\)?[\"']?{_IS}([\d.]+)"),
    ("dur_s", r"\b([\d.]+)[ \t]?s(?:ec|econds)?/(?:step|iter|it|batch)\b"),
    ("steps_per_s", r"\b([\d.]+)[ \t]?(?:steps?|iters?|it|batch|batches)/s(?:ec)?\b"),
    (
        "steps_per_s",
        rf"(?i)\b(?:steps?|iters?|it|batches)(?:_per_|/)s(?:ec|econd)?[\"']?{_IS}([\d.]+)",
    ),
    # Whoever names both so has them from MMCV or Detectron2: in seconds.
    ("dur_s", r"[^\w.]time: +([\d.]+)[ ,-]+data_time: +[\d.]+"),
    ("input_wait_s", r"[^\w.]time: +[\d.]+[ ,-]+data_time: +([\d.]+)"),
    ("input_wait_ms", rf"(?i){_INPUT_TIME}[\"']?{_IS}([\d.]+)[ \t]?ms\b"),
    ("input_wait_ms", rf"(?i){_INPUT_TIME}[_ ]?\(?ms\)?[\"']?{_IS}([\d.]+)"),
    ("input_wait_s", rf"(?i){_INPUT_TIME}[\"']?{_IS}([\d.]+)[ \t]?s(?:ec|econds)?\b"),
    ("input_wait_s", rf"(?i){_INPUT_TIME}[_ ]?\(?s(?:ec|econds)?\)?[\"']?{_IS}([\d.]+)"),
    ("rank", r"(?i)\brank\b[\"']?[ \t]*[:=#]?[ \t]*(\d+)"),
    ("loss", rf"(?i)loss\b[\"']?{_IS}({_NUMBER})"),
    ("learning_rate", rf"(?i)\b(?:lr|learning[_ ]rate)\b[\"']?{_IS}({_NUMBER})"),
    ("grad_norm", rf"(?i)\b(?:grad[_ ])?norm\b[\"']?{_IS}({_NUMBER})"),
)
_WITH_LOSS = rf"(?i)loss\b[\"']?{_IS}(?:[-+]?[\d.]|nan|inf)"
_EVALUATES = r"(?i)(?:^|[^a-z])(?:eval|val|test|cv batch)(?:[^a-z]|$|id|uat|ing)"

FORMATS: tuple[StepFormat, ...] = (
    StepFormat(
        "megatron",
        ("elapsed time per iteration (", "elapsed_time_per_iteration_ms="),
        r"iteration(?: |= ) *(?P<step>\d+)/ *(?P<total>\d+) \|",
        "Megatron-LM, Megatron-DeepSpeed, GPT-NeoX and what is built on them (training_log)",
        is_averaged=True,
        fields=(
            # With underscores and equals signs in ALCF's Megatron-DeepSpeed.
            ("dur_ms", r"time(?: per iteration \(ms\): |_per_iteration_ms=)([\d.]+)"),
            ("dur_s", r"time per iteration \(s\): ([\d.]+)"),
            ("samples", r"consumed[ _]samples[:=] *(\d+)"),
            ("tokens", r"consumed[ _]tokens[:=] *(\d+)"),
            ("tflops", r"\(TFLOP/s/GPU\): ([\d.]+)"),
            # Without colons until 2020, and with an underscore in GPT-NeoX.
            ("learning_rate", rf"\| learning[ _]rate(?:[:=] ?| )({_NUMBER})"),
            ("loss", rf"lm[ _]loss(?:[:=] ?| )({_NUMBER})"),
            ("grad_norm", rf"grad[ _]norm[:=] ?({_NUMBER})"),
        ),
    ),
    StepFormat(
        "nanogpt",
        (", time ",),
        rf"\biter (?P<step>\d+): loss (?P<loss>{_NUMBER}|nan), time (?P<dur_ms>[\d.]+)ms"
        r"(?:, mfu (?P<mfu_percent>-?[\d.]+)%)?",
        "nanoGPT (train.py)",
    ),
    StepFormat(
        "torchtitan",
        ("tps: ",),
        rf"step: +(?P<step>\d+) +loss: +(?P<loss>{_NUMBER}|nan)"
        rf"(?: +grad_norm: +(?P<grad_norm>{_NUMBER}|nan))?"
        r" +memory: +[\d.]+GiB\([\d.]+%\) +tps: +[\d,]+"
        r"(?: +tflops: +(?P<tflops>[\d.,]+) +mfu: +(?P<mfu_percent>[\d.]+)%)?",
        "torchtitan (components/metrics.py)",
        has_commas=True,
    ),
    StepFormat(
        "deepspeed",
        ("CurrSamplesPerSec=",),
        r"global_step=(?P<step>\d+), RunningAvgSamplesPerSec=[\d.]+, "
        r"CurrSamplesPerSec=[\d.]+",
        "DeepSpeed (utils/timer.py, ThroughputTimer)",
    ),
    StepFormat(
        "deepspeed_steps",
        (", skipped=",),
        rf"step=(?P<step>\d+), skipped=\d+, lr=\[(?P<learning_rate>{_NUMBER})",
        "DeepSpeed (runtime/engine.py, _report_progress)",
    ),
    StepFormat(
        "maxtext",
        ("completed step: ",),
        r"completed step: (?P<step>\d+), seconds: (?P<dur_s>[\d.]+)"
        r"(?:, TFLOP/s/device: (?P<tflops>[\d.]+))?(?:, Tokens/s/device: [\d.]+)?"
        rf"(?:, total_weights: \d+)?(?:, loss: (?P<loss>{_NUMBER}|nan))?",
        "MaxText (metric_logger.py)",
    ),
    StepFormat(
        "nemo",
        ("train_step_timing in s",),
        rf"global_step[:=] ?(?P<step>\d+)(?:\.\d+)?\b"
        rf"(?:.{{0,200}}?reduced_train_loss[:=] ?(?P<loss>{_NUMBER}))?"
        r".*?train_step_timing in s[:=] ?(?P<dur_s>[\d.]+)"
        r"(?:.*?consumed_samples[:=] ?(?P<samples>\d+))?",
        "NeMo (its progress printer, and the postfix of its bar)",
    ),
    StepFormat(
        "nanotron",
        ("elapsed_time_per_iteration_ms: ",),
        r"\biteration: (?P<step>\d+) / (?P<total>\d+) \|",
        "nanotron (trainer.py)",
        fields=(
            ("dur_ms", r"elapsed_time_per_iteration_ms: ([\d.]+[KM]?)\b"),
            ("tflops", r"model_tflops_per_gpu: ([\d.]+)"),
            ("learning_rate", rf"\| lr: ({_NUMBER})"),
            ("loss", rf"lm_loss: ({_NUMBER})"),
            ("grad_norm", rf"grad_norm: ({_NUMBER})"),
        ),
        has_thousands=True,
    ),
    StepFormat(
        "olmo",
        ("[step=",),
        r"\[step=(?P<step>\d+)/(?P<total>\d+),epoch=\d+\]",
        "OLMo and OLMo-core (train.py, ConsoleLoggerCallback)",
        below=(("loss", rf"    train/C(?:rossEntropyLoss|E loss)=({_NUMBER})"),),
        below_marker="    train/C",
    ),
    StepFormat(
        "verl",
        ("timing_s/step:",),
        r"\bstep:(?P<step>\d+) - ",
        "verl (LocalLogger)",
        fields=(
            # By NumPy's own words in some versions.
            ("dur_s", r"\btiming_s/step:(?:np\.float\d+\()?([\d.]+)"),
            ("learning_rate", rf"\bactor/lr:(?:np\.float\d+\()?({_NUMBER})"),
            ("loss", rf"\bactor/pg_loss:(?:np\.float\d+\()?({_NUMBER})"),
            ("grad_norm", rf"\bactor/grad_norm:(?:np\.float\d+\()?({_NUMBER})"),
        ),
        has_parts=True,
    ),
    StepFormat(
        "composer",
        ("[batch=",),
        r"\[batch=(?P<step>\d+)/(?P<total>\d+)\]:",
        "Composer and LLM Foundry (loggers/console_logger.py)",
        fields=(("epoch_from_1", r"\[epoch=(\d+)\]\[batch="),),
        below=(
            ("loss", rf"\t Train loss/train/total: ({_NUMBER})"),
            ("learning_rate", rf"\t Train lr-\w+/group0: ({_NUMBER})"),
            ("grad_norm", rf"\t Train l2_norm/grad/global: ({_NUMBER})"),
            ("mfu_ratio", r"\t Train throughput/device/mfu: ([\d.]+)"),
            ("model_flops_per_s", rf"\t Train throughput/device/flops_per_sec: ({_NUMBER})"),
            # Hours of four decimals, which a job that resumes goes on counting.
            ("elapsed_h", r"\t Train time/total: ([\d.]+)"),
        ),
        below_marker="\t Train ",
    ),
    StepFormat(
        "xtuner",
        (" data_time: ",),
        r"\[RANK (?P<rank>\d+)\].*?\bStep (?P<step>\d+)/(?P<total>\d+) "
        r"data_time: (?P<input_wait_s>[\d.]+) ",
        "XTuner from 1.0 on (trainer.py), a file a rank",
        fields=(
            ("dur_s", r" time: ([\d.]+) "),
            ("learning_rate", rf" lr: ({_NUMBER})"),
            ("loss", rf" total_loss: ({_NUMBER})"),
            ("grad_norm", rf" grad_norm: ({_NUMBER})"),
        ),
        is_wait_beside=True,
    ),
    StepFormat(
        "mmengine",
        ("data_time: ",),
        r"\b(?:Epoch(?:\(train\))? +\[(?P<epoch_from_1>\d+)\]|Iter(?:\(train\))? +)"
        r"\[ *(?P<step>\d+)/(?P<total>\d+)\]",
        "MMEngine and MMCV (LoggerHook, LogProcessor)",
        is_averaged=True,
        fields=(
            ("dur_s", r"[ \t]time: +([\d.]+)"),
            ("input_wait_s", r"[ \t]data_time: +([\d.]+)"),
            ("learning_rate", rf"[ \t]lr: +({_NUMBER})"),
            ("loss", rf"[ \t]loss: +({_NUMBER})"),
            ("grad_norm", rf"[ \t]grad_norm: +({_NUMBER})"),
        ),
    ),
    StepFormat(
        "pytorch_example",
        ("][",),
        r"\b(?:Epoch|Train): ?\[(?:(?P<epoch_from_1>\d+)/\d+|(?P<epoch>\d+))\] ?"
        r"\[ *(?P<step>\d+)/(?P<total>\d+)\]\s.*?(?:[Tt]ime|Batch)[ :]",
        "PyTorch's ImageNet example, and what is built on it: Swin, semseg, Pointcept",
        fields=(
            ("dur_s", r"\b(?:[Tt]ime|Batch):? +([\d.]+) +\("),
            ("running_dur_s", r"\b(?:[Tt]ime|Batch):? +[\d.]+ +\( *([\d.]+)\)"),
            ("input_wait_s", r"\bData:? +([\d.]+) +\("),
            ("running_input_wait_s", r"\bData:? +[\d.]+ +\( *([\d.]+)\)"),
            ("loss", rf"\b[Ll]oss:? +({_NUMBER})"),
            ("learning_rate", rf"\b[Ll][Rr]:? +({_NUMBER})"),
            ("grad_norm", rf"\bgrad_norm ({_NUMBER})"),
        ),
    ),
    StepFormat(
        "timm",
        ("  Data: ",),
        r"\bTrain: (?P<epoch>\d+) \[ *(?P<step>\d+)/(?P<total>\d+) +\(",
        "timm (train.py)",
        fields=(
            ("dur_s", r"  Time: ([\d.]+)s,"),
            ("running_dur_s", r"/s +\( *([\d.]+)s,"),
            ("input_wait_s", r"  Data: ([\d.]+) \("),
            ("running_input_wait_s", r"  Data: [\d.]+ \( *([\d.]+)\)"),
            ("loss", rf"  Loss: +({_NUMBER})"),
            ("learning_rate", rf"  LR: ({_NUMBER})"),
        ),
    ),
    StepFormat(
        "metric_logger",
        ("  data: ",),
        r"\bEpoch: \[(?P<epoch>\d+)\] +\[ *(?P<step>\d+)/(?P<total>\d+)\] +eta: ",
        "torchvision's references (MetricLogger), and what copies it: DETR, DINO, MAE, BEiT",
        is_averaged=True,
        fields=(
            ("dur_s", r"  time: ([\d.]+)"),
            ("input_wait_s", r"  data: ([\d.]+)"),
            ("loss", rf"  loss: ({_NUMBER})"),
            ("learning_rate", rf"  lr: ({_NUMBER})"),
            ("grad_norm", rf"  grad_norm: ({_NUMBER})"),
        ),
    ),
    StepFormat(
        "detectron2",
        ("data_time: ",),
        r"(?:\[(?P<month>\d\d)/(?P<day>\d\d) (?P<day_clock>\d\d:\d\d:\d\d) [^\]]{1,99}\]: +)?"
        rf"\beta: [^:]{{1,20}}:\d\d:\d\d +iter: (?P<step>\d+) +total_loss: (?P<loss>{_NUMBER}|nan)",
        "Detectron2 and D2Go (CommonMetricPrinter)",
        is_averaged=True,
        fields=(
            # The mean since the job began; that of the data is of the last 20 steps.
            ("running_dur_s", r" time: ([\d.]+)"),
            ("input_wait_s", r" data_time: ([\d.]+)"),
            ("learning_rate", rf" lr: ({_NUMBER})"),
        ),
    ),
    StepFormat(
        "yolox",
        ("iter_time: ",),
        r"\bepoch: (?P<epoch_from_1>\d+)/\d+, iter: (?P<step>\d+)/(?P<total>\d+), ",
        "YOLOX (core/trainer.py)",
        is_averaged=True,
        fields=(
            ("dur_s", r" iter_time: ([\d.]+)s"),
            ("input_wait_s", r" data_time: ([\d.]+)s"),
            ("loss", rf" total_loss: ({_NUMBER})"),
            ("learning_rate", rf" lr: ({_NUMBER})"),
        ),
    ),
    StepFormat(
        "fairseq",
        ("| train_inner |",),
        r"\bnum_updates(?:=|\": \")(?P<step>\d+)",
        "fairseq and metaseq (progress bars simple and json)",
        fields=(
            ("loss", rf"\bloss(?:=|\": \")({_NUMBER})"),
            ("learning_rate", rf"\blr(?:=|\": \")({_NUMBER})"),
            ("grad_norm", rf"\bgnorm(?:=|\": \")({_NUMBER})"),
        ),
    ),
    StepFormat(
        "tf_slim",
        (" sec/step)",),
        rf"\bglobal step (?P<step>\d+): loss = (?P<loss>{_NUMBER}|nan) "
        r"\((?P<dur_s>[\d.]+) sec/step\)",
        "TensorFlow's slim (learning.train)",
    ),
    StepFormat(
        "tf_tutorial",
        (" sec/batch)",),
        rf"\bstep (?P<step>\d+), loss = (?P<loss>{_NUMBER}|nan) "
        r"\([\d.]+ examples/sec; (?P<dur_s>[\d.]+) sec/batch\)",
        "TensorFlow's tutorials and Inception (cifar10_train, inception_train)",
    ),
    StepFormat(
        "tf_models",
        (" per-step time ",),
        rf"\bStep (?P<step>\d+) per-step time (?P<dur_s>[\d.]+)s(?: loss=(?P<loss>{_NUMBER}|nan))?",
        "TensorFlow's object detection (model_lib_v2)",
        is_averaged=True,
    ),
    StepFormat(
        "paddle",
        ("batch_cost",),
        # Of both the step counts over the job: an epoch that is printed beside is not its own.
        r"(?:\[TRAIN\]\s+epoch[:=] ?\d+, iter[:=]|\bglobal[ _]step:?) ?(?P<step>\d+)"
        r"(?:/(?P<total>\d+))?, ",
        "PaddleSeg, PaddleOCR and what is built on it, PaddleNLP",
        is_averaged=True,
        fields=(
            ("dur_s", r"\b(?:avg_)?batch_cost[:=] ?([\d.]+)"),
            ("input_wait_s", r"\b(?:avg_)?reader_cost[:=] ?([\d.]+)"),
            ("loss", rf"\bloss[:=] ?({_NUMBER})"),
            ("learning_rate", rf"\b(?:lr|learning rate)[:=] ?({_NUMBER})"),
        ),
    ),
    StepFormat(
        "paddle_detection",
        (" batch_cost: ",),
        r"\bEpoch: \[(?P<epoch>\d+)\] +\[ *(?P<step>\d+)/(?P<total>\d+)\] +",
        "PaddleDetection and PaddleX (LogPrinter)",
        is_averaged=True,
        fields=(
            ("dur_s", r" batch_cost: ([\d.]+)"),
            ("input_wait_s", r" data_cost: ([\d.]+)"),
            ("loss", rf" loss: ({_NUMBER})"),
            ("learning_rate", rf" learning_rate: ({_NUMBER})"),
        ),
    ),
    StepFormat(
        "modded_nanogpt",
        ("ms step_avg:",),
        rf"\bstep:(?P<step>\d+)/(?P<total>\d+) (?:train_loss:(?P<loss>{_NUMBER}|nan) )?"
        r"train_time:(?P<elapsed_ms>\d+)ms step_avg:",
        "modded-nanogpt and what copies it",
    ),
    StepFormat(
        "llama_factory",
        ('"current_steps": ',),
        r'"current_steps": (?P<step>\d+), "total_steps": (?P<total>\d+), '
        rf'"loss": (?P<loss>{_NUMBER}|NaN), '
        r'.*?"elapsed_time": "(?:(?P<elapsed_days>\d{1,4}) days?, )?'
        r'(?P<elapsed>\d{1,2}:\d\d:\d\d)"',
        "LLaMA-Factory (trainer_log.jsonl)",
        fields=(("learning_rate", rf'"lr": ({_NUMBER})'),),
    ),
    StepFormat(
        "swift",
        ("'elapsed_time': '", '"elapsed_time": "'),
        r"[\"'](?:global_step/max_steps|iteration)[\"']: [\"'](?P<step>\d+)/(?P<total>\d+)[\"'].*?"
        r"[\"']elapsed_time[\"']: [\"'](?P<elapsed_words>(?:\d{1,6}[dhms] ?){1,4})[\"']",
        "ms-swift and its Megatron-SWIFT (what they print, and logging.jsonl)",
        fields=(
            ("loss", rf"[\"'](?:loss|lm loss)[\"']: ({_NUMBER})"),
            ("learning_rate", rf"[\"']learning_rate[\"']: ({_NUMBER})"),
            ("grad_norm", rf"[\"']grad_norm[\"']: ({_NUMBER})"),
        ),
    ),
    StepFormat(
        "lerobot",
        (" updt_s:",),
        r"\bstep:(?P<step>\d+K?) ",
        "LeRobot (its training script)",
        is_averaged=True,
        fields=(
            ("dur_s", r" updt_s:([\d.]+)"),
            ("input_wait_s", r" data_s:([\d.]+)"),
            ("loss", rf" loss:({_NUMBER})"),
            ("learning_rate", rf" lr:({_NUMBER})"),
            ("grad_norm", rf" grdn:({_NUMBER})"),
        ),
        is_wait_beside=True,
        has_thousands=True,
    ),
    StepFormat(
        "levanter",
        ("Progress on:train ",),
        r"Progress on:train (?P<step>\d+(?:\.\d+)?[kM]?)it/",
        "Levanter (tqdm_loggable)",
        fields=(("loss", rf"postfix:.{{0,80}}?\bloss=({_NUMBER})"),),
        has_thousands=True,
    ),
    StepFormat(
        "espnet",
        ("batch: iter_time=",),
        r"\b(?P<epoch_from_1>\d+)epoch:train:\d+-(?P<step>\d+)batch: ",
        "ESPnet (train/trainer.py)",
        is_averaged=True,
        fields=(
            ("dur_s", r" train_time=([\d.]+)"),
            ("input_wait_s", r" iter_time=([\d.e-]+)"),
            ("loss", rf" loss=({_NUMBER})"),
            ("learning_rate", rf" optim\d+_lr\d+=({_NUMBER})"),
            ("grad_norm", rf" grad_norm=({_NUMBER})"),
        ),
    ),
    StepFormat(
        "marian",
        (" : Cost ",),
        rf"\bUp\. (?P<step>[\d,]+) : Sen\. [\d,.]+[KMG]? : Cost (?P<loss>{_NUMBER}|nan)",
        "Marian (training/scheduler.h)",
        fields=(
            ("learning_rate", rf" L\.r\. ({_NUMBER})"),
            ("grad_norm", rf" gNorm ({_NUMBER})"),
        ),
        has_commas=True,
    ),
    StepFormat(
        "opennmt",
        ("; ppl: ",),
        r"\bStep (?P<step>\d+)/ *(?P<total>\d+); acc: ",
        "OpenNMT-py (utils/report_manager.py)",
        fields=(("loss", rf" xent: ({_NUMBER})"), ("learning_rate", rf" lr: ({_NUMBER})")),
    ),
    StepFormat(
        "nemo_rl",
        ("=== Step ",),
        r"={10,} Step (?P<step>\d+)/(?P<total>\d+) ={10,}",
        "NeMo-RL (algorithms/grpo.py and its kin)",
        below=(("dur_s", r"Total step time: ([\d.]+)s"),),
        below_marker="Total step time: ",
    ),
    StepFormat(
        "rsl_rl",
        (" Learning iteration ",),
        r" Learning iteration (?P<step>\d+)/(?P<total>\d+)",
        "RSL-RL (runners/on_policy_runner.py), as Isaac Lab runs it",
        below=(("dur_s", r"Iteration time: ([\d.]+)s"),),
        below_marker="Iteration time: ",
    ),
    StepFormat(
        "coqui",
        (" -- GLOBAL_STEP: ",),
        r" -- GLOBAL_STEP: (?P<step>\d+)",
        "Coqui's trainer",
        below=(
            ("loss", rf"\| > loss: ({_NUMBER})"),
            ("learning_rate", rf"\| > current_lr: ({_NUMBER})"),
            ("dur_s", r"\| > step_time: ([\d.]+)"),
            ("input_wait_s", r"\| > loader_time: ([\d.]+)"),
        ),
        below_marker="| > ",
    ),
    StepFormat(
        "litgpt",
        (" | loss train: ",),
        r"\| iter (?P<step>\d+) step \d+ \| loss train: ",
        "LitGPT (pretrain, finetune): a line counts iterations, of which a step may have several",
        fields=(
            ("epoch", r"Epoch (\d+) \| iter "),
            ("dur_ms", r" iter time: ([\d.]+) ms"),
            ("loss", rf" loss train: ({_NUMBER})"),
        ),
    ),
    StepFormat(
        "lingua",
        ("  wps: ",),
        r"\bstep: (?P<step>\d+) +acc: \d+ ",
        "Meta Lingua (train)",
        fields=(
            ("dur_s", r"  iter: +([\d.]+)"),
            ("input_wait_s", r"  data: +([\d.]+)"),
            ("loss", rf"  loss: +({_NUMBER})"),
            ("learning_rate", rf"  lr: +({_NUMBER})"),
            ("grad_norm", rf"  grad: +({_NUMBER})"),
        ),
    ),
    StepFormat(
        "wenet",
        ("TRAIN",),
        r"\bTRAIN (?:\| )?(?:steps/sec +[\d.]+ ?\| ?)?Batch (?P<epoch>\d+)/(?P<step>\d+) loss ",
        "WeNet (log_per_step)",
        fields=(
            ("loss", rf" loss ({_NUMBER})"),
            ("learning_rate", rf" lr ({_NUMBER})"),
            ("grad_norm", rf" grad_norm ({_NUMBER})"),
            ("rank", r" rank (\d+)"),
        ),
    ),
    StepFormat(
        "dlrm",
        ("Finished training it ",),
        r"Finished training it (?P<step>\d+)/(?P<total>\d+) of epoch (?P<epoch>\d+), "
        r"(?P<dur_ms>[\d.]+) ms/it",
        "DLRM",
        is_averaged=True,
        fields=(("loss", rf" loss ({_NUMBER})"),),
    ),
    StepFormat(
        "mxnet",
        ("samples/sec",),
        r"(?:\b(?:Epoch|Iter)\[\d+\] Batch ?\[(?:\d+-)?|\[Epoch \d+\] ?\[Batch )"
        r"(?P<step>\d+)(?:/\d+)?\],?\s+(?:LR: [-+\d.eE]+,\s+)?Speed: [\d.]+ samples/sec",
        "MXNet (callback.Speedometer) and GluonCV's scripts",
        fields=(
            ("epoch", r"\b(?:Epoch|Iter)[ \[](\d+)\]"),
            ("learning_rate", rf"\blr[=:] ?({_NUMBER})"),
        ),
    ),
    StepFormat(
        "keras",
        ("s/step",),
        r"(?:^|[^\d/])(?P<step>\d+)/(?P<total>\d+) (?:\[=+\] - |\u2501+ |- )"
        r"[\dhms:]+(?: -)? ?.*?\b\w+: [-+\d.]",
        "Keras (fit with verbose 1 or 2)",
        is_averaged=True,
        fields=(
            # Of fewer digits the rounding would be a tenth of it and more.
            ("epoch_dur_s", r"/\d+ [^\d]{1,100}(\d{3,7})s(?: |$)"),
            ("dur_ms", r"[ -](\d{2,})ms/step"),
            ("dur_s", r"[ -](\d{2,})s/step"),
            ("loss", rf" - loss: ({_NUMBER})"),
            ("learning_rate", rf" - (?:lr|learning_rate): ({_NUMBER})"),
        ),
        ends_epoch=True,
    ),
    StepFormat(
        "mllog",
        (":::MLLOG ",),
        r'"time_ms": (?P<time>\d{13}), .*?"key": "(?:train_loss|loss|tracked_stats)", .*?'
        r'"(?:step_num|iteration)": (?P<step>\d+)',  # what is called "step" counts samples
        "MLPerf's logging (mllog) of those that say their step",
        fields=(
            ("loss", rf'loss"(?:, "value")?: ({_NUMBER})'),
            ("learning_rate", rf'"lr": ({_NUMBER})'),
        ),
    ),
    StepFormat(
        "mllog_samples",
        (":::MLLOG ",),
        r'"time_ms": (?P<time>\d{13}), .*?"key": "(?:train_loss|loss|tracked_stats)", .*?'
        r'"samples_count": (?P<step>\d+)',
        "MLPerf's logging (mllog) of those that count samples and say their `global_batch_size`",
        fields=(
            ("loss", rf'loss"(?:, "value")?: ({_NUMBER})'),
            ("learning_rate", rf'"lr": ({_NUMBER})'),
            ("dur_s", rf'"train_step_time": ({_NUMBER})'),
        ),
        batch=r'"key": "global_batch_size", "value": (\d{1,9})[,.]',
    ),
    StepFormat(
        "open_clip",
        (" Batch (t): ",),
        r"Train Epoch: (?P<epoch>\d+) \[ *(?P<step>\d+)/(?P<total>\d+) \(",
        "OpenCLIP (train_one_epoch), whose steps 1, 101, 201 of an epoch have lines",
        is_averaged=True,
        fields=(
            ("dur_s", r" Batch \(t\): ([\d.]+)"),
            ("input_wait_s", r" Data \(t\): ([\d.]+)"),
            ("loss", rf" Loss: ({_NUMBER})"),
            ("learning_rate", rf" LR: ({_NUMBER})"),
        ),
        batch=r"Train Epoch: \d+ \[ *(\d{1,12})/",
    ),
    StepFormat(
        "dllogger",
        ("DLLL {",),
        r'DLLL \{"timestamp": "?(?P<time>\d{10}(?:\.\d{1,9})?)"?, .*?"type": "LOG", '
        # One number in brackets is an epoch.
        r'"step": (?:\[(?P<epoch>\d+), )?(?P<step>\d+)\]?, ',
        "NVIDIA's dllogger (JSON), as DeepLearningExamples write it",
        fields=(
            ("loss", rf'"(?:train[._])?(?:step_|avg_)?loss": "?({_NUMBER})'),
            ("learning_rate", rf'"(?:train[._])?(?:lr|learning_rate)": "?({_NUMBER})'),
        ),
        without='"(?:val|eval|test|validation)[._]',
    ),
    StepFormat(
        "tqdm",
        BAR_RATES,
        r"\d+%\|[^|]*\| *(?P<step>\d+)/(?P<total>\d+) \[(?P<elapsed>(?:\d+:)?\d\d:\d\d)<"
        rf"[^,\]]{{1,20}}, +(?:[\d.]+|\?){_PACE}",
        "tqdm: the bars of Hugging Face Trainer, Accelerate's examples, Lightning and Composer",
        fields=(
            ("epoch", r"Epoch +(\d+)[^|]*?\d+%\|"),
            # Ultralytics draws its bar behind the row of an epoch, with the GPU's memory.
            ("epoch_of_row", r"^ *(\d+)/\d+ +[\d.]+G [^|]*?\d+%\|"),
        ),
        is_bar=True,
        # Whatever else draws one: they may run longer than the training, or be all that is drawn.
        without=rf"\b(?:{_OTHER_BARS})\b[^%|]{{0,60}}\d+%\|",
    ),
    StepFormat(
        PLAIN,
        ("loss", "Loss", "LOSS"),
        r"(?i)\b(?:(?:global[_ -]?|train(?:ing)?[_ -]?)?(?:step|iter|iteration)s?\b[\"']?[ \t]*"
        r"[:=#]?[ \t]*\[?|batch(?:[ \t]|:)[ \t]*\[?)[ \t]*"
        rf"(?P<step>{_COUNT})(?:[ \t]*/[ \t]*(?P<total>{_COUNT}))?(?:[^\d.km]|\.\D|\.?$)",
        "loops of one's own: a word for the step, its number, and a loss",
        fields=_PLAIN_FIELDS,
        within=_WITH_LOSS,
        without=rf"{_EVALUATES}|DLLL \{{",  # of an epoch, if no other format took it
        has_commas=True,
    ),
    StepFormat(
        COUNTED,
        ("loss", "Loss", "LOSS"),
        r"(?:^|[\s\])])\[ *(?P<step>\d+)/ *(?P<total>\d+)\]",
        "loops of one's own: [12/200] and a loss",
        fields=tuple(f for f in _PLAIN_FIELDS if f[0] != "rank"),
        within=_WITH_LOSS,
        without=rf"{_EVALUATES}|(?i:epochs?)[:=# ]*\[|[A-Za-z]\[ *\d+/",
        has_commas=True,
    ),
)
"""In the order in which a line is asked; a line belongs to the first that it matches."""


OWN = "own"
_GROUPS = (
    "step", "total", "epoch", "dur_ms", "dur_s", "input_wait_ms", "input_wait_s", "elapsed",
    "samples", "tokens", "loss", "learning_rate", "grad_norm", "tflops", "mfu_percent", "rank",
    "time",
)  # fmt: skip


def check_own_pattern(pattern: str) -> None:
    """Refuse a user's pattern that cannot be used. Raises ValueError.

    It runs as Rust's ``regex``, which is linear in the text whatever the pattern.
    """
    import polars as pl

    try:
        groups = pl.Series(["x"]).str.extract_groups(pattern)
    except pl.exceptions.PolarsError as error:
        said = str(error).strip().splitlines()
        raise ValueError(f"no regular expression ({said[-1] if said else error})") from None
    names = groups.struct.fields if groups.dtype == pl.Struct else []
    unknown = [n for n in names if n not in _GROUPS and not n.isdecimal()]
    if unknown:
        raise ValueError(f"{unknown[0][:80]!r} is no group of a step's line: {', '.join(_GROUPS)}")
    if "step" not in names:
        raise ValueError("it has no group named step")


def own_format(pattern: str) -> StepFormat:
    """The format of a line that the user describes."""
    doc = "a program of the user's own, by job.toml's step_pattern"
    return StepFormat(OWN, (), pattern, doc, has_commas=True)


def is_step_log(head: bytes) -> bool:
    """Whether the first bytes of a text show a step of any of these programs."""
    if b"\0" in head[:4096]:
        return False
    text: str | None = None
    for known in FORMATS:
        if (
            known.is_bar
            or known.name in OF_ONES_OWN
            or not any(m.encode() in head for m in known.markers)
        ):
            continue  # anything that takes long shows a bar, and much text speaks of steps
        text = head.decode("utf-8", "replace") if text is None else text
        if re.search(known.pattern, text):
            return True
    return _tells_of_steps(head)


MIN_OWN_LINES = 5
"""Lines of a loop of one's own with ever higher steps from which on a text of any name is a log."""
MAX_OWN_LINES = 400
MAX_OWN_LINE = 2000
"""Lines, and characters of one, that are looked at for them."""


def _tells_of_steps(head: bytes) -> bool:
    """Whether several lines have a word for the step, its number and a loss, and steps rise."""
    if b"loss" not in head and b"Loss" not in head and b"LOSS" not in head:
        return False
    texts = head.decode("utf-8", "replace").splitlines()[:MAX_OWN_LINES]
    # Records are asked as such.
    texts = [t for t in texts if len(t) <= MAX_OWN_LINE and t.lstrip()[:1] not in ("{", "[")]
    for known in (f for f in FORMATS if f.name in OF_ONES_OWN):
        told_count, last = 0, -1
        for line in texts:
            found = re.search(known.pattern, line)
            if found is None or not re.search(known.within, line):
                continue
            if re.search(known.without, line):
                continue
            step = int(found["step"].replace(",", ""))
            if step <= last:
                break
            told_count, last = told_count + 1, step
            if told_count >= MIN_OWN_LINES:
                return True
    return False
