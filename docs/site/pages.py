"""Put the pages at the repository's root on the site, where MkDocs sees only `docs/`.

Links between pages are written for readers of the repository, so that they are rewritten: those of
the root's pages lead into `docs/`, which is the site's root, and README have other names there.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

# File in the repository -> its name on the site.
PAGES = {
    "README.md": "index.md",
    "docs/README.md": "guides.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "LICENSE": "LICENSE.txt",
    "CITATION.cff": "CITATION.cff",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    root = Path(config.config_file_path).parent
    for source, name in PAGES.items():
        text = (root / source).read_text()
        if name.endswith(".md") and not source.startswith("docs/"):
            text = text.replace("](README.md", "](../README.md").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Let links lead to the names on the site."""
    for source, name in (
        ("README.md", "guides.md"),
        ("../README.md", "index.md"),
        ("../CITATION.cff", "CITATION.cff"),
        ("LICENSE", "LICENSE.txt"),
    ):
        markdown = markdown.replace(f"]({source})", f"]({name})")
        markdown = markdown.replace(f"]({source}#", f"]({name}#")
    return markdown
