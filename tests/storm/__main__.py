"""Run the storm: `python -m tests.storm [--only A1,B3] [--minutes N] [--seed N] [--out DIR] [--again]`.

Each row runs in a process of its own. Its result goes to DIR/results.json at once, so a storm that was stopped resumes
at the next row. At the end DIR/storm.md holds the table. The exit code is 1 if a row falls short.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.storm import a, b, c, d, faults, leaks
from tests.storm.rows import ROOT, NotHereError, Outcome, Row, path_to_here

ROWS: dict[str, Row] = {row.name: row for tier in (a, b, c, d, faults, leaks) for row in tier.ROWS}
Result = dict[str, Any]


def counts(rows: list[Row], minutes: float | None) -> dict[str, int]:
    """How many cases of each row fit in so many minutes, in proportion."""
    share = 1.0 if minutes is None else min(1.0, minutes / sum(row.minutes for row in rows))
    return {row.name: min(row.figure, max(row.least, round(share * row.figure))) for row in rows}


def short(result: Result) -> bool:
    """Whether a row falls short of the cases that it was asked for."""
    return not result.get("skipped") and (result["good"] < result["total"] or result["total"] < result["count"])


def shown(result: Result) -> str:
    """N of N, and the figure where it was scaled down."""
    if result.get("skipped"):
        return "not run"
    scaled = result["count"] < result["figure"]
    return f"{result['good']:,} of {result['total']:,}" + (f", figure {result['figure']:,}" if scaled else "")


def table(results: Mapping[str, Result]) -> str:
    """The results as a page."""
    ordered = [results[name] for name in ROWS if name in results]
    fallen = [result["name"] for result in ordered if short(result)]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    lines = ["# The storm", "", f"{len(ordered)} rows of {len(ROWS)}, {machine}. "
             + (f"Short of their figure: {', '.join(fallen)}." if fallen else "None fell short."), "",
             "| row | what | held | seed | minutes | date | note |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for result in ordered:
        mark = "**short**: " if short(result) else ""
        note = " ".join(str(result["note"]).split()).replace("|", "\\|")
        lines.append(f"| {result['name']} | {result['what']} | {mark}{shown(result)} | {result['seed']} | "
                     f"{result['seconds'] / 60:.1f} | {result.get('date', '')} | {note} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def run_apart(row: Row, count: int, seed: int, out: Path) -> Result:
    """Run a row in a process of its own, whatever becomes of it; what it printed is in DIR/ROW.log."""
    folder, found = out / row.name, out / f"{row.name}.json"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.storm", "--run", row.name, str(count), str(seed), str(folder), str(found)]
    environment = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path_to_here()}
    environment["REGARD_CACHE"] = str(folder / "cache")
    began = time.monotonic()
    with open(out / f"{row.name}.log", "w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env={**os.environ, **environment},
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait()
        finally:  # whatever the row started ends with it
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    outcome = {"good": 0, "total": count, "note": f"the row ended with {process.returncode}", "skipped": False}
    outcome = json.loads(found.read_text()) if found.exists() else outcome
    found.unlink(missing_ok=True)
    shown_row = {"name": row.name, "what": row.what, "figure": row.figure, "count": count, "seed": seed}
    seconds = round(time.monotonic() - began, 1)
    return {**shown_row, **outcome, "seconds": seconds, "date": time.strftime("%Y-%m-%d")}


def run_here(name: str, count: int, seed: int, folder: Path, found: Path) -> None:
    """Run a row in this process, and write its outcome to a file."""
    skipped = False
    try:
        outcome = ROWS[name].run(count, seed, folder)
    except NotHereError as error:
        outcome, skipped = Outcome(0, 0, str(error)), True
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(0, count, f"{type(error).__name__}: {error}"[:400])
    found.write_text(json.dumps({**asdict(outcome), "skipped": skipped}))


def main() -> int:
    """Run the chosen rows that have no result yet; -> the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows, as A1,B3; a letter stands for its tier")
    parser.add_argument("--minutes", type=float, help="scale all figures down to about this long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/storm"))
    parser.add_argument("--again", action="store_true", help="also rows that have a result")
    parser.add_argument("--list", action="store_true", help="only list the rows")
    parser.add_argument("--run", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        name, count, seed, folder, found = given.run
        run_here(name, int(count), int(seed), Path(folder), Path(found))
        return 0
    rows = [row for row in ROWS.values() if chosen(row.name, given.only)]
    unknown = [word for word in given.only.split(",") if word and not any(chosen(name, word) for name in ROWS)]
    if unknown:
        parser.error(f"no row is called {unknown[0]}. Rows: {', '.join(ROWS)}")
    if given.list:
        for row in rows:
            print(f"{row.name:4} {row.figure:>7,} {row.minutes:6.1f} min  {row.what}")
        return 0
    given.out = given.out.absolute()
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "results.json"
    results = read(path)
    for row in rows:
        count = counts(rows, given.minutes)[row.name]
        before = results.get(row.name)
        if before and not given.again and before["count"] >= count and before["seed"] == given.seed:
            continue
        result = run_apart(row, count, given.seed, given.out)
        results = {**read(path), row.name: result}  # another storm may have written its own meanwhile
        if not short(result):
            shutil.rmtree(given.out / row.name, ignore_errors=True)
        write(path, json.dumps(results, indent=1))
        write(given.out / "storm.md", table(results))
        word = "SHORT" if short(result) else "ok"
        print(f"{row.name}: {shown(result)} (seed {given.seed}, {result['seconds']:.0f} s) {word} {result['note']}",
              flush=True)  # fmt: skip
    print(table({name: results[name] for name in results if chosen(name, given.only)}))
    return int(any(short(results[row.name]) for row in rows))


def chosen(name: str, only: str) -> bool:
    """Whether a row is among those named; a letter names its tier."""
    words = [word.strip() for word in only.split(",") if word.strip()]
    return not words or name in words or name[0] in words


def read(path: Path) -> dict[str, Result]:
    """The results of the rows so far."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def write(path: Path, text: str) -> None:
    """Replace a file at once, so that a storm that is stopped leaves a whole one."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
