"""Commands that try policies in virtual time."""
