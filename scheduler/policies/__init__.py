"""The policies, one file each; ``scheduler.registry`` names them."""
