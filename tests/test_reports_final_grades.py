"""Final grades in every report: of the gradebook as `nbgrader export` writes them, or of the course's late policy."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import stock
from conftest import Grader
from sqlalchemy.exc import SAWarning

from grader.core.final_grade import Person
from grader.core.result import CheckResult, Result, document, read_document
from grader.course import Course, CourseError
from grader.course.deadlines import DAY_S, BadTable, Deadlines, LatePolicy, parse_time, submission_time
from grader.reports import final_grades, forms, html
from grader.reports.forms import FORMS
from grader.reports.roster import read_roster

LESSON = "01_by_hand"
DUE = datetime(2026, 1, 2, 12, tzinfo=UTC)
POLICY = LatePolicy(grace_minutes=15, percent_per_day=10, cut_off_days=3)
ONE = ("gradescope", "github-classroom")


def check(name: str, points: float, most: float) -> CheckResult:
    return CheckResult(f"hand-half-{name}", "hand-half", name, "passed" if points else "failed", points, most)


def result(learner: str, points: float = 3, submitted: str | None = None, lesson: str = LESSON) -> Result:
    return Result(learner, lesson, (check("values", points, 3.0),), 3.0, submitted=submitted)


def at(**late: float) -> str:
    return (DUE + timedelta(**late)).isoformat()


# --- the gradebook -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def course(built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course whose gradebook holds what a person gave in Formgrader, and a file with automatic results."""
    from nbgrader.api import Gradebook

    root = stock.configured(built("by_hand"), tmp_path_factory.mktemp("final") / "course")
    with pytest.MonkeyPatch.context() as patch:
        # nbgrader calls alembic by its name
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        Gradebook(f"sqlite:///{root}/gradebook.db", "jaxercise").close()
    with warnings.catch_warnings(), Gradebook(f"sqlite:///{root}/gradebook.db", "jaxercise") as book:
        warnings.simplefilter("ignore", SAWarning)  # about nbgrader's habits
        book.update_or_create_assignment(LESSON, duedate="2026-01-02 12:00:00 UTC", course_id="jaxercise")
        book.update_or_create_notebook(LESSON, LESSON)
        book.update_or_create_grade_cell("hand-half-example", LESSON, LESSON, max_score=1, cell_type="code")
        book.update_or_create_grade_cell("hand-half-values", LESSON, LESSON, max_score=2, cell_type="code")
        book.update_or_create_task_cell("hand-essay", LESSON, LESSON, max_score=3, cell_type="markdown")
        book.update_or_create_solution_cell("hand-half", LESSON, LESSON)
        for learner in ("ada", "bob", "cas", "dee"):
            book.update_or_create_student(learner, first_name=learner.title(), last_name="X", email=f"{learner}@x.org")
        for learner, when in (("ada", "2026-01-01 10:00:00 UTC"), ("bob", "2026-01-03 12:00:00 UTC"), ("cas", None)):
            book.update_or_create_submission(LESSON, learner, **({"timestamp": when} if when else {}))
        grade = lambda cell, learner: book.find_grade(cell, LESSON, LESSON, learner)
        for learner, values in (("ada", (1, 2)), ("bob", (1, 0)), ("cas", (0, 0))):
            for cell, points in zip(("example", "values"), values, strict=True):
                one = grade(f"hand-half-{cell}", learner)
                one.auto_score, one.needs_manual_grade = points, False
        for learner, cell, points in (("ada", "hand-essay", 2.5), ("bob", "hand-half-values", 1.5)):
            one = grade(cell, learner)
            one.manual_score, one.extra_credit, one.needs_manual_grade = points, 0.5, False
        book.find_comment("hand-half", LESSON, LESSON, "bob").manual_comment = "Nearly <there>."
        book.find_submission_notebook(LESSON, LESSON, "bob").late_submission_penalty = 0.75
        book.db.commit()
    results = [Result(name, LESSON, (check("values", 1, 3),), 3.0) for name in ("ada", "bob", "cas")]
    (root / "results.json").write_text(document(results))
    return root


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def alike(mine: str, theirs: str) -> bool:
    try:
        return abs(float(mine) - float(theirs)) < 1e-9
    except ValueError:
        return mine == theirs


