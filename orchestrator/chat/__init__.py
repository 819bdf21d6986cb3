"""Chats: the messages of a session."""
