"""Work on real devices: what is measured on them, and who executes."""
