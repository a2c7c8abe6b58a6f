"""What the doctor found about one thing: fine, or what is wrong, what that costs, and the command that mends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MARKS = {"fine": "✓", "costs": "!", "stops": "✗"}


@dataclass(frozen=True)
class Finding:
    """`text` is one short sentence where all is fine; `mend` is a command that can be typed as it is."""

    grade: Literal["fine", "costs", "stops"]
    text: str
    mend: str = ""

    def lines(self) -> list[str]:
        """As it is printed: the mark leads, and the lines below it are indented as far."""
        text = self.text.splitlines() + ([f"To mend it: {self.mend}"] if self.mend else [])
        return [f"{MARKS[self.grade] if i == 0 else ' '} {line}" for i, line in enumerate(text)]
