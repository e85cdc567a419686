"""Paper E's evaluation: execution regions."""
