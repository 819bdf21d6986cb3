"""The commands of `orc`: one module per noun, imported when the noun is typed."""
