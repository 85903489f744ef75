"""What connects the devices of a host: nvidia-smi's matrix and NCCL's XML, as rows."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from memory_sink import MemorySink, source_of

from tracekit.ingest import files, ingestor, recognise
from tracekit.ingest.base import IngestOptions
from tracekit.ingest.counters.topology import from_matrix, from_xml

SHARED = Path(__file__).resolve().parents[4] / "shared/data/counters/nvidia_smi"
MATRIX = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\tSYS\t0-31,64-95\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tNODE\t32-63\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tSYS
NIC1\tSYS\tNODE\tSYS\t X

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
XML = """\
<system version="1">
 <cpu host_hash="0x1" numaid="0" arch="x86_64">
  <pci busid="0000:15:00.0" class="0x060400">
   <pci busid="0000:16:00.0" class="0x030200"><gpu dev="0" sm="90" rank="0">
    <nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu></pci>
   <pci busid="0000:18:00.0" class="0x020700"><nic>
    <net name="mlx5_0" dev="0" speed="400000" port="1"/></nic></pci>
   <pci busid="0000:19:00.0" class="0x060400">
    <pci busid="0000:1a:00.0" class="0x020700"><nic><net name="mlx5_2"/></nic></pci>
   </pci>
  </pci>
  <nic><net name="eth0" dev="3" speed="10000"/></nic>
 </cpu>
 <cpu numaid="1"><pci busid="0000:96:00.0" class="0x030200"><gpu dev="1" sm="90">
  <nvlink target="0000:05:00.0" count="12" tclass="0x068000"/></gpu></pci></cpu>
