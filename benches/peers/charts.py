"""The charts: bars as the page draws them, so that their labels are text, whole at any width."""

import math
from typing import NamedTuple

from contestant import NEVER


class Bar(NamedTuple):
    """Lengths are shares of the width: of the figure, and of the lowest and highest round if there were several."""

    title: str
    kind: str
    text: str
    to: float
    low: float | None
    high: float | None


def bars(results, column, chosen=None):
    """A bar for each contestant, or for those that are chosen, by language; nothing where nothing was measured."""
    measured = []
    for who in results.rows(column.workload):
        value = results.figure(who["id"], column.workload, column.figure)
        never = (results.trouble(who["id"], column.workload) or "").startswith(NEVER)
        if (value is not None or never) and (chosen is None or who["id"] in chosen):
            measured.append((who, value, results.spread(who["id"], column.workload, column.figure)))
    ends = [end for _, value, spread in measured if value is not None for end in (value, *(spread or ()))]
    length = scale(ends, column.chart == "log")
    groups = {}
    for who, value, spread in measured:
        low, high = map(length, spread) if spread else (None, None)
        text, to = ("never", 0) if value is None else (column.show(value), length(value))
        groups.setdefault(who["language"], []).append(Bar(who["title"], who["kind"], text, to, low, high))
    return groups if ends else {}


def scale(values, logarithmic):
    """How long the bar of a value is, from 0 to 1. Logarithms have no zero: a bar begins at a third of the least value,
    and what is none gets a bar of no length."""
    some = [value for value in values if value > 0]
    if not some:
        return lambda _: 0
    if not logarithmic:
        return lambda value: max(value, 0) / max(some)
    begin = min(some) / 3
    return lambda value: math.log(max(value, begin) / begin) / math.log(max(some) / begin)
