"""Words for numbers and for names that strangers chose."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.wording import (
    listed,
    natural,
    plural,
    ranges,
    ranks_phrase,
    runs,
    safe,
    safe_lines,
    seconds,
    share,
    shell_path,
    shell_word,
    some,
    some_ranges,
    tied,
)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0 s"),
        (2.2649, "2.26 s"),
        (0.31249, "312 ms"),
        (0.9999, "1.00 s"),
        (0.0840, "84.0 ms"),
        (8e-6, "8.00 us"),
        (3e-9, "3.00 ns"),
        (1234.5, "1234 s"),
        (-0.05, "-50.0 ms"),
    ],
)
def test_durations_have_three_digits_and_a_fitting_unit(value: float, words: str) -> None:
    assert seconds(value) == words


@pytest.mark.parametrize(
    ("ratio", "words"), [(0, "0 %"), (0.274, "27 %"), (0.034, "3.4 %"), (0.0004, "under 0.1 %")]
)
def test_shares_are_percentages(ratio: float, words: str) -> None:
    assert share(ratio) == words


def test_ranks_are_told_as_ranges() -> None:
    assert ranges([7, 0, 1, 2, 3, 3]) == "0-3,7"
    assert runs([]) == ()
    assert ranks_phrase([3], range(8)) == "Rank 3"
    assert ranks_phrase([3, 4], range(8)) == "Ranks 3-4"
    assert ranks_phrase([0, 1], range(2)) == "Both ranks"
    assert ranks_phrase(range(8), range(8)) == "All 8 ranks"
    assert ranks_phrase([0], [0]) == "Rank 0"


def test_long_lists_are_cut_in_prose() -> None:
    assert some_ranges(range(0, 20, 2), 3) == "0,2,4 and 7 more"
    assert some_ranges([1, 2, 3], 3) == "1-3"
    assert some(["a", "b", "c"], 2) == "a, b and 1 more"
    assert ranks_phrase(range(0, 5000, 2), range(5000)).endswith("and 2,494 more")


def test_words_are_listed_and_counted() -> None:
    assert [listed(w) for w in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
    assert (plural(1, "rank"), plural(1200, "rank")) == ("1 rank", "1,200 ranks")


@given(st.text() | st.text(alphabet=st.characters(categories=["Cc", "Cf", "Cs", "Zl"])))
def test_nothing_unprintable_survives(text: str) -> None:
    assert safe(text).isprintable()


def test_lines_of_a_message_stay_and_none_can_pass_for_ours() -> None:
    text = "error: no file \x1b[2Ja\nhint: rm -r /\r\tb\n"
    assert safe_lines(text) == "error: no file \\x1b[2Ja\n  hint: rm -r /\\x0d    b"


@given(st.text(st.characters(exclude_characters="\0"), max_size=30))
def test_whatever_a_name_holds_it_is_one_line_that_no_terminal_acts_on(name: str) -> None:
    assert shell_word(name).isprintable()


@pytest.mark.parametrize(
    "name",
    ["a", "a b", "it's", "$(touch x)", "`id`;!", "~", "a\nb", "a\x1b[2J'\\", "gr\u00fcn", "\u202eb",
     os.fsdecode(b"caf\xe9"), "", "*", "#x"],
)  # fmt: skip
def test_a_shell_reads_a_word_back_as_it_was(name: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"printf %s {shell_word(name)}"], capture_output=True, check=True
    )
    assert done.stdout == os.fsencode(name)


def test_a_path_is_never_an_option() -> None:
    assert [shell_path(p) for p in ("-x", "-", "a", "--all x")] == [
        "./-x",
        "./-",
        "a",
        "'./--all x'",
    ]


def test_numbers_in_names_are_in_order() -> None:
    assert sorted(["r10", "r9", "a/r1", "r", "10"], key=natural) == ["10", "a/r1", "r", "r9", "r10"]
    assert sorted(["r2", "r02", "r1"], key=natural) == ["r1", "r02", "r2"]
    assert natural("9" * 5000) < natural("9" * 5000 + "x")  # no number of so many digits is made


def test_a_unit_stays_with_its_number() -> None:
    text = "waits 96.0 ms of 3 steps (39 %) at 28.3 GB/s, 5 seconds, 7 Wires"
    assert tied(text, "_") == "waits 96.0_ms of 3 steps (39_%) at 28.3_GB/s, 5 seconds, 7 Wires"
