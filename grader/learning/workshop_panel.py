"""A panel in a notebook with which a learner joins a workshop, asks for help and shares an answer."""

from __future__ import annotations

import sys
from typing import Any

from grader.core import board_client
from grader.core.board_client import BoardError
from grader.core.layout import session_notebook
from grader.core.text import legible

PRIVACY = "Your results are reported, and code only if you share it."
JUDGES = (
    "Your results are reported, and the code of your saved notebooks is sent to the instructor's machine for grading."
)


def workshop(url: str = "", code: str = "", name: str = "") -> None:
    """Shows the workshop panel, after joining the workshop at `url` if an address and a code are passed.

    Without a name, the board draws one. Outside a notebook, nothing is shown. Raises nothing: a problem is shown.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    message = ""
    if url and code:
        try:
            message = joined_line(board_client.join(url, code, name))
        except (BoardError, OSError) as problem:
            message = str(problem)
    if shell is not None:
        WorkshopPanel(shell, message).show()


def joined_line(joined: board_client.Membership) -> str:
    """Returns what a learner reads after joining: their name, and what is sent."""
    return f'You have joined the workshop as "{legible(joined.name)}". {JUDGES if joined.judges else PRIVACY}'


class WorkshopPanel:
    """The buttons of one call of `workshop`."""

    def __init__(self, shell: Any, message: str) -> None:
        import ipywidgets

        self.notebook = session_notebook(shell.user_ns)
        self.status = ipywidgets.Label(value=message)
        self.box = ipywidgets.VBox()
        self._draw()

    def show(self) -> None:
        """Shows the buttons; where a front end has none, the commands that do the same."""
        from IPython.display import display

        plain = (
            self.status.value or "To join a workshop, run the command that the projector shows: grader join URL CODE"
        )
        view = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        display({"application/vnd.jupyter.widget-view+json": view, "text/plain": plain}, raw=True)

    def _draw(self) -> None:
        import ipywidgets

        if board_client.membership() is None:
            url, code, name = (
                ipywidgets.Text(placeholder=hint, description=label, style={"description_width": "initial"})
                for label, hint in (("Address:", "http://..."), ("Code:", ""), ("Name:", "drawn if empty"))
            )
            button = ipywidgets.Button(description="Join the workshop")
            join = lambda: joined_line(board_client.join(url.value, code.value, name.value))
            button.on_click(lambda _: self._do(join))
            self.box.children = [ipywidgets.HBox([url, code, name, button]), self.status]
            return
        ask, helped, leave = (
            ipywidgets.Button(description=text) for text in ("Ask for help", "No longer needed", "Leave")
        )
        ask.on_click(lambda _: self._do(lambda: self._help(True)))
        helped.on_click(lambda _: self._do(lambda: self._help(False)))
        leave.on_click(lambda _: self._do(self._leave))
        rows = [ipywidgets.HBox([ask, helped, leave])]
        if self.notebook is not None and (found := board_client.answers(self.notebook)):
            choice = ipywidgets.Dropdown(options=found, description="Answer:")
            share = ipywidgets.Button(description="Share, without your name", layout={"width": "auto"})
            share.on_click(lambda _: self._do(lambda: self._share(choice.value)))
            rows.append(ipywidgets.HBox([choice, share]))
        self.box.children = [*rows, self.status]

    def _do(self, action: Any) -> None:
        try:
            self.status.value = action()
        except (BoardError, OSError) as problem:
            self.status.value = str(problem)
        self._draw()

    def _help(self, wanted: bool) -> str:
        news = board_client.tell([{"kind": "help", "wanted": wanted}])
        said = "Your instructor can see that you ask for help." if wanted else "Your request for help is withdrawn."
        return " ".join([said, *board_client.news_lines(news)])

    def _share(self, exercise: str) -> str:
        assert self.notebook is not None
        board_client.share(self.notebook, exercise)
        return f"Your saved answer to {exercise} was shared without your name."

    def _leave(self) -> str:
        board_client.leave()
        return "You have left the workshop. Nothing more is reported."
