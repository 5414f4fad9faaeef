"""Write the JSON Schema of every kind of file to docs/schemas: `python scripts/schemas.py`."""

from __future__ import annotations

import json
from pathlib import Path

from robfcp.schemas import FILE_SCHEMAS, file_schema

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"


def schema_text(kind: str) -> str:
    """Return the schema of a kind of file as it stands in docs/schemas."""
    return json.dumps(file_schema(kind), indent=2) + "\n"


def write_schemas() -> None:
    """Write all schemas, and remove those of kinds that are no more."""
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for kind in FILE_SCHEMAS:
        (FOLDER / f"{kind}.json").write_text(schema_text(kind), encoding="utf-8")


if __name__ == "__main__":
    write_schemas()
