"""The default store: one SQLite file in a directory that one process owns"""
