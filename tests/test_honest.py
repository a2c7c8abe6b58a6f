"""The honest corpus: odd notebooks that keep every point in `grader grade`, in nbgrader and in a plain kernel."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import corpus
import kernels
import pytest
import stock
from corpus import LESSON, Corpus, Run, statuses

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


@pytest.fixture(scope="module", params=corpus.USERS)
def run(honest: Corpus, request: pytest.FixtureRequest) -> Run:
    return honest.grade("--force", user=request.param)


@pytest.fixture(scope="module")
def stored(honest: Corpus) -> dict[str, float]:
    """Points by learner in nbgrader's database, after one run of its command on a copy of the course."""
    course = stock.configured(honest.places.course, honest.places.base / "nbgrader")
    shutil.copytree(honest.places.submitted, course / "submitted")
    (course / "gradebook.db").unlink()
    for words in (("generate_assignment", LESSON, "--force"), ("autograde", LESSON)):
        done = stock.nbgrader(course, *words, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
    points: dict[str, float] = {}
    for learner, _, _, score, *_ in stock.rows(course)["grade"]:
        points[str(learner)] = points.get(str(learner), 0.0) + float(str(score))
    return points


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


def test_the_corpus_is_of_some_size(run: Run) -> None:
    assert len(CASES) >= 70
    assert run.status == 0, run.output
    assert not run.changed
    assert not run.processes
