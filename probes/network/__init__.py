"""All-to-all communication between cores or hosts (comprobe)."""
