"""Looking at records while a pipeline runs, and changing those that were refused.

`tap` shows samples of what passes a node. `record_view` makes a view of a record that is cut to a size and has its
secrets removed. `record_edit` applies a person's edit of such a view to the record itself.
"""
