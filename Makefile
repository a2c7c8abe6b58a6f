# Every target sets up all it needs. The work is done by tools/environment.py, the `grader` command, pytest and ruff.
PYTHON ?=
TORCH ?=
UPGRADE ?=
SUBMITTED ?= examples/submitted
LESSON ?=
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup lab watch carry reset doctor grade instructor test test-all prove build lint format bench soak lock clean

help: ## say what there is
	@echo "make TARGET, where TARGET is one of"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' Makefile

setup: ## make .venv from the pinned versions, if need be (TORCH=cpu, no or cuda; PYTHON=python3.12)
	@$(or $(PYTHON),python3) tools/environment.py --torch "$(TORCH)" --python "$(PYTHON)"

lab: setup ## put new lessons and exercises under work/ and open JupyterLab there
	@$(BIN)/grader lab

watch: setup ## judge each of your notebooks when you save it, with hints and what comes next
	@$(BIN)/grader watch

carry: setup ## carry what you wrote over into the notebooks of a newer course (LESSON=05_vmap; all without one)
	@$(BIN)/grader carry $(if $(LESSON),"$(LESSON)")

reset: setup ## begin a lesson's exercises anew, keeping what you have aside (LESSON=05_vmap)
	@$(BIN)/grader reset "$(or $(LESSON),$(error Name the lesson: make reset LESSON=05_vmap))"

doctor: setup ## say what is wrong with this machine and its set-up, and how to mend it
	@$(BIN)/grader doctor

grade: setup ## grade a folder of submissions (SUBMITTED=dir LESSON=05_vmap); without one, the example class
	@$(BIN)/grader grade "$(SUBMITTED)" $(if $(LESSON),--lesson "$(LESSON)")

instructor: setup ## open JupyterLab on the course with nbgrader's Formgrader and Assignment List
	@$(BIN)/grader instructor

ifdef LESSON
test test-all: setup
	$(BIN)/pytest $(PYTEST_ARGS) --lesson "$(LESSON)" tests/test_course_lessons.py
else
test: lint ## lint, engine tests, each lesson run, its checks on three answers an exercise (LESSON=05_vmap: all of one)
	$(BIN)/pytest $(PYTEST_ARGS) -m "not thorough$(if $(filter test-all,$(MAKECMDGOALS)), and not brief)"

test-all: test ## make test, then what takes longer: full proofs, every surface, attacks, browsers
	$(BIN)/pytest $(PYTEST_ARGS) -m thorough
endif

prove: setup ## prove the course, or one LESSON: right answers pass, wrong ones and mutants do not
	@$(BIN)/grader prove $(if $(LESSON),"$(LESSON)")

build: setup ## rebuild the notebooks from the text that they come from, and the example class
	@$(BIN)/grader build
	@$(BIN)/python examples/make.py

lint: setup ## ruff (rules and layout) and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup ## lay the code out as lint wants it
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

bench: setup ## time the grader against stock nbgrader, a cold make lab, checks in a notebook, and grader watch
	@$(BIN)/python -m benchmarks.grading
	@$(BIN)/python -m benchmarks.lab
	@$(BIN)/python -m benchmarks.in_notebook
	@$(BIN)/python -m benchmarks.watching

soak: setup ## grade a class of 1,000, one in ten of it hostile, and watch memory and time (minutes; LESSON=05_vmap)
	@$(BIN)/python -m benchmarks.soak --at-most 2 $(if $(LESSON),--course . --lesson "$(LESSON)")

lock: ## write the pinned versions anew from pyproject.toml's ranges (UPGRADE=all or a name takes newer ones)
	@$(or $(PYTHON),python3) tools/lock.py --upgrade "$(UPGRADE)"

clean: ## remove what is derived; work/, .venv and your answers stay
	rm -rf build .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -not -path './.venv/*' -not -path './work/*' -prune -exec rm -rf {} +
