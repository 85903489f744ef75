import sys; sys.path.insert(0,'tests')
from datetime import *
from pathlib import Path
sys.path.insert(0,'tests/report')
from tracekit import api
BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
def log_of(path,durs_s,begin,zone=""):
    lines=[];m=begin
    for step,d in enumerate(durs_s,1):
        m+=timedelta(seconds=d)
        lines.append(f"{m:%Y-%m-%dT%H:%M:%S.%f}{zone} completed step: {step}, seconds: {d:.6f}, TFLOP/s/device: 100.0")
    path.write_text("\n".join(lines)+"\n"); return path
import random
for name,d in {"alt":[2.0, 2.02] * 450 + [3.0, 3.2] * 150 + [2.0, 2.02] * 450, "noise":[random.Random(i).gauss(2,.02) for i in range(900)]+[random.Random(i).gauss(3.1,.1) for i in range(300)]+[random.Random(i).gauss(2,.02) for i in range(900)]}.items():
    p=log_of(Path(f'/tmp/ep-{name}.log'),d,BEGIN,"Z")
    for r in api.open(p).query("slow_episode").to_dicts(): print(name,{k:r[k] for k in ('kind','first_step','last_step','dur_ns','usual_ns')})
