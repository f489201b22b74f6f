"""What the page and the tables show: for each section its columns, how to read it, and what is not in it."""

from dataclasses import dataclass, replace

import machine
from contestant import NEVER


def count(value):
    """Three digits, thousands apart: 1,230 or 0.0412."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def duration(us):
    """Microseconds in the unit in which they are short."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size * 0.9995:  # What would be shown as 1,000 of the next unit.
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} µs"


def percent(share):
    return f"{share * 100:.3g} %"


def signed(value):
    return f"{value:+.2f}"


@dataclass(frozen=True)
class Column:
    """A figure of a workload. `better`: "less", "more", or "" where neither is; `chart`: linear, log, or none."""

    title: str
    workload: str
    figure: str
    show: callable
    better: str = ""
    chart: str = ""
    scale: float = 1  # for the chart's axis
    of_sharers: bool = False  # says something only where most grants go to another caller


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    text: str
    columns: tuple


SECTIONS = (
    Section(
        "alone",
        "Nobody else wants the lock",
        "A caller takes a lock of its own and releases it, again and again; then sixteen callers do so at once, each"
        " with another lock. The language and its Redis library come first here, so compare within a language."
        " The yardstick, SET NX PX and DEL, is plain commands without any safety.",
        (
            Column("pairs a second, 1 caller", "alone-1", "pairs_per_s", count, "more", "linear"),
            Column("pair, median", "alone-1", "pair_us_p50", duration, "less"),
            Column("pair, 99 %", "alone-1", "pair_us_p99", duration, "less"),
            Column("pairs a second, 16 callers", "alone-16", "pairs_per_s", count, "more", "linear"),
            Column("server's CPU for a pair", "alone-16", "server_us_per_grant", duration, "less", "linear"),
            Column("requests", "alone-16", "requests_per_grant", count, "less"),
            Column("commands", "alone-16", "commands_per_grant", count, "less"),
        ),
    ),
    Section(
        "start",
        "The first seconds of a program",
        "Sixteen callers take a lock each, again and again, from the moment their program starts: nothing is warmed up."
        " For Java, whose programs compile while they run, and Go. The first lock counts from the start of the"
        " process, so it has the start of the runtime in it. Warm is the last fifth of the loop.",
        (
            Column("to the first lock", "start-16", "first_lock_us", duration, "less", "linear", 1e-3),
            Column("locks in the first second", "start-16", "first_second", count, "more", "linear"),
            Column("locks a second, warm", "start-16", "warm_per_s", count, "more", "linear"),
        ),
    ),
    Section(
        "turns",
        "Sixteen callers want one lock",
        "All of them ask again as soon as they have released it. Compare the hand-offs to another caller, not at the"
        " grants: a library that polls looks fast when the caller who has just released takes the lock again while the"
        " others sleep. A hand-off is the time from the call to release until another caller knows that it has the"
        " lock. For a library that polls it says little: the few that happen are tries that came by chance just after a"
        " release. So a library that keeps most grants to the same caller is not compared by the time and the cost of a"
        " hand-off; its longest wait shows the price. A share of 1 is what each of the sixteen should get.",
        (
            Column("hand-offs to another, a second", "turns-16", "to_others_per_s", count, "more", "log"),
            Column("share that goes to another", "turns-16", "to_others_share", percent, "more", "linear", 100),
            Column("hand-off to another, median", "turns-16", "hand_off_us_p50", duration, "less", "log", 1e-3, True),
            Column("hand-off, 99 %", "turns-16", "hand_off_us_p99", duration, "less", of_sharers=True),
            Column("longest wait", "turns-16", "longest_wait_us", duration, "less", "log", 1e-3),
            Column("grants a second", "turns-16", "grants_per_s", count),
            Column("smallest share", "turns-16", "smallest_share", count, "more"),
            Column("largest share", "turns-16", "largest_share", count, "less"),
            Column("Gini", "turns-16", "gini", count),
            Column("server's CPU for a grant", "turns-16", "server_us_per_grant", duration, "less", of_sharers=True),
            Column("requests", "turns-16", "requests_per_grant", count, "less", of_sharers=True),
            Column("commands", "turns-16", "commands_per_grant", count, "less", of_sharers=True),
        ),
    ),
    Section(
        "crowds",
        "A crowd waits for one holder",
        "One caller has the lock, and the others ask for it, each once, one after the other. Then it is released, and"
        " each who gets it holds it for 1 ms. So 1 ms for each is the least that is possible, and what is above that is"
        " the price of passing the lock on. Rank correlation compares the order of asking with the order"
        " of getting: 1 is first come, first served; 0 is chance.",
        (
            Column("time for each of 10", "crowd-10", "per_grant_us", duration, "less", "log", 1e-3),
            Column("for each of 100", "crowd-100", "per_grant_us", duration, "less", "log", 1e-3),
            Column("for each of 1,000", "crowd-1000", "per_grant_us", duration, "less", "log", 1e-3),
            Column("for each of 10,000", "crowd-10000", "per_grant_us", duration, "less"),
            Column("order kept by 100", "crowd-100", "rank_correlation", signed, "more", "linear"),
            Column("order kept by 1,000", "crowd-1000", "rank_correlation", signed, "more"),
            Column("server's CPU for a grant, 100", "crowd-100", "server_us_per_grant", duration, "less"),
            Column("server's CPU for a grant, 1,000", "crowd-1000", "server_us_per_grant", duration, "less", "log", 1),
            Column("commands for a grant, 100", "crowd-100", "commands_per_grant", count, "less"),
            Column("commands for a grant, 1,000", "crowd-1000", "commands_per_grant", count, "less"),
        ),
    ),
    Section(
        "waiting",
        "A hundred wait, and nothing happens",
        "What waiting costs the server. A library that polls pays for every try of every waiter; one that waits in the"
        " server or for a message pays nothing until something happens. A Redis server takes some tenths of a percent"
        " for itself.",
        (
            Column("commands a second", "crowd-100", "idle_commands_per_s", count, "less", "linear"),
            Column("server's CPU, % of one processor", "crowd-100", "idle_cpu_percent", count, "less", "linear"),
            Column("requests a second", "crowd-100", "idle_requests_per_s", count, "less"),
        ),
    ),
    Section(
        "crash",
        "A holder dies",
        "Its process is killed (SIGKILL), with a lease of 3 s where there are leases, and another process waits. The"
        " time until that one has the lock cannot be much shorter than what is left of the lease, unless the lock is"
        " tied to a connection: then it is shorter when the process dies, and no shorter when the machine or the"
        " network does. A library that does not renew by itself took its lease some time before, which makes"
        " its time shorter. A token in a list is never returned.",
        (
            Column("time to the next", "crash", "crash_us", duration, "less", "linear", 1e-6),
            Column("held until then for", "crash", "held_us", duration),
        ),
    ),
)

