"""Secrets in JSON texts are masked by their keys, also in texts that were cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.views.hidden_keys import mask_keys

MASK = "********"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"api_key": "x\\"y", "n": 1}', '{"api_key": "********", "n": 1}'),
        ('{"authToken": {"a": ["}", {}]}, "n": 1}', '{"authToken": "********", "n": 1}'),
        ('{"p\\u0061ssword":123}', '{"p\\u0061ssword":"********"}'),
        ('{"password": null, "secret": true}', '{"password": null, "secret": true}'),
        (
            '{"mail/token": "x", "mail:apiKey": "x", "token/length": 5}',
            '{"mail/token": "********", "mail:apiKey": "********", "token/length": 5}',
        ),
        ('{"max_tokens": 5, "tokens": [1]}', '{"max_tokens": 5, "tokens": [1]}'),
        ('{"text": "\\"token\\": \\"x\\""}', '{"text": "\\"token\\": \\"x\\""}'),
        ('["password", "x"]', '["password", "x"]'),
        ('{"password": "hunt', '{"password": "********"'),
        ('{"secret": [1, {"a": "]"', '{"secret": "********"'),
        ('{"a": {"secret": "x"}, "token" : 7}', '{"a": {"secret": "********"}, "token" : "********"}'),
        ('{"token"', '{"token"'),
        ('{"token": "a\\', '{"token": "********"\\'),
        ("", ""),
    ],
)
def test_masks(text: str, shown: str) -> None:
    """Texts, numbers, objects and lists of secret keys; null, flags and other keys stay."""
    assert mask_keys(text) == shown


def _values(secret: bool) -> Any:  # noqa: FBT001 - a strategy
    names = st.sampled_from(["password", "apiKey", "x_token"]) if secret else st.sampled_from(["a", "tokens", 'q"\\'])
    return st.recursive(
        st.integers() | st.text() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(names, inner)
    )


@given(_values(secret=False))
def test_other_json_stays(value: Any) -> None:
    """Text without secret keys is not changed."""
    text = json.dumps(value, ensure_ascii=False)
    assert mask_keys(text) == text


@given(_values(secret=True))
def test_masked_json_is_json(value: Any) -> None:
    """The rest is as it was, and each secret is one string."""

    def masked(one: Any) -> Any:
        if isinstance(one, dict):
            return {name: inner if inner is None else MASK for name, inner in one.items()}
        return [masked(inner) for inner in one] if isinstance(one, list) else one

    assert json.loads(mask_keys(json.dumps(value))) == masked(value)


@given(st.integers(0, 60))
def test_a_cut_text_shows_no_secret(end: int) -> None:
    """Wherever the text was cut."""
    text = '{"name": "Ada", "password": {"deep": ["hunter2"]}, "n": 1}'
    assert "hunter" not in mask_keys(text[:end])
