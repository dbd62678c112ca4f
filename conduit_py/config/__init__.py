"""From files to pipelines."""
