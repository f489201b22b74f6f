"""The page: one file, with its charts in it, that loads nothing."""

import pathlib

import charts
import jinja2
import sections
from tables import notes


def drawn(results):
    """The page's HTML."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    sentence, ids = sections.summary(results)
    template = environment.from_string((pathlib.Path(__file__).parent / "page.html").read_text())
    return template.render(
        machine=results.content["machine"],
        content=results.content,
        contestants=results.contestants,
        violations=results.violations(),
        summary=sentence,
        first_charts=charted(results, sections.FIRST, ids) if sentence else [],
        busy=sections.busy_line(results),
        load=sections.load_line(results),
        rounds=sections.rounds_line(results),
        sections=[part(results, section, columns) for section, columns in sections.sections_of(results)],
        notes=[line for line in notes(results) if line],
        lead=lead(results),
    )


def part(results, section, columns):
    return {
        "section": section,
        "columns": columns,
        "rows": list(sections.rows_of(results, columns)),
        "left_out": list(sections.left_out_of(results, section, columns)),
        "better": list(sections.better_lines(results, columns)),
        "charts": charted(results, [column for column in columns if column.chart]),
    }


def charted(results, columns, chosen=None):
    drawn = [(column, charts.bars(results, column, chosen)) for column in columns]
    return [(column, groups) for column, groups in drawn if groups]


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
