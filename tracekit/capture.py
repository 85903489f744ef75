"""``tracekit capture``: the shell script that collects what a diagnosis needs.

The script is printed, never run: who runs it reads it first. It is POSIX sh, needs no root, no
Python and nothing installed, changes no setting, skips what the host does not have, and stops by
itself. What it writes is what ``tracekit diagnose`` reads, each sample with its time in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.errors import UsageError

KINDS = ("profiler", "nccl", "dcgm", "nic", "host")
"""What can be captured, in the order of the script."""

_HEAD = """\
#!/bin/sh
# Collects what `tracekit diagnose` needs: {kinds}.
# Run it on every host of the job while the job runs: sh capture.sh [FOLDER]
# It only reads, skips what this host does not have, and stops after {seconds} s.
set -u
LC_ALL=C; export LC_ALL
host=$(hostname 2>/dev/null || uname -n); host=${{host%%.*}}
out=${{1:-tracekit-capture}}/$host
mkdir -p "$out" || exit 1
have() {{ command -v "$1" >/dev/null 2>&1; }}
now() {{ date +%s.%N; }}
once() {{
    f=$out/$1; shift
    have "$1" && "$@" >"$f" 2>/dev/null
    [ -s "$f" ] || rm -f "$f"
}}
seconds={seconds}
interval={interval}
pids=""
"""

_PROFILER = """\

# --- profiler: this cannot be added to a job that runs; put it around the training loop ---
cat >"$out/profile_steps.py" <<'PYTHON'
# Five steady steps on every rank; open the folder with: tracekit diagnose traces
import os
import torch
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

activities = [ProfilerActivity.CPU]
if torch.cuda.is_available():
    activities.append(ProfilerActivity.CUDA)
rank = int(os.environ.get("RANK", "0"))
profiler = profile(
    activities=activities,
    schedule=schedule(wait=10, warmup=3, active=5, repeat=1),
    on_trace_ready=tensorboard_trace_handler("traces", worker_name=f"rank{rank}", use_gzip=True),
    record_shapes=True,
)
# with profiler:
#     for batch in loader:
#         train_step(batch)
#         profiler.step()
PYTHON
"""

_NCCL = """\

# --- nccl: read when the job starts; `. nccl.env` before the launcher ---
cat >"$out/nccl.env" <<'ENVIRONMENT'
export NCCL_DEBUG=INFO
export NCCL_DEBUG_SUBSYS=INIT,GRAPH,ENV,NET,TUNING
export NCCL_DEBUG_FILE=nccl.%h.%p.log
export TORCH_NCCL_TRACE_BUFFER_SIZE=2000
export TORCH_NCCL_DUMP_ON_TIMEOUT=1
export TORCH_NCCL_DEBUG_INFO_TEMP_FILE=flight_recorder_
ENVIRONMENT
if have ncclras; then once ncclras.txt ncclras -v; fi
"""

_DCGM = """\

# --- dcgm: clocks, power, temperature, throttle reasons, ECC, links ---
if have nvidia-smi; then
    # nvidia-smi prints times without a zone: TZ makes them UTC, and the files' names say so.
    once nvidia-smi.utc.xml env TZ=UTC nvidia-smi -q -x
    once topo.txt nvidia-smi topo -m
    once nvlink.txt nvidia-smi nvlink -s
    fields=timestamp,index,uuid,pci.bus_id,name,pstate,clocks.current.sm,clocks.max.sm
    fields=$fields,clocks.current.memory,temperature.gpu,temperature.memory,power.draw,power.limit
    fields=$fields,utilization.gpu,utilization.memory,memory.used,memory.total
    fields=$fields,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current
    fields=$fields,pcie.link.width.max,clocks_event_reasons.active
    fields=$fields,ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total
    TZ=UTC nvidia-smi --query-gpu="$fields" --format=csv -lms $(( interval * 1000 )) \\
        >"$out/nvidia-smi.utc.csv" 2>/dev/null &
    pids="$pids $!"
    fields=timestamp,gpu_uuid,pid,process_name,used_gpu_memory
    TZ=UTC nvidia-smi --query-compute-apps="$fields" --format=csv -lms $(( interval * 2000 )) \\
        >"$out/gpu-processes.utc.csv" 2>/dev/null &
    pids="$pids $!"
fi
if have dmesg; then
    dmesg --time-format iso 2>/dev/null | grep -E 'NVRM: (Xid|GPU at)|nvidia-nvswitch|SXid' \\
        >"$out/xid.log"
    [ -s "$out/xid.log" ] || rm -f "$out/xid.log"
fi
"""

_NIC_ONCE = """\

# --- nic: interfaces, queues, RDMA and InfiniBand counters ---
once lldp.json lldpctl -f json
once ibdev2netdev.txt ibdev2netdev
for path in /sys/class/net/*; do
    name=${path##*/}
    [ "$name" = lo ] && continue
    once "ethtool-driver.$name.txt" ethtool -i "$name"
    once "ethtool-pause.$name.txt" ethtool -a "$name"
