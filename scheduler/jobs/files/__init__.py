"""Files that jobs name: checks of paths, patterns of output files."""
