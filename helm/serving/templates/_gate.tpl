{{/* The gate's controller: what it is called, whether it is there, and its settings file. */}}
{{- define "serving.gateName" -}}
{{ include "serving.fullname" . }}-gate
{{- end -}}

{{/* Not empty where a pool has a gate. */}}
{{- define "serving.hasGate" -}}
{{- range .Values.pools -}}
{{- if .gate -}}
yes
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "serving.gateSettings" -}}
{{- $pools := dict -}}
{{- range .Values.pools -}}
{{- if .gate -}}
{{- $_ := set $pools .name (concat (list "--profile" .profile) .gate.arguments) -}}
{{- end -}}
{{- end -}}
namespace: {{ .Release.Namespace | quote }}
name: {{ include "serving.gateName" . | quote }}
owner: {{ include "serving.gateName" . | quote }}
selector: app.kubernetes.io/instance={{ .Release.Name }},serving/gated=true
pools: {{- toYaml $pools | nindent 2 }}
engine_secret_file: /etc/serving/secret/engine-secret
run_seconds: {{ .Values.gate.runSeconds }}
{{- end -}}
