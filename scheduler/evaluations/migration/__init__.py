"""Paper A's evaluation: migration between classes of resource."""
