# Every target works on a fresh clone: what it needs is installed into .venv first. It takes make, a POSIX shell and Python.
#   make demo TORCH_INDEX=ADDRESS             torch from another package index, such as that of its CPU build
#   make demo PYTHON=python3.12               another Python
#   make demo SET='--set train.steps=20'      short training, to see what the demo does
#   make storm STORM='--only A,B3'            some rows of the storm; those that have a result are not run again
PYTHON ?= python3
BIN    := .venv/bin
DEMO   ?= runs/demo

.PHONY: demo test check storm notebook docs bench clean

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || { \
		echo "$(PYTHON) is missing, or older than Python 3.11. Install Python 3.11 or later, then: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
		echo "$(PYTHON) has no venv. Install it (on Debian and Ubuntu: apt install python3-venv), then: make $(MAKECMDGOALS)."; exit 1; }
ifdef TORCH_INDEX
	@case "$(TORCH_INDEX)" in *://*) ;; *) echo "TORCH_INDEX=$(TORCH_INDEX) is not an address (https://...)."; exit 1;; esac
	@echo "Downloads torch from TORCH_INDEX (its CPU build has about 0.2 GB) and 0.1 GB of other packages into .venv."
else
	@echo "Downloads torch and 0.1 GB of other packages into .venv. On Linux torch brings 2.9 GB for NVIDIA GPUs: without one,"
	@echo "stop this and run make with TORCH_INDEX=ADDRESS, the --index-url that PyTorch's install page gives for the CPU (0.2 GB)."
endif
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[serve,demo,tensorboard]'
	@touch $@

.venv/developing: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

define TYPED
import sys, regard
dates = ["15. März 2024", "le 3 juin 1987", "2 de mayo de 1908", "July 4, 1976", "1 января 2000", "2019年5月1日"]
for date, translation in zip(dates, regard.load(sys.argv[1]).translate(dates)):
    print(translation, date, sep="   ")
endef
export TYPED

demo: .venv/installed  ## three models translate dates: without attention, with attention, and a Transformer
	@mkdir -p $(DEMO)
	@echo "Trains three models, two at a time: about five minutes on a quiet machine with two cores. Nothing is downloaded."
	@echo "The output of the first is in $(DEMO)/seq2seq.log."
	@$(BIN)/regard train seq2seq --out $(DEMO)/seq2seq --threads 1 $(SET) > $(DEMO)/seq2seq.log 2>&1 & training=$$!; \
		trap 'kill $$training 2> /dev/null; exit 130' INT TERM; \
		{ $(BIN)/regard train bahdanau --out $(DEMO)/bahdanau --threads 1 $(SET) && \
		$(BIN)/regard train dates --out $(DEMO)/transformer --threads 1 $(SET); } || { kill $$training 2> /dev/null; exit 1; }; \
		wait $$training || { tail -n 1 $(DEMO)/seq2seq.log; exit 1; }
	$(BIN)/regard compare $(DEMO)/seq2seq $(DEMO)/bahdanau $(DEMO)/transformer \
		--report $(DEMO)/report.html --plot $(DEMO)/by-length.png
	@echo; echo "Some dates, and the translations of the Transformer:"
	@$(BIN)/python -c "$$TYPED" $(DEMO)/transformer
	@echo; echo "Try next:"
	@echo "  open $(DEMO)/report.html in a browser: the three models by length of the input, and what each attends to"
	@echo "  $(BIN)/regard translate $(DEMO)/bahdanau --alignment                # type dates yourself"
	@echo "  $(BIN)/regard show $(DEMO)/transformer 'Friday, 1 May 2026'         # every layer and head, in your browser"
	@echo "  $(BIN)/regard serve $(DEMO)/transformer $(DEMO)/bahdanau             # over HTTP, with a page to type in"
	@echo "  $(BIN)/regard init YOUR.de YOUR.en > recipe.toml                    # a recipe for your own text"

test: .venv/developing  ## all tests
	$(BIN)/pytest -n auto

check: .venv/developing  ## format, lint, types, layers, fast tests
	$(BIN)/ruff format --check src tests bench book
	$(BIN)/ruff check src tests bench book
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports
	$(BIN)/pytest -n auto -m "not slow and not storm"

storm: .venv/developing  ## every failure test at its figure (five hours; make storm STORM='--minutes 30'), mutations, long tests
	$(BIN)/python -m tests.storm --out runs/storm $(STORM)
	$(BIN)/python -m tests.mutate
	$(BIN)/pytest -n auto -m storm

notebook: .venv/developing  ## run the notebook whole, in about three minutes, and store its results in it
	cd docs && ../$(BIN)/jupyter execute --inplace --timeout=3600 tutorial.ipynb

.venv/documenting: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: .venv/documenting  ## build the book into site/: open site/index.html
	$(BIN)/python -m book
	@echo "Open site/index.html in a browser."

.venv/benching: .venv/installed bench/joey.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/pip install --quiet --no-deps --requirement bench/joey.txt
	@touch $@

bench: .venv/benching  ## our speed and a peer's, in turns; make bench DATA=folder/of/multi30k, else on dates
	$(BIN)/python -m bench train $(if $(DATA),--data $(DATA))
	$(BIN)/python -m bench recurrent $(if $(DATA),--data $(DATA))
	$(BIN)/python -m bench decode $(if $(DATA),--data $(DATA))

clean:
	rm -rf .venv build dist site src/*.egg-info
