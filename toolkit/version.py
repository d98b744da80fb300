"""The version of the tool, which records and bundles carry; pyproject.toml says the same."""

from typing import Final

TOOL_VERSION: Final = "0.1.0"
