"""The honest corpus through the real command: odd as they are, these notebooks keep every point."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import corpus
import pytest
from corpus import Corpus, Run, statuses

pytestmark = pytest.mark.thorough
CASES = {path.stem: corpus.read(path) for path in sorted((Path(__file__).parent / "honest").glob("*.py"))}


@pytest.fixture(scope="module", params=corpus.USERS)
def run(built, request: pytest.FixtureRequest) -> Iterator[Run]:
    base = Path(tempfile.mkdtemp(prefix="honest-"))
    one = Corpus(base, built("guarded"), list(CASES.values()), references=True)
    yield one.grade(user=request.param)
    one.close()
    shutil.rmtree(base, ignore_errors=True)


@pytest.mark.parametrize("name", CASES)
def test_it_keeps_every_point(run: Run, name: str) -> None:
    result = run.results[name]
    assert result["problem"] is None
    lost = {exercise: ended for exercise, ended in statuses(result).items() if set(ended) != {"passed"}}
    assert not lost, [check["message"] for check in result["checks"] if check["message"]]
    assert result["score"] == result["max_score"] == 17


def test_the_corpus_is_of_some_size(run: Run) -> None:
    assert len(CASES) >= 30
    assert run.status == 0, run.output
    assert not run.changed
    assert not run.processes
