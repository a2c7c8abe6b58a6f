"""The report in a terminal of 80 columns, and results as JSON: nothing cut off, nothing lost, nothing undocumented."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from rich.cells import cell_len
from rich.console import Console

from grader.cli.console import fail
from grader.core import files
from grader.core import result as results_json
from grader.core.points import total
from grader.core.result import STATUSES, VERSION, CheckResult, Result
from grader.core.text import from_markdown, legible
from grader.grading.regrade import Change
from grader.reports import terminal

LONG = (
    "2 of 12 values differ. The first, at [0, 3] of the result['layers'][1]['kernel'], is 0.333333; expected 0.25. "
    "In line 3 of your cell: return jnp.einsum('bi,ij->bj', activations, kernel).astype(jnp.float32) / batch_size"
)
UNBREAKABLE = "/".join(["a_very_long_folder"] * 9)


def check(
    exercise: str, name: str, status: str = "passed", most: float = 2, message: str = "", **more: Any
) -> CheckResult:
    points = most if status == "passed" else 0.0
    return CheckResult(f"{exercise}-{name}", exercise, f"Title of {name}.", status, points, most, message, **more)


def result(learner: str, *checks: CheckResult, lesson: str = "05_vmap", **more: Any) -> Result:
    return Result(learner, lesson, checks, total(check.max_points for check in checks), **more)


def shown(*results: Result, width: int = 80) -> str:
    stream = io.StringIO()
    terminal.show(results, Console(file=stream, width=width, highlight=False, markup=False, emoji=False))
    return stream.getvalue()


def assert_fits(text: str, *words: str, width: int = 80) -> None:
    """No line is too wide, and every word is there, in order where a line broke between or inside them."""
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    joined = re.sub(r"\s", "", text)
    for word in words:
        assert re.sub(r"\s", "", word) in joined, word


def a_class(exercises: int, most: float, learners: tuple[str, ...]) -> list[Result]:
    names = [f"vmap-exercise-number-{i}" for i in range(exercises)]
    return [
        result(
            learner,
            *(
                check(name, part, STATUSES[(i + place) % len(STATUSES)], most, LONG)
                for place, name in enumerate(names)
                for part in ("example", "values")
            ),
        )
        for i, learner in enumerate(learners)
    ]


@pytest.mark.parametrize(("exercises", "most"), [(1, 1), (6, 2), (8, 2), (8, 12.5)])
def test_a_class_fits_80_columns(exercises: int, most: float) -> None:
    """Eight exercises are as many as a lesson may have."""
    learners = ("one", "somebody-with-a-longer-name", "s1234567@students.example.edu")
    results = a_class(exercises, most, learners)
    for width in (80, 100):
        text = shown(*results, width=width)
        table = text.split("\n\n")[0]
        assert_fits(text, LONG, *(check.exercise for check in results[0].checks), width=width)
        assert_fits(
            table, *(f"{terminal.number(r.score)}/{terminal.number(r.max_score)}" for r in results), width=width
        )
        for learner in learners:
            column = "".join(line.split("│")[1].strip() for line in table.splitlines() if line.count("│") > 3)
            assert learner in column


def test_the_legend_keeps_numbers_with_their_names() -> None:
    text = shown(*a_class(8, 2, ("one",)))
    for i in range(8):
        assert f"{i + 1} vmap-exercise-number-{i}" in text


def test_every_kind_of_ending_is_shown_with_its_reason() -> None:
    for status in STATUSES:
        one = result(
            "one", check("vmap-a", "example"), check("vmap-a", "values", status, message=f"Because of {status}.")
        )
        text = shown(one)
        assert_fits(text, "1 vmap-a")
        if status != "passed":
            assert_fits(text, "2 of 4 points", "Title of values.", f"Because of {status}.", terminal.MARKS[status][0])
        else:
            assert "points" not in text, "who missed nothing is only in the table"


def test_what_one_learner_reads() -> None:
    one = result(
        "one",
        check("vmap-a", "example"),
        check(
            "vmap-a",
            "values",
            "failed",
            message=LONG,
            hidden=True,
            misconception="Sums where a mean is asked for.",
            clue='It would explain why "Title of values" fails.',
        ),
        check("vmap-b", "example", "not attempted", message="Not attempted yet."),
        check("vmap-b", "values", "not attempted", message="Not attempted yet."),
        check("vmap-c", "example"),
        check("vmap-d", "example", "failed", message="The cell raised `E`.", misconception="Sums `x`, *not* y."),
        check("vmap-d", "values", "failed", hidden=True),
        check("vmap-e", "example"),
        notes=("Your cell 3 raised ValueError on line 2.",),
    )
    titles = {"vmap-a": "A mean", "vmap-b": "A **sum**", "vmap-c": "Every `row`", "vmap-d": "Rows", "vmap-e": "Axes"}
    stream = io.StringIO()
    Console(file=stream, width=80, highlight=False).print(terminal.learner(one, titles))
    assert [line.rstrip() for line in stream.getvalue().splitlines()] == [
        "one  05_vmap  6 of 16 points",
        "  Your cell 3 raised ValueError on line 2.",
        "",
        "  A mean  2 of 4 points  (vmap-a)",
        "    ✗ Title of values. (hidden)",
        "      2 of 12 values differ. The first, at [0, 3] of the",
        "      result['layers'][1]['kernel'], is 0.333333; expected 0.25. In line 3 of",
        "      your cell: return jnp.einsum('bi,ij->bj', activations,",
        "      kernel).astype(jnp.float32) / batch_size",
        '      Perhaps: Sums where a mean is asked for. It would explain why "Title of',
        '      values" fails.',
        "    ✓ 1 other check passed",
        "",
        "  Rows  0 of 4 points  (vmap-d)",
        "    ✗ The cell raised `E`.",
        "      Perhaps: Sums `x`, not y.",
        "",
        "  ○ Not attempted: A sum",
        "  ✓ Full points: Every `row` (2), Axes (2)",
    ]


def test_checks_that_fail_alike_keep_their_titles() -> None:
    """Unless none of them ran, as the answer's own cell failed."""
    alike = {"message": "Python decides by a value.", "evidence": ("value",)}
    one = result(
        "one",
        check("vmap-a", "example", "failed", **alike),
        check("vmap-a", "values", "failed", hidden=True, **alike),
        check("vmap-a", "size", "failed", message="Another size.", evidence=("value",)),
    )
    lines = [line.strip() for line in shown(one).split("\n\n")[1].splitlines()]
    assert lines[1:] == [
        "vmap-a  0 of 6 points",
        "✗ Title of example.",
        "✗ Title of values. (hidden)",
        "Python decides by a value.",
        "✗ Title of size.",
        "Another size.",
    ]


