"""The statistics, by examples that can be checked by hand."""

import pytest

import figures
import sections
from figures import Acquisition


def turns(*callers):
    """Each caller holds for 10 µs, asked 100 µs before, and the next one is granted 5 µs after the release began."""
    return [Acquisition(who, at * 15 - 100, at * 15, at * 15 + 10, at * 15 + 12) for at, who in enumerate(callers)]


def test_a_percentile_is_one_of_the_values():
    assert figures.percentile([3, 1, 2, 4], 50) == 2
    assert figures.percentile(range(1, 101), 99) == 99
    assert figures.percentile([7], 99) == 7
    assert figures.percentile([], 50) is None


def test_gini_is_zero_where_all_have_the_same_and_large_where_one_has_everything():
    assert figures.gini([5, 5, 5, 5]) == pytest.approx(0)
    assert figures.gini([0, 0, 0, 20]) == pytest.approx(0.75)
    assert figures.gini([0, 0]) is None


def test_rank_correlation_tells_the_same_order_from_the_opposite_one():
    assert figures.rank_correlation([1, 2, 3], [10, 400, 500]) == pytest.approx(1)
    assert figures.rank_correlation([1, 2, 3], [9, 8, 7]) == pytest.approx(-1)
    assert figures.rank_correlation([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1)
    assert figures.rank_correlation([1, 1], [1, 2]) is None


def test_a_hand_off_to_the_same_caller_is_no_hand_off_to_another():
    result = figures.of_turns(turns(0, 0, 0, 1), callers=2)
    assert result["to_others_share"] == pytest.approx(1 / 3)
    assert result["hand_off_us_p50"] == 5


def test_shares_count_those_who_got_nothing():
    result = figures.of_turns(turns(0, 1, 0, 1), callers=4)
    assert result["smallest_share"] == 0
    assert result["largest_share"] == 2
    assert result["gini"] == pytest.approx(0.5)


def test_a_pair_is_counted_without_the_time_that_the_lock_was_held():
    result = figures.of_pairs([Acquisition(0, 0, 30, 1000, 1010), Acquisition(0, 1010, 1050, 1950, 2000)])
    assert result["pair_us_p50"] == 40
    assert result["pair_us_p99"] == 90
    assert result["pairs_per_s"] == 1000


def test_a_crowd_is_drained_from_the_release_of_the_first_to_that_of_the_last():
    rows = [Acquisition(0, 0, 1, 100, 101), Acquisition(1, 10, 110, 120, 125), Acquisition(2, 11, 130, 140, 150)]
    result = figures.of_crowd(rows)
    assert result["drain_us"] == 50
    assert result["per_grant_us"] == 25
    assert result["hand_off_us_p99"] == 10
    assert result["rank_correlation"] == pytest.approx(1)


def test_two_holders_at_once_are_seen():
    assert figures.two_at_a_time(turns(0, 1, 2)) == 0
    assert figures.two_at_a_time([Acquisition(0, 0, 10, 100, 110), Acquisition(1, 0, 50, 150, 160)]) == 1


def test_only_grants_while_all_callers_ask_are_counted():
    starved = Acquisition(1, 0, 1100, 1110, 1120)
    rows = [Acquisition(0, at, at + 10, at + 20, at + 100) for at in range(0, 900, 100)]
    assert [row.asked for row in figures.counted([*rows, starved], seconds=0.0009)] == [300, 400, 500, 600, 700, 800]


def test_the_longest_wait_is_that_of_the_starved_too():
    assert figures.longest_wait([*turns(0, 0, 0), Acquisition(1, 0, 1100, 1110, 1120)]) == 1100
    assert figures.longest_wait([]) is None


def test_runs_without_acquisitions_have_no_figures():
    assert figures.of_pairs([]) == figures.of_turns([], 3) == figures.of_crowd([]) == {}
    assert figures.counted([], 1) == []


def test_a_duration_is_shown_in_three_digits_of_the_unit_that_fits():
    shown = [sections.duration(us) for us in (0, 7.25, 853, 999.7, 1000, 32_450, 999_600, 2_500_000)]
    assert shown == ["0 µs", "7.25 µs", "853 µs", "1 ms", "1 ms", "32.5 ms", "1 s", "2.5 s"]
