"""Takes screenshots of the built site at the widths of a desktop and of a phone: `make docs-shots`.

Needs Chromium or Chrome, and says so where there is none. A browser without a screen does not open
windows as narrow as a phone, so that pages are shown in a frame of that width.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTHS, HEIGHT = (1280, 390), 3000
_FRAME = (
    '<body style="margin:0"><iframe src="{page}" width="{width}" height="{height}" '
    'style="border:0"></iframe>'
)


def take(browser: str, page: Path, width: int, file: Path, *, is_dark: bool) -> None:
    """Write the picture of a page."""
    with tempfile.TemporaryDirectory() as directory:
        frame = Path(directory) / "frame.html"
        frame.write_text(_FRAME.format(page=page.resolve().as_uri(), width=width, height=HEIGHT))
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [f"--user-data-dir={directory}/profile", f"--screenshot={file.resolve()}"]
        options += [f"--window-size={max(width, 500)},{HEIGHT}", "--virtual-time-budget=3000"]
        if is_dark:
            options.append("--blink-settings=preferredColorScheme=0")
        command = [browser, *options, frame.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=60)  # noqa: S603


def main() -> None:
    """Take all pictures, or those of the pages that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", help="names of pages, such as tutorial; default: all")
    parser.add_argument("--site", type=Path, default=Path("build/site"))
    parser.add_argument("--output", type=Path, default=Path("build/shots"))
    parser.add_argument("--dark", action="store_true", help="as a browser set to dark asks for")
    arguments = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"docs-shots needs one of {', '.join(BROWSERS)} on PATH")
    arguments.output.mkdir(parents=True, exist_ok=True)
    for page in sorted(arguments.site.rglob("*.html")):
        name = page.relative_to(arguments.site).with_suffix("").as_posix().replace("/", "-")
        if name == "404" or (arguments.pages and name not in arguments.pages):
            continue
        for width in WIDTHS:
            file = arguments.output / f"{name}-{width}.png"
            take(browser, page, width, file, is_dark=arguments.dark)
            print(file)


if __name__ == "__main__":
    main()
