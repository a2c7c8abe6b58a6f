"""docs/glossary.md: its terms are in order, each leads to a lesson and an official page, and links to it arrive."""

from __future__ import annotations

import re
import tomllib
from typing import NamedTuple

import pytest
from conftest import ROOT

from grader.core.layout import GLOSSARY

LESSONS = {one["id"][:2]: one for one in tomllib.loads((ROOT / "course.toml").read_text())["lesson"]}
ROW = re.compile(
    r'\| <a id="(?P<id>[a-z0-9_-]+)"></a>(?P<term>[^|]+) \| (?P<meaning>[^|]+) '
    r"\| (?P<taught>[^|]+) \| \[(?P<label>[^]|]+)\]\((?P<page>https://[^)|]+)\) \|"
)
TAUGHT = re.compile(r"\[(?P<number>\d\d)\]\(\.\./notebooks/(?P<lesson>\w+)\.ipynb\)(?:, \*(?P<section>.+)\*)?")
COMING = re.compile(r"(\d\d) \*\(coming\)\*")
HEADING = re.compile(r"^# ## (.*)$", re.MULTILINE)
LINK = re.compile(r"docs/glossary\.md#([^)\s]*)\)")
OFFICIAL = (
    "https://docs.jax.dev/",
    "https://jax-ml.github.io/",
    "https://flax.readthedocs.io/",
    "https://optax.readthedocs.io",
)


class Entry(NamedTuple):
    """One line of the glossary."""

    id: str
    term: str
    meaning: str
    taught: str
    label: str
    page: str


def entries() -> list[Entry]:
    lines = (ROOT / GLOSSARY).read_text(encoding="utf-8").splitlines()
    rows = lines[lines.index("|---|---|---|---|") + 1 :]
    found = [ROW.fullmatch(row) for row in rows]
    assert [row for row, match in zip(rows, found, strict=True) if match is None] == []
    return [Entry(**match.groupdict()) for match in found if match]


def name(term: str) -> str:
    return term.replace("`", "").casefold()


def test_terms_are_sorted_and_unique() -> None:
    names = [name(one.term) for one in entries()]
    assert names == sorted(set(names))
    assert len(names) > 60


def test_an_anchor_is_its_term() -> None:
    for one in entries():
        assert one.id == re.sub(r"[^a-z0-9_]+", "-", name(one.term)).strip("-")


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.id)
def test_a_term_is_defined_in_sentences_and_leads_to_a_lesson_and_an_official_page(entry: Entry) -> None:
    assert entry.meaning.endswith(".")
    assert len(entry.meaning.split()) <= 50
    assert entry.page.startswith(OFFICIAL)
    coming = COMING.fullmatch(entry.taught)
    if coming:
        assert not (ROOT / "notebooks" / f"{LESSONS[coming[1]]['id']}.py").exists(), "it is here now: link to it"
        return
    taught = TAUGHT.fullmatch(entry.taught)
    assert taught, entry.taught
    planned = LESSONS[taught["number"]]
    assert planned["id"] == taught["lesson"]
    script = ROOT / "notebooks" / f"{taught['lesson']}.py"
    headings = HEADING.findall(script.read_text(encoding="utf-8"))
    # A lesson that is not edited yet has headings that will change.
    if planned.get("edited"):
        assert taught["section"] in headings, f"name a section of {taught['lesson']}: {'; '.join(headings)}"


def test_every_link_to_a_term_leads_to_one() -> None:
    known = {one.id for one in entries()}
    for path in sorted([*ROOT.glob("notebooks/*.py"), *ROOT.glob("solutions/*.py"), *ROOT.glob("*.md")]):
        for anchor in LINK.findall(path.read_text(encoding="utf-8")):
            assert anchor in known, f"{path.name}: no term {anchor}"
