"""A job that sleeps, on node1 for one time and elsewhere for another, and can be moved between.

Its checkpoint is how much of it is left (``test_slurm_classes.py``).

    class_sleeper.py FILE FIRST_S OTHER_S
"""

import os
import signal
import sys
import time
from pathlib import Path

file, first_s, other_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
left = float(file.read_text()) if file.exists() else 1.0
whole_s = first_s if os.uname().nodename == "node1" else other_s
begin = time.monotonic()


def leave(number: int, frame: object) -> None:
    rest = left - (time.monotonic() - begin) / whole_s
    aside = file.with_suffix(".new")
    aside.write_text(str(max(rest, 0.0)))
    aside.replace(file)
    sys.exit(85)


signal.signal(signal.SIGURG, leave)
time.sleep(left * whole_s)
