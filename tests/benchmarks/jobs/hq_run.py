"""HyperQueue behind standard input: ``hq_run.py FOLDER CORES``, with a Python that has it (pip: hyperqueue).

Reads a list of commands as one line of JSON, submits them as one job, and answers with a line when all have
ended. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import time


def main(folder: str, cores: int) -> None:
    """Serve until the input ends."""
    from hyperqueue import Job, LocalCluster
    from hyperqueue.cluster import WorkerConfig

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # it talks on standard output
    with LocalCluster(folder, WorkerConfig(cores=cores)) as cluster:
        client = cluster.client()
        answers.write("ready\n")
        for line in sys.stdin:
            job = Job(default_workdir=folder)
            for command in json.loads(line):
                job.program(command)
            began = time.time()
            submitted = client.submit(job)
            took = time.time() - began
            client.wait_for_jobs([submitted])
            answers.write(json.dumps({"began_s": began, "submit_s": took}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
