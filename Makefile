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

demo: .venv/installed  ## three models translate dates: without attention, with attention, and a Transformer
	@mkdir -p $(DEMO)
	@echo "Three models are trained, two at a time; the output of the first is in $(DEMO)/seq2seq.log."
	$(BIN)/regard train seq2seq --out $(DEMO)/seq2seq --threads 1 > $(DEMO)/seq2seq.log 2>&1 & training=$$!; \
		$(BIN)/regard train bahdanau --out $(DEMO)/bahdanau --threads 1 && \
		$(BIN)/regard train dates --out $(DEMO)/transformer --threads 1 && \
		wait $$training || { tail -n 1 $(DEMO)/seq2seq.log; exit 1; }
	$(BIN)/regard compare $(DEMO)/seq2seq $(DEMO)/bahdanau $(DEMO)/transformer \
		--report $(DEMO)/report.html --plot $(DEMO)/by-length.png
	@echo; echo "Some dates, and the translations of the Transformer:"
	@printf '%s\n' '15. März 2024' 'le 3 juin 1987' '2 de mayo de 1908' 'July 4, 1976' '1 января 2000' '2019年5月1日' > $(DEMO)/typed.txt
	@$(BIN)/regard translate $(DEMO)/transformer < $(DEMO)/typed.txt | paste $(DEMO)/typed.txt - | column -t -s "$$(printf '\t')"
	@echo; echo "Try next:"
	@echo "  open $(DEMO)/report.html in a browser: the three models by length of the input, and what each attends to"
	@echo "  $(BIN)/regard translate $(DEMO)/bahdanau --alignment                # type dates yourself"
	@echo "  $(BIN)/regard show $(DEMO)/transformer 'Friday, 1 May 2026'         # every layer and head, in your browser"
	@echo "  $(BIN)/regard init YOUR.de YOUR.en > recipe.toml                    # a recipe for your own text"

test: .venv/developing  ## all tests
	$(BIN)/pytest -n auto

check: .venv/developing  ## format, lint, types, layers, fast tests
	$(BIN)/ruff format --check src tests bench
	$(BIN)/ruff check src tests bench
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports
	$(BIN)/pytest -n auto -m "not slow"

storm: .venv/developing  ## runs killed at random, at every point of saving, on full disks; a thousand damaged files
	$(BIN)/python tests/storm.py --runs 20 --kills 5
	$(BIN)/python tests/disk.py
	$(BIN)/python tests/fuzz.py

.venv/benching: .venv/installed bench/joey.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/pip install --quiet --no-deps --requirement bench/joey.txt
	@touch $@

bench: .venv/benching  ## our speed and a peer's, in turns; make bench DATA=folder/of/multi30k, else on dates
	$(BIN)/python -m bench train $(if $(DATA),--data $(DATA))
	$(BIN)/python -m bench recurrent $(if $(DATA),--data $(DATA))
	$(BIN)/python -m bench decode $(if $(DATA),--data $(DATA))

clean:
	rm -rf .venv build dist src/*.egg-info
