"""A third engine, as small as can be: jobs are children of the coordinator and end with it."""
