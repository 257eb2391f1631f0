"""What OpenTelemetry is told: traces of messages, and metrics. Needs the extra ``otel``; see ADR 0071."""
