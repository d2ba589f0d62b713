"""Write the example reports and the schema of a review, from the small repository of `story.py`.

    python docs/examples/make.py

Run it after a change to a report or to what a review holds, and read the difference: these files
are also what the tests compare with. With `--check` nothing is written and a difference is exit 1.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from story import told

from elsa_build.reports import forms, reading

HERE = Path(__file__).parent
SCHEMA = HERE.parent / "schema" / "review-1.json"


def made() -> dict[Path, str]:
    """Return every file with its text; the versions of tools are fixed, so that all agree."""
    with tempfile.TemporaryDirectory() as folder:
        review = replace(told(Path(folder) / "kiln.git"), tool="0.1.0", git="2.39.5")
    files = {HERE / name: text for name, text in forms.every(review).items()}
    schema = json.dumps(reading.schema(), indent=2, sort_keys=True) + "\n"
    return {**files, SCHEMA: schema}


def run(*, check: bool) -> int:
    """Write the files, or compare them; return the exit code."""
    behind = [
        (path, text)
        for path, text in made().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in behind:
        if check:
            sys.stderr.write(f"{path} is behind; run: python docs/examples/make.py\n")
        else:
            reading.write(path, text)
            sys.stderr.write(f"{path}\n")
    return 1 if check and behind else 0


if __name__ == "__main__":
    sys.exit(run(check="--check" in sys.argv[1:]))
