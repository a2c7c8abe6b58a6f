# Every target sets up all it needs. The work is done by tools/environment.py, the `grader` command, pytest and ruff.
PYTHON ?=
TORCH ?=
UPGRADE ?=
SUBMITTED ?= examples/submitted
LESSON ?=
REPOSITORY ?=
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup lab watch carry reset doctor grade instructor test test-all prove build book lint format bench soak lock clean

help: ## list the targets
	@echo "make TARGET, where TARGET is one of"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' Makefile

setup: ## install the pinned versions into .venv (TORCH=cpu, no or cuda; PYTHON=python3.12)
	@$(or $(PYTHON),python3) tools/environment.py --torch "$(TORCH)" --python "$(PYTHON)"

lab: setup ## copy new lessons and exercises to work/ and open JupyterLab
	@$(BIN)/grader lab

watch: setup ## grade your notebooks each time you save them, with hints and the next exercise
	@$(BIN)/grader watch

carry: setup ## copy your answers into new versions of the notebooks (LESSON=05_vmap; default: all)
	@$(BIN)/grader carry $(if $(LESSON),"$(LESSON)")

reset: setup ## start a lesson's exercises again and keep your notebook (LESSON=05_vmap)
	@$(BIN)/grader reset "$(or $(LESSON),$(error Name the lesson: make reset LESSON=05_vmap))"

doctor: setup ## check this machine and the installation, with a command that fixes each problem
	@$(BIN)/grader doctor

grade: setup ## grade a folder of submissions (SUBMITTED=dir LESSON=05_vmap; default: the example class)
	@$(BIN)/grader grade "$(SUBMITTED)" $(if $(LESSON),--lesson "$(LESSON)")

instructor: setup ## open JupyterLab on the course with nbgrader's Formgrader and Assignment List
	@$(BIN)/grader instructor

ifdef LESSON
test test-all: setup
	$(BIN)/pytest $(PYTEST_ARGS) --lesson "$(LESSON)" tests/test_course_lessons.py
else
test: lint ## lint, engine tests, each lesson but 26, its checks on three answers per exercise (LESSON=05_vmap: one lesson in full)
	$(BIN)/pytest $(PYTEST_ARGS) -m "not thorough$(if $(filter test-all,$(MAKECMDGOALS)), and not brief)"

test-all: test ## make test, then full proofs, every surface, attacks and browsers
	$(BIN)/pytest $(PYTEST_ARGS) -m thorough
endif

prove: setup ## test that right answers pass, and wrong ones and mutants fail (LESSON=05_vmap)
	@$(BIN)/grader prove $(if $(LESSON),"$(LESSON)")

build: setup ## build the notebooks from the authored text, and the example class
	@$(BIN)/grader build
	@$(BIN)/python examples/make.py

book: setup ## build the site in build/book/html: every lesson with its outputs, the tasks, the glossary and the docs
	@$(BIN)/python tools/book.py --repository "$(REPOSITORY)"

lint: setup ## ruff (rules and layout) and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup ## format the code for lint
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

bench: setup ## time the grader against stock nbgrader, a cold make lab, checks in a notebook, grader watch, and the board
	@$(BIN)/python -m benchmarks.grading
	@$(BIN)/python -m benchmarks.lab
	@$(BIN)/python -m benchmarks.in_notebook
	@$(BIN)/python -m benchmarks.watching
	@$(BIN)/python -m benchmarks.similar
	@$(BIN)/python -m benchmarks.board --report

soak: setup ## grade a class of 1,000, one in ten hostile, and measure memory and time (LESSON=05_vmap)
	@$(BIN)/python -m benchmarks.soak --at-most 2 $(if $(LESSON),--course . --lesson "$(LESSON)")

lock: ## update the pinned versions from the ranges of pyproject.toml (UPGRADE=all or a name)
	@$(or $(PYTHON),python3) tools/lock.py --upgrade "$(UPGRADE)"

clean: ## remove derived files, but not work/, .venv and your answers
	rm -rf build .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -not -path './.venv/*' -not -path './work/*' -prune -exec rm -rf {} +
