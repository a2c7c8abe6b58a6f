"""Predictions in lessons: buttons under a question, a stored choice, and the reason for it beside the result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

from grader.core.board_client import reporter
from grader.core.layout import INSTALLED_COURSE
from grader.core.notebook import Unreadable, cells, parse, part
from grader.learning.course_map import change_state, read_state

PART = "predictions"
LETTERS = "ABCDEFGH"


class Choice(NamedTuple):
    """One answer that may be chosen, and why it is right or tempting; both are Markdown."""

    text: str
    reason: str
    right: bool


def predict(prediction: str, choice: str | None = None) -> None:
    """Asks for the prediction of this id, with buttons where the front end has them; `choice` is a letter to choose.

    The choice is stored in a small local file. Once the next cell has run, what was chosen and why it is right or
    tempting stands under its result. Outside a notebook, and where the question is not found, nothing happens.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    choices = _choices(prediction) if shell is not None else []
    if choices:
        asked = PredictionWidget(prediction, choices, shell)
        if choice is not None:
            asked.choose(choice.strip().upper()[:1])
        asked.show()


class PredictionWidget:
    """One question in a running notebook."""

    def __init__(self, prediction: str, choices: list[Choice], shell: Any) -> None:
        self.prediction, self.shell = prediction, shell
        self.choices = dict(zip(LETTERS, choices, strict=False))
        self.seen = False  # whether the cell after the question has run
        self.reply: Any = None
        before = part(read_state(PART), prediction)
        letter = before.get("choice")
        same_words = letter in self.choices and self.choices[letter].text == before.get("text")
        self.chosen: str | None = letter if same_words else None
        shell.events.register("post_run_cell", self._after)
        self._own_cell = True

    def show(self) -> None:
        """Shows the buttons; where a front end has none, what to type."""
        import ipywidgets
        from IPython.display import display

        say = f'grader.learning.predict("{self.prediction}", "{LETTERS[0]}")'
        plain = f"Your prediction: {self.chosen or 'not chosen'}. To choose: {say}"
        radio = ipywidgets.RadioButtons(
            options=list(self.choices), value=self.chosen, description="Your prediction:", orientation="horizontal",
            style={"description_width": "initial"},
        )  # fmt: skip
        self.reply = ipywidgets.Output()
        self._answer()
        radio.observe(lambda change: self.choose(change["new"]), "value")
        view = {"version_major": 2, "version_minor": 0, "model_id": ipywidgets.VBox([radio, self.reply]).model_id}
        display({"application/vnd.jupyter.widget-view+json": view, "text/plain": plain}, raw=True)

    def choose(self, letter: str) -> None:
        if letter in self.choices:
            self.chosen = letter
            with change_state(PART) as choices:
                choices[self.prediction] = {"choice": letter, "text": self.choices[letter].text}
            reporter.report([{"kind": "prediction", "prediction": self.prediction, "choice": letter}])
            self._answer()

    def _answer(self) -> None:
        """Shows under the buttons that the choice is stored, and once the result is there the reason."""
        if self.reply is not None and self.chosen is not None:
            text = self._verdict() if self.seen else "Saved. Now run the next cell."
            self.reply.outputs = ({"output_type": "display_data", "data": _bundle(text), "metadata": {}},)

    def _after(self, result: Any) -> None:
        if self._own_cell:  # the cell that asks ends too
            self._own_cell = False
            return
        from IPython.display import display

        self.shell.events.unregister("post_run_cell", self._after)
        self.seen = True
        if self.chosen is not None:
            display(_bundle(self._verdict()), raw=True)
            self._answer()

    def _verdict(self) -> str:
        """What was chosen and why it is right or tempting, and then what is right, as Markdown."""
        assert self.chosen is not None
        mine = self.choices[self.chosen]
        said = f"{'✓' if mine.right else '✗'} You predicted **{self.chosen}**, {mine.text}. {mine.reason}"
        if mine.right:
            return said
        letter, right = next((letter, choice) for letter, choice in self.choices.items() if choice.right)
        return f"{said}\n\nIt is **{letter}**, {right.text}. {right.reason}"


def _choices(prediction: str) -> list[Choice]:
    """Reads the question from the notebook in the kernel's folder: the cell above has it in its metadata.

    Where there is no such notebook, as on Colab, it is read from the installed course.
    """
    for path in [*sorted(Path.cwd().glob("*.ipynb")), *sorted((INSTALLED_COURSE / "notebooks").glob("*.ipynb"))]:
        try:
            for cell in cells(parse(path.read_bytes())):
                question = part(part(cell.get("metadata"), "jaxercise"), "prediction")
                if question.get("id") == prediction:
                    return [Choice(one["text"], one["reason"], one["right"]) for one in question["choices"]]
        except (OSError, Unreadable, KeyError, TypeError):
            continue  # not a lesson
    return []


def _bundle(markdown: str) -> dict[str, str]:
    return {"text/markdown": markdown, "text/plain": markdown.replace("**", "")}
