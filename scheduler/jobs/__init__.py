"""What users ask for: the specification of a job, its size, and its memory."""
