"""The batch process of a Slurm job (``agent.supervisor.allocation_reuse``), as it is started; short, because
Python reads what it is started with anew each time.

    python -I -S .../agent/supervisor/batch_process.py FOLDER
"""

import os
import sys

if __name__ == "__main__":  # isolated: nothing of a user's may be in the way, and it starts the sooner
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120
    from agent.supervisor.allocation_reuse import main

    code = main()
    os._exit(code)  # nothing is left to be done
