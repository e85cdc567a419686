"""The commands, one file for each group; heavy libraries are imported inside them, so that --help is fast."""
