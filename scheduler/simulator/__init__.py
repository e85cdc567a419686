"""Virtual time: simulated jobs on a simulated cluster under the policies that also schedule real jobs."""
