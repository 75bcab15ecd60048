"""Of the gateway's process itself. `process_…` and `python_…` beside them are the Prometheus client's own."""

from serving.observability.series.definition import counter, gauge

BUILD_INFO = gauge("serving_build_info", "Always 1; the version of the gateway.", "version", over_gateways="each")
IN_FLIGHT = gauge("serving_in_flight_requests", "Requests between arrival and their last byte.")
OPEN_LEASES = gauge("serving_open_leases", "Leases taken and not yet given back.")
ENGINE_CONNECTIONS = gauge("serving_engine_connections", "Open connections to engines, idle ones included.")
DRAINING = gauge("serving_draining", "1 from SIGTERM on.", over_gateways="each")
LOG_LINES_DROPPED = counter("serving_log_lines_dropped", "Log lines given up because their reader was too slow.")
TRACES = counter(
    "serving_traces", "Traced requests: `sent`, `dropped` since too many waited, or `refused` by the receiver.", "result"
)
