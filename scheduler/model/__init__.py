"""Jobs, clusters, placements, events and actions, and the cluster state that simulator and coordinator share.

Costs, speeds and slow-downs of jobs are here too. All other folders of ``scheduler`` may import this one.
"""
