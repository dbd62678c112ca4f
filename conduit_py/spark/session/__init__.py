"""The Spark of this process: its session, Java, YARN, jobs and errors."""
