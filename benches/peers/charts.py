"""The charts: bars as the page draws them, so that their labels are text, whole at any width."""

import math
from typing import NamedTuple


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
        if value is not None and (chosen is None or who["id"] in chosen):
            measured.append((who, value, results.spread(who["id"], column.workload, column.figure)))
    length = scale([end for _, value, spread in measured for end in (value, *(spread or ()))], column.chart == "log")
    groups = {}
    for who, value, spread in measured:
        low, high = map(length, spread) if spread else (None, None)
        bar = Bar(who["title"], who["kind"], column.show(value), length(value), low, high)
        groups.setdefault(who["language"], []).append(bar)
    return groups


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
