"""The list of families of counters, and what holds for it as a whole."""

from __future__ import annotations

import grimp

from tracekit.ingest.counters.formats import FAMILIES


def test_formats_do_not_know_each_other() -> None:
    """What two need stands in a common module of the package: table, samples, vocabulary, ..."""
    graph = grimp.build_graph("tracekit")
    # Splitting a file and naming a folder ask the list of all ingestors.
    graph.remove_import(importer="tracekit.ingest.files", imported="tracekit.ingest")
    modules = {f"tracekit.ingest.counters.{family.module}" for family in FAMILIES}
    assert modules <= graph.modules
    for module in modules:
        assert not graph.find_upstream_modules(module) & modules, module


def test_a_family_has_one_name_one_module_and_formats() -> None:
    assert len({f.name for f in FAMILIES}) == len({f.module for f in FAMILIES}) == len(FAMILIES)
    assert all(f.formats for f in FAMILIES)
