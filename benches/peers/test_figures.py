"""The statistics, by examples that can be checked by hand; and what the page says of them."""

import re
from types import SimpleNamespace

import pytest

import charts
import compare
import contestant
import figures
import machine
import page
import sections
import tables
import workloads
from contestant import Contestant
from figures import Acquisition
from results import Results


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


def test_a_start_counts_from_the_process_and_has_a_first_second_and_a_warm_end():
    rows = [Acquisition(0, at, at + 5, at + 6, at + 9) for at in (1_000_000, 1_500_000, 2_000_100, 5_500_000, 5_900_000)]
    result = figures.of_start(rows, began=700_000, seconds=5)
    assert result == {"first_lock_us": 300_005, "first_second": 2, "warm_per_s": 2}


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
    assert figures.of_pairs([]) == figures.of_turns([], 3) == figures.of_crowd([]) == figures.of_start([], 0, 1) == {}
    assert figures.counted([], 1) == []


def test_a_duration_is_shown_in_three_digits_of_the_unit_that_fits():
    shown = [sections.duration(us) for us in (0, 7.25, 853, 999.7, 1000, 32_450, 999_600, 2_500_000)]
    assert shown == ["0 µs", "7.25 µs", "853 µs", "1 ms", "1 ms", "32.5 ms", "1 s", "2.5 s"]


QUIET = {"average_before": 0.1, "average_after": 2, "others_before": 0.01, "others": 0.02, "steal": 0}
OURS, POLLING, QUEUED = (
    Contestant(name, title, "1", language, waits, "", ())
    for name, title, language, waits in (
        ("rlock-go", "rlock, clients/go", "Go", "server queue"),
        ("redsync", "redsync", "Go", "polls, every 100 ms"),
        ("blpop", "BLPOP, RPUSH of a token", "Python", "server queue"),
    )
)


def run(who, workload, number=0, **figures):
    outcome = {"error": figures["error"]} if "error" in figures else {"figures": figures}
    return {"contestant": who.id, "workload": workload, "round": number} | outcome


def turns_run(who, to_others, longest, number=0):
    return run(who, "turns-16", number, to_others_per_s=to_others, longest_wait_us=longest, to_others_share=0.5)


def results(*runs, planned=None, rounds=2, **load):
    who = [OURS, POLLING, QUEUED]
    planned = planned or {name: [each.id for each in who] for name in ("turns-16", "crash")}
    return Results({
        "machine": dict.fromkeys(("model", "processors", "system", "kernel", "commit", "date"), ""),
        "load": QUIET | load, "minutes": 1, "rounds": rounds, "servers": {}, "left_out": [], "planned": planned,
        "contestants": [each.described() for each in who], "runs": list(runs),
    })  # fmt: skip


def columns_of(found, anchor):
    return next(columns for section, columns in sections.sections_of(found) if section.anchor == anchor)


def test_ours_and_a_peer_of_each_language_are_measured_first_and_nobody_is_left_out():
    second = Contestant("redislock", "redislock", "1", "Go", "polls", "", ())
    plan = workloads.planned(1, 2, (10,), 0)
    order = list(compare.in_order(plan, [POLLING, second, OURS, QUEUED], 2))
    first = order[: len(plan)]
    assert [workload.name for _, workload, _ in first] == [workload.name for workload in plan]
    assert all([who for who in (POLLING, OURS, QUEUED) if workload.suits(who)] == ready for _, workload, ready in first)
    for workload in plan:
        for number in range(workload.rounds):
            ready = [who.id for at, each, some in order if (at, each) == (number, workload) for who in some]
            assert sorted(ready) == sorted(who.id for who in (POLLING, second, OURS, QUEUED) if workload.suits(who))


def test_a_section_without_ours_shows_nothing_and_says_so():
    found = results(turns_run(OURS, 9000, 5000), turns_run(POLLING, 50, 2e6), run(QUEUED, "crash", crash_us=1))
    section, columns = list(sections.sections_of(found))[-1]
    assert (section.anchor, columns) == ("crash", [])
    said = list(sections.left_out_of(found, section, columns))
    assert said == ["Left out, as the time was over before ours took part: a holder dies."]
    assert said[0] in page.drawn(found) and said[0] in tables.plain(found) and said[0] in tables.markdown(found)


def test_who_was_not_reached_is_named_in_its_section():
    found = results(turns_run(OURS, 9000, 5000))
    said = sections.left_out_of(found, *next(sections.sections_of(found)))
    assert list(said) == ["Not measured, as the time was over: redsync (Go), BLPOP, RPUSH of a token (Python)."]


