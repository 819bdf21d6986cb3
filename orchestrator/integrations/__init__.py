"""Interfaces of agents' frameworks on top of chats and memory."""
