"""In a lesson: buttons under a question, a choice that is kept, and the reason for it beside the result."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.learning import state

PART = "predictions"
LETTERS = "ABCDEFGH"


@dataclass(frozen=True)
class Choice:
    """One answer that may be chosen, and why it is right or tempting; both are Markdown."""

    text: str
    reason: str
    right: bool


def predict(prediction: str, choice: str | None = None) -> None:
    """Ask for the prediction of this id, with buttons where a front end has them.

    The choice is kept in a small local file. Once the next cell has run, what was chosen and why it is right or
    tempting stands under its result. A `choice` (a letter) is taken at once: the way to choose without buttons.
    Outside a notebook, and where the question is not to be found, nothing happens.
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
        self.prediction, self.choices, self.shell = prediction, choices, shell
        self.seen = False  # whether the cell after the question has run
        self.reply: Any = None
        self.chosen = self._remembered()
        shell.events.register("post_run_cell", self._after)
        self._own_cell = True

    def show(self) -> None:
        """The buttons; where a front end has none, what to type."""
        from IPython.display import display

        letters = LETTERS[: len(self.choices)]
        say = f'grader.learning.predict("{self.prediction}", "{letters[0]}")'
        plain = f"Your prediction: {self.chosen or 'not chosen'}. To choose: {say}"
        display({**self._buttons(letters), "text/plain": plain}, raw=True)

    def choose(self, letter: str) -> None:
        """Keep this choice, and say what comes next."""
        if letter not in LETTERS[: len(self.choices)]:
            return
        self.chosen = letter
        state.add(PART, self.prediction, {"choice": letter, "text": self._choice(letter).text})
        self._answer()

    def _buttons(self, letters: str) -> dict[str, Any]:
        try:
            import ipywidgets
        except ImportError:
            return {}
        radio = ipywidgets.RadioButtons(
            options=list(letters), value=self.chosen, description="Your prediction:", orientation="horizontal",
            style={"description_width": "initial"},
        )  # fmt: skip
        self.reply = ipywidgets.Output()
        self._answer()
        radio.observe(lambda change: self.choose(change["new"]), "value")
        return dict(ipywidgets.VBox([radio, self.reply])._repr_mimebundle_())

    def _answer(self) -> None:
        """Under the buttons: that the choice is kept, and once the result is there what is behind it."""
        if self.reply is None or self.chosen is None:
            return
        said = self.verdict() if self.seen else "Kept. Now run the next cell."
        self.reply.outputs = ({"output_type": "display_data", "data": _bundle(said), "metadata": {}},)

    def _after(self, result: Any) -> None:
        if self._own_cell:  # the cell that asks ends too
            self._own_cell = False
            return
        from IPython.display import display

        self.shell.events.unregister("post_run_cell", self._after)
        self.seen = True
        if self.chosen is not None:
            display(_bundle(self.verdict()), raw=True)
            self._answer()

    def verdict(self) -> str:
        """What was chosen and why it is right or tempting, and then what is right; Markdown."""
        assert self.chosen is not None
        mine = self._choice(self.chosen)
        said = f"{'✓' if mine.right else '✗'} You predicted **{self.chosen}**, {mine.text}. {mine.reason}"
        if mine.right:
            return said
        right = next(letter for letter, choice in zip(LETTERS, self.choices, strict=False) if choice.right)
        return f"{said}\n\nIt is **{right}**, {self._choice(right).text}. {self._choice(right).reason}"

    def _choice(self, letter: str) -> Choice:
        return self.choices[LETTERS.index(letter)]

    def _remembered(self) -> str | None:
        """The letter kept earlier, if it still stands for the same words."""
        before = state.read(PART).get(self.prediction)
        if isinstance(before, dict):
            for letter, choice in zip(LETTERS, self.choices, strict=False):
                if before.get("choice") == letter and before.get("text") == choice.text:
                    return letter
        return None


def _choices(prediction: str) -> list[Choice]:
    """From the notebook itself, which lies in the kernel's folder: the cell above holds them in its metadata."""
    for path in sorted(Path.cwd().glob("*.ipynb")):
        try:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            for cell in cells:
                held = cell["metadata"].get("jaxercise", {}).get("prediction", {})
                if held.get("id") == prediction:
                    return [Choice(one["text"], one["reason"], one["right"]) for one in held["choices"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # not a lesson
    return []


def _bundle(markdown: str) -> dict[str, str]:
    return {"text/markdown": markdown, "text/plain": markdown.replace("**", "")}
