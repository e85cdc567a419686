"""What users' programs import to submit jobs and wait for them: ``tenbin.Client``, ``tenbin.submit``."""
