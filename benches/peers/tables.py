"""The results as a table for a terminal, and in Markdown."""

import charts
from sections import (
    FIRST, better_lines, busy_line, failure_lines, left_out_of, named,
    rounds_line, rows_of, sections_of, summary,
)  # fmt: skip


def plain(results):
    parts = []
    for section, columns in sections_of(results):
        head = ["", *(column.title for column in columns)]
        body = [[named(who), *(text for text, *_ in cells)] for who, cells in rows_of(results, columns)]
        parts.append(f"\n{section.title}\n")
        parts += [aligned(head, body)] if body else []
        parts += left_out_of(results, section, columns)
        better = list(better_lines(results, columns))
        parts += ["\nBetter than ours:", *(f"  {line}" for line in better)] if better else []
    parts += ["", *first_lines(results)]
    return "\n".join(parts + notes(results))


def aligned(head, body):
    """Columns as wide as their widest cell; a head that is wider is broken over several lines."""
    widths = [max([len(row[at]) for row in body] + [longest_word(head[at])]) for at in range(len(head))]
    broken = [wrapped(title, width) for title, width in zip(head, widths)]
    height = max(map(len, broken))
    level = [[""] * (height - len(title)) + title for title in broken]
    return "\n".join(line_of(row, widths) for row in [*zip(*level), *body])


def line_of(row, widths):
    first, *others = zip(row, widths)
    return "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]).rstrip()


def longest_word(text):
    return max(map(len, text.split()), default=0)


def wrapped(text, width):
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def markdown(results):
    """The tables and what is better than ours, to be taken over into docs/comparison.md."""
    first, *others = [f"{line}\n" for line in first_lines(results)]
    parts = [first, *first_chart(results), *others]
    for section, columns in sections_of(results):
        parts.append(f"### {section.title}\n")
        if columns:
            parts.append(row_of(["", *(column.title for column in columns)]))
            parts.append("|---" * (len(columns) + 1) + "|")
        for who, cells in rows_of(results, columns):
            name = f"**{named(who)}**" if who["kind"] == "ours" else named(who)
            parts.append(row_of([name, *(text for text, *_ in cells)]))
        parts += ["", *left_out_of(results, section, columns)]
        better = list(better_lines(results, columns))
        parts += ["", "Better than ours:", "", *(f"- {line}" for line in better)] if better else []
        parts.append("")
    return "\n".join(parts + [f"- {line}" for line in notes(results) if line.strip()]) + "\n"


def first_chart(results):
    """As a table, with bars of blocks."""
    ids = summary(results)[1]
    if not ids:
        return
    bars = [charts.bars(results, column, ids) for column in FIRST]
    yield row_of(["", *(column.title for column in FIRST)])
    yield "|---" * (len(bars) + 1) + "|"
    for language, rows in bars[0].items():
        for each in zip(rows, *(of[language] for of in bars[1:])):
            name = f"{each[0].title} ({language})"
            cells = (f"{'█' * round(30 * bar.to) or '▏'} {bar.text}" for bar in each)
            yield row_of([f"**{name}**" if each[0].kind == "ours" else name, *cells])
    yield ""


def row_of(cells):
    return f"| {' | '.join(cells)} |"


def first_lines(results):
    """What the run says in all, and whether to believe it."""
    return [line for line in (summary(results)[0], busy_line(results), rounds_line(results)) if line]


def notes(results):
    """Violations, failures, and what was left out."""
    lines = [
        f"{named(results.by_id[who])}: two callers held one lock at a time, {count} times."
        for who, count in results.violations().items()
    ]
    lines += failure_lines(results)
    lines += [f"Left out: {line}" for line in results.content["left_out"]]
    return ["", *lines] if lines else []
