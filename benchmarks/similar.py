"""How often `grader similar` lists honest pairs and disguised copies: python -m benchmarks.similar

Honest pairs are two correct answers of the course to one exercise. Here they do not explain each other's text, as they
would in a class. A disguised copy has other names, no comments, another layout, results in a variable of their own, and
its functions in another order.
"""

from __future__ import annotations

import ast
import itertools
import json
import time
from pathlib import Path

from grader.course import Course
from grader.course.build import exercises_path
from grader.reports.similar import Learner, SimilarAnswers

COURSE = Course(Path(__file__).parents[1])
CLASS = 2_000


class Disguise(ast.NodeTransformer):
    """Renames what a text binds in functions, and gives each result a name before it is returned."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        self.bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.bound |= {n.arg for n in nodes if isinstance(n, ast.arg)}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(f"my_{node.id}", node.ctx) if node.id in self.bound else node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(f"my_{node.arg}")

    def visit_Return(self, node: ast.Return) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if node.value is None or isinstance(node.value, ast.Name):
            return node
        named = ast.Assign([ast.Name("outcome", ast.Store())], node.value)
        return [named, ast.Return(ast.Name("outcome", ast.Load()))]


def disguised(text: str) -> str:
    tree = ast.parse(text)
    tree = Disguise(tree).visit(tree)
    if all(isinstance(one, ast.FunctionDef) for one in tree.body):
        tree.body.reverse()
    return ast.unparse(ast.fix_missing_locations(tree))


def main() -> None:
    honest = listed = copies = long = found = 0
    for name in COURSE.lesson_ids:
        lesson = COURSE.lesson(name)
        cells = json.loads(exercises_path(COURSE, name).read_text())["cells"]
        released = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        compared = SimilarAnswers(lesson, released, own=False)
        for exercise in lesson.exercises:
            answers = [exercise.reference, *(variant.source for variant in exercise.right)]
            for one, two in itertools.combinations(answers, 2):
                honest += 1
                listed += bool(compared.pairs([learner("a", one), learner("b", two)]))
            for text in answers:
                pair = [learner("a", text), learner("b", disguised(text))]
                copies += 1
                long += bool(compared.pairs([pair[0], learner("b", text)]))
                found += bool(compared.pairs(pair))
    print(f"pairs of right answers listed: {listed} of {honest}")
    print(f"disguised copies listed: {found} of {copies}, of which {long} have enough code of their own to be compared")
    lesson = COURSE.lesson("05_vmap")
    compared = SimilarAnswers(lesson, released=[])
    texts = [e.reference for e in lesson.exercises]
    own = [[(str(i), f"y{n} = {n} * x + f{n}(z)\n{text}") for i, text in enumerate(texts)] for n in range(CLASS)]
    people = [Learner(str(n), tuple(cells)) for n, cells in enumerate(own)]
    began = time.process_time()
    compared.pairs(people)
    print(f"a class of {CLASS:,}: {time.process_time() - began:.1f} s of processor time")


def learner(name: str, text: str) -> Learner:
    return Learner(name, (("answer", text),))


if __name__ == "__main__":
    main()
