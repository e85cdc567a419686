"""``tenbin top``: the queue in a terminal.

Views (``job_list``, ``pages``) are plain objects: they turn answers of the API into lines, and keys into
effects. ``app`` draws the lines with Textual, asks the coordinator, and carries the effects out.
"""
