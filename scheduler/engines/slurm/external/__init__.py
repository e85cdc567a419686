"""External jobs: jobs of plain ``sbatch`` that tenbin takes over."""
