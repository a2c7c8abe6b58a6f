"""The honest corpus: odd notebooks that keep every point in `grader grade`, in nbgrader, in `grade()` of a notebook, in
an overlay and in a plain kernel."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import corpus
import kernels
import pytest
from corpus import Corpus, Run, statuses

pytestmark = pytest.mark.thorough
CASES = {path.stem: corpus.read(path) for path in sorted((Path(__file__).parent / "honest").glob("*.py"))}
POINTS = 17


@pytest.fixture(scope="module")
def honest(built) -> Iterator[Corpus]:
    base = Path(tempfile.mkdtemp(prefix="honest-"))
    one = Corpus(base, built("guarded"), list(CASES.values()), references=True)
    yield one
    one.close()
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="module", params=corpus.ROUTES)
def run(honest: Corpus, request: pytest.FixtureRequest) -> Run:
    return honest.grade("--force", route=request.param)


@pytest.fixture(scope="module")
def stored(honest: Corpus) -> dict[str, float]:
    return honest.store(CASES, honest.places.base / "nbgrader")


@pytest.fixture(scope="module")
def in_kernels(honest: Corpus) -> dict[str, dict[str, str]]:
    folder = honest.places.base / "kernels"
    folder.mkdir()
    return kernels.run_all({name: honest.path(name) for name in CASES}, honest.lesson, folder)


@pytest.mark.parametrize("name", CASES)
def test_it_keeps_every_point(run: Run, name: str) -> None:
    result = run.results[name]
    assert result["problem"] is None
    lost = {exercise: ended for exercise, ended in statuses(result).items() if set(ended) != {"passed"}}
    assert not lost, [check["message"] for check in result["checks"] if check["message"]]
    assert result["score"] == result["max_score"] == POINTS
    for said in CASES[name].said("note"):
        assert any(said in note for note in result["notes"]), result["notes"]


@pytest.mark.parametrize("name", CASES)
def test_nbgrader_stores_every_point(stored: dict[str, float], name: str) -> None:
    assert stored[name] == POINTS


@pytest.mark.parametrize("name", CASES)
def test_a_plain_kernel_passes_every_check(run: Run, in_kernels: dict[str, dict[str, str]], name: str) -> None:
    """Where one does not, for a reason that the case states, the grader is the more lenient."""
    lost = {check for check, ended in in_kernels[name].items() if ended != "passed"}
    assert lost == {said.partition(",")[0] for said in CASES[name].said("kernel fails")}, in_kernels[name]
    assert in_kernels[name].keys() == {check["id"] for check in run.results[name]["checks"]}


@pytest.mark.parametrize("route", corpus.ROUTES)
def test_grade_in_a_notebook_shows_every_point(honest: Corpus, route: str, moments: random.Random) -> None:
    results, _, _ = honest.grade_in_notebooks(honest.sample(moments), route)
    assert results
    lost = {name: statuses(result) for name, result in results.items() if result["score"] != POINTS}
    assert not lost


def test_an_overlay_in_nbgrader_stores_every_point(honest: Corpus, moments: random.Random) -> None:
    names = honest.sample(moments)
    assert honest.store(names, honest.places.base / "nbgrader-overlay", corpus.OVERLAY) == dict.fromkeys(names, POINTS)


def test_the_corpus_is_of_some_size(run: Run) -> None:
    assert len(CASES) >= 70
    assert run.status == 0, run.output
    assert not run.changed
    assert not run.processes
