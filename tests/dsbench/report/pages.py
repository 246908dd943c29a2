"""A report's HTML as a tree of what a reader meets, by the standard library's parser."""

from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Tree(HTMLParser):
    """Tags with their attributes, texts by section id, and whatever does not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.faults: list[str] = []
        self._open: list[str] = []
        self._section = "head"
        self.feed(text)
        self.close()
        self.faults += [f"<{tag}> never ends" for tag in self._open]

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self._section = dict(attrs)["id"] or ""
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self._open or self._open.pop() != tag:
            self.faults.append(f"</{tag}> ends something else")

    def handle_data(self, data):
        if data.strip() and (not self._open or self._open[-1] != "style"):
            self.texts.setdefault(self._section, []).append(data.strip())

    def names(self) -> set[str]:
        return {tag for tag, _ in self.tags}

    def sections(self) -> list[str]:
        return [attrs["id"] or "" for tag, attrs in self.tags if tag == "section"]

    def text(self, section: str) -> str:
        return "\n".join(self.texts.get(section, []))
