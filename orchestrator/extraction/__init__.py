"""Extraction: records of memory from the turns of chats, made by tasks."""