@pytest.mark.parametrize("files", [["results.json"], []])
def test_csv_is_what_nbgrader_exports_cell_for_cell(course: Path, grader: Grader, files: list[str]) -> None:
    exported = stock.nbgrader(course, "export", "--to", "theirs.csv")
    assert exported.returncode == 0, exported.stderr
    theirs = {row["student_id"]: row for row in rows((course / "theirs.csv").read_text())}
    words = [course / name for name in files]
    done = grader("--course", course, "report", *words, "--as", "csv")
    assert done.returncode == 0, done.stderr
    mine = {row["student_id"]: row for row in rows(done.stdout)}
    assert set(mine) == set(theirs) == {"ada", "bob", "cas", "dee"}
    assert [(n, k) for n, row in theirs.items() for k in row if not alike(mine[n][k], row[k])] == []
    assert (mine["bob"]["raw_score"], mine["bob"]["score"]) == ("3", "2.25")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_points_of_the_gradebook(course: Path, grader: Grader, form: str) -> None:
    one = ["--learner", "bob"] if form in ONE else []
    done = grader("--course", course, "report", course / "results.json", "--as", form, *one)
    assert done.returncode == 0, done.stderr
    assert "Final points of the gradebook" in done.stdout + done.stderr
    text = done.stdout
    if form == "json":
        [bob] = [r for r in json.loads(text)["results"] if r["learner"] == "bob"]
        about = {"score": 2.25, "raw_score": 3, "max_score": 6, "penalty": 0.75, "status": "late", "manual": 1.5}
        assert about.items() <= bob["grade"].items()
        assert bob["grade"]["comments"] == [["hand-half", "Nearly <there>."]]
    elif form == "canvas":
        found = {row["SIS Login ID"]: row for row in rows(text)}
        assert found["bob"][LESSON] == "2.25"
        assert found["ada"]["Student"] == "Ada X"
        assert found["dee"][LESSON] == "", "missing"
        assert found[""][LESSON] == "6"
    elif form == "gradescope":
        assert json.loads(text)["score"] == 2.25
        assert "Nearly <there>." in json.loads(text)["output"]
    elif form == "github-classroom":
        import base64

        told = json.loads(base64.b64decode(text))
        assert sum(test["score"] for test in told["tests"]) == 2.25
        assert told["max_score"] == 6
    elif form == "junit":
        assert '<property name="score" value="2.25" />' in text
        assert '<property name="comment.hand-half" value="Nearly &lt;there&gt;." />' in text
        assert "Not submitted." in text
    elif form != "csv":
        assert "2.25 of 6" in text or form == "github-annotations"
        assert "Penalty" in text
        assert "Nearly" in text


def test_who_is_missing_is_told_and_a_person_still_has_to_grade(course: Path, grader: Grader) -> None:
    done = grader("--course", course, "report", course / "results.json", "--as", "csv")
    assert f"{LESSON}: missing 1 of 4 learners: dee." in done.stderr
    assert f"{LESSON}: late 1, 1 with a penalty: bob." in done.stderr
    assert "still has to grade" in done.stderr


def test_without_the_gradebook_the_points_are_automatic(course: Path, grader: Grader) -> None:
    done = grader("--course", course, "report", course / "results.json", "--as", "csv", "--automatic-only")
    assert "Automatic points only." in done.stderr
    assert {row["student_id"]: row["score"] for row in rows(done.stdout)} == {"ada": "1", "bob": "1", "cas": "1"}


def test_a_folder_that_is_not_in_the_roster_is_named_though_nbgrader_added_it(
    course: Path, grader: Grader, tmp_path: Path
) -> None:
    (tmp_path / "roster.csv").write_text("id,first_name,last_name\nada,Ann,A\nzoe,Zoe,Z\ndee,Dee,D\n")
    words = ("report", course / "results.json", "--as", "canvas", "--roster", tmp_path / "roster.csv")
    done = grader("--course", course, *words)
    assert "missing 2 of 3 learners: zoe, dee." in done.stderr
    assert "Not in the roster: bob, cas. Is a folder misnamed?" in done.stderr
    found = {row["SIS Login ID"]: (row["Student"], row[LESSON]) for row in rows(done.stdout)}
    assert found == {
        "": ("    Points Possible", "6"), "ada": ("Ann A", "6"), "bob": ("Bob X", "2.25"), "cas": ("Cas X", "0"),
        "zoe": ("Zoe Z", ""), "dee": ("Dee D", ""),
    }  # fmt: skip


