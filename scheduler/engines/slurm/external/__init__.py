"""External jobs: jobs of plain ``sbatch`` that tenbin takes over, their needs, and how they are held."""
