"""The proof as a table, survivors and problems below it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from grader.prove.proof import Proof


def show(proof: Proof, console: Console) -> None:
    """Print the table, the mutants that survived, and what does not hold."""
    table = Table(pad_edge=False)
    table.add_column("exercise", no_wrap=True)
    for name in ("points", "right", "wrong caught", "told apart", "mutants killed", "time"):
        table.add_column(name, justify="right")
    for row in proof.rows:
        killed = row["mutants"] - len(row["survivors"])
        table.add_row(
            row["exercise"],
            f"{row['points']:g}",
            str(row["right"]),
            f"{row['caught']}/{row['wrong']}",
            f"{row['named']}/{row['wrong']}",
            f"{killed}/{row['mutants']}",
            f"{row['seconds']:.1f} s",
        )
    console.print(table)
    for row in proof.rows:
        for survivor in row["survivors"]:
            console.print(f"survived: {row['exercise']}, {survivor}", markup=False)
    for problem in proof.problems:
        console.print(f"✗ {problem}", markup=False, style="red")
    console.print("The course holds." if proof.holds else f"{len(proof.problems)} things do not hold.")
