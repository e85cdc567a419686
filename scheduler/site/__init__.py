"""What an administrator meets: is the cluster fit for tenbin, what are its nodes like?"""
