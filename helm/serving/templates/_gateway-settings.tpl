{{/* The gateway's settings file: where it listens, its pools, and what `gateway.settings` adds. */}}
{{- define "serving.gatewaySettings" -}}
{{- $root := . -}}
{{- $pools := list -}}
{{- range .Values.pools -}}
{{- $pool := include "serving.pool" (dict "root" $root "pool" .) | fromJson -}}
{{- $pools = append $pools (include "serving.gatewayPool" (dict "root" $root "pool" $pool) | fromYaml) -}}
{{- end -}}
{{- $own := dict
  "server" (dict
    "host" "0.0.0.0" "port" 8000 "operator_host" "0.0.0.0" "operator_port" 9000
    "drain_delay_seconds" .Values.gateway.drainDelaySeconds "shutdown_grace_seconds" .Values.gateway.shutdownGraceSeconds)
  "relay" (dict "engine_secret_file" "/etc/serving/secret/engine-secret")
  "pools" $pools -}}
{{- mergeOverwrite (deepCopy .Values.gateway.settings) $own | toYaml -}}
{{- end -}}

{{/* One pool as the gateway knows it: where its engines are found. */}}
{{- define "serving.gatewayPool" -}}
name: {{ .pool.name }}
model: {{ .pool.model | quote }}
target: {{ .pool.target }}
host: {{ .pool.fullname }}.{{ .root.Release.Namespace }}.svc
port: {{ .pool.port | int64 }}
{{- end -}}
