"""The page: one file, with its charts in it, that loads nothing."""

import pathlib

import charts
import jinja2
from sections import better_lines, rows_of, sections_of
from tables import notes


def drawn(results):
    """The page's HTML."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((pathlib.Path(__file__).parent / "page.html").read_text())
    return template.render(
        machine=results.content["machine"],
        content=results.content,
        contestants=results.contestants,
        violations=results.violations(),
        sections=[part(results, section, columns) for section, columns in sections_of(results)],
        notes=[line for line in notes(results) if line],
        lead=lead(results),
    )


def part(results, section, columns):
    shown = [(column, charts.bars(results, column)) for column in columns if column.chart]
    return {
        "section": section,
        "columns": columns,
        "rows": list(rows_of(results, columns)),
        "better": list(better_lines(results, columns)),
        "figures": [(column, picture) for column, picture in shown if picture],
    }


def lead(results):
    """What those who poll do to the others, in the numbers of this run; None where none took part."""
    shares = [
        results.figure(who["id"], "turns-16", "to_others_share")
        for who in results.rows("turns-16")
        if who["waits"].startswith("polls")
    ]
    shares = [1 - share for share in shares if share is not None]
    if not shares:
        return None
    low, high = min(shares) * 100, max(shares) * 100
    return f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"
