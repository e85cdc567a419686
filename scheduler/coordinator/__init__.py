"""The coordinator: one policy, one engine and a journal that no crash loses.

Each job that users submit is journalled before anything is done about it.
"""
