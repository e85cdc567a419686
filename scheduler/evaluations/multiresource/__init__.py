"""Paper B's evaluation: least attained service on several resources."""
