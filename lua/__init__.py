"""The server-side scripts, shipped as package data; `orchestrator.store.script_files` reads them."""
