"""Word list of private vocabulary: words that readers cannot search for, and the terms to write instead.

The list catches words only; it does not make prose good. Code, formulas and addresses are not searched. `ALLOWED` lists
uses that are not private vocabulary; CONTRIBUTING.md explains when to add one.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator

from grader.course.percent import Findings

_SEVERAL = r"(?:two|three|four|five|six|eight|ten|hundred|thousand|few|many|\d+)"
# What is written, and what to write instead. A space stands for any white space, and the case of letters is ignored.
WORDS = (
    (r"mend(?:s|ed|ing)?", "fix"),
    (r"anew", "again"),
    (r"shall", "should, must or will"),
    (r"who(?:m|so)?ever", "anyone who"),
    (r"besides", "also"),
    (r"slopes?", "gradient, or derivative with respect to x"),
    (r"way back", "backward pass"),
    (r"way forward", "forward pass"),
    (r"forms? of (?:a|the|this|its|their) (?:py)?trees?|(?:py)?tree's form", "structure, treedef, or graphdef"),
    (rf"(?:each|every|per|first|last|next|one|same|another) turn|{_SEVERAL} turns", "iteration"),
    (r"turns? of (?:a|the|this|its) loop", "iteration"),
    (r"kept (?:results?|verdicts?|grades?)", "cached results"),
    (r"(?:hand(?:s|ed|ing)?|give[ns]?|gave|giving) (?:it |them |this )?out", "release"),
    (r"hand(?:s|ed|ing)? (?:it |them |this )?in", "submit"),
    (r"sittings?", "session"),
    (r"desks?", "working environment"),
    (r"thoughts? behind", "misconception"),
    (r"born", "created"),
    (r"lives? (?:on|in|at)", "is stored on, belongs to"),
    (r"(?:lie|lies|lay) on (?:\w+ ){0,2}devices?", "is stored on"),
    (r"travel(?:s|l?ed|l?ing)?", "is communicated, or communication"),
    (r"sp(?:eak|eaks|oke|oken|eaking) of", "refers to, mentions"),
    (r"(?:is|are|was|were|be|been|being) told", "receives, is informed"),
    (r"pieces", "shards (of an array), parts"),
    (r"no(?:body|-one)|somebody", "the component or the person, or the passive"),
    (r"(?:is|are|was|were|become|becomes|became) (?:another one|others)", "differs, or has changed"),
    (r"refus\w+ in words", "is rejected with an explanation"),
    (r"keeps? book", "tracks"),
    (r"news", "updates"),
    (r"wh(?:ence|ereby|erein|ereof)|ther(?:eof|ewith|eby)", "a sentence of its own"),
)
# Uses that are not private vocabulary: geometry, idioms, names.
ALLOWED = (
    r"slopes? of (?:a|the|its|this|that|each) (?:straight )?(?:line|tangent|curve|secant|parabola|graph)s?",
    r"(?:line|tangent|secant)(?:'s|s') slopes?",
    r"hand in hand",
    r"Max Born",
    r"travel(?:l?ing)? (?:salesman|waves?)",
)
_WORD = re.compile("|".join(rf"\b(?:{pattern})\b" for pattern, _ in WORDS).replace(" ", r"\s+"), re.IGNORECASE)
_ALLOWED = re.compile("|".join(rf"\b(?:{pattern})\b" for pattern in ALLOWED).replace(" ", r"\s+"), re.IGNORECASE)
_FENCED = re.compile(r"^(?P<fence>```|~~~).*?(?:^(?P=fence)|\Z)", re.MULTILINE | re.DOTALL)
# Inline code, formulas, addresses, and tags but those of images, which contain an alternative text.
_INLINE = re.compile(
    r"(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)|\$\$?[^$\n]+\$\$?"
    r"|(?<=\]\()[^)\s]+|<(?!img\b)[a-zA-Z/!][^>]*>|https?://\S+",
    re.DOTALL,
)


def check_markdown(text: str, first: int, findings: Findings) -> None:
    """Adds a problem for each private word in Markdown `text`, whose first line is line `first` of its file."""
    _check(blank_code(text), first, findings)


def check_code(source: str, first: int, findings: Findings) -> None:
    """Adds a problem for each private word in the comments and string constants of Python `source`.

    Source that is not Python is left to the rule that reports syntax errors.
    """
    try:
        texts = [*_comments(source), *_strings(ast.parse(source))]
    except (SyntaxError, tokenize.TokenError):
        return
    for line, text in texts:
        _check(blank_code(text), first + line - 1, findings)


def blank_fences(text: str) -> str:
    """Returns Markdown with each fenced block of code replaced by blanks; every other character stays in its place."""
    return _FENCED.sub(_blank, text)


def blank_code(text: str) -> str:
    """Returns Markdown with code, formulas, tags and addresses replaced by blanks; all else stays in its place."""
    return _INLINE.sub(_blank, blank_fences(text))


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _check(text: str, first: int, findings: Findings) -> None:
    text = _ALLOWED.sub(lambda match: re.sub(r"\S", "·", match[0]), text)
    for match in _WORD.finditer(text):
        word = " ".join(match[0].split())
        line = first + text.count("\n", 0, match.start())
        findings.add(line, f'"{word}" is private vocabulary', f"Write: {_instead(word)}")


def _instead(word: str) -> str:
    return next(instead for pattern, instead in WORDS if re.fullmatch(pattern, word, re.IGNORECASE))


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _strings(tree: ast.AST) -> Iterable[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
