"""What agents say of themselves: fields that anybody may read, many agents at once, and which of them live."""
