"""The charts, as SVG: Vega-Lite draws them. Colours are those of the page, so that light and dark are both right."""

import re

import vl_convert

VERSION = "6.4"
FONT = "DejaVu Sans, Verdana, sans-serif"
KINDS = {"ours": "var(--ours)", "yardstick": "var(--yardstick)", "peer": "var(--peer)"}


def bars(results, column):
    """A bar for each contestant, grouped by language; None where nothing was measured."""
    rows = []
    for who in results.rows(column.workload):
        value = results.figure(who["id"], column.workload, column.figure)
        if value is not None:
            drawn = value * column.scale
            rows.append({"who": who["id"], "title": who["title"], "language": who["language"], "kind": who["kind"],
                         "value": drawn, "label_at": max(drawn, 0), "text": column.show(value)})  # fmt: skip
    if not rows:
        return None
    return svg(specification(rows, column), column.title)


def specification(rows, column):
    scale, begin = scaled(rows, column)
    languages = list(dict.fromkeys(row["language"] for row in rows))
    names = {row["who"]: row["title"] for row in rows}
    return {
        "data": {"values": rows},
        "facet": {"row": {"field": "language", "title": None, "sort": languages,
                          "header": {"labelAngle": 0, "labelAlign": "left", "labelOrient": "top", "labelPadding": 2,
                                     "labelAnchor": "start", "labelFontWeight": "bold"}}},
        "resolve": {"scale": {"y": "independent"}},
        "spacing": 4,
        "spec": {
            "width": 150,
            "height": {"step": 17},
            "encoding": {
                "y": {"field": "who", "type": "nominal", "title": None, "sort": None,
                      "axis": {"labelExpr": f"{names!r}[datum.value]", "labelLimit": 172, "ticks": False,
                               "domain": False, "minExtent": 168, "maxExtent": 168}},
                "x": {"field": "value", "type": "quantitative", "title": None, "axis": None, "scale": scale},
            },
            "layer": [
                {"mark": {"type": "bar", "height": 12, "cornerRadiusEnd": 2},
                 "encoding": {"x2": {"datum": begin}, "color": {"field": "kind", "type": "nominal", "legend": None,
                                        "scale": {"domain": list(KINDS), "range": list(KINDS.values())}}}},
                {"mark": {"type": "text", "align": "left", "dx": 4, "color": "currentColor"},
                 "encoding": {"text": {"field": "text", "type": "nominal"},
                              "x": {"field": "label_at", "type": "quantitative"}}},
            ],
        },
        "padding": {"left": 2, "right": 52, "top": 2, "bottom": 2},
        "config": {"background": "transparent", "font": FONT, "view": {"stroke": None},
                   "axis": {"labelColor": "currentColor", "labelFontSize": 11, "grid": False},
                   "header": {"labelColor": "currentColor", "labelFontSize": 11}, "text": {"fontSize": 11}},
    }  # fmt: skip


def scaled(rows, column):
    """The scale, and where bars begin. Logarithms have no zero: what is none gets a bar of no length there."""
    values = [row["value"] for row in rows]
    some = [value for value in values if value > 0]
    if column.chart == "log" and some:
        begin = min(some) / 3
        for row in rows:
            row["value"] = row["label_at"] = max(row["value"], begin)
        return {"type": "log", "domain": [begin, max(some)]}, begin
    return {"domain": [min([0, *values]), max([*values, 1e-9])]}, 0


def svg(spec, label):
    """An SVG that takes the width that it is given, with a label for those who cannot see it."""
    drawn = vl_convert.vegalite_to_svg(spec, vl_version=VERSION)
    width, height = re.search(r'width="([\d.]+)" height="([\d.]+)"', drawn).groups()
    head = f'<svg role="img" aria-label="{label}" style="max-width:{float(width) * 1.15:.0f}px"'
    return drawn.replace("<svg", head, 1).replace(f' width="{width}" height="{height}"', "", 1)
