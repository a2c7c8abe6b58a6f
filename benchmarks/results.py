"""Writes a part of benchmarks/RESULTS.md anew and leaves the others as they are."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"


def put(title: str, lines: list[str], path: Path = RESULTS) -> None:
    """Put `lines` under the heading `# title`, in the place of that part's last edition; a new part comes last."""
    parts = path.read_text(encoding="utf-8").split("\n# ") if path.exists() else []
    parts = [part.removeprefix("# ").strip() for part in parts]
    own = "\n".join([title, "", *lines]).strip()
    places = [i for i, part in enumerate(parts) if part.partition("\n")[0] == title]
    if places:
        parts[places[0]] = own
    else:
        parts.append(own)
    path.write_text("\n\n".join(f"# {part}" for part in parts) + "\n", encoding="utf-8")