</system>
"""


def read(text: str | bytes, name: str, family: str) -> MemorySink:
    source = source_of(text.encode() if isinstance(text, str) else text, name)
    assert recognise(source).ingestor == family
    sink = MemorySink()
    ingestor(family).read(source, sink, IngestOptions())
    return sink


def links(sink: MemorySink) -> list[tuple[object, ...]]:
    return sink.rows("host_link", "gpu", "peer", "connection", "is_nearest")


def test_the_matrix_is_kept_whole() -> None:
    sink = read("gpu-7\n" + MATRIX, "gpu-7.topo.txt", "gpu_text")
    assert links(sink) == [
        ("GPU0", "GPU0", "X", None),
        ("GPU0", "GPU1", "NV18", None),
        ("GPU0", "mlx5_0", "PIX", True),
        ("GPU0", "mlx5_1", "SYS", False),
        ("GPU1", "GPU0", "NV18", None),
        ("GPU1", "GPU1", "X", None),
        ("GPU1", "mlx5_0", "SYS", False),
        ("GPU1", "mlx5_1", "NODE", True),
    ]
    row = sink.rows("host_link")[1]
    assert row["nvlinks_count"] == 18
    assert (row["place"], row["node"], row["nvml_index"]) == (3, "gpu-7", 0)
    assert (row["cpu_affinity"], row["numa_node"]) == ("0-31,64-95", 0)
    assert sink.facts.get("status", "ok") == "ok"


def test_two_hosts_in_one_file_do_not_mix() -> None:
    other = MATRIX.replace("PIX", "PXB")
    sink = read(f"{MATRIX}{'#' * 40}\n{other}", "all.txt", "gpu_text")
    words = [word for gpu, peer, word, _ in links(sink) if (gpu, peer) == ("GPU0", "mlx5_0")]
    assert words == ["PIX", "PXB"]
    assert sink.rows("host_link", "place")[0] == 2
    assert sink.rows("host_link", "place")[8] == 2 + len(f"{MATRIX}#".splitlines())


def test_a_matrix_that_breaks_off_keeps_what_stands() -> None:
    cut = MATRIX[: MATRIX.index("GPU1\tNV18") + 11]
    assert links(read(cut, "t.txt", "gpu_text"))[:4] == [
        ("GPU0", "GPU0", "X", None),
        ("GPU0", "GPU1", "NV18", None),
        ("GPU0", "NIC0", "PIX", True),  # the legend is lost
        ("GPU0", "NIC1", "SYS", False),
    ]
    assert from_matrix("no matrix\n") is None
    assert "host_link" not in read(MATRIX.splitlines()[0] + "\n", "t.txt", "gpu_text").tables


def test_the_tree_gives_nvidia_smis_words() -> None:
    sink = read(XML, "topo.xml", "topology")
    assert links(sink) == [
        ("GPU0", "GPU0", "X", None),
        ("GPU0", "GPU1", "NV12", None),  # of 18 and 12 to the switch
        ("GPU0", "eth0", "PHB", False),
        ("GPU0", "mlx5_0", "PIX", True),
        ("GPU0", "mlx5_2", "PXB", False),
        ("GPU1", "GPU0", "NV12", None),
        ("GPU1", "GPU1", "X", None),
        ("GPU1", "eth0", "SYS", True),
        ("GPU1", "mlx5_0", "SYS", True),
        ("GPU1", "mlx5_2", "SYS", True),
    ]
    assert sink.rows("host_link", "pci", "numa_node")[0] == ("00000000:16:00.0", 0)


def test_nics_of_the_tree_are_the_hosts_ends_of_cables() -> None:
    nets = """<net name="eth1" dev="4" speed="25000" port="0"/>
     <net name="mlx5_0" dev="0" speed="400000" port="1" coll="1"/>
     <net name="mlx5_3" dev="5" speed="10000" port="2"/>
     <net name="mlx5_0+mlx5_3" dev="6" speed="410000" port="1"/>
     <net name="eth0" dev="3" """
    sink = read(XML.replace('<net name="eth0" dev="3" ', nets), "gpu-7.topo.xml", "topology")
    columns = ("node", "node_kind", "port", "speed_bits_s", "peer", "peer_port")
    assert sink.rows("fabric_link", *columns) == [
        ("gpu-7", "host", "mlx5_0/1", 400e9, None, None),
        ("gpu-7", "host", "mlx5_2", None, None, None),
        ("gpu-7", "host", "eth1", 25e9, None, None),
        ("gpu-7", "host", "mlx5_3/2", 10e9, None, None),
        ("gpu-7", "host", "eth0", None, None, None),  # 10 Gbit/s is what NCCL writes of none
    ]


def test_nics_of_a_host_that_nobody_names_are_no_ends_of_cables() -> None:
    assert "fabric_link" not in read(XML, "topo.xml", "topology").tables


def test_a_tree_without_gpus_may_have_nics() -> None:
    nics = '<system><cpu numaid="0"><nic><net name="mlx5_0" port="1"/></nic></cpu></system>'
    sink = read(nics, "gpu-7.xml", "topology")
    assert len(sink.rows("fabric_link")) == 1
    assert sink.facts.get("status", "ok") == "ok"
    assert read(nics, "topo.xml", "topology").facts["status"] == "empty"


def test_nvlinks_to_a_gpu_are_its_alone() -> None:
    direct = XML.replace('target="0000:05:00.0" count="18" tclass="0x068000"',
                         'target="0000:96:00.0" count="4" tclass="0x030200"')  # fmt: skip
    words = {(g, p): w for g, p, w, _ in links(read(direct, "topo.xml", "topology"))}
    assert words["GPU0", "GPU1"] == "NV4"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(XML[: len(XML) // 2], id="cut"),
        pytest.param(XML.replace("<system", '<!DOCTYPE a [<!ENTITY b "c">]><system'), id="entity"),
        pytest.param("<system version='1'><cpu>" + "<pci>" * 50_000, id="deep"),
    ],
)
def test_damaged_xml_is_named(text: str) -> None:
    sink = read(text, "topo.xml", "topology")
    assert "host_link" not in sink.tables
    assert sink.counters["bad_document"] == 1
    assert sink.facts["status"] == "partial"


def test_a_graph_is_recognised_as_what_it_is() -> None:
    graph = '<graphs version="1"><graph id="0" pattern="4" nchannels="2"></graph></graphs>'
    found = recognise(source_of(graph.encode(), "graph.xml"))
    assert (found.kind, found.ingestor, found.status) == ("nccl_graph", None, "unrecognised")


def test_recorded_h100() -> None:
    path = SHARED / "linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt"
    if not path.exists():
        pytest.skip("the captures of nvidia-smi are not here (../shared/data/counters)")
    (source,) = files.expand([path])
    sink = MemorySink()
    ingestor("gpu_text").read(source, sink, IngestOptions())
    (row,) = sink.rows("host_link")
    assert (row["gpu"], row["peer"], row["connection"]) == ("GPU0", "GPU0", "X")
    assert (row["cpu_affinity"], row["numa_node"], row["place"]) == ("0-19", 0, 1194)


@pytest.mark.parametrize(
    "inner",
    [
        "<pci>" * 500 + "</pci>" * 500,
        "<a/>" * 150_000,
        "<gpu/>" * 2_000,
        "<net/>" * 2_000 + "<gpu/>",
    ],
)
def test_a_tree_that_no_machine_has_is_refused_at_once(inner: str) -> None:
    started = time.process_time()
    assert from_xml(f"<system><cpu>{inner}</cpu></system>") is None
    assert time.process_time() - started < 5
