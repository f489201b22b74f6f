"""What the page and the tables show: for each section its columns, and how to read it."""

from dataclasses import dataclass


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
        "A caller takes a lock of its own and gives it back, again and again; then sixteen callers do so at once, each"
        " with another lock. The language and its Redis library come first here, so compare within a language."
        " The yardstick, SET NX PX and DEL, is plain commands without any safety. A runtime that compiles while"
        " it runs, such as Java's, is still warming up in these seconds.",
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
        "turns",
        "Sixteen callers want one lock",
        "All of them ask again as soon as they have given it back. Look at the hand-offs to another caller, not at the"
        " grants: a library that polls looks fast when the caller who has just released takes the lock again while the"
        " others sleep. A hand-off is the time from the call to release until another caller knows that it has the"
        " lock. Of a library that polls it says little: the few that happen are tries that came by chance just after a"
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
        " the price of passing the lock on. Rank correlation compares the order of asking with that of"
        " getting: 1 is first come, first served; 0 is chance.",
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
        " its time shorter. A token in a list is never given back.",
        (
            Column("time to the next", "crash", "crash_us", duration, "less", "linear", 1e-6),
            Column("held until then for", "crash", "held_us", duration),
        ),
    ),
)


def sections_of(results):
    """Those sections and columns for which there was a run."""
    for section in SECTIONS:
        columns = [column for column in section.columns if results.rows(column.workload)]
        if columns:
            yield section, columns


def rows_of(results, columns):
    """For each contestant that took part its cells: text, and a title that says why there is none."""
    took_part = {each["id"] for column in columns for each in results.rows(column.workload)}
    for contestant in results.contestants:
        if contestant["id"] in took_part:
            yield contestant, [cell(results, contestant["id"], column) for column in columns]


def cell(results, contestant, column):
    value = results.figure(contestant, column.workload, column.figure)
    if value is not None:
        return column.show(value), ""
    trouble = results.trouble(contestant, column.workload)
    if not trouble:
        return "–", ""
    if trouble.startswith("not `granted`"):
        return ("never" if column.better else "–"), trouble
    return "failed", trouble


def better_lines(results, columns):
    """Where a peer is better than our client in its language, a sentence for each column."""
    for column in columns:
        if not column.better:
            continue
        found = results.better_than_ours(column.workload, column.figure, column.better == "less", column.of_sharers)
        if found:
            peers = "; ".join(
                f"{peer['title']} ({peer['language']}) {column.show(theirs)}, ours {column.show(mine)}"
                + ("" if ours["language"] == peer["language"] else f" in {ours['language']}")
                for peer, theirs, ours, mine in found
            )
            yield f"{column.title}{for_whom(column)}: {peers}."


def for_whom(column):
    """Names the crowd, where the column's title alone leaves that open."""
    size = column.workload.partition("crowd-")[2]
    return f" (crowd of {int(size):,})" if size and f"{int(size):,}" not in column.title else ""
