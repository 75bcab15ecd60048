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
app.kubernetes.io/instance: {{ .Release.Name }}
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

{{/* The restricted Pod Security profile, for pods and for containers. */}}
{{- define "serving.podSecurity" -}}
runAsNonRoot: true
runAsUser: 2000
runAsGroup: 2000
fsGroup: 2000
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "serving.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* A pool's profile as JSON; takes the root and the pool. A profile without a file is an error that names those there are. */}}
{{- define "serving.profile" -}}
{{- $pool := .pool -}}
{{- $file := .root.Files.Get (printf "files/profiles/%s.json" $pool.profile) -}}
{{- if not $file -}}
{{- $known := list -}}
{{- range $path, $_ := .root.Files.Glob "files/profiles/*.json" -}}
{{- $known = append $known (base $path | trimSuffix ".json") -}}
{{- end -}}
{{- fail (printf "pools: %s: profile: %q is not in this chart; there are: %s" $pool.name $pool.profile (join ", " $known)) -}}
{{- end -}}
{{- $file -}}
{{- end -}}

{{/* What the schema cannot say. */}}
{{- define "serving.checkPools" -}}
{{- $seen := dict -}}
{{- range .Values.pools -}}
{{- if hasKey $seen .name -}}
{{- fail (printf "pools: the name %q is given twice" .name) -}}
{{- end -}}
{{- if eq .name "gateway" -}}
{{- fail "pools: the name \"gateway\" is the gateway's own; give another one" -}}
{{- end -}}
{{- $_ := set $seen .name true -}}
{{- end -}}
{{- end -}}

{{- define "serving.poolName" -}}
{{- printf "%s-%s" (include "serving.fullname" .root) .pool.name -}}
{{- end -}}

{{/* The reference of a pool's engine image. A digest belongs to one repository and tag: with another of these it is not the
     profile's any more. */}}
{{- define "serving.engineImage" -}}
{{- $own := .pool.image | default dict -}}
{{- $image := merge (dict) $own (pick .profile.image "registry" "repository" "tag") -}}
{{- if not (or $own.repository $own.tag (hasKey $own "digest")) -}}
{{- $_ := set $image "digest" .profile.image.digest -}}
{{- end -}}
{{- include "serving.image" $image -}}
{{- end -}}

{{- /* Not empty where there is a place for API keys, so that requests without one are refused. */}}
{{- define "serving.asksForKeys" -}}
{{- $gateway := .Values.gateway -}}
{{- if or $gateway.apiKey.existingSecret $gateway.database.existingSecret $gateway.keys.fileKey (dig "auth" "keys" "" $gateway.settings) -}}
yes
{{- end -}}
{{- end }}
