"""The policies, one file each; ``scheduler.policies.registry`` names them."""
