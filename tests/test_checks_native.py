"""C++ files that a lesson ships: compiled in a kernel, or once by the grader for all confined workers."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from conftest import COURSES, Grader
from fill import fill, write

from grader.checks import native
from grader.course import Course, build

LESSON = "01_small"
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
TWICE = """
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
ffi::Error Twice(ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  for (int64_t i = 0; i < int64_t(x.element_count()); ++i) y->typed_data()[i] = 2 * x.typed_data()[i];
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(twice, Twice, ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());
"""
SETUP = """SCALE = 2.0
import os
from grader.checks import native, skip
before, os.environ["PATH"] = os.environ.get("PATH", ""), ""  # nothing is compiled here
library = native.load("twice.cc")
os.environ["PATH"] = before
if library is not None:
    jax.ffi.register_ffi_target("twice", jax.ffi.pycapsule(library.twice), platform="cpu")
"""
# Calls the handler and a host function, and is right if nothing of the lesson's can be changed.
ANSWER = """
import os, pathlib
def double(x):
    for path in pathlib.Path(os.path.realpath("twice.cc")).parent.iterdir():
        try:
            path.open("ab").write(b"x")
            return x
        except OSError:
            pass
    same = jax.ShapeDtypeStruct(x.shape, x.dtype)
    there = jax.ffi.ffi_call("twice", same)(x)
    return jax.jit(lambda x: jax.pure_callback(lambda x: np.asarray(x), same, x))(there)
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(native, "_loaded", {})
    path = tmp_path / "shipped" / "twice.cc"
    path.parent.mkdir()
    path.write_text(TWICE)
    return path


@needs_compiler
def test_a_file_is_compiled_once_and_leaves_nothing_behind(source: Path) -> None:
    library = native.load(source)
    assert library is not None
    assert hasattr(library, "twice")
    assert native.load(source) is library, "JAX refuses a second address for a registered target"
    assert [path.name for path in source.parent.iterdir()] == ["twice.cc"]


@needs_compiler
def test_a_library_beside_the_file_needs_no_compiler_and_a_changed_file_does(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert native.build(source, source.parent) is not None
    monkeypatch.setenv("PATH", "")
    assert native.load(source) is not None
    source.write_text(TWICE + "// changed\n")
    assert native.load(source) is None
    assert "no C++ compiler (g++)" in capsys.readouterr().out


def test_without_a_compiler_a_sentence_says_what_is_skipped(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert native.load(source) is None
    assert capsys.readouterr().out == native.NO_COMPILER + "\n"


@needs_compiler
def test_what_does_not_compile_is_shown(source: Path) -> None:
    source.write_text("int main() { return missing; }")
    with pytest.raises(RuntimeError, match=r"twice\.cc does not compile:[\s\S]*missing"):
        native.load(source)


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """The small course, whose setup loads a handler."""
    root = tmp_path / "course"
    shutil.copytree(COURSES / "small", root, ignore=shutil.ignore_patterns("build", "exercises"))
    text = root / "solutions" / f"{LESSON}.py"
    skips = '"""Doubles any array."""\nif library is None:\n    skip("No handler.")'
    text.write_text(text.read_text().replace("SCALE = 2.0\n", SETUP).replace('"""Doubles any array."""', skips))
    (root / "solutions" / LESSON).mkdir()
    (root / "solutions" / LESSON / "twice.cc").write_text(TWICE)
    build.build(Course(root))
    return root


def grade(course: Path, grader: Grader, folder: Path, answer: str, **around: str) -> dict[str, dict[str, object]]:
    """The checks of a submission with this answer to the first exercise, by their ids."""
    right = {exercise.id: exercise.reference for exercise in Course(course).lesson(LESSON).exercises}
    path = folder / "submitted" / "one" / LESSON / f"{LESSON}.ipynb"
    write(fill(course / "exercises" / LESSON / f"{LESSON}.ipynb", {**right, "small-double": answer}), path)
    out = folder / "results.json"
    words = ("grade", folder / "submitted", "--json", out, "--force", "--allow-unsandboxed")
    done = grader("--course", course, *words, **around)
    [result] = json.loads(out.read_text())["results"]
    assert result["fault"] is None, done.stdout + done.stderr
    return {check["id"]: check for check in result["checks"]} | {"confinement": result["confinement"]}


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines more than by limits")
@pytest.mark.parametrize("level", ["full", "landlock"])
def test_a_confined_worker_calls_a_handler_that_the_grader_compiled(
    course: Path, grader: Grader, tmp_path: Path, level: str
) -> None:
    checks = grade(course, grader, tmp_path, ANSWER, GRADER_CONFINE_AT_MOST=level)
    statuses = [checks[f"small-double-{name}"]["status"] for name in ("example", "values")]
    assert statuses == ["passed", "passed"], checks
    if checks["confinement"] != level:
        pytest.skip(f"this machine refuses {level}")


def test_without_a_library_the_checks_are_skipped_and_none_fails(course: Path, grader: Grader, tmp_path: Path) -> None:
    text = course / "solutions" / f"{LESSON}.py"
    # The grader compiles no such file, and the setup finds no compiler.
    text.write_text(text.read_text().replace('native.load("twice.cc")', 'native.load("twice.txt")'))
    (course / "solutions" / LESSON / "twice.txt").write_text(f"{TWICE}// not compiled")
    build.build(Course(course))
    checks = grade(course, grader, tmp_path, "def double(x):\n    return 2 * x\n")
    assert checks["small-double-example"]["status"] == "passed"
    assert checks["small-double-values"]["status"] == "skipped"
    assert checks["small-double-values"]["message"] == "No handler."
