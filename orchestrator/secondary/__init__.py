"""Second storage for chats and memory, outside of Redis."""
