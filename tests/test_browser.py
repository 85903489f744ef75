"""Pages in a real browser: no complaint, no request, readable in light, dark and on a phone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import browser
import tracekit
from fleet_nights import Fleet, day_of
from soaks import soak
from tracekit.cli import main
from tracekit.dashboards import charts, drawn
from tracekit.fleet.night import judged
from tracekit.fleet.rollup import Rolled
from tracekit.fleet.site import write_site
from tracekit.fleet.store import FleetStore
from tracekit.report import build_report
from tracekit.report.html import to_html
from traces import make_trace, write_trace

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
SHOTS = os.environ.get("TRACEKIT_SCREENSHOTS")
"""A folder to which every page that is tested is drawn, to look at."""
MS = 1_000_000
DESK, PHONE = 1280, 390
MIN_CONTRAST = 4.5
"""Of text against what is behind it: level AA of WCAG 2.2, 1.4.3."""

pytestmark = pytest.mark.skipif(
    browser.program() is None, reason="no Chromium here: apt-get install chromium"
)

CONTRAST = """(() => {
  const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return m.length > 3 && !m[3] ? null : m };
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b };
  const behind = e => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor); if (c) return c; } return [255, 255, 255] };
  const poor = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || ["SCRIPT", "STYLE"].includes(e.tagName)) continue;
    if (e.getAttribute("fill") === "var(--onheat)") continue;  // on a cell, see test_lateness_figures.py
    const style = getComputedStyle(e), c = parse(e.closest("svg") ? style.fill : style.color);
    const [a, b] = [light(c.slice(0, 3)), light(behind(e).slice(0, 3))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < LIMIT) poor.push(`${e.tagName} ${e.textContent.trim().slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return poor;
})()""".replace("LIMIT", str(MIN_CONTRAST))  # noqa: E501


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    with ExitStack() as stack:
        try:
            one = stack.enter_context(browser.running())
        except (EOFError, OSError, TimeoutError) as error:
            pytest.skip(f"Chromium does not start here: {error}")
        yield one


def page_of(folder: Path, *paths: Path) -> Path:
    """The page that diagnose writes about some files."""
    with tracekit.open(list(paths)) as run:
        text = run.page()
    page = folder / "page.html"
    page.write_text(text)
    return page


def healthy(folder: Path, _: Any) -> Path:
    return page_of(folder, FIXTURES / "recorded/ddp-healthy")


def faulty(folder: Path, _: Any) -> Path:
    return page_of(folder, FIXTURES / "twins/ddp-two-faults")


@pytest.fixture(scope="module")
def faulty_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That page, which several tests visit."""
    return faulty(tmp_path_factory.mktemp("faulty"), None)


def only_a_log(folder: Path, _: Any) -> Path:
    lines = [
        "h1:10:10 [0] NCCL INFO NCCL version 2.21.5+cuda12.4",
        "h1:10:10 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>",
        "h1:10:10 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 "
        "busId 1000 commId 0x9 - Init COMPLETE",
    ]
    log = folder / "nccl.log"
    log.write_text("\n".join(lines) + "\n")
    return page_of(folder, log)


def only_counters(folder: Path, _: Any) -> Path:
    rows = ["timestamp, index, uuid, temperature.gpu, clocks.current.sm [MHz]"]
    rows += [
        f"2026/07/21 03:01:{second:02}.000, {gpu}, GPU-{gpu}, {60 + gpu}, 1980 MHz"
        for second in range(20)
        for gpu in range(4)
    ]
    table = folder / "smi.csv"
    table.write_text("\n".join(rows) + "\n")
    return page_of(folder, table)


def thousand_ranks(folder: Path, make_job: Callable[..., Any]) -> Path:
    """1,024 ranks by 5 steps, of which one waits for its input in two."""
    job = make_job(ranks_count=1024, steps_count=5, comm_ms=10)
    facts = job.stall("input_stall", [700], (2, 4), 50).facts()
    rows = {q: list(facts.rows.get(q, [])) for c in charts() for q in c.queries}
    gap = {"rank": 700, "capture_id": 0, "exposed_gap_ns": 50 * MS}
    rows["late_steps"] = [gap | {"step": 2}, gap | {"step": 4}]
    rows["delay_matrix"] = [
        {"late_rank": 700, "waiting_rank": rank, "own_wait_ns": 100 * MS} for rank in range(700)
    ]
    report = build_report(facts)
    page = folder / "page.html"
    page.write_text(to_html(report, [(c, drawn(c, rows, report.findings)) for c in charts()]))
    return page


PAGES: dict[str, Callable[[Path, Any], Path]] = {
    "healthy": healthy,
    "faulty": faulty,
    "only-a-log": only_a_log,
    "only-counters": only_counters,
    "thousand-ranks": thousand_ranks,
}


@pytest.mark.parametrize("name", soak(PAGES, fast=["faulty", "only-counters"]))
def test_a_page_opens_without_complaint_or_request(
    name: str,
    chromium: browser.Browser,
    faulty_page: Path,
    tmp_path: Path,
    make_job: Callable[..., Any],
) -> None:
    page = faulty_page if name == "faulty" else PAGES[name](tmp_path, make_job)
    loads = []
    for width in (DESK, PHONE):
        for dark in (False, True):
            visit = chromium.visit(page, width=width, dark=dark)
            look = f"{name}-{width}-{'dark' if dark else 'light'}"
            if SHOTS:
                visit.picture(Path(SHOTS) / f"{look}.png")
            assert visit.complaints == [], look
            assert visit.requests == [page.as_uri()], look
            assert visit.ask("document.documentElement.scrollWidth <= innerWidth"), look
            assert visit.ask(CONTRAST) == [], look
            loads.append(visit.load_s)
    assert min(loads) < 2  # the others may have waited for tests beside this one
    size = {"thousand-ranks": 8e6}.get(name, 5e6)
    assert page.stat().st_size < size


def test_a_printed_page_is_light_and_whole(chromium: browser.Browser, faulty_page: Path) -> None:
    visit = chromium.visit(faulty_page, dark=True, media="print")
    assert visit.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert visit.ask(CONTRAST) == []
    visit.ask("dispatchEvent(new Event('beforeprint'))")
    assert visit.ask("[...document.querySelectorAll('details')].every(d => d.open)")


def test_tables_are_sorted_and_searched_by_keyboard(
    chromium: browser.Browser, faulty_page: Path
) -> None:
    visit = chromium.visit(faulty_page)

    def first_column() -> list[str]:
        cells = "[...document.querySelectorAll('#finding-list tbody td:first-child')]"
        return list(visit.ask(f"{cells}.map(c => c.textContent)"))

    labels = first_column()
    assert labels[:2] == ["F1", "F2"]
    visit.ask("document.querySelector('#finding-list th button').focus()")
    for order in (labels, labels[::-1]):
        for kind in ("keyDown", "keyUp"):
            chromium.call(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter",
                windowsVirtualKeyCode=13, text="\r",
            )  # fmt: skip
        assert first_column() == order
    assert visit.ask("document.querySelector('#finding-list th').ariaSort") == "descending"
    visit.ask("document.querySelector('#finding-list th:nth-child(5) button').click()")
    costs = "[...document.querySelectorAll('#finding-list td:nth-child(5)')].map(c => c.dataset.v)"
    values = [float(v) for v in visit.ask(costs)]
    assert values == sorted(values)
    assert len(set(values)) > 1
    field = "document.querySelector('[data-of=not-checked-list]')"
    rows = "[...document.querySelectorAll('#not-checked-list tbody tr')].filter(r => !r.hidden)"
    before = visit.ask(f"{rows}.length")
    visit.ask(f"{field}.value = 'nic or SWITCH'; {field}.dispatchEvent(new Event('input'))")
    assert 0 < visit.ask(f"{rows}.length") < before
    assert chromium.complaints() == []


CONTROLS = (
    "[...document.querySelectorAll('a[href], button, input, summary, [tabindex]')]"
    ".filter(e => e.tabIndex >= 0 && e.checkVisibility())"
)
"""What the page offers to a keyboard where nothing is folded that is folded now."""


def press(chromium: browser.Browser, key: str, code: int) -> None:
    for kind in ("keyDown", "keyUp"):
        chromium.call(
            "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
        )


@pytest.mark.parametrize("dark", [False, True])
def test_every_control_is_reached_by_tab_and_shows_it(
    chromium: browser.Browser, faulty_page: Path, dark: bool
) -> None:
    visit = chromium.visit(faulty_page, dark=dark)
    visit.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    count = visit.ask(f"{CONTROLS}.length")
    assert count > 20
    for _ in range(count):
        press(chromium, "Tab", 9)
        width = "parseFloat(getComputedStyle(document.activeElement).outlineWidth)"
        style = "getComputedStyle(document.activeElement).outlineStyle"
        assert visit.ask(f"{style} !== 'none' && {width} >= 2")
        visit.ask("document.activeElement.wasReached = true")
    assert visit.ask(f"{CONTROLS}.filter(e => !e.wasReached).map(e => e.outerHTML)") == []
    scrolled = "e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === 'auto'"
    beyond = f"[...document.querySelectorAll('*')].filter(e => {scrolled} && e.tabIndex < 0)"
    assert visit.ask(f"{beyond}.map(e => e.outerHTML)") == []


def test_on_a_phone_a_table_says_what_it_is_in_the_width_of_the_window(
    chromium: browser.Browser, faulty_page: Path
) -> None:
    visit = chromium.visit(faulty_page, width=PHONE)
    captions = "[...document.querySelectorAll('caption:not(.unseen)')]"
    captions += ".filter(c => c.checkVisibility())"
    wide = f"{captions}.filter(c => c.parentElement.offsetWidth > innerWidth)"
    assert visit.ask(f"{wide}.length") > 0
    right = "c.getBoundingClientRect().right"
    assert visit.ask(f"{captions}.filter(c => {right} > innerWidth).length") == 0
    visit.ask("document.querySelectorAll('.wide').forEach(w => w.scrollLeft = 120)")
    left = "c.getBoundingClientRect().left"
    assert visit.ask(f"{wide}.filter(c => {left} < 0).map(c => c.textContent)") == []


HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)<\\script>\"'\u202e\x1b[31m"


@pytest.mark.parametrize(
    "words", soak([(("gemm", "aten::mm"),), (("gemm", "aten::mm", "node0"),)], fast=1)
)
@pytest.mark.slow  # a browser
def test_hostile_names_change_nothing(
    words: tuple[str, ...], chromium: browser.Browser, tmp_path: Path
) -> None:
    shapes = []
    for label, name in (("plain", "plain"), ("hostile", HOSTILE)):
        folder = tmp_path / label
        folder.mkdir()
        for rank in range(2):
            text = json.dumps(make_trace(rank, stall_ms=30))
            for word in words:
                text = text.replace(f'"{word}"', json.dumps(f"{word}{name}"))
            write_trace(folder / f"{name}{rank}.json", json.loads(text))
        visit = chromium.visit(page_of(folder, folder))
        assert visit.complaints == []
        assert len(visit.requests) == 1
        shapes.append(visit.ask("[...document.querySelectorAll('*')].map(e => e.tagName)"))
        shown = str(visit.ask("document.documentElement.outerHTML"))
        assert "\u202e" not in shown
        assert "\x1b" not in shown
    assert "\\u202e\\x1b[31m" in shown
    assert shapes[1].count("SCRIPT") == 1
    # A host that is no host's name is not taken for one, so the report says less of it.
    assert shapes[0] == shapes[1] or "node0" in words
    assert set(shapes[1]) <= set(shapes[0])


TAGS = HOSTILE.replace("\\", "/")  # a name, where no file is called so: it may hold a slash


def compared(folder: Path, name: str) -> Path:
    """Two jobs beside each other, whose operators and kernels bear a name."""
    for side, stall_ms in (("fast", 0), ("slow", 50)):
        for rank in range(2):
            text = json.dumps(make_trace(rank, stall_ms=stall_ms))
            for word in ("gemm", "aten::mm"):
                text = text.replace(f'"{word}"', json.dumps(f"{word} {name}{side}"))
            write_trace(folder / side / f"r{rank}.json", json.loads(text))
    page = folder / "compare.html"
    words = ["--baseline", folder / "fast", "--candidate", folder / "slow", "--format", "html"]
    with pytest.raises(SystemExit) as ended:
        main([str(w) for w in ("compare", *words, "-o", page)])
    assert ended.value.code == 0
    return page


def failed(folder: Path, name: str) -> Path:
    """A launcher's log in which host, file, function and message bear a name."""
    text = (FIXTURES / "logs/torchrun-raise.log").read_text(encoding="utf-8")
    for word in ("faulty_loss", "train.py"):
        text = text.replace(word, f"{word}{name}")
    log = folder / "job.log"
    log.write_text(text, encoding="utf-8")
    return page_of(folder, log)


def trained(folder: Path, name: str) -> Path:
    """A training log beside hosts' counters, of a host that bears a name."""
    log = folder / "train.log"
    log.write_text(
        "".join(
            f" [2026-07-21 03:01:{i:02}] iteration {i:>8}/     100 | consumed samples: {8 * i:>12} "
            f"| elapsed time per iteration (ms): {5000 if i == 30 else 1000}.0 | "
            f"learning rate {name}: 1.0E-04 | global batch size:     8 |\n"
            for i in range(1, 50)
        ),
        encoding="utf-8",
    )
    sar = (FIXTURES / "hosts/host01-sar.json").read_text(encoding="utf-8")
    host = json.loads(sar)["sysstat"]["hosts"][0]["nodename"]
    (folder / "sar.json").write_text(sar.replace(f'"{host}"', json.dumps(f"{host}{name}")))
    return page_of(folder, log, folder / "sar.json")


def fleet(folder: Path, name: str) -> Path:
    """A fleet's first page, whose jobs and hosts bear a name."""
    one = Fleet(1, days=8)
    for runs in one.runs.values():
        for _, tables in runs:
            tables["job"][0] |= {"job_name": f"job{name}", "sentence": name, "framework": name}
            tables["host"][0]["host"] = f"h{name}"
            tables["host"][0]["rules"] = ["slow-host"]
    store: FleetStore = one  # type: ignore[assignment]  # it gives rows as the store does
    night = judged(store, day_of(8), Rolled())
    write_site(store, Path("/data/lake"), folder / "site", night)
    return folder / "site" / "hosts.html"


@pytest.mark.slow  # a browser
def test_on_a_phone_figures_of_nights_show_the_last(
    chromium: browser.Browser, tmp_path: Path
) -> None:
    index = fleet(tmp_path, "a").with_name("index.html")
    visit = chromium.visit(index, width=PHONE)
    sheets = "[...document.querySelectorAll('figure .sheet')]"
    assert visit.ask(f"{sheets}.length") > 0
    hidden = "s => s.scrollWidth - s.clientWidth - s.scrollLeft > 1"
    assert visit.ask(f"{sheets}.filter({hidden}).length") == 0
    assert visit.ask(f"{sheets}.filter(s => s.scrollLeft > 50).length") > 0
    legends = "[...document.querySelectorAll('figure .sheet text')]"
    legends += ".filter(t => t.textContent.trim() === 'slow-host')"
    assert visit.ask(f"{legends}.map(t => t.getBoundingClientRect().left > 20)") == [True]


NAMED: dict[str, Callable[[Path, str], Path]] = {
    "two jobs": compared, "a launcher's log": failed, "a training log": trained, "a fleet": fleet
}  # fmt: skip


@pytest.mark.parametrize("made", soak(NAMED, fast=["a launcher's log"]))
@pytest.mark.slow  # a browser
def test_hostile_names_change_nothing_in_other_pages(
    made: str, chromium: browser.Browser, tmp_path: Path
) -> None:
    shapes = []
    for label, name in (("plain", "plain"), ("hostile", TAGS)):
        folder = tmp_path / label
        folder.mkdir()
        visit = chromium.visit(NAMED[made](folder, name))
        assert visit.complaints == []
        assert len(visit.requests) == 1
        shapes.append(set(visit.ask("[...document.querySelectorAll('*')].map(e => e.tagName)")))
        shown = str(visit.ask("document.documentElement.outerHTML"))
        assert "\u202e" not in shown
        assert "\x1b" not in shown
        scripts = visit.ask("document.scripts.length")
        assert scripts == 1
    assert shapes[1] <= shapes[0]
    # A log's reader takes no such name for one of a function or a host; elsewhere it is there.
    assert made.endswith(" log") or "alert(1)" in shown
