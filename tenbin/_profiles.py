"""The package ``profiles`` beside this one, under a name that no module of a user's program has.

Users' programs get records, models and the store by this name, whatever else is called ``profiles`` in their
folder. What is loaded by it imports its neighbours relatively: records, jobs, stats, models, files.
"""

from pathlib import Path

__path__ = [str(Path(__file__).parents[1] / "profiles")]
