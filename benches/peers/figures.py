"""What the acquisitions of one run say. All times are microseconds."""

import statistics
from collections import Counter
from typing import NamedTuple


class Acquisition(NamedTuple):
    """One lock, taken once by one caller."""

    caller: int
    asked: int
    granted: int
    releasing: int
    released: int


def percentile(values, percent):
    """The smallest value that `percent` of the values do not exceed; None of no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def gini(counts):
    """0: all have the same share; towards 1: one has everything. None where nobody has anything."""
    ordered, total = sorted(counts), sum(counts)
    if not total:
        return None
    weighted = sum(rank * count for rank, count in enumerate(ordered, 1))
    return 2 * weighted / (len(ordered) * total) - (len(ordered) + 1) / len(ordered)


def ranks(values):
    """The rank of each value from 1; equal values share the mean of their ranks."""
    places = {}
    for rank, value in enumerate(sorted(values), 1):
        places.setdefault(value, []).append(rank)
    return [statistics.fmean(places[value]) for value in values]


def rank_correlation(first, second):
    """Spearman's: 1 where both have the same order, 0 where they have nothing to do with each other."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return statistics.correlation(ranks(first), ranks(second))


def counted(rows, seconds, skipped=1 / 3):
    """The acquisitions granted while all callers asked: not in the first part of a loop, in which runtimes still warm
    up, and not after its end, when those who were kept out until then are served."""
    if not rows:
        return []
    begin = min(row.asked for row in rows)
    return [row for row in rows if begin + skipped * seconds * 1e6 <= row.granted <= begin + seconds * 1e6]


def hand_offs(rows):
    """Each release and the grant that followed it, in the order of grants."""
    ordered = sorted(rows, key=lambda row: row.granted)
    return list(zip(ordered, ordered[1:]))


def of_pairs(rows):
    """Figures of callers who do not meet: how many pairs a second, and how long one takes."""
    took = [row.granted - row.asked + row.released - row.releasing for row in rows]
    if not took:
        return {}
    length = max(row.released for row in rows) - min(row.asked for row in rows)
    return {
        "pairs_per_s": len(rows) * 1e6 / max(length, 1),
        "pair_us_p50": percentile(took, 50),
        "pair_us_p99": percentile(took, 99),
    }


def of_start(rows, began, seconds):
    """Figures of a program that nobody has warmed up: from the start of its process to the first lock, and how many
    locks a second it takes at first and in the last fifth of a loop."""
    if not rows:
        return {}
    begin = min(row.asked for row in rows)
    end = begin + seconds * 1e6
    warm = [row for row in rows if end - seconds * 2e5 <= row.granted <= end]
    return {
        "first_lock_us": min(row.granted for row in rows) - began,
        "first_second": sum(row.granted < begin + 1e6 for row in rows),
        "warm_per_s": len(warm) / (seconds / 5),
    }


def of_turns(rows, callers):
    """Figures of callers who want one lock again and again: pace, and who gets it."""
    passed = hand_offs(rows)
    if not passed:
        return {}
    to_others = [after.granted - before.releasing for before, after in passed if before.caller != after.caller]
    shares = Counter(row.caller for row in rows)
    counts = [shares[caller] for caller in range(callers)]
    length = max(row.released for row in rows) - min(row.granted for row in rows)
    return {
        "grants_per_s": len(rows) * 1e6 / max(length, 1),
        "to_others_share": len(to_others) / len(passed),
        "to_others_per_s": len(to_others) * 1e6 / max(length, 1),
        "hand_off_us_p50": percentile(to_others, 50),
        "hand_off_us_p99": percentile(to_others, 99),
        "gini": gini(counts),
        "smallest_share": min(counts) * len(counts) / len(rows),
        "largest_share": max(counts) * len(counts) / len(rows),
    }


def of_crowd(rows):
    """Figures of a crowd that waits for one holder: how soon all had the lock, and in which order."""
    holder = next((row for row in rows if row.caller == 0), None)
    others = sorted((row for row in rows if row.caller != 0), key=lambda row: row.granted)
    if holder is None or not others:
        return {}
    passed = hand_offs([holder, *others])
    return {
        "drain_us": others[-1].released - holder.releasing,
        "per_grant_us": (others[-1].released - holder.releasing) / len(others),
        "hand_off_us_p50": percentile([after.granted - before.releasing for before, after in passed], 50),
        "hand_off_us_p99": percentile([after.granted - before.releasing for before, after in passed], 99),
        "rank_correlation": rank_correlation([row.asked for row in others], [row.granted for row in others]),
    }


def longest_wait(rows):
    """Among those who got the lock, in the end."""
    return max((row.granted - row.asked for row in rows), default=None)


def two_at_a_time(rows):
    """How many grants came before the holder before had begun to release: of a lock there must be none."""
    return sum(after.granted < before.releasing for before, after in hand_offs(rows))
