{{/* The base of all names; 40 characters leave room for a pool's name in the 63 that a name may have. */}}
{{- define "serving.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- $full = .Values.fullnameOverride | default $full | replace "." "-" -}}
{{- if not (regexMatch "^[a-z]" $full) -}}
{{- fail (printf "the release's name %q begins with a digit, and the name of a Service may not; set fullnameOverride" .Release.Name) -}}
{{- end -}}
{{- if le (len $full) 40 -}}
{{- $full -}}
{{- else -}}
{{/* Cut, with a hash, so that two long names do not meet. */}}
{{- printf "%s-%s" ($full | trunc 31 | trimSuffix "-") ($full | sha256sum | trunc 8) -}}
{{- end -}}
{{- end -}}

{{- define "serving.selector" -}}
app.kubernetes.io/name: serving
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "serving.labels" -}}
{{ include "serving.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "serving.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "serving.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "serving.engineServiceAccountName" -}}
{{- $own := .Values.engineServiceAccount -}}
{{- $own.name | default (ternary (printf "%s-engine" (include "serving.fullname" .)) "default" $own.create) -}}
{{- end -}}

{{- define "serving.engineSecretName" -}}
{{- .Values.engineSecret.existingSecret | default (printf "%s-engine-secret" (include "serving.fullname" .)) -}}
{{- end -}}

{{/* An image's reference: by digest where there is one. Takes registry, repository, tag, digest. */}}
{{- define "serving.image" -}}
{{- if .registry }}{{ trimSuffix "/" .registry }}/{{ end }}{{ .repository }}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end -}}
{{- end -}}

{{- define "serving.gatewayImage" -}}
{{- $image := .Values.gateway.image -}}
{{- $registry := $image.registry | default .Values.global.imageRegistry -}}
{{- include "serving.image" (dict "registry" $registry "repository" $image.repository "tag" ($image.tag | default .Chart.AppVersion) "digest" $image.digest) -}}
{{- end -}}

{{- define "serving.imagePullSecrets" -}}
{{- with .Values.global.imagePullSecrets -}}
imagePullSecrets: {{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* The restricted Pod Security profile, for pods and for containers. Takes the root and more groups; and capabilities. */}}
{{- define "serving.podSecurity" -}}
runAsNonRoot: true
{{- range $field := list "runAsUser" "runAsGroup" "fsGroup" }}
{{- $value := index $.root.Values.security $field }}
{{- if not (kindIs "invalid" $value) }}
{{ $field }}: {{ $value | int64 }}
{{- end }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
{{- with .groups }}
supplementalGroups: {{ range . }}
  - {{ . | int64 }}
{{- end }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "serving.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- with .capabilities }}
  add: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Labels that meet the pods of one part of this release, and of no other. Takes the root and the component. */}}
{{- define "serving.componentSelector" -}}
{{ include "serving.selector" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}
