"""The results as a table for a terminal, and in Markdown."""

from sections import better_lines, rows_of, sections_of


def plain(results):
    parts = []
    for section, columns in sections_of(results):
        head = ["", *(column.title for column in columns)]
        body = [
            [f"{who['title']} ({who['language']})", *(text for text, _ in cells)]
            for who, cells in rows_of(results, columns)
        ]
        parts.append(f"\n{section.title}\n\n{aligned(head, body)}")
        better = list(better_lines(results, columns))
        parts += ["\nBetter than ours:", *(f"  {line}" for line in better)] if better else []
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
    parts = []
    for section, columns in sections_of(results):
        parts.append(f"### {section.title}\n")
        parts.append(row_of(["", *(column.title for column in columns)]))
        parts.append("|---" * (len(columns) + 1) + "|")
        for who, cells in rows_of(results, columns):
            name = f"{who['title']} ({who['language']})"
            parts.append(row_of([f"**{name}**" if who["kind"] == "ours" else name, *(text for text, _ in cells)]))
        better = list(better_lines(results, columns))
        parts += ["", "Better than ours:", "", *(f"- {line}" for line in better)] if better else []
        parts.append("")
    return "\n".join(parts + [f"- {line}" for line in notes(results) if line.strip()]) + "\n"


def row_of(cells):
    return f"| {' | '.join(cells)} |"


def notes(results):
    """Violations, errors, and what was left out."""
    names = results.by_id
    lines = [
        f"{names[who]['title']} ({names[who]['language']}): two callers held one lock at a time, {count} times."
        for who, count in results.violations().items()
    ]
    lines += [f"failed: {line}" for line in results.errors()]
    lines += [f"left out: {line}" for line in results.content["left_out"]]
    return ["", *lines] if lines else []
