"""The bottom layer: errors, ids, settings, logging, time. Knows neither Redis nor any feature."""
