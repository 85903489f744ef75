"""What the peers run, as small programs for their own environment.

Each prints one JSON line with ``after_imports_s`` (the work without the interpreter's start and
the imports). They are run as whole commands, so start-up counts in the other figure.
"""

HTA_OVERLAP = """
import json, sys, time, logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
start = time.perf_counter()
analysis = TraceAnalysis(trace_dir=sys.argv[1])
frame = analysis.get_comm_comp_overlap(visualize=False)
print(json.dumps({"after_imports_s": time.perf_counter() - start, "rows": len(frame)}))
"""

JSON_LOAD = """
import gzip, json, sys, time
start = time.perf_counter()
opener = gzip.open if sys.argv[1].endswith(".gz") else open
with opener(sys.argv[1], "rb") as stream:
    events = len(json.load(stream)["traceEvents"])
print(json.dumps({"after_imports_s": time.perf_counter() - start, "events": events}))
"""

# The least that any reader must do: decompress, and let simdjson look at every byte.
PHYSICAL_LIMIT = """
import json, sys, time
import simdjson
from isal import igzip
start = time.perf_counter()
opener = igzip.open if sys.argv[1].endswith(".gz") else open
with opener(sys.argv[1], "rb") as stream:
    raw = stream.read()
read_s = time.perf_counter() - start
simdjson.Parser().parse(raw)
print(json.dumps({"after_imports_s": time.perf_counter() - start, "read_s": read_s}))
"""

# The same in batches that stay in the cache, cut between two events.
BATCHED_LIMIT = """
import json, sys, time
import simdjson
from isal import igzip
start = time.perf_counter()
opener = igzip.open if sys.argv[1].endswith(".gz") else open
parser, batches = simdjson.Parser(), 0
with opener(sys.argv[1], "rb") as stream:
    text = stream.read(1 << 20)
    text = text[text.index(b"[", text.index(b'"traceEvents"')) + 1:]
    while more := stream.read(1 << 18):
        text += more
        end = text.rfind(b"{", 0, max(text.rfind(b'"ph"'), 0))
        if end > 0:
            parser.parse(b"[" + text[:end].rstrip().rstrip(b",") + b"]")
            text, batches = text[end:], batches + 1
print(json.dumps({"after_imports_s": time.perf_counter() - start, "batches": batches}))
"""

TRACEKIT_OVERLAP = """
import json, sys, time
import duckdb, msgspec, numpy, numpy.ma, pyarrow, pyarrow.compute, pyarrow.parquet
import isal.isal_zlib, dateutil.relativedelta
import importlib.readers
import tracekit, tracekit.api, tracekit.catalog, tracekit.derive, tracekit.ingest.kineto.reader
import tracekit.ingest.nsys.sniff, tracekit.queries
start = time.perf_counter()
with tracekit.open(sys.argv[1]) as run:
    rows = run.table("overlap").num_rows
print(json.dumps({"after_imports_s": time.perf_counter() - start, "rows": rows}))
"""

TRACEKIT_INGEST = """
import json, sys, time
import duckdb, msgspec, numpy, numpy.ma, pyarrow, pyarrow.compute, pyarrow.parquet
import isal.isal_zlib, dateutil.relativedelta
import importlib.readers
import tracekit, tracekit.api, tracekit.catalog, tracekit.derive, tracekit.ingest.kineto.reader
import tracekit.ingest.nsys.sniff, tracekit.queries
start = time.perf_counter()
tracekit.ingest(sys.argv[1], run=sys.argv[2], workers=1).close()
print(json.dumps({"after_imports_s": time.perf_counter() - start}))
"""
