"""Control commands: declaration, signature, storage, receipts, and the desired state that they set."""
