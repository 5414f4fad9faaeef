"""JSON Schemas of the files that robfcp reads and writes, for programs that make or read them.

Each schema follows from the struct that validates the file, so that it cannot differ from what
robfcp accepts in names and types. What goes beyond types, such as sums that must agree, is checked
when a file is read.

`docs/schemas` holds the schemas as files; `robfcp show --schema report` prints one. May import
`integrations` and what lies below it; only the command line uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc
from typing import Annotated, Any

import msgspec
import numpy as np

from robfcp._sealed import SealedFile
from robfcp.calibration import CalibrationDocument, RecordDocument
from robfcp.errors import RobfcpError
from robfcp.integrations.client import ClientPolicyFile
from robfcp.local import ClientFeedback
from robfcp.monitoring import AlarmHistory, EValueReport, MonitorState
from robfcp.privacy import LedgerFile
from robfcp.reports import WireReport, terms

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SHA256_PATTERN = "^[0-9a-f]{64}$"


class AuditEvent(msgspec.Struct, forbid_unknown_fields=False):
    """A line of an audit log: an event, when it happened, and the digest of the line before.

    Attributes
    ----------
    time : str
        In UTC, in ISO 8601.
    event : str
        What happened. Each event has further keys.
    previous : str
        SHA-256 of the line before, without its line end; 64 zeros in the first line.
    """

    time: str
    event: str
    previous: Annotated[str, msgspec.Meta(pattern=SHA256_PATTERN)]


def file_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file.

    Parameters
    ----------
    kind : str
        A key of `FILE_SCHEMAS`: "report", "calibration", "client-feedback", ...

    Returns
    -------
    dict
        A schema in the dialect of draft 2020-12, with its definitions under "$defs".

    Raises
    ------
    RobfcpError
        Where there is no such kind.

    Examples
    --------
    >>> from robfcp.schemas import file_schema
    >>> file_schema("report")["required"]
    ['kind', 'schema', 'client', 'binning', 'min_cell_count']
    """
    if kind not in FILE_SCHEMAS:
        raise RobfcpError(f"schema: {kind!r:.40} is unknown; use one of {', '.join(FILE_SCHEMAS)}")
    schema = FILE_SCHEMAS[kind]()
    return {"$schema": DIALECT, **_portable(schema), "title": f"robfcp {kind}"}


def _report_schema() -> dict[str, Any]:
    """Return the schema of a report; it must state its minimum cell count."""
    schema = _struct_schema(WireReport)
    schema["required"].append("min_cell_count")
    return schema


def _signed_report_schema() -> dict[str, Any]:
    """Return the schema of a report with a signature."""
    schema = _report_schema()
    definitions = schema.pop("$defs")
    definitions["Report"] = schema
    return {
        "description": "A report and an Ed25519 signature over the bytes of its body.",
        "type": "object",
        "properties": {
            "kind": {"const": "signed-report"},
            "key": {"type": "string", "description": "The public key, as ed25519:BASE64."},
            "signature": {"type": "string", "description": "The signature, in Base64."},
            "body": {"$ref": "#/$defs/Report"},
        },
        "required": ["kind", "key", "signature", "body"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _sealed_schema(file_type: type[SealedFile]) -> dict[str, Any]:
    """Return the schema of a sealed file: its body, in an envelope with the digest.

    Parameters
    ----------
    file_type : type
        The struct whose fields are the body.
    """
    body = _struct_schema(file_type)
    definitions = body.pop("$defs", {})
    definitions[file_type.__name__] = body
    schema = {
        "description": "A file with the digest of its body, and a signature where it is signed.",
        "type": "object",
        "properties": {
            "kind": {"const": file_type.kind},
            "schema": {"const": 1},
            "digest": {
                "type": "string",
                "pattern": SHA256_PATTERN,
                "description": "SHA-256 of the bytes of the body, as they stand in the file.",
            },
            "body": {"$ref": f"#/$defs/{file_type.__name__}"},
            "key": {"type": "string", "description": "The public key that signed it."},
            "signature": {"type": "string", "description": "The signature, in Base64."},
        },
        "required": ["kind", "schema", "digest", "body"],
        "additionalProperties": False,
        "$defs": definitions,
    }
    return schema


def _registry_schema() -> dict[str, Any]:
    """Return the schema of a registry: client names to entries, or to numbers of samples."""
    entry = _struct_schema(terms.RegisteredClient)
    return {
        "description": "Registered clients by name, in TOML or JSON; a number is n-samples.",
        "type": "object",
        "additionalProperties": {"anyOf": [entry, {"type": "integer", "minimum": 1}]},
        "minProperties": 1,
    }


def _portable(schema: Any) -> Any:
    """Return a schema with patterns and descriptions that programs in other languages can use.

    Python's \\Z is $ elsewhere, where it never matches before a final line end.
    """
    if isinstance(schema, (list, tuple)):
        return [_portable(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    portable = {key: _portable(value) for key, value in schema.items()}
    if isinstance(portable.get("pattern"), str):
        portable["pattern"] = portable["pattern"].replace(r"\Z", "$")
    if isinstance(portable.get("description"), str):
        portable["description"] = cleandoc(portable["description"])
    return portable


def _struct_schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the schema of a struct with its definitions, the struct itself at the top."""
    schema = msgspec.json.schema(struct, schema_hook=_schema_of_other_type)
    definitions = schema.pop("$defs", {})
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        schema = definitions.pop(name)
    if definitions:
        schema["$defs"] = definitions
    return schema


def _schema_of_other_type(other_type: type) -> dict[str, Any]:
    """Return the schema of a type that JSON has no word for, as it stands in files."""
    if issubclass(other_type, np.ndarray):
        return {"type": "array"}
    raise NotImplementedError(f"{other_type} has no schema")


FILE_SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "report": _report_schema,
    "signed-report": _signed_report_schema,
    "calibration": lambda: _sealed_schema(CalibrationDocument),
    "record": lambda: _sealed_schema(RecordDocument),
    "client-feedback": lambda: _sealed_schema(ClientFeedback),
    "e-value-report": lambda: _struct_schema(EValueReport),
    "monitor": lambda: _sealed_schema(MonitorState),
    "alarm-history": lambda: _sealed_schema(AlarmHistory),
    "privacy-ledger": lambda: _struct_schema(LedgerFile),
    "round-terms": lambda: _struct_schema(terms.RoundTerms),
    "registry": _registry_schema,
    "client-policy": lambda: _struct_schema(ClientPolicyFile),
    "audit-event": lambda: _struct_schema(AuditEvent),
}