def test_results_that_are_not_in_the_gradebook_are_named(course: Path, grader: Grader, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(document([result("ada"), result("eve")]))
    done = grader("--course", course, "report", tmp_path / "r.json", "--as", "html")
    assert f"1 notebook not in the gradebook, with automatic points only: eve/{LESSON}." in done.stdout
    assert "Not in the roster: eve. Is a folder misnamed?" in done.stderr


def test_a_gradebook_that_is_not_there_is_refused(built: Callable[[str], Path], grader: Grader, tmp_path: Path) -> None:
    root = stock.configured(built("by_hand"), tmp_path / "course")
    (tmp_path / "r.json").write_text(document([result("ada")]))
    done = grader("--course", root, "report", tmp_path / "r.json", "--as", "csv", "--gradebook")
    assert (done.returncode, done.stdout) == (2, "")
    assert "grader grade DIR --gradebook" in done.stderr
    done = grader("--course", root, "report", "--as", "csv")
    assert done.returncode == 2
    assert "--json FILE" in done.stderr


# --- several files -------------------------------------------------------------------------------------------------


def merged(*documents: tuple[str, Sequence[Result]], **about: Any) -> tuple[list[float], str]:
    found, told = final_grades.merge(documents, Deadlines({LESSON: DUE}, policy=POLICY, **about))
    return [one.score for one in found], told


def test_the_newest_result_counts_and_the_command_states_it(grader: Grader, tmp_path: Path) -> None:
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    new.write_text(document([result("ada", 3), result("bob", 1)], written="2026-01-02T00:00:00+00:00"))
    old.write_text(document([result("ada", 2), result("cas", 2)], written="2026-01-01T00:00:00+00:00"))
    done = grader("report", new, old, "--as", "csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {row["student_id"]: row["score"] for row in rows(done.stdout)} == {"ada": "3", "bob": "1", "cas": "2"}
    assert "1 notebook in more than one result: the newest counts." in done.stderr
    done = grader("report", new, tmp_path / "none.json", "--as", "csv", cwd=tmp_path)
    assert done.returncode == 2
    assert "none.json cannot be read" in done.stderr


def test_a_file_without_a_date_has_that_of_the_file(tmp_path: Path, grader: Grader) -> None:
    for place, name in enumerate(("new", "old")):
        (tmp_path / name).write_text(document([result("ada", 3 - place)]))
        os.utime(tmp_path / name, (2e9 - place, 2e9 - place))
    done = grader("report", tmp_path / "old", tmp_path / "new", "--as", "csv", cwd=tmp_path)
    assert [row["score"] for row in rows(done.stdout)] == ["3"]


def test_last_is_the_last_submission_and_best_the_best_after_the_penalty() -> None:
    early, late = ("2026-01-09", [result("ada", 2, at(days=-1))]), ("2026-01-08", [result("ada", 3, at(days=2.5))])
    assert merged(early, late)[0] == [3.0], "submitted last, though graded earlier"
    scores, told = merged(early, late, resubmission="best")
    assert scores == [3.0]  # 3 less 30 percent are 2.1
    assert "the best counts" in told
    worse = ("2026-01-08", [result("ada", 3, at(days=4))])
    assert merged(early, worse, resubmission="best")[0] == [2.0], "after the cut-off nothing is left"
    regraded = ("2026-01-10", [result("ada", 1, at(days=-1))])
    assert merged(early, regraded, resubmission="best")[0] == [1.0], "of one submission the newer verdict counts"


# --- deadlines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("late", "penalty"),
    [(-60, 0), (0, 0), (900, 0), (901, 1), (DAY_S, 1), (DAY_S + 1, 2), (3 * DAY_S, 3), (3 * DAY_S + 1, 10)],
)
def test_the_late_policy(late: float, penalty: float) -> None:
    assert POLICY.penalty(10.0, late) == penalty


def test_times() -> None:
    assert parse_time("2026-10-09T23:59:00+02:00") == datetime(2026, 10, 9, 21, 59, tzinfo=UTC)
    assert parse_time("2026-10-09 21:59:00.5 UTC") == datetime(2026, 10, 9, 21, 59, 0, 500_000, tzinfo=UTC)
    assert parse_time("2026-10-09 23:59 Europe/Berlin") == datetime(2026, 10, 9, 21, 59, tzinfo=UTC)
    for text in ("", "yesterday", "2026-10-09 21:59", "2026-10-09 21:59 Nowhere/Land", "9" * 500):
        assert parse_time(text) is None


def test_a_timestamp_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("2026-01-01 12:00:00 UTC")
    (tmp_path / "timestamp.txt").symlink_to(tmp_path / "real")
    assert submission_time(tmp_path / "a.ipynb") is None
    (tmp_path / "timestamp.txt").unlink()
    shutil.copy(tmp_path / "real", tmp_path / "timestamp.txt")
    assert submission_time(tmp_path / "a.ipynb") == "2026-01-01T12:00:00+00:00"


SETTINGS = f"""
[deadlines]
timezone = "Europe/Berlin"
{LESSON} = 2026-01-02T13:00:00

[late]
grace_minutes = 15
percent_per_day = 10
cut_off_days = 3
roster = "roster.csv"
extensions = "extensions.csv"
"""


@pytest.fixture
def dated(built: Callable[[str], Path], tmp_path: Path) -> Path:
    """A course without nbgrader, with due dates, a roster, an extension and results."""
    root = shutil.copytree(built("by_hand"), tmp_path / "course")
    with (root / "course.toml").open("a") as file:
        file.write(SETTINGS)
    (root / "roster.csv").write_text("learner,first_name,last_name\n" + "".join(f"{n},{n},X\n" for n in "abcdef"))
    (root / "extensions.csv").write_text(f"learner,lesson,due\nc,{LESSON},2026-01-06T13:00\n")
    when = {"a": at(days=-1), "b": at(days=1.5), "c": at(days=1.5), "d": at(days=5), "e": None}
    (root / "results.json").write_text(document([result(name, 3, time) for name, time in when.items()]))
    return root


def test_the_policy_is_applied_without_a_gradebook(dated: Path, grader: Grader) -> None:
    done = grader("--course", dated, "report", dated / "results.json", "--as", "csv")
    assert done.returncode == 0, done.stderr
    found = {row["student_id"]: (row["late_submission_penalty"], row["score"]) for row in rows(done.stdout)}
    assert found == {
        "a": ("0", "3"), "b": ("0.6", "2.4"), "c": ("0", "3"), "d": ("3", "0"), "e": ("0", "3"), "f": ("0", "0"),
    }  # fmt: skip
    assert {row["duedate"] for row in rows(done.stdout)} == {"2026-01-02 12:00:00"}
    for line in (
        "Late penalties of course.toml are applied. Automatic points only.", "missing 1 of 6 learners: f.",
        "late 2, 2 with a penalty: b, d.", "extended 1: c.", "1 submission without a time, which cannot be late.",
    ):  # fmt: skip
        assert line in done.stderr
    again = dated / "again.json"
    grader("--course", dated, "report", dated / "results.json", "--as", "json", "--out", again)
    twice = grader("--course", dated, "report", again, "--as", "csv")
    assert twice.stdout == done.stdout, "the penalty is taken once"


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        (
            "course.toml",
            'timezone = "Europe/Berlin"',
            "",
            "course.toml:10: the due date of `01_by_hand` has no time zone",
        ),
        ("course.toml", "Europe/Berlin", "Berlin", "course.toml:9: there is no time zone `Berlin`"),
        ("course.toml", "percent_per_day = 10", 'percent_per_day = "10"', "`percent_per_day` is no number"),
        ("course.toml", "cut_off_days", "cutoff", "`late` has no `cutoff`"),
        ("course.toml", '"roster.csv"', '"none.csv"', "there is no file `none.csv`"),
        ("extensions.csv", LESSON, "01_other", "extensions.csv line 2: `01_other` is no lesson."),
        ("extensions.csv", "2026-01-06T13:00", "Tuesday", "extensions.csv line 2: `Tuesday` is no date"),
        ("extensions.csv", "lesson", "exercise", "extensions.csv line 1: there is no column lesson."),
        ("roster.csv", "b,b,X", "a,b,X", "roster.csv line 3: `a` is already in line 2."),
        ("roster.csv", "learner", "who", "there is no column `learner`"),
    ],
)
def test_a_mistake_in_the_settings_is_named_with_its_line(
    dated: Path, grader: Grader, file: str, old: str, new: str, told: str
) -> None:
    text = (dated / file).read_text()
    assert old in text
    (dated / file).write_text(text.replace(old, new))
    with pytest.raises((BadTable, CourseError)) as raised:
        read_roster(Course(dated).deadlines.roster or dated)
    assert told in str(raised.value)
    if ("line 2" in told and "no date" in told) or "no number" in told:  # one of each kind through the command
        done = grader("--course", dated, "report", dated / "results.json", "--as", "csv")
        assert (done.returncode, done.stdout) == (2, "")
        assert told in done.stderr
        assert "Traceback" not in done.stderr


