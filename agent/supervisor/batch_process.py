"""The start of the batch process of a Slurm job (``agent.supervisor.allocation_reuse``).

    python -I -S .../agent/supervisor/batch_process.py FOLDER

The file is short, because Python compiles it anew at each start.
"""

import os
import sys

if __name__ == "__main__":  # isolated (-I), so that no module of the user is in the way
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120
    from agent.supervisor.allocation_reuse import main

    code = main()
    os._exit(code)  # nothing is left to be done
