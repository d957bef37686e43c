"""Record the batches and states that the frozen tests compare with.

`python tests/conformance/record_frozen.py`, and only where a change of them is meant: what the
tests say of the difference belongs into the description of that change.
"""

from __future__ import annotations

import json
import runpy
import tempfile
from pathlib import Path
from typing import Any


def shown(value: Any) -> str:
    """Return JSON with a line for each entry of objects, so that differences are short."""
    if not isinstance(value, dict):
        return json.dumps(value)
    lines = (f"{json.dumps(name)}: {shown(entry)}" for name, entry in value.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def main() -> None:
    """Record them."""
    module = runpy.run_path(str(Path(__file__).with_name("test_frozen_batches.py")))
    with tempfile.TemporaryDirectory() as directory:
        recorded = module["record"](Path(directory))
    output: Path = module["FROZEN"]
    output.parent.mkdir(exist_ok=True)
    output.write_text(shown(recorded) + "\n")


if __name__ == "__main__":
    main()