COLUMNS = tuple(column for section in SECTIONS for column in section.columns)
# The first chart is of these, with bars that begin at zero: the difference is what it shows.
FIRST = tuple(replace(each, chart="linear") for each in COLUMNS if each.figure in ("to_others_per_s", "longest_wait_us"))


def sections_of(results):
    """The sections, each with the columns that can be shown. There is none for a workload that ours did not reach."""
    for section in SECTIONS:
        planned = [column for column in section.columns if results.content["planned"].get(column.workload)]
        if planned:
            yield section, [column for column in planned if results.is_shown(column.workload)]


def left_out_of(results, section, columns):
    """What is missing in a section, in sentences."""
    shown = list(dict.fromkeys(column.workload for column in columns))
    planned = dict.fromkeys(column.workload for column in section.columns)
    missing = [name for name in planned if results.content["planned"].get(name) and name not in shown]
    if missing:
        yield f"Left out, as the time was over before ours took part: {', '.join(map(called, missing))}."
    for name in shown:
        who = results.not_reached(name)
        if who:
            place = f" ({called(name)})" if len(shown) > 1 else ""
            yield f"Not measured, as the time was over{place}: {', '.join(map(named, who))}."


def rows_of(results, columns):
    """For each contestant that took part its cells: text, its range over the rounds, and why there is none."""
    took_part = {each["id"] for column in columns for each in results.rows(column.workload)}
    for contestant in results.contestants:
        if contestant["id"] in took_part:
            yield contestant, [cell(results, contestant["id"], column) for column in columns]


