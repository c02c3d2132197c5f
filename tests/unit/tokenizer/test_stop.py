import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everbatch.tokenizer.stop import StopFinder

# Two letters, so that stops overlap themselves and each other all the time.
LETTERS = st.text("ab", min_size=1, max_size=5)
STOPS = st.lists(LETTERS, min_size=1, max_size=4).map(tuple)
PIECES = st.lists(st.text("abc", max_size=4), max_size=12)


def naive_stop(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """The end and the longest stop string of the earliest end in `text`."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


def naive_held(text: str, stops: tuple[str, ...]) -> int:
    """Length of the longest suffix of `text` that begins a stop string."""
    return max(
        length
        for length in range(len(text) + 1)
        if length == 0 or any(stop.startswith(text[-length:]) for stop in stops)
    )


@settings(max_examples=500)
@given(stops=STOPS, pieces=PIECES, include=st.booleans())
def test_outcome_is_the_earliest_stop_however_the_text_is_cut(stops, pieces, include):
    finder = StopFinder(stops, include_stop=include)

    scans = [finder.push(piece) for piece in pieces]
    shown = "".join(scan.text for scan in scans) + finder.finish()

    text = "".join(pieces)
    expected = naive_stop(text, stops)
    stopped = [scan.stop for scan in scans if scan.stop is not None]
    if expected is None:
        assert (text, []) == (shown, stopped)
    else:
        end, stop = expected
        assert (text[: end if include else end - len(stop)], [stop]) == (shown, stopped)


@settings(max_examples=500)
@given(stops=STOPS, pieces=PIECES)
def test_exactly_what_may_become_a_stop_is_held_back(stops, pieces):
    finder = StopFinder(stops, include_stop=False)
    text, shown = "", ""

    for piece in pieces:
        scan = finder.push(piece)
        if scan.stop is not None:
            break
        text, shown = text + piece, shown + scan.text
        assert text[: len(text) - naive_held(text, stops)] == shown


def test_text_without_a_stop_passes_through_at_once():
    finder = StopFinder(("###",), include_stop=False)

    assert [finder.push(p).text for p in ("hello", " wor", "ld")] == ["hello", " wor", "ld"]


def test_long_stop_string_does_not_delay_other_text():
    finder = StopFinder(("x" * 1000,), include_stop=False)

    assert finder.push("hello xx").text == "hello "
    assert finder.finish() == "xx"


def test_stop_over_three_pieces():
    finder = StopFinder(("</end>",), include_stop=False)

    scans = [finder.push(piece) for piece in ("text </", "en", "d> more")]

    assert [scan.text for scan in scans] == ["text ", "", ""]
    assert scans[-1].stop == "</end>"


def test_nothing_leaks_after_a_stop():
    finder = StopFinder(("stop",), include_stop=True)

    assert finder.push("a stop and more").text == "a stop"
    assert finder.push("even more").text == ""
    assert finder.finish() == ""


def test_longest_of_the_stops_that_end_together_is_cut():
    finder = StopFinder(("bc", "abc"), include_stop=False)

    scan = finder.push("xabc")

    assert (scan.text, scan.stop) == ("x", "abc")


def test_false_start_is_given_out_when_it_fails():
    finder = StopFinder(("aab",), include_stop=False)

    assert [finder.push(char).text for char in "aaac"] == ["", "", "a", "aac"]


def test_stop_that_may_not_count_is_text():
    finder = StopFinder(("ab",), include_stop=False)

    assert finder.push("xab", may_stop=False).text == "xab"
    assert finder.push("yab").stop == "ab"


def test_stop_that_begins_before_and_ends_after_counts():
    finder = StopFinder(("ab",), include_stop=False)

    assert finder.push("xa", may_stop=False).text == "x"
    assert finder.push("b").stop == "ab"


@pytest.mark.parametrize("stop", ["^", "]", "-", "\\", ".", "[a", "\n", "😀"])
def test_characters_with_a_meaning_in_expressions_are_plain(stop):
    finder = StopFinder((stop, "zz"), include_stop=False)

    assert finder.push(f"text {stop}").text == "text "
