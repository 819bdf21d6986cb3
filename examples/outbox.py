"""Ships orders by tasks that are enqueued in the transaction that stores the order: see docs/guides/outbox.md.

Run `orc up outbox:agent` in one terminal and `python outbox.py` in another.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from orchestrator import Agent, InvalidInput, KeyConflict, QueueFull, StoreError, TaskContext
from orchestrator.sync import Orchestrator

KEPT = timedelta(days=7)
"""Retention of an ended task and its key. It must be longer than any outage of the relay."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, item TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (
    position INTEGER PRIMARY KEY,                               -- the order in which rows are sent
    id TEXT UNIQUE DEFAULT (lower(hex(randomblob(16)))),        -- the key of the task; never used twice
    skill TEXT NOT NULL,
    args TEXT NOT NULL,
    task TEXT,                                                  -- set once Redis has it
    refused TEXT                                                -- why Redis refuses it
);
CREATE INDEX IF NOT EXISTS unsent ON outbox (position) WHERE task IS NULL AND refused IS NULL;
"""

agent = Agent("warehouse")


@agent.skill
async def ship(ctx: TaskContext, number: int, item: str) -> str:
    """Ship an order. Pass the key of the task to calls that must not happen twice."""
    return f"order {number}: {item} (parcel {ctx.idempotency_key[:4]}…)"


def connect(path: str | Path) -> sqlite3.Connection:
    """Open the database of the application."""
    database = sqlite3.connect(path)
    database.executescript(SCHEMA)
    return database


def place_order(database: sqlite3.Connection, number: int, item: str) -> None:
    """Store an order and enqueue its task in one transaction."""
    with database:
        database.execute("INSERT INTO orders VALUES (?, ?)", (number, item))
        enqueue(database, "ship", {"number": number, "item": item})


def enqueue(database: sqlite3.Connection, skill: str, args: dict[str, Any]) -> None:
    """Add a task to the outbox, in the transaction of the caller."""
    database.execute("INSERT INTO outbox (skill, args) VALUES (?, ?)", (skill, json.dumps(args)))


def relay(database: sqlite3.Connection, orc: Orchestrator) -> int:
    """Submit the committed rows that are not marked yet, and return their number."""
    unsent = "SELECT id, skill, args FROM outbox WHERE task IS NULL AND refused IS NULL ORDER BY position LIMIT 100"
    rows = database.execute(unsent).fetchall()
    for id_, skill, args in rows:
        try:
            task = orc.submit(skill, json.loads(args), key=id_, result_ttl=KEPT)
        except (InvalidInput, KeyConflict) as refused:  # it would be refused again: an operator must look at it
            mark, value = "UPDATE outbox SET refused = ? WHERE id = ?", str(refused)
        else:
            mark, value = "UPDATE outbox SET task = ? WHERE id = ?", task.id
        with database:
            database.execute(mark, (value, id_))
    return len(rows)


def run_relay(path: str | Path) -> None:
    """Relay rows until the process ends. Several relays may run, and each may be killed at any time."""
    with Orchestrator() as orc:
        database = connect(path)
        while True:
            try:
                sent = relay(database, orc)
            except (QueueFull, StoreError) as later:
                print(f"later: {later}", file=sys.stderr)
                sent = 0
            if not sent:
                time.sleep(1)


def main() -> None:
    """Place three orders, of which one is rolled back, relay them, and wait until they are shipped."""
    with tempfile.TemporaryDirectory() as folder, Orchestrator() as orc:
        database = connect(Path(folder) / "shop.db")
        place_order(database, 1, "a kettle")
        place_order(database, 2, "a teapot")
        try:
            place_order(database, 2, "the same number again")
        except sqlite3.IntegrityError as refused:
            print(f"rolled back: {refused}")
        print(f"{relay(database, orc)} sent, then {relay(database, orc)}")
        for (task,) in database.execute("SELECT task FROM outbox ORDER BY position"):
            print(orc.task(task).result(timeout=30))


if __name__ == "__main__":
    main()
