{{/* The gateway's settings file: where it listens, its pools, whom it asks and lets in, and what `gateway.settings` adds. */}}
{{- define "serving.gatewaySettings" -}}
{{- $root := . -}}
{{- $pools := list -}}
{{- $rates := dict -}}
{{- range .Values.pools -}}
{{- $pool := include "serving.pool" (dict "root" $root "pool" .) | fromJson -}}
{{- $pools = append $pools (include "serving.gatewayPool" (dict "root" $root "pool" $pool) | fromYaml) -}}
{{- with $pool.routing -}}
{{- $_ := set $rates $pool.name . -}}
{{- end -}}
{{- end -}}
{{- $known := dict -}}
{{- if $rates -}}
{{- $_ := set $known "routing" (dict "pools" $rates) -}}
{{- end -}}
{{- if include "serving.hasGate" . -}}
{{- $_ := set $known "quality" (dict "enabled" true) -}}
{{- end -}}
{{- if .Values.gateway.limitStore.existingSecret -}}
{{- $_ := set $known "limits" (dict "store" (dict "replicas" (include "serving.mostGateways" . | int))) -}}
{{- end -}}
{{- $own := dict
  "server" (dict
    "host" "0.0.0.0" "port" 8000 "operator_host" "0.0.0.0" "operator_port" 9000
    "drain_delay_seconds" .Values.gateway.drainDelaySeconds "shutdown_grace_seconds" .Values.gateway.shutdownGraceSeconds)
  "relay" (dict "engine_secret_file" "/etc/serving/secret/engine-secret")
  "pools" $pools -}}
{{- $references := dict -}}
{{- range .Values.pools -}}
{{- if and .gate .gate.probes -}}
{{- $_ := set $references .name (printf "/etc/serving/quality/%s/probes.json" .name) -}}
{{- end -}}
{{- end -}}
{{- if $references -}}
{{- $_ := set $own "quality" (dict "references" $references "eject" .Values.gate.eject) -}}
{{- else if .Values.gate.eject -}}
{{- fail "gate.eject: needs pools[].gate.probes: without known answers and their floor nobody is ejected" -}}
{{- end -}}
{{- with include "serving.gatewayAuth" . | fromJson -}}
{{- $_ := set $own "auth" . -}}
{{- end -}}
{{- if include "serving.gatewaysTalk" . -}}
{{- $peers := dict "host" (include "serving.peersHost" .) "bind_host" "0.0.0.0" "port" 8002 -}}
{{- if not .Values.gateway.peers.existingSecret -}}
{{- $_ := set $peers "secret_file" "/etc/serving/secret/engine-secret" -}}
{{- end -}}
{{- $_ := set $own "peers" $peers -}}
{{- end -}}
{{- if .Values.gateway.database.existingSecret -}}
{{- $_ := set $own "ledger" (dict "spill_dir" "/var/lib/serving/spill") -}}
{{- end -}}
{{- mergeOverwrite $known (deepCopy .Values.gateway.settings) $own | toYaml -}}
{{- end -}}

{{/* One pool as the gateway knows it: where its engines are found. */}}
{{- define "serving.gatewayPool" -}}
name: {{ .pool.name | quote }}
model: {{ .pool.model | quote }}
target: {{ .pool.target | quote }}
{{ if .pool.mayBeEmpty -}}
may_be_empty: true
{{ end -}}
{{ if include "serving.asksServer" .root -}}
kubernetes: {service: {{ .pool.fullname | quote }}, namespace: {{ .root.Release.Namespace | quote }}, port: http}
{{- else -}}
host: {{ .pool.fullname }}.{{ .root.Release.Namespace }}.svc
port: {{ .pool.port | int64 }}
{{- end -}}
{{- end -}}

{{/* Who may ask, as JSON; keys and secrets come by environment and by volume. */}}
{{- define "serving.gatewayAuth" -}}
{{- $auth := dict -}}
{{- with .Values.gateway.keys.fileKey -}}
{{- $_ := set $auth "key_file" (printf "/etc/serving/keys/%s" .) -}}
{{- end -}}
{{- if not (include "serving.asksForKeys" .) -}}
{{- $_ := set $auth "allow_anonymous" true -}}
{{- end -}}
{{- $auth | toJson -}}
{{- end -}}

{{/* Not empty where gateways ask the API server for engines. */}}
{{- define "serving.asksServer" -}}
{{- if and .Values.pools (eq .Values.gateway.discovery "kubernetes") -}}
yes
{{- end -}}
{{- end -}}

{{/* Not empty where there is a place for API keys, so that requests without one are refused. */}}
{{- define "serving.asksForKeys" -}}
{{- $gateway := .Values.gateway -}}
{{- if or $gateway.apiKey.existingSecret $gateway.database.existingSecret $gateway.keys.fileKey (dig "auth" "keys" "" $gateway.settings) -}}
yes
{{- end -}}
{{- end -}}

{{/* Not empty where several gateways tell each other what they know. */}}
{{- define "serving.gatewaysTalk" -}}
{{- if and .Values.gateway.peers.enabled (gt (include "serving.mostGateways" . | int) 1) -}}
yes
{{- end -}}
{{- end -}}

{{- define "serving.peersHost" -}}
{{ include "serving.fullname" . }}-peers.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* How many gateways there may be, at least one. */}}
{{- define "serving.mostGateways" -}}
{{- $gateway := .Values.gateway -}}
{{- ternary $gateway.replicas $gateway.autoscaling.maxReplicas (eq $gateway.autoscaling.by "none") | int | max 1 -}}
{{- end -}}
