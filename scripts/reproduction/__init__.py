"""Published tables and figures run again: what they are, their parts, what came out, and one report of it."""
