"""The local engine: this machine, with nothing else installed; and how it finds what is here."""
