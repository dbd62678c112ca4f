"""Side-by-side comparisons: what conduit-py costs against a plain loop and against bytewax."""
