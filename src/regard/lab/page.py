"""Pages of the lab: the card of a finding, the page of one, the report of all, and a Markdown table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from regard.evaluation.charts import STYLE as CHART_STYLE
from regard.show.html import STYLE, document, escaped

if TYPE_CHECKING:
    from regard.lab.experiment import Finding

_CARD_STYLE = """
.lab-card { margin: 1.6rem 0; padding: 1.2rem 1.5rem; border: 1px solid var(--line); border-radius: 6px;
  break-inside: avoid }
.lab-card h2 { margin: 0 0 .3rem } .lab-card dl { display: grid; grid-template-columns: max-content 1fr;
  gap: .3rem 1.2rem; margin: .8rem 0 } .lab-card dt { color: var(--quiet) } .lab-card dd { margin: 0; max-width: 46rem }
.verdict { display: inline-block; padding: .05rem .6rem; border-radius: 1em; border: 1px solid currentColor;
  font-size: .85rem; white-space: nowrap }
.confirmed { color: #2b7a4b } .refuted { color: #b3261e } .undecided { color: #8a6500 }
.lab-card table, .list { border-collapse: collapse; font-size: .85rem }
.lab-card th, .list th { text-align: left; font-weight: 400; color: var(--quiet) } .lab-card td { text-align: right }
.lab-card th, .lab-card td, .list th, .list td { padding: .18rem 1.2rem .18rem 0; border-bottom: 1px solid var(--line) }
.scroll { overflow-x: auto } .finding { display: block; color: inherit; max-width: 100%; height: auto; margin: .8rem 0 }
.finding circle[class^="m"] { fill: var(--own) } .finding path[class^="m"], .finding polyline[class^="m"] {
  stroke: var(--own) } code { font-size: .85rem; overflow-wrap: anywhere }
@media screen and (prefers-color-scheme: dark) { .confirmed { color: #7bcf9d } .refuted { color: #f2897f }
  .undecided { color: #e3bf5b } }
"""
_FEW = 4  # measures up to which a table has them as columns


def short(number: float | None) -> str:
    """A number with three significant digits."""
    if number is None:
        return "–"
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def with_spread(value: Mapping[str, Any]) -> str:
    """The mean over seeds, and their standard deviation."""
    spread = value.get("spread")
    return short(value["mean"]) + (f" ± {short(spread)}" if spread is not None else "")


def verdict_mark(verdict: str) -> str:
    """The verdict as a coloured word."""
    style = verdict if verdict in ("confirmed", "refuted") else "undecided"
    return f'<span class="verdict {style}">{escaped(verdict)}</span>'


def card(facts: Mapping[str, Any], picture: str) -> str:
    """A finding as a card: question, what was done, picture, numbers, verdict, caveats, command."""
    seeds = facts["seeds"]
    size = f"{facts['minutes']:g} minutes of one core asked for, {facts['seconds'] / 60:.1f} of processor time taken"
    rows = {
        "source": facts["source"], "what was done": facts["method"], "rule, stated before": facts["rule"],
        "caveats": facts["caveats"],
        "size": f"{size}; seeds {seeds[0]} to {seeds[-1]}; {_settings(facts)}",
    }  # fmt: skip
    terms = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(str(text))}</dd>" for name, text in rows.items())
    return (
        f'<section class="lab-card" id="{escaped(facts["name"])}"><h2>{escaped(facts["name"])} '
        f"{verdict_mark(facts['verdict'])}</h2><p>{escaped(facts['question'])}</p>{picture}"
        f"{_numbers(facts['numbers'])}<dl>{terms}<dt>command</dt><dd><code>{escaped(facts['command'])}</code></dd></dl>"
        "</section>"
    )


def _settings(facts: Mapping[str, Any]) -> str:
    found = ", ".join(f"{name} {value}" for name, value in facts["settings"].items())
    return f"full size: {found}; counts such as steps are scaled by {facts['scale']:.2g}"


def _numbers(numbers: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The numbers with their spread over seeds: arms are rows if there are few measures, else columns."""
    measures = list(dict.fromkeys(name for arm in numbers.values() for name in arm))
    cells = {(arm, name): with_spread(value) for arm, row in numbers.items() for name, value in row.items()}
    rows, columns = (list(numbers), measures) if len(measures) <= _FEW else (measures, list(numbers))

    def cell(row: str, column: str) -> str:
        return cells.get((row, column) if len(measures) <= _FEW else (column, row), "")

    head = "".join(f"<th>{escaped(column)}</th>" for column in columns)
    lines = "".join(
        f"<tr><th>{escaped(row)}</th>{''.join(f'<td>{cell(row, column)}</td>' for column in columns)}</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr><th></th>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def finding_page(facts: Mapping[str, Any], picture: str) -> str:
    """The page of one finding, which loads nothing."""
    return document(f"{facts['name']}: {facts['verdict']}", STYLE + CHART_STYLE + _CARD_STYLE, card(facts, picture))


def report(findings: Sequence[Finding], note: str) -> str:
    """The page of all findings: a list with the verdicts, then a card per claim."""
    rows = "".join(
        f'<tr><td><a href="#{escaped(one.facts["name"])}">{escaped(one.facts["name"])}</a></td>'
        f"<td>{escaped(one.facts['question'])}</td><td>{verdict_mark(one.verdict)}</td></tr>"
        for one in findings
    )
    counts = ", ".join(
        f"{sum(one.verdict == verdict for one in findings)} {verdict}"
        for verdict in dict.fromkeys(one.verdict for one in findings)
    )
    cards = "".join(card(one.facts, one.picture) for one in findings)
    body = (
        f'<h1>The lab</h1><p class="quiet">{len(findings)} claims: {escaped(counts)}. {escaped(note)}</p>'
        f'<div class="scroll"><table class="list"><tbody>{rows}</tbody></table></div>{cards}'
    )
    return document("The lab", STYLE + CHART_STYLE + _CARD_STYLE, body)


def table(findings: Sequence[Finding], others: Sequence[Mapping[str, Any]] = ()) -> str:
    """The findings as a Markdown table, with their size and processor minutes, then claims that have none."""
    names = ("claim", "question", "verdict", "numbers (mean ± spread over seeds)", "size", "seeds", "minutes")
    rows = [names, ("---",) * len(names)]
    for facts in (one.facts for one in findings):
        size = "full" if facts["scale"] == 1 else f"{facts['scale']:.2g} of full"
        seeds = f"{facts['seeds'][0]}–{facts['seeds'][-1]}"
        rows.append((f"`{facts['name']}`", facts["question"], f"**{facts['verdict']}**", brief(facts["numbers"]), size,
                     seeds, f"{facts['seconds'] / 60:.1f}"))  # fmt: skip
    rows += [(f"`{one['name']}`", one["question"], "not run", "–", "–", "–", "–") for one in others]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def brief(numbers: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The last measure of each arm, which is the hardest or longest case."""
    measures = list(next(iter(numbers.values())))
    shared = [name for name in measures if all(name in row for row in numbers.values())]
    last = (shared or measures)[-1]
    arms = "; ".join(f"{arm} {with_spread(row[last])}" for arm, row in numbers.items() if last in row)
    return f"{last}: {arms}"
