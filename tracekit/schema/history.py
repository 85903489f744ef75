"""What a training log tells, and the job's progress by it."""

from __future__ import annotations

from tracekit.schema.declare import PLACE, PLACE_GRAIN, col, derived_table, moment, source_table

TABLES = (
    source_table(
        "job_step",
        "A line of a training log that reports a step, as it stands: ranks that print the same "
        "step, and bars of evaluations, too.",
        (*PLACE_GRAIN, "format", "epoch", "step", "total_steps_count"),
        col("format", "VARCHAR", "Program whose line it is, such as megatron; tqdm for its bars."),
        col("step", "BIGINT", "Number of the step; within the epoch where that is stated."),
        col("epoch", "BIGINT", "Epoch that step counts in; null where it counts over the job."),
        col("total_steps_count", "BIGINT", "Steps that the job, or the bar, will have."),
        moment("time_ns", "When it was printed; null where the line does not say."),
        col(
            "elapsed_ns",
            "BIGINT",
            "Since the bar or job began, or the year where a date names none; mostly whole s.",
        ),
        col("dur_ns", "BIGINT", "How long a step took, as stated; null where the line does not."),
        col("is_averaged", "BOOLEAN", "Whether dur_ns is the mean since the line before."),
        col(
            "input_wait_ns",
            "BIGINT",
            "How long a step waited for its input, as stated; a mean where dur_ns is.",
        ),
        col(
            "running_dur_ns",
            "BIGINT",
            "Mean step since the epoch, or without epochs the job, began, as stated.",
        ),
        col("running_input_wait_ns", "BIGINT", "Mean of input_wait_ns since then, as stated."),
        col("samples_count", "BIGINT", "Samples consumed so far."),
        col("tokens_count", "BIGINT", "Tokens consumed so far."),
        col("loss", "DOUBLE", "Loss."),
        col("learning_rate", "DOUBLE", "Learning rate."),
        col("grad_norm", "DOUBLE", "Norm of the gradients."),
        col("mfu_ratio", "DOUBLE", "Model FLOP utilisation as the program states it."),
        col("model_flops_per_s", "DOUBLE", "FLOP/s a GPU as the program states them."),
        col("tag", "INTEGER", "Rank before the line, as the launcher or the program puts it."),
    ),
    source_table(
        "job_step_part",
        "How long a part of the step took, as a timer in a training log says: of one rank, or the "
        "shortest and longest of all. Means over the steps since the timers before.",
        (*PLACE_GRAIN, "name", "part_rank"),
        col("name", "VARCHAR", "Part, as the program calls it: forward-compute."),
        col("part_rank", "INTEGER", "Rank that took it; null: all, or one that is not named."),
        col("dur_ns", "BIGINT", "How long one rank took; null where only all ranks are told."),
        col("min_ns", "BIGINT", "The shortest over ranks."),
        col("max_ns", "BIGINT", "The longest over ranks."),
    ),
    derived_table(
        "logged_step",
        "The job's history: its logs in order, each reported step once; of more than a million "
        "lines every so manieth, and each that stands out.",
        ("start_number", "step"),
        col("start_number", "INTEGER", "Start of the training loop, from 1: each restart is one."),
        col("step", "BIGINT", "Number of the step over the job."),
        col("source_id", "INTEGER", "File that reports it."),
        PLACE,
        moment(
            "end_ns", "When it was reported, on the file's clock put right; null without a clock."
        ),
        col(
            "steps_count",
            "BIGINT",
            "Steps since the line before: what it stands for; 0 where a bar begins.",
        ),
        col("dur_ns", "BIGINT", "How long each of them took: as stated, else by the clock."),
        col("wall_ns", "BIGINT", "From the line before to this one; null without a clock."),
    ),
    derived_table(
        "job_episode",
        "A stretch of the job's history that is unlike the rest, or a restart.",
        ("kind", "first_step", "last_step"),
        col(
            "kind",
            "VARCHAR",
            "stall, slow, fast, risen, periodic, drift, restart or silence (behind the last step, "
            "until what ended the job).",
        ),
        col("first_step", "BIGINT", "First step of it."),
        col("last_step", "BIGINT", "Last step of it."),
        moment("start_ns", "When it began; null without a clock."),
        moment("end_ns", "When it ended; null without a clock."),
        col("dur_ns", "BIGINT", "How long its steps usually take; null for a restart."),
        col("usual_ns", "BIGINT", "How long the job's steps usually take; of risen, before."),
        col("lost_ns", "BIGINT", "How much longer it took than as many usual steps."),
        col("period_count", "BIGINT", "Steps from one stall to the next, where they are periodic."),
        col("times_count", "BIGINT", "How often, where periodic."),
        col(
            "clock_period_ns",
            "BIGINT",
            "Time of day from one to the next, such as an hour, where a period keeps to the clock "
            "and not to steps alone; else null.",
        ),
        col("per_day_ratio", "DOUBLE", "Growth of the step in a day, of a drift; may be above 1."),
        col("repeated_count", "BIGINT", "Steps that a restart did again."),
        col(
            "evaluations_count",
            "BIGINT",
            "Of a stall or a period: slow lines before which an evaluation is logged; null where "
            "other lines have as much before them.",
        ),
        col("checkpoints_count", "BIGINT", "The same of a checkpoint that is saved."),
        col("collections_count", "BIGINT", "The same of a collection of garbage."),
        col(
            "inputs_count",
            "BIGINT",
            "Of them those in which a rank waited for input half of the time or more, as its log "
            "states; null as above.",
        ),
        col("epochs_count", "BIGINT", "The same of the end or the beginning of an epoch."),
        col(
            "ended_for",
            "VARCHAR",
            "Of a restart: what its scheduler ended the start before it for, by a line of its log.",
        ),
    ),
)
