"""Who may use the dashboard and its API: users with passwords, tokens, one-time links."""
