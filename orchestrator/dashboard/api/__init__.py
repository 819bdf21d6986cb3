"""The HTTP API of the dashboard: what a page shows as JSON, and what a form does as POST, below `/api/v1`.

Each operation is declared once, beside the function that answers it; `tools/openapi.py` writes the OpenAPI document
from these declarations.
"""
