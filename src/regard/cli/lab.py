"""The command lab: claims of the papers and notes, re-run here with a number, a picture and a verdict."""

from __future__ import annotations

import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import json_text, refuse_unused, require_output
from regard.errors import InputError

_ALL = "all"


def lab(
    claim: Annotated[
        str | None,
        typer.Argument(help="The name of a claim, all, or a Python file with a claim of your own.", show_default=False),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Minutes of one core, which scale the steps.", show_default="the claim's; of all the fewest"),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds per model.", show_default="the claim's")] = None,
    first_seed: Annotated[
        int | None, typer.Option(help="The first seed; the others follow it.", show_default="1")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Set a setting of the claim, as in width=64.")
    ] = None,
    text: Annotated[Path | None, typer.Option(help="Your own text, for claims that read one.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder; a run found there resumes.", show_default="runs/lab/CLAIM")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write one offline page with a card per claim; without a claim, of the findings so far."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Print the findings as a Markdown table.")] = False,
) -> None:
    """Re-run a claim of the papers: number, picture, verdict. Without a claim: list the claims.

    The folder gets finding.json, picture.svg and page.html. A file that you name is executed.

    Example: regard lab symmetry --minutes 1

    Example: regard lab all --report lab.html
    """
    if claim is None:
        refuse_unused("needs a claim. Name one, as in regard lab symmetry.", minutes=minutes, seeds=seeds,
                      first_seed=first_seed, set=settings, text=text)  # fmt: skip
        require_output("--report", report)
        if table or report:
            refuse_unused("prints the list of claims. Leave it out.", json=as_json)
            _findings(out, report, table=table)
        else:
            _list(out, as_json=as_json)
        return
    refuse_unused("lists findings that exist. Leave out the claim.", table=table)
    require_output("--report", report)
    first = 1 if first_seed is None else first_seed
    if claim == _ALL:
        refuse_unused("is for one claim. Name it instead of all.", set=settings, text=text)
        _all(out, minutes, seeds, first, report, as_json=as_json)
        return
    from regard.lab.experiment import run
    from regard.lab.page import report as report_page
    from regard.store.files import write_output

    finding = run(claim, minutes=minutes, seeds=seeds, first_seed=first, settings=settings or (), text=text, out=out)
    if report is not None:
        write_output(report, report_page([finding], finding.command).encode())
    folder = out or _folder() / finding.facts["name"]
    typer.echo(json_text(finding.to_json()) if as_json else f"{finding.verdict}: see {folder / 'page.html'}")


def _folder() -> Path:
    from regard.lab.catalogue import FOLDER

    return FOLDER


def _list(folder: Path | None, *, as_json: bool) -> None:
    """Print the claims."""
    from regard.lab.catalogue import listed

    rows = listed(folder or _folder())
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False, indent=1))
        return
    for row in rows:
        minutes = f"{row['fewest']:g} to {row['minutes']:g} min"
        typer.echo(f"{row['name']:14} {minutes:15} {row['verdict'] or '-':25} {row['question']} [{row['source']}]")


def _findings(folder: Path | None, report: Path | None, *, table: bool) -> None:
    """Print the findings that there are as a table, or write them as one page."""
    from regard.lab.catalogue import NAMES, facts
    from regard.lab.experiment import read_finding
    from regard.lab.page import report as report_page
    from regard.lab.page import table as findings_table
    from regard.store.files import write_output

    folder = folder or _folder()
    found = [one for name in NAMES if (one := read_finding(folder / name)) is not None]
    known = {one.facts["name"] for one in found}
    if not found:
        option = "--table" if table else "--report"
        raise InputError(f"{folder} holds no findings ({option}). Run some first: regard lab all.")
    if report is not None:
        write_output(report, report_page(found, f"Findings in {folder}.").encode())
    if table:
        typer.echo(findings_table(found, [facts(name) for name in NAMES if name not in known]))


def _all(
    out: Path | None, minutes: float | None, seeds: int | None, first_seed: int, report: Path | None, *, as_json: bool
) -> None:  # fmt: skip
    from regard.lab.everything import run_all
    from regard.lab.page import report as report_page
    from regard.store.files import write_output

    say = partial(print, file=sys.stderr, flush=True)
    findings = run_all(out or _folder(), minutes=minutes, seeds=seeds, first_seed=first_seed, say=say)
    if report is not None:
        words = ["regard", *sys.argv[1:]] if sys.argv[1:2] == ["lab"] else ["regard", "lab", "all"]
        write_output(report, report_page(findings, shlex.join(words)).encode())
    if as_json:
        typer.echo(json_text([one.to_json() for one in findings]))  # type: ignore[arg-type]
    else:
        for one in findings:
            typer.echo(f"{one.facts['name']:14} {one.verdict}")
