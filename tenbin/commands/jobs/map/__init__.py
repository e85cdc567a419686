"""``tenbin map``: one command with many arguments, in the style of GNU parallel.

``sources`` reads the arguments, ``template`` puts them into the command, ``runner`` makes the script that
each member of the array runs, ``outputs`` prints what they write, ``command`` is the command itself.
"""