def test_the_summary_compares_ours_with_those_who_poll():
    found = results(turns_run(OURS, 9000, 5000), turns_run(POLLING, 50, 2e6), turns_run(QUEUED, 20_000, 1000))
    sentence, ids = sections.summary(found)
    assert "another caller 9,000 times a second, and the libraries that poll 50 times." in sentence
    assert "The longest wait is 5 ms with rlock, and 2 s with those." in sentence
    assert ids == (OURS.id, POLLING.id)
    assert f"| redsync (Go) | ▏ 50 | {'█' * 30} 2 s |" in tables.markdown(found)
    assert page.drawn(found).index(sentence) < page.drawn(found).index("<figure>")
    assert sections.summary(results(turns_run(POLLING, 50, 2e6))) == ("", ())


def test_a_figure_is_the_median_and_has_its_range():
    found = results(*(turns_run(OURS, *each) for each in ((9000, 5000, 0), (11_000, 900, 1), (9500, 6000, 2))))
    cells = dict(zip((each.title for each in columns_of(found, "turns")), next(sections.rows_of(found, columns_of(found, "turns")))[1]))
    assert cells["hand-offs to another, a second"] == ("9,500", "9,000 to 11,000", "")
    assert cells["longest wait"] == ("5 ms", "900 µs to 6 ms", "")
    column = columns_of(found, "turns")[0]
    assert charts.bars(found, column)["Go"][0].high == 1 and 0 < charts.bars(found, column)["Go"][0].low < 1


def test_a_range_has_its_unit_once():
    column = SimpleNamespace(show=sections.duration)
    assert sections.between(column, 5000, 7000) == "5 to 7 ms"
    assert sections.between(column, 5000, 2e6) == "5 ms to 2 s"
    assert sections.between(column, 5000, 5001) == "5 ms"


def test_bars_of_a_scale_begin_at_zero_or_at_a_third_of_the_least():
    assert [charts.scale([0, 5, 10], False)(value) for value in (0, 5, 10)] == [0, 0.5, 1]
    length = charts.scale([0, 3, 300], True)
    assert (length(0), length(300)) == (0, 1) and length(3) == pytest.approx(0.193, abs=0.001)
    assert charts.scale([0], True)(0) == 0


def test_a_failure_is_a_sentence():
    error = f"{contestant.NEVER} within 9 s"
    found = results(turns_run(OURS, 1, 1), run(OURS, "crash", crash_us=3e6), run(QUEUED, "crash", error=error))
    line = "A holder dies, with BLPOP, RPUSH of a token (Python): it did not get the lock within 9 s (its only run)."
    assert list(sections.failure_lines(found)) == [line]
    assert line in page.drawn(found)
    shown = dict((who["id"], cells[0]) for who, cells in sections.rows_of(found, columns_of(found, "crash")))
    assert shown[QUEUED.id] == ("never", "", error)
    assert charts.bars(found, columns_of(found, "crash")[0])["Python"][0][2:4] == ("never", 0)


@pytest.mark.parametrize("program, said", [
    ("import time; time.sleep(9)", "it did not connect all its callers within 0.1 s"),
    ("raise SystemExit('no server')", "its program ended before it could connect all its callers: no server"),
])  # fmt: skip
def test_a_contestant_that_says_nothing_fails_in_plain_words(program, said):
    with contestant.Run(SimpleNamespace(program=("python3", "-c", program), name="it"), "", "loop") as it:
        with pytest.raises(contestant.Failed, match=f"^{re.escape(said)}$"):
            it.event("ready", 0.1 if "sleep" in program else 30)


def test_a_run_on_a_busy_machine_is_marked():
    quiet = results(turns_run(OURS, 1, 1))
    assert sections.busy_line(quiet) == "" and "was busy" not in page.drawn(quiet)
    assert "load average 0.1 before, 2 after; other programs 2% of the processors, steal 0.0%" in page.drawn(quiet)
    for load, said in (
        ({"others_before": 0.6}, "other programs used 60% of the processors before it began"),
        ({"others": 0.3}, "other programs used 30% of the processors while it ran"),
        ({"steal": 0.04}, "the host of this virtual machine took 4.0% of their time"),
    ):
        found = results(turns_run(OURS, 1, 1), **load)
        assert said in sections.busy_line(found) and said in page.drawn(found) and said in tables.plain(found)


def test_what_programs_used_is_told_from_idle_time_and_from_what_is_ours():
    hz = machine.TICKS_PER_S
    before = machine.read("cpu 0 0 0 0 0 0 0 0 0 0", ours=0)
    after = machine.read(f"cpu {3 * hz} {hz} {2 * hz} {8 * hz} {hz} 0 {4 * hz} {hz} 0 0", ours=4)
    during = after.since(before)
    assert (during.programs, during.all, during.others_share, during.steal_share) == (6, 20, 0.1, 0.05)


def test_one_round_says_that_there_is_no_range():
    assert "one round" in sections.rounds_line(results(rounds=1))
    assert "median of 3 rounds" in sections.rounds_line(results(rounds=3))
