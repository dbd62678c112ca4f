"""What a fleet tells about itself: metrics, dashboards and alerts."""
