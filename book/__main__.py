"""`python -m book`: assemble the pages into build/book, build the site into site/, check it. Nothing is downloaded."""

from __future__ import annotations

import os
import subprocess
import sys

from book.assemble import ROOT, NotFound, assemble
from book.checks import faults

try:
    assemble(ROOT / "build" / "book")
except NotFound as error:
    sys.exit(str(error))
command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--quiet"]
built = subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}).returncode
found = faults(ROOT / "site") if built == 0 else []
for fault in found:
    print(fault, file=sys.stderr)
sys.exit(built or bool(found))