def test_a_gradebook_export_of_canvas_is_a_roster(dated: Path, grader: Grader, tmp_path: Path) -> None:
    """Their numbers come back in `canvas`, by which Canvas matches learners."""
    canvas = tmp_path / "canvas.csv"
    canvas.write_text(
        "\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,Homework\n    Points Possible,,,,,10\n"
        '"Ames, Ann",101,s101,a,Mon,7\n"Lee, Bo",102,s102,b,Tue,\n'
    )
    words = ("report", dated / "results.json", "--as", "canvas", "--roster", canvas)
    done = grader("--course", dated, *words)
    assert done.returncode == 0, done.stderr
    found = {row["SIS Login ID"]: row for row in rows(done.stdout)}
    assert (found["a"]["Student"], found["a"]["ID"], found["a"]["SIS User ID"]) == ("Ames, Ann", "101", "s101")
    assert "Not in the roster: c, d, e. Is a folder misnamed?" in done.stderr


# --- large classes -------------------------------------------------------------------------------------------------


def test_canvas_takes_each_result_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work grows with the number of results, also of many lessons: counted in final grades, not in seconds."""
    counts = []
    final = Result.final.fget
    assert final is not None
    for learners in (50, 100):
        seen = []
        monkeypatch.setattr(Result, "final", property(lambda self, seen=seen: (seen.append(1), final(self))[1]))
        forms.canvas([result(f"n{i}", lesson=f"{j:02}_x") for i in range(learners) for j in range(5)])
        counts.append(len(seen))
    assert counts == [250, 500]


def test_a_large_class_is_split_into_pages(tmp_path: Path, grader: Grader) -> None:
    many = [result(f"n{i:05}", lesson="01_a" if i % 2 else "02_b") for i in range(1_102)]
    (tmp_path / "r.json").write_text(document(many))
    words = ("report", tmp_path / "r.json", "--as", "html")
    refused = grader(*words, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Pass --out FILE.html" in refused.stderr
    done = grader(*words, "--out", tmp_path / "class.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "6 pages beside it" in done.stderr
    index = (tmp_path / "class.html").read_text()
    links = dict(re.findall(r'<a href="([^"]+)">(n\d+)</a>', index))
    assert len(links) == 1_102, "whoever searches the first page finds everybody"
    for link, name in list(links.items())[::97]:
        page, _, anchor = link.partition("#")
        assert f'id="{anchor}" open>\n<summary><strong>{name}<' in (tmp_path / page).read_text()
    assert len(list(tmp_path.glob("class-*.html"))) == 6
    assert "01_a, page 2 of 3" in (tmp_path / "class-01_a-2.html").read_text()


def test_a_class_that_fits_is_one_page() -> None:
    people = {"a": Person("a"), "b": Person("b")}
    results = final_grades.add_missing([result("a")], people, {LESSON: 3.0}, Deadlines(), {})
    text = html.dumps(results, final_grades.about_people(results, people))
    assert "1 learner without a submission." in text
    assert "missing 1 of 2 learners: b." in text


def test_a_name_of_several_lines_stays_on_one_line() -> None:
    [line] = final_grades.about_people([result("a\n::error::\x1b[31m")], {"a": Person("a")})
    assert line == "Not in the roster: a\\n::error::\\x1b[31m. Is a folder misnamed?"


def test_a_grade_survives_json(tmp_path: Path) -> None:
    graded = final_grades.apply_late_policy([result("a", 3, at(days=1))], Deadlines({LESSON: DUE}, policy=POLICY), {})
    (tmp_path / "r.json").write_text(document(graded))
    assert [replace(one, grade=None) for one in read_document(tmp_path / "r.json")] == [result("a", 3, at(days=1))]
    assert read_document(tmp_path / "r.json")[0].final.score == 2.7
