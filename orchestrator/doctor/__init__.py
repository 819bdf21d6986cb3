"""`orc doctor`: looks at machine, settings, server and pool, and says what to do. It changes nothing."""