CODE = "y = (a)**(b)**(c) * f(*xs, **ys) * [bold]rows[/bold][0](x) \x1b[31m https://x.example [a](b)"


def test_words_of_a_learner_are_neither_markup_nor_markdown() -> None:
    one = result("one", check("vmap-a", "values", "failed", message=legible(f"It raised E: {CODE}")))
    assert legible(CODE) in shown(one, width=200)


@pytest.mark.parametrize(
    ("text", "plain", "styles"),
    [
        ("**Next:** what would `vmap(f, **axes)` give?", "Next: what would `vmap(f, **axes)` give?", "bold cyan"),
        ("Pulls back *one* row.", "Pulls back one row.", "italic"),
        ("See [the docs](https://docs.jax.dev/x).", "See the docs (https://docs.jax.dev/x).", ""),
        ("x**2 + y**2, 2 * x * y, f(*a, *b), a ** b ** c", "x**2 + y**2, 2 * x * y, f(*a, *b), a ** b ** c", ""),
        ("rows[0](x) and [bold]x[/bold]", "rows[0](x) and [bold]x[/bold]", ""),
        ("", "", ""),
    ],
)
def test_markdown_of_the_course_is_rendered(text: str, plain: str, styles: str) -> None:
    pieces = from_markdown(text)
    assert "".join(piece for piece, _ in pieces) == plain
    assert [style for _, style in pieces if style] == styles.split()


