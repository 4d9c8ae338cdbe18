"""`python -m book`: assemble the pages into build/book, then build the site into site/. Nothing is downloaded."""

from __future__ import annotations

import os
import subprocess
import sys

from book.assemble import ROOT, assemble

assemble(ROOT / "build" / "book")
command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--quiet"]
sys.exit(subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}).returncode)
