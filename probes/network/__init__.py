"""All-to-all communication between cores or hosts (comprobe).

``probe`` starts the ranks (``rank``) after a check of the ``hosts``. ``stream`` and ``streamer`` are comprobe
as a neighbour of jobs.
"""
