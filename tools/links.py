"""Checks a built site: what its pages link to exists, and they load nothing from other hosts."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors of a page, and the addresses that it links to or loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: "list[tuple[str, str | None]]") -> None:
        """Records the attributes of an element that name an anchor or an address."""
        for name, value in attrs:
            if value and (name == "id" or (name == "name" and tag == "a")):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.targets.add(value)
                if tag not in ("a", "area"):
                    self.loaded.add(value)


def broken(site: Path) -> "list[tuple[str, str]]":
    """The links within a site that lead to a missing file or anchor, and what its pages load from other hosts.

    Args:
        site: The folder with the HTML files.

    Returns:
        Pairs of a page and a link, as the page writes it. Links to other hosts are not followed.
    """
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        for target in sorted(page.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.loaded and parts.scheme != "data":
                    wrong.append((str(path.relative_to(site.resolve())), target))
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            known = pages.get(file)
            if not file.is_file() or (anchor and known and anchor not in known.anchors):
                wrong.append((str(path.relative_to(site.resolve())), target))
    return wrong
