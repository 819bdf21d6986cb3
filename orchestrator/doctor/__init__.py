"""Diagnoses machine, settings, server and pool for `orc doctor`, and names a fix for every finding. Changes nothing."""
