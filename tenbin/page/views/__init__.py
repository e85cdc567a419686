"""Views of the page: queue, Gantt, job, nodes, truth, and what was measured."""
