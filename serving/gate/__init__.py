"""The quality gate: a candidate engine compared with references over HTTP."""
