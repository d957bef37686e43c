"""The site that `make docs` builds: nothing on it is broken, and no public name is missing.

Building it takes as long as a hundred other tests, and so belongs to the long form.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
import yaml

import gnnstore
from gnnstore import converters, plugins, testing
from tests.support.effort import is_long

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """What a page can be linked by, and where its own links lead."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(
        self,
        tag: str,  # noqa: ARG002 - the name in the base class
        attrs: list[tuple[str, str | None]],
    ) -> None:
        found = dict(attrs)
        self.names.update(value for key in ("id", "name") if (value := found.get(key)))
        for key in ("href", "src"):
            if (value := found.get(key)) is not None:
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does, and return its directory."""
    if not is_long():
        pytest.skip("builds the site; part of the long form")
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        check=False,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def public_names() -> set[str]:
    public = {f"gnnstore.{name}" for name in gnnstore.__all__ if name != "__version__"}
    for module in (converters, plugins, testing):
        public |= {f"{module.__name__}.{name}" for name in module.__all__}
    return public


def test_every_public_name_is_in_the_reference() -> None:
    texts = [page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md")]
    names = re.findall(r"^::: (\S+)", "\n".join(texts), re.MULTILINE)
    assert public_names() - set(names) == set()


def test_every_public_name_is_on_the_site(pages: dict[Path, Page]) -> None:
    names = set().union(*(page.names for path, page in pages.items() if "reference" in path.parts))
    assert public_names() - names == set()


def test_every_page_of_the_documentation_is_on_the_site(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        name = "guides" if page.name == "README.md" else page.stem
        assert (site / f"{name}.html").exists(), page


def test_links_and_images_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    """Also those that the theme and the reference made, which `--strict` does not look at."""
    for path, page in pages.items():
        for link in page.links:
            target, anchor = urldefrag(unquote(link))
            if ":" in target:
                continue
            file = (path.parent / target).resolve() if target else path
            assert file.exists(), f"{path.relative_to(site)}: {link}"
            if anchor and file in pages:
                assert anchor in pages[file].names, f"{path.relative_to(site)}: {link}"


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text()
        for start in ('<script src="http', '<link rel="stylesheet" href="http', '<img src="http'):
            assert start not in text, path


def test_the_search_works_where_pages_are_opened_as_files(site: Path) -> None:
    """Browsers load no JSON from files, and start no workers there."""
    assert (site / "search" / "search_index.js").read_text().startswith("var __index")
    assert (site / "assets" / "iframe-worker.js").exists()
    assert "iframe-worker.js" in (site / "reference" / "loaders.html").read_text()


def test_the_citation_is_that_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == gnnstore.__version__
    papers = " ".join((ROOT / "docs" / "papers.md").read_text().split())
    for paper in citation["references"]:
        name = paper["title"].split(":")[0]
        assert f"*{name}* (" in papers, name
        assert paper.get("doi", paper.get("url")) in papers, name
