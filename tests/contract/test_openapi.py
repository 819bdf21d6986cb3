"""The OpenAPI document is what the operations declare, and the API has what pages and forms have."""

from __future__ import annotations

import re

from orchestrator.control.commands import KINDS
from orchestrator.core.reading import read_text
from orchestrator.dashboard.api.operation import OPERATIONS
from orchestrator.dashboard.api.problems import PREFIX
from orchestrator.dashboard.api.streams import DOCUMENT
from orchestrator.dashboard.app import declared_routes
from orchestrator.dashboard.bulk import JOBS
from orchestrator.dashboard.commands import GIVEN
from orchestrator.dashboard.page import PAGES
from tools.openapi import document, rendered

UNREAD = {
    "/bulk/{action}": "a question before a job; a program has the ids",
    "/commands": "the document lists the commands",
    "/commands/{kind}": "a form; the document has its fields",
    "/submit": "a form; /skills/{skill} has its schema",
}
"""Pages without an operation."""


def test_the_document_is_generated() -> None:
    """`make generate` has written the committed document."""
    assert read_text(DOCUMENT.read_bytes()) == rendered(), "run `make generate`"


def test_each_page_has_an_operation() -> None:
    """A program can read what a page shows."""
    read = {one.path for one in OPERATIONS if one.method == "GET"}
    pages = {"/overview" if page.path == "/" else page.path for page in PAGES}
    assert pages - read == set(UNREAD)


def test_each_form_has_an_operation() -> None:
    """A program can do what a form does, with the same class."""
    others = {"/limits/locks/release": "/locks/release", "/submit": "/tasks"}
    forms = {
        (others.get(one.path, one.path), one.danger)
        for one in declared_routes()
        if one.danger and not one.path.startswith(PREFIX)
    }
    assert forms == {(one.path, one.danger) for one in OPERATIONS if one.danger}
    given = {one.path.rpartition("/")[2] for one in OPERATIONS if one.path.startswith("/commands/")}
    assert given == set(GIVEN)
    assert {model.model_fields["kind"].default for model in JOBS.values()} | given <= set(KINDS)


def test_each_route_of_the_api_is_an_operation() -> None:
    """The document leaves no route out."""
    routes = {(one.method, one.path) for one in declared_routes() if one.path.startswith(PREFIX)}
    assert routes == {(one.method, PREFIX + one.path) for one in OPERATIONS} | {("GET", f"{PREFIX}/openapi.json")}


def test_references_lead_somewhere() -> None:
    """Each `$ref` names a part of the document, and each name of an operation occurs once."""
    text, parts = rendered(), document()["components"]
    for kind, name in re.findall(r'"#/components/(\w+)/([^"]+)"', text):
        assert name in parts[kind]
    names = re.findall(r'"operationId": "(\w+)"', text)
    assert len(names) == len(set(names)) == len(OPERATIONS)


def test_no_answer_has_stored_bytes() -> None:
    """Fields of bytes are left out of answers."""
    schemas = document()["components"]["schemas"]
    assert set(schemas["StoredPart"]["properties"]) == {"task_id", "part", "size", "in_store"}
    assert not {"args", "result"} & set(schemas["TaskInfo"]["properties"])
