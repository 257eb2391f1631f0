"""OpenTelemetry: traces of messages, and metrics. Needs the extra ``otel``."""
