"""Links between the pages of the project lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# Folders with a dot have what tools and tests leave there.
PAGES = sorted(
    page.relative_to(ROOT)
    for page in ROOT.rglob("*.md")
    if not any(part.startswith(".") for part in page.relative_to(ROOT).parts)
)
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.MULTILINE)
    texts = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in texts}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    """A page that was renamed, or a heading that was, leaves links behind that nobody notices."""
    broken = []
    text = CODE.sub("", (ROOT / page).read_text())
    for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []
