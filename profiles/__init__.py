"""Knowledge: record types, models (fit, predict, uncertainty), the store, and files. Runs nothing."""