def cell(results, contestant, column):
    value = results.figure(contestant, column.workload, column.figure)
    if value is not None:
        spread = results.spread(contestant, column.workload, column.figure)
        return column.show(value), between(column, *spread) if spread else "", ""
    trouble = results.trouble(contestant, column.workload)
    if not trouble:
        return "–", "", ""
    if trouble.startswith(NEVER):
        return ("never" if column.better else "–"), "", trouble
    return "failed", "", trouble


def between(column, low, high):
    """A range, with its unit once where both have the same."""
    low, high = column.show(low), column.show(high)
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number if unit and high.endswith(f' {unit}') else low} to {high}"


def named(contestant):
    return f"{contestant['title']} ({contestant['language']})"


def called(workload):
    """A workload in words."""
    kind, _, size = workload.partition("-")
    size = f"{int(size):,}" if size else ""
    return {
        "alone": f"{size} callers with a lock each" if size != "1" else "1 caller",
        "start": f"the first seconds of {size} callers",
        "turns": f"{size} callers want one lock",
        "crowd": f"a crowd of {size}",
        "crash": "a holder dies",
    }[kind]


def summary(results):
    """The run in two sentences: what ours and those who poll do with a lock that sixteen want. With it, who that is."""
    measured = [who for who in results.rows("turns-16") if results.figure(who["id"], "turns-16", "to_others_per_s")]
    ours = [who["id"] for who in measured if who["is_client"]]
    polling = [who["id"] for who in measured if who["waits"].startswith("polls")]
    if not ours or not polling:
        return "", ()

    def over(ids, figure):
        column = next(each for each in FIRST if each.figure == figure)
        values = [results.figure(who, "turns-16", figure) for who in ids]
        return between(column, min(values), max(values))

    return (
        "Sixteen callers want one lock: rlock hands it to another caller"
        f" {over(ours, 'to_others_per_s')} times a second, and the libraries that poll {over(polling, 'to_others_per_s')}"
        f" times. The longest wait is {over(ours, 'longest_wait_us')} with rlock,"
        f" and {over(polling, 'longest_wait_us')} with those.",
        (*ours, *polling),
    )


def busy_line(results):
    """A warning, if others kept the machine busy."""
    found = machine.busy(results.content["load"])
    if not found:
        return ""
    return (
        f"This machine was busy: {', and '.join(found)}. So the figures are too low, and not by the same for all:"
        " do not compare them. Measure again on a quiet machine."
    )


def load_line(results):
    """What else the machine did."""
    load = results.content["load"]
    return (
        f"load average {load['average_before']:g} before, {load['average_after']:g} after; other programs"
        f" {load['others']:.0%} of the processors, steal {load['steal']:.1%}"
    )


def rounds_line(results):
    """What a figure is."""
    rounds = results.content["rounds"]
    if rounds == 1:
        return "There was one round, so nobody knows how much a figure varies: take a difference of a fifth for noise."
    return f"A figure is the median of {rounds} rounds, of some workloads fewer; with it are the lowest and the highest."


def failure_lines(results):
    for who, workload, error, failed, runs in results.failures():
        count = "its only run" if runs == 1 else f"{failed} of {runs} runs"
        yield f"{called(workload).capitalize()}, with {named(who)}: {error} ({count})."


def better_lines(results, columns):
    """Where a peer is better than our client in its language, a sentence for each column."""
    for column in columns:
        if not column.better:
            continue
        found = results.better_than_ours(column.workload, column.figure, column.better == "less", column.of_sharers)
        if found:
            peers = "; ".join(
                f"{named(peer)} {column.show(theirs)}, ours {column.show(mine)}"
                + ("" if ours["language"] == peer["language"] else f" in {ours['language']}")
                for peer, theirs, ours, mine in found
            )
            yield f"{column.title}{for_whom(column)}: {peers}."


def for_whom(column):
    """Names the crowd, where the column's title alone leaves that open."""
    size = column.workload.partition("crowd-")[2]
    return f" (crowd of {int(size):,})" if size and f"{int(size):,}" not in column.title else ""
