"""Places that may hold text about a person, so that the text can be found without a scan."""
