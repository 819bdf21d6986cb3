"""The kit's own scripts keep the rules of the project's."""

from __future__ import annotations

import re
from pathlib import Path

import orchestrator.testing
from orchestrator.store.key_kinds import POOL_KEYS
from orchestrator.store.keys import PoolKeys
from orchestrator.store.script_files import all_scripts
from orchestrator.testing import scripts
from tests.helpers.cases import each_case

KEYS = PoolKeys("a:b:c", "p")
COMMANDS = {
    "advance": scripts.advance(KEYS, by_ms=1),
    "advance_providers": scripts.advance_providers(KEYS, names=["n"], by_ms=1),
    "remaining": scripts.remaining(KEYS),
    "records": scripts.records(KEYS, ids=["t"]),
}


def test_every_script_has_a_function() -> None:
    """Each file has a function of its name, and no production server is given any of them."""
    folder = Path(orchestrator.testing.__file__).parent / "lua"
    assert {path.stem for path in folder.glob("*.lua")} == set(scripts.NAMES) == set(COMMANDS)
    production = {script.sha for script in all_scripts().values()}
    assert not production & {scripts.script_file(name).sha for name in scripts.NAMES}


@each_case("name", scripts.NAMES)
def test_a_script_is_sent_as_it_declares(name: str) -> None:
    """It has one key, the root of the pool, and the arguments of its binding block."""
    script = scripts.script_file(name)
    assert [key.name for key in script.keys] == ["pool"]
    assert COMMANDS[name][:4] == ["EVAL", script.text, 1, KEYS.root]
    assert len(COMMANDS[name]) == 4 + len(script.args)


def test_all_keys_are_known() -> None:
    """Every key that the kit touches is one of the table of keys."""
    known = {re.sub(r"[A-Z]+$", "", kind.suffix) if "TOTAL" not in kind.suffix else kind.suffix for kind in POOL_KEYS}
    for name in scripts.NAMES:
        built = set(re.findall(r"pool \.\. ':([^']+)'", scripts.script_file(name).text))
        assert built - {"queue:"} <= known, name  # the names of queues are read as they are
