"""The table of ONEFOLD_* variables in docs/deployment.md, from the class that reads them."""

from __future__ import annotations

from pydantic import SecretStr

from shared.runtime.settings import PREFIX, Settings


def variables() -> str:
    """A Markdown table: each variable, its default, what is allowed."""
    rows = [
        f"| `{PREFIX}{name.upper()}` | {_shown(field.default)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join(["| variable | default | allowed |", "|---|---|---|", *rows])


def _shown(default: object) -> str:
    match default:
        case None | "" | SecretStr():
            return ""
        case bool():
            return f"`{str(default).lower()}`"
        case _:
            return f"`{default}`"