done
"""

_NIC_SAMPLE = """\
    if have ip; then
        qdisc='[]'
        have tc && qdisc=$(tc -s -j qdisc 2>/dev/null | tr -d '\\n')
        link=$(ip -s -j link 2>/dev/null | tr -d '\\n')
        [ -n "$link" ] && printf '{"ts":%s,"host":"%s","link":%s,"qdisc":%s}\\n' \\
            "$(now)" "$host" "$link" "${qdisc:-[]}" >>"$out/net.jsonl"
    fi
    if have ethtool; then
        for path in /sys/class/net/*/device; do
            [ -e "$path" ] || continue
            name=${path%/device}; name=${name##*/}
            ethtool -S "$name" >"$out/ethtool.$name.$(date +%s).txt" 2>/dev/null \\
                || rm -f "$out/ethtool.$name.$(date +%s).txt"
        done
    fi
    if [ -d /sys/class/infiniband ]; then
        for f in /sys/class/infiniband/*/ports/*/counters/* \\
            /sys/class/infiniband/*/ports/*/hw_counters/*; do
            [ -r "$f" ] && printf '%s:%s\\n' "$f" "$(cat "$f" 2>/dev/null)"
        done >"$out/sysfs_ib.part"
        # A host without InfiniBand has nothing to tell, once a second.
        [ -s "$out/sysfs_ib.part" ] && mv "$out/sysfs_ib.part" "$out/sysfs_ib.$(date +%s).txt"
        rm -f "$out/sysfs_ib.part"
    fi
"""

_HOST_ONCE = """\

# --- host: what tasks waited for, and what disks and NFS mounts did ---
# CGROUP=/sys/fs/cgroup/JOB sh capture.sh: the job's CPU quota and memory limits too
once lscpu.txt lscpu
once numactl.txt numactl -H
# On which CPUs and memory nodes the processes on the GPUs are.
if have nvidia-smi; then
    once topo.txt nvidia-smi topo -m
    fields=gpu_uuid,pid,process_name,used_gpu_memory
    once gpu-processes.csv nvidia-smi --query-compute-apps="$fields" --format=csv
    once gpus.utc.csv env TZ=UTC nvidia-smi --format=csv \\
        --query-gpu=timestamp,index,uuid,pci.bus_id,name,temperature.gpu
    users=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null | sort -un)
    for pid in $users; do
        grep -E '^(Pid|Cpus_allowed_list|Mems_allowed_list):' "/proc/$pid/status" 2>/dev/null
    done >"$out/affinity.txt"
    [ -s "$out/affinity.txt" ] || rm -f "$out/affinity.txt"
    [ -z "$users" ] || once numastat.txt numastat -p $users
fi
"""

_HOST_SAMPLE = """\
    waits=$(for f in /proc/pressure/cpu /proc/pressure/memory /proc/pressure/io \\
        ${CGROUP:+"$CGROUP/cpu.stat" "$CGROUP/memory.events"}; do
        [ -r "$f" ] && sed "s|^|$f:|" "$f"
    done 2>/dev/null)
    [ -z "$waits" ] || printf '%s\\n%s\\n' "$(now)" "$waits" >>"$out/pressure.txt"
    if [ -r /proc/diskstats ]; then
        { now; cat /proc/diskstats /proc/self/mountstats; } >>"$out/storage.txt" 2>/dev/null
    fi
"""

_TAIL = """\
[ -z "$pids" ] || kill $pids 2>/dev/null
echo "written: $out" >&2
"""

_LOOP = """\

# --- samples until the time is over, which begins here: what is asked once may take long ---
end=$(( $(date +%s) + seconds ))
while [ "$(date +%s)" -lt "$end" ]; do
{samples}    sleep "$interval"
done
"""


def script(what: Sequence[str] = KINDS, *, seconds: int = 60, interval: int = 1) -> str:
    """The script for some of ``KINDS``: samples for ``seconds``, one every ``interval`` seconds.

    UsageError names a kind that is not there.
    """
    for kind in what:
        if kind not in KINDS:
            raise UsageError(f"nothing to capture is called {kind!r}", hint=", ".join(KINDS))
    kinds = [k for k in KINDS if k in what]
    if not kinds:
        raise UsageError("nothing to capture was named", hint=", ".join(KINDS))
    once = {
        "profiler": _PROFILER,
        "nccl": _NCCL,
        "dcgm": _DCGM,
        "nic": _NIC_ONCE,
        "host": _HOST_ONCE,
    }
    samples = {"nic": _NIC_SAMPLE, "host": _HOST_SAMPLE}
    parts = [_HEAD.format(kinds=", ".join(kinds), seconds=seconds, interval=interval)]
    parts += [once[k] for k in kinds]
    if set(kinds) & {"dcgm", "nic", "host"}:
        parts.append(_LOOP.format(samples="".join(samples.get(k, "") for k in kinds)))
    return "".join([*parts, _TAIL])
