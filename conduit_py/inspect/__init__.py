"""Looking at records: taps on a running pipeline, views of records cut and redacted, edits of them"""
