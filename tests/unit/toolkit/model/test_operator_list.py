"""The list of operators in docs/models.md is that of the importers."""

from __future__ import annotations

import re
from pathlib import Path

from toolkit.model.import_control import CONTROLS
from toolkit.model.importers import IMPORTERS

DOCUMENT = Path(__file__).parents[4] / "docs" / "models.md"


def test_every_operator_is_listed_once() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    cells = [row.split("|")[2] for row in rows if not row.startswith("| kind")]
    listed = re.findall(r"\b[A-Z][A-Za-z0-9]+\b", re.sub(r"\([^)]*\)", "", " ".join(cells)))
    assert sorted(listed) == sorted([*IMPORTERS, *CONTROLS])
