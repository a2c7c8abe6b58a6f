"""Results as JSON: a versioned contract, documented in docs/results.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from grader.exam.changes import Change
from grader.exam.record import VERSION, Result


def dumps(results: Sequence[Result], changes: Sequence[Change] | None = None) -> str:
    """The document for `results`, in their order; each with what a regrade changed, where that was asked for."""
    told = [result.to_json() for result in results]
    if changes is not None:
        changed = {(change.learner, change.lesson): change.to_json() for change in changes}
        told = [{**one, "changes": changed.get((one["learner"], one["lesson"]))} for one in told]
    return json.dumps({"version": VERSION, "results": told}, indent=2) + "\n"


class NoResults(Exception):
    """A file that does not hold results as `dumps` gives them; the text says what is wrong."""


def read(path: Path) -> list[Result]:
    """The results in a document. Raises `NoResults`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != VERSION:
            raise NoResults(f"{path} is of version {document['version']}; this grader reads version {VERSION}.")
        return [Result.from_json(result) for result in document["results"]]
    except OSError as problem:
        raise NoResults(f"{path} cannot be read: {problem.strerror}.") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise NoResults(f"{path} holds no results. Write them with `grader grade DIR --json {path.name}`.") from None
