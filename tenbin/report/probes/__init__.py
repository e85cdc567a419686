"""Pictures of each probe's samples and fits: one file a probe."""