def test_long_words_are_broken_and_not_cut() -> None:
    one = result(
        "one", check("vmap-a", "values", "failed", message=f"No file {UNBREAKABLE} is there."), notes=(UNBREAKABLE,)
    )
    assert_fits(shown(one), f"No file {UNBREAKABLE} is there.", UNBREAKABLE)


def test_what_was_not_graded_is_in_the_table_and_says_why() -> None:
    text = shown(
        result("one", check("vmap-a", "values")),
        Result("two", "05_vmap", problem="The file is empty.", fault="submission"),
    )
    assert_fits(text, "two", "not graded", "The file is empty.")
    assert re.search(r"│two +│ +not graded ?│", text)
    assert_fits(
        shown(Result("two", "05_vmap", problem="The file is empty.", fault="submission")),
        "two",
        "not graded",
        "The file is empty.",
    )


def test_lessons_have_a_table_each() -> None:
    text = shown(
        result("one", check("vmap-a", "values")),
        result("one", check("jit-a", "values"), lesson="03_jit"),
        result("two", check("vmap-a", "values")),
    )
    assert text.index("03_jit") < text.index("jit-a") < text.index("05_vmap") < text.index("vmap-a")


ODD = ["[bold]x[/]", "[/]", ":smile:", "a\nb", "\x1b[2Jgone", "\ud800", "日本語" * 9, "tab\tbed", "", "-", "a\rb"]


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_odd_names_and_texts_are_shown_as_they_are(name: str) -> None:
    """No markup, no control codes: any terminal and any encoding can show the report."""
    one = result(
        name, check("vmap-a", "values", "failed", message=f"[red]No[/] {legible(name)}"), notes=(legible(name),)
    )
    text = shown(one)
    text.encode()
    assert_fits(text, legible(name).replace("\n", "\\n"), f"[red]No[/] {legible(name)}")
    assert all(c.isprintable() or c == "\n" for c in text)


def test_legible_keeps_words_and_shows_the_rest() -> None:
    assert legible("ü – 𝕁\n  two ✓") == "ü – 𝕁\n  two ✓"
    assert legible("a\tb\r\n\x1b[0m\x00\ud800\u202e") == "a   b\n\\x1b[0m\\x00\\ud800\\u202e"
    assert legible("e\u0301 \u2764\ufe0f \u845b\u98ef") == "e\u0301 \u2764\ufe0f \u845b\u98ef"
    for blank in "\u2800\u3164\uffa0\u115f\u1160\u034f\u180b\u200b\ufeff\xad\U000e0100\U000e0041":
        assert legible(f"one{blank}") == f"one{blank.encode('unicode_escape').decode()}"
    assert legible("one\ufe0f") == "one\\ufe0f"
    assert legible("a" + "\u0336" * 6) == "a" + "\u0336" * 4 + "\\u0336" * 2
    assert legible("x" * 5_000) == "x" * 4_000 + " ..."
    assert legible("\x1b" * 5_000) == "\\x1b" * 1_000 + " ..."
    assert legible("x" * 4_000) == "x" * 4_000


# JSON.


def full() -> Result:
    first = check(
        "vmap-a", "values", "failed", 2, "No.", misconception="Sums.", evidence=("observed", "value"), hidden=True
    )
    more: dict[str, Any] = {"confinement": "namespaces", "duration_s": 1.2344, "notes": ("a", "b")}
    return result("one", first, check("vmap-a", "example", evidence=("program",)), **more)


def test_a_result_comes_back_from_its_json() -> None:
    for one in (
        full(),
        Result("two", "05_vmap", max_score=3.0, problem="It is empty.", fault="submission"),
        result("\udcff\x1b\n"),
    ):
        back = Result.from_json(json.loads(json.dumps(one.to_json())))
        assert back.to_json() == one.to_json()
        assert (back.learner, back.checks, back.notes, back.problem) == (
            one.learner,
            one.checks,
            one.notes,
            one.problem,
        )
        assert back.duration_s == pytest.approx(one.duration_s, abs=1e-3)


