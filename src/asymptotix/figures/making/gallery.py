"""The gallery: one self-contained HTML page with all figures and their verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .registry import Reproducible
from .reproduction import judged, table

PAPERS = {
    "deep": ("Bayes-optimal learning of deep attention", "Troiani et al., arXiv:2502.00901"),
    "training": ("Training of single-head attention", "Boncoraglio et al., arXiv:2509.24914v1"),
    "paths": ("Attention paths at finite width", "Tiberi et al., arXiv:2405.15926"),
    "atlas": ("Beyond the papers", ""),
}

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --line: #d8d8d8; --soft: #666; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #161616; --line: #383838; --soft: #a0a0a0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1280px; padding: 2rem 1.2rem 4rem; color: var(--ink); background: var(--paper);
       font: 16px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .2rem; }
p { margin: .2rem 0 .8rem; } .soft { color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 34rem), 1fr)); gap: 1.1rem; }
article { border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
article img { display: block; width: 100%; background: #fff; }
article div { padding: .7rem .9rem .9rem; } h3 { font-size: 1rem; margin: 0 0 .2rem; }
.verdict { display: inline-block; padding: .1rem .5rem; border-radius: 4px; font-size: .85rem; font-weight: 600; }
.agrees { background: #009e73; color: #fff; } .wrong { background: #d55e00; color: #fff; }
.new { background: #0072b2; color: #fff; } .missing, .undecided { background: var(--line); color: var(--ink); }
ul { margin: .5rem 0; padding-left: 1.1rem; font-size: .9rem; } a { color: inherit; }
details { font-size: .9rem; } summary { cursor: pointer; color: var(--soft); }
"""


def place(name: str) -> tuple[int, str]:
    """Return the sort key of the figure ``name``: the position of its paper in PAPERS, then the name."""
    return list(PAPERS).index(name.partition("/")[0]), name


def page(records: Sequence[tuple[Reproducible, Mapping[str, Any] | None]], size: str) -> str:
    """Return the page in HTML; ``records`` are (figure, its record), or (figure, None) for one not made yet."""
    sections = []
    for paper, (title, source) in PAPERS.items():
        cards = [_card(figure, record) for figure, record in records if figure.name.startswith(f"{paper}/")]
        if cards:
            sections.append(
                f'<h2>{escape(title)}</h2><p class="soft">{escape(source)}</p><div class="cards">{"".join(cards)}</div>'
            )
    made = sum(record is not None for _, record in records)
    head = f"{made} of {len(records)} figures, size {escape(size)}. Each with its data, and a record of what agrees."
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1"><title>asymptotix: figures</title>'
        f"<style>{_STYLE}</style></head><body><h1>The figures of three papers, computed anew</h1>"
        f"<p>{head}</p>{''.join(sections)}</body></html>\n"
    )


def verdicts(records: Sequence[tuple[Reproducible, Mapping[str, Any] | None]]) -> str:
    """Return all claims and curves as tables in Markdown; ``records`` are pairs of a figure and its record or None."""
    lines: list[str] = []
    for figure, record in records:
        if record is None:
            continue
        lines += [f"### {figure.name}: {record['verdict']}", "", f"{figure.shows}. {figure.source}.", ""]
        rows = [
            [c["what"], f"{c['published']} ({c['source']})", c["found"], judged(c["holds"], c.get("script", ""))]
            for c in record["claims"]
        ]
        if rows:
            lines += [*table(["claimed", "published", "found", "holds"], rows), ""]
        rows = [[a["curve"], f"{a['largest']:.1f}", a["words"]] for a in record["agreements"]]
        if rows:
            lines += [*table(["experiment against theory", "largest distance in errors", "agreement"], rows), ""]
    return "\n".join(lines)


def _card(figure: Reproducible, record: Mapping[str, Any] | None) -> str:
    name, shows = escape(figure.name), escape(figure.shows)
    if record is None:
        why = f"needs the data set {', '.join(figure.needs)}" if figure.needs else "not made yet"
        return f"<article><div><h3>{name}</h3><p>{shows}</p>{_badge(why, 'missing')}</div></article>"
    folder, title = figure.name, figure.name.rpartition("/")[2]
    files = [file for file in record["files"] if file.endswith((".pdf", ".md", ".nc"))]
    links = " · ".join(f'<a href="{escape(f"{folder}/{file}")}">{escape(file)}</a>' for file in files)
    wrong = [f"<li>{_claim(claim)}</li>" for claim in record["claims"] if claim["holds"] is False]
    others = [f"<li>{_claim(claim)}</li>" for claim in record["claims"] if claim["holds"] is not False]
    curves = [f"<li>{escape(a['curve'])}: {escape(a['words'])}</li>" for a in record["agreements"]]
    picture = escape(f"{folder}/{title}.png")
    return (
        f'<article><a href="{picture}"><img src="{picture}" alt="{shows}" loading="lazy"></a>'
        f"<div><h3>{name}</h3><p>{shows}</p>{_badge(record['verdict'], _colour(record['claims']))}"
        f"<ul>{''.join(wrong)}</ul>{_folded('other claims', others)}{_folded('experiment against theory', curves)}"
        f'<p class="soft">{links}</p></div></article>'
    )


def _colour(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return the CSS class of a figure's badge, from the verdicts on its claims."""
    answers = {claim["holds"] for claim in claims}
    if not answers:
        return "new"
    if answers == {None}:
        return "undecided"
    return "wrong" if False in answers else "agrees"


def _folded(words: str, entries: Sequence[str]) -> str:
    """Return HTML for a list that a click unfolds, with the heading ``words``; "" without entries."""
    if not entries:
        return ""
    return f"<details><summary>{escape(words)} ({len(entries)})</summary><ul>{''.join(entries)}</ul></details>"


def _claim(claim: Mapping[str, Any]) -> str:
    sign = {True: "holds", False: "<strong>does not hold</strong>", None: "not decided"}[claim["holds"]]
    return f"{escape(claim['what'])}: published {escape(claim['published'])}, found {escape(claim['found'])}: {sign}"


def _badge(words: str, kind: str) -> str:
    return f'<span class="verdict {escape(kind)}">{escape(words)}</span>'
