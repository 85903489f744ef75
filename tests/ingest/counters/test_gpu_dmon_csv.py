"""dmon and pmon as CSV (``nvidia-smi dmon --format csv``): the same rows with commas."""

from __future__ import annotations

import pytest
from gpu_files import ingest

HEAD = "# gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk\n"
UNITS = "# Idx      W      C      C      %      %    MHz    MHz\n"
ROWS = "    0    300     61     70     97     40   2619   1980\n    1    310     62      -     98"
ROWS += "     41   2619   1965\n"
TIMES = ("#Date       Time        gpu    pwr\n#YYYYMMDD   HH:MM:SS    Idx      W\n"
         " 20260721   03:01:07      0    300\n")  # fmt: skip


@pytest.mark.parametrize("text", [HEAD + UNITS + ROWS + ROWS, TIMES])
def test_commas_change_nothing(text: str) -> None:
    commas = "\n".join(", ".join(line.split()) for line in text.splitlines()) + "\n"
    with_commas = commas.replace("#, ", "#")
    plain, parted = ingest(text), ingest(with_commas, kind="nvidia_smi")
    assert parted.rows("gpu_sample") == plain.rows("gpu_sample")
    assert parted.counters == plain.counters
    assert len(plain.rows("gpu_sample")) in (26, 1)


def test_an_empty_cell_moves_no_other() -> None:
    text = "#gpu, pwr, gtemp\n#Idx, W, C\n0, 300, 61\n1, , 62\n"
    sink = ingest(text)
    assert sink.rows("gpu_sample", "nvml_index", "counter", "value") == [
        (0, "power", 300.0), (0, "gpu_temperature", 61.0)]  # fmt: skip
    assert sink.counters["bad_row"] == 1


def test_a_row_may_begin_with_a_blank_as_real_ones_do() -> None:
    text = "#Date, Time, gpu, pwr, gtemp\n#YYYYMMDD, HH:MM:SS, Idx, W, C\n"
    sink = ingest(text + " 20260721, 03:01:07, 0, 300, 61\n")
    assert sink.rows("gpu_sample", "nvml_index", "counter", "value") == [
        (0, "power", 300.0), (0, "gpu_temperature", 61.0)]  # fmt: skip
    assert "bad_row" not in sink.counters