def test_what_recognises_a_misconception_stays_with_the_examiner() -> None:
    told = check("vmap-a", "values", "failed", kind="values", where="the result", first="(0,) 3+0j").to_json()
    assert not {"kind", "where", "first"} & set(told)


def test_points_add_up_whatever_they_are() -> None:
    """0.1 + 0.2 + 0.3 is not 0.6 in binary; full marks are full marks all the same."""
    checks = [check("vmap-a", str(i), most=most) for i, most in enumerate((0.1, 0.2, 0.3, 0.7, 0.1))]
    for order in (checks, checks[::-1], sorted(checks, key=lambda one: one.max_points)):
        assert result("one", *order).score == result("one", *order).max_score == 1.4
    assert Result("one", "05_vmap").score == 0.0


def test_the_document_is_as_documented() -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    document = json.loads(results_json.document([full()]))
    example = json.loads(text.split("```json\n")[1].split("```")[0])
    assert document["version"] == example["version"] == VERSION
    [told], [shown_there] = document["results"], example["results"]
    assert list(told) == list(shown_there)
    assert list(told["checks"][0]) == list(shown_there["checks"][0])
    of_result, of_check, of_status, of_changes, of_grade = (
        part.split("\n\n")[0] for part in re.split(r"\n\| .*\| meaning \|\n\|---\|---\|\n", text)[1:]
    )
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", of_result, re.M)))) | {"checks"} == {
        *told,
        *("submitted", "grade"),  # where they are known
    }
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", of_grade, re.M)))) == set(
        full().final.to_json()
    )
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", of_check, re.M)))) == set(told["checks"][0])
    assert tuple(re.findall(r"^\| `([^`]*)` \|", of_status, re.M)) == STATUSES
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", of_changes, re.M)))) == {
        *Change(result("one"), result("one"), ()).to_json(),
        "since",
    }
    assert set(terminal.MARKS) == set(STATUSES)
    assert {field.name for field in fields(CheckResult)} - set(told["checks"][0]) == {"kind", "where", "first"}


def test_the_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.json"
    files.write(path, results_json.document([full()]), mode=0o644)
    before = path.read_text()
    assert json.loads(before)["results"][0]["learner"] == "one"
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(TypeError):
        files.write(path, object())  # type: ignore[arg-type]
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        files.write(tmp_path / "folder", b"")
    assert path.read_text() == before
    assert [one.name for one in sorted(tmp_path.rglob("*"))] == ["deep", "results.json", "folder"]


def test_what_a_killed_process_left_beside_a_file_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "[1].json"
    killed = "import os\nfrom grader.core import files\nos.fsync = lambda _: os.kill(os.getpid(), 9)\n"
    subprocess.run([sys.executable, "-c", f"{killed}files.write(files.Path({str(path)!r}), 'half')"], check=False)
    [left] = tmp_path.iterdir()
    others = [tmp_path / f"[1].json.{os.getppid()}.part", tmp_path / "[1].json.bak.part", tmp_path / "1.json.0.part"]
    for other in others:  # of a process that runs, and of nobody
        other.touch()
    files.write(path, "whole")
    assert not left.exists()
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


@pytest.mark.parametrize("alone", [False, True])
def test_a_link_or_a_pipe_in_place_of_the_temporary_file_is_removed(tmp_path: Path, alone: bool) -> None:
    path, elsewhere = tmp_path / "a.json", tmp_path / "elsewhere"
    part = tmp_path / ("a.json.part" if alone else f"a.json.{os.getpid()}.part")
    for put in (lambda: part.symlink_to(elsewhere), lambda: os.mkfifo(part)):
        put()
        files.write(path, "whole", alone=alone)
        assert path.read_text() == "whole"
        assert sorted(tmp_path.iterdir()) == [path]
        assert not path.is_symlink()


def test_what_could_not_be_done_is_told_in_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A path and a learner's name may hold anything."""
    fail("Not graded: \x1b[2J\u202eone[red]/05_vmap.")
    assert capsys.readouterr().err == "Not graded: \\x1b[2J\\u202eone[red]/05_vmap.\n"
