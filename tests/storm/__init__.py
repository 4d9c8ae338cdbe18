"""The storm: every failure test at its figure, in one command (`python -m tests.storm`, or `make storm`)."""
