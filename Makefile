# Every target works on a fresh clone: what it needs is installed into .venv first.
PYTHON ?= python3
BIN    := .venv/bin
DEMO   ?= runs/demo

.PHONY: demo test check storm bench clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $@

.venv/developing: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: .venv/installed  ## train a small Transformer on dates, judge it, and look at what it attends to
	$(BIN)/regard train dates --out $(DEMO)
	$(BIN)/regard evaluate $(DEMO) --report $(DEMO)/report.html
	@echo; echo "Dates a person might type:"
	@printf '%s\n' '15. März 2024' 'le 3 juin 1987' '2 de mayo de 1908' 'July 4, 1976' '1 января 2000' '2019年5月1日' > $(DEMO)/typed.txt
	@$(BIN)/regard translate $(DEMO) < $(DEMO)/typed.txt | paste $(DEMO)/typed.txt - | column -t -s "$$(printf '\t')"
	@echo; echo "Try next:"
	@echo "  open $(DEMO)/report.html in a browser: curves, tables, alignments"
	@echo "  $(BIN)/regard translate $(DEMO)                      # type dates yourself"
	@echo "  $(BIN)/regard show $(DEMO) 'Friday, 1 May 2026'      # every layer and head, as a page"
	@echo "  $(BIN)/regard init YOUR.de YOUR.en > recipe.toml     # a recipe for your own text"

test: .venv/developing  ## all tests
	$(BIN)/pytest -n auto

check: .venv/developing  ## format, lint, types, layers, fast tests
	$(BIN)/ruff format --check src tests bench
	$(BIN)/ruff check src tests bench
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports
	$(BIN)/pytest -n auto -m "not slow"

storm: .venv/developing  ## runs killed at random, killed at every point of saving, and on full disks lose nothing
	$(BIN)/python tests/storm.py --runs 20 --kills 5
	$(BIN)/python tests/disk.py

.venv/benching: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	@touch $@

bench: .venv/benching  ## our speed beside a peer's, in turns; make bench DATA=folder/of/multi30k, else on dates
	$(BIN)/python -m bench train $(if $(DATA),--data $(DATA))
	$(BIN)/python -m bench decode $(if $(DATA),--data $(DATA))

clean:
	rm -rf .venv build dist src/*.egg-info
