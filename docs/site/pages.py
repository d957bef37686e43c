"""Put the pages at the repository's root on the site, where MkDocs sees only `docs/`.

Links between pages are written for readers of the repository; the README's lead into `docs/`,
which is the site's root.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

# File at the root of the repository -> its name on the site.
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "LICENSE": "LICENSE.txt",
    "CITATION.cff": "CITATION.cff",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, their links rewritten."""
    root = Path(config.config_file_path).parent
    for source, name in ROOT_PAGES.items():
        text = (root / source).read_text()
        if name.endswith(".md"):
            text = text.replace("](docs/", "](").replace("](LICENSE)", "](LICENSE.txt)")
        files.append(File.generated(config, name, content=text))
    return files
