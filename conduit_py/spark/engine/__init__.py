"""The engine `spark`: executors read and process, the driver writes."""
