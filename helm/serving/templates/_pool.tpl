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

{{- define "serving.poolName" -}}
{{- printf "%s-%s" (include "serving.fullname" .root) .pool.name -}}
{{- end -}}

{{/* The name of a set of groups: shorter, since its controller hangs numbers and hashes on it. */}}
{{- define "serving.groupName" -}}
{{- $name := include "serving.poolName" . -}}
{{- if gt (len $name) 45 -}}
{{- $name = printf "%s-%s" ($name | trunc 36 | trimSuffix "-") ($name | sha256sum | trunc 8) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* The reference of a pool's engine image. A digest belongs to one repository and tag: with another of these it is not the
     profile's any more. */}}
{{- define "serving.engineImage" -}}
{{- $own := .pool.image | default dict -}}
{{- $variant := $own.variant | default .root.Values.global.imageVariant -}}
{{- $image := pick .profile.image "registry" "repository" "tag" -}}
{{- if eq $variant "hardened" -}}
{{- $image = merge (dict "registry" .root.Values.gateway.image.registry) .profile.hardened -}}
{{- else if not (or $own.repository $own.tag (hasKey $own "digest")) -}}
{{- $_ := set $image "digest" .profile.image.digest -}}
{{- end -}}
{{- with .root.Values.global.imageRegistry -}}
{{- $_ := set $image "registry" . -}}
{{- end -}}
{{- include "serving.image" (merge (dict) $own $image) -}}
{{- end -}}

{{/* Everything that a pool comes to, as JSON: the profile with the pool's own values in their places. Takes the root and the pool. */}}
{{- define "serving.pool" -}}
{{- $root := .root -}}
{{- $pool := .pool -}}
{{- $profile := include "serving.profile" . | fromJson -}}
{{- include "serving.checkPool" (dict "pool" $pool "profile" $profile "root" $root) -}}
{{- $simulated := eq ($pool.engine | default "vllm") "sim" -}}
{{- $budgets := $profile.budgets -}}
{{- $fetches := and (not $simulated) (ternary $pool.fetch true (hasKey $pool "fetch")) -}}
{{- $startup := ternary 60 ($pool.startupSeconds | default $budgets.startup_seconds) $simulated | int -}}
{{- $fetching := ternary (dig "fetch" "seconds" 0 (dict "fetch" ($profile.fetch | default dict))) 0 $fetches | int -}}
{{- $waiting := ternary 0 (dig "wait" "seconds" 0 (dict "wait" ($profile.wait | default dict))) $simulated | int -}}
{{- $drain := ternary $pool.drainSeconds $budgets.drain_seconds (hasKey $pool "drainSeconds") | int -}}
{{- $stopping := add $budgets.pre_stop_seconds $drain $budgets.stop_margin_seconds -}}
{{- $out := dict
  "name" $pool.name
  "fullname" (include "serving.poolName" .)
  "simulated" $simulated
  "profile" $pool.profile
  "description" $profile.description
  "model" $profile.model
  "target" $profile.target
  "nodes" (ternary 1 $profile.nodes_per_engine $simulated | int)
  "replicas" (ternary $pool.replicas 1 (hasKey $pool "replicas") | int)
  "scaled" (hasKey $pool "autoscaling")
  "mayBeEmpty" (eq (ternary (dig "autoscaling" "minReplicas" 0 $pool) (ternary $pool.replicas 1 (hasKey $pool "replicas")) (hasKey $pool "autoscaling") | int) 0)
  "maxUnavailable" ($pool.maxUnavailable | default 1 | int)
  "image" (ternary (include "serving.gatewayImage" $root) (include "serving.engineImage" (dict "root" $root "pool" $pool "profile" $profile)) $simulated)
  "pullPolicy" (ternary $root.Values.gateway.image.pullPolicy "IfNotPresent" $simulated)
  "port" ($profile.port | int)
  "startupSeconds" $startup
  "progressSeconds" (add $startup $fetching $waiting 1200)
  "preStopSeconds" ($budgets.pre_stop_seconds | int)
  "workerStopSeconds" (add $budgets.pre_stop_seconds $drain)
  "terminationSeconds" ($pool.terminationGracePeriodSeconds | default $stopping | int)
  "podAnnotations" ($pool.podAnnotations | default dict)
-}}
{{- with $pool.gate -}}
{{- $_ := set $out "gate" . -}}
{{- $_ := set $out "progressSeconds" (add $out.progressSeconds $root.Values.gate.runSeconds) -}}
{{- $_ := set $out "surges" (.spareNode | default false) -}}
{{- $_ := set $out "checkpoint" (include "serving.checkpoint" (dict "pool" $pool "profile" $profile "fetches" $fetches)) -}}
{{- end -}}
{{- with $profile.routing -}}
{{- $elastic := or .elastic (and (hasKey $pool "autoscaling") (eq (dig "autoscaling" "minReplicas" 1 $pool | int) 0)) -}}
{{- $_ := set $out "routing" (set (deepCopy .) "elastic" (and $elastic (not (kindIs "invalid" $profile.price_dollars_per_node_hour)))) -}}
{{- end -}}
{{- if $simulated -}}
{{- $words := hasKey $pool "drainSeconds" | ternary (list "--drain-seconds" (toString $drain)) list -}}
{{- $_ := set $out "command" (concat $profile.simulation.argv $words) -}}
{{- $_ := set $out "resources" (dict "requests" (dict "cpu" "100m" "memory" "256Mi") "limits" (dict "memory" "1Gi")) -}}
{{- $_ := set $out "environment" (dict) -}}
{{- $_ := set $out "volumes" false -}}
{{- else -}}
{{- $words := hasKey $pool "drainSeconds" | ternary (list "--shutdown-timeout" (toString $drain)) list -}}
{{- $words = concat ($pool.extraArguments | default list) $words -}}
{{- $_ := set $out "command" (concat $profile.argv $words) -}}
{{- with $profile.worker_argv -}}
{{- $_ := set $out "workerCommand" (concat . $words) -}}
{{- end -}}
{{- $_ := set $out "environment" (merge (dict) ($pool.environment | default dict) $profile.environment) -}}
{{- $_ := set $out "resources" ($pool.resources | default $profile.resources) -}}
{{- range $key := list "nodeSelector" "tolerations" -}}
{{- $_ := set $out $key (ternary (index $pool $key) (index $profile $key) (hasKey $pool $key)) -}}
{{- end -}}
{{- range $key := list "affinity" "topologySpreadConstraints" "groupTopologyKey" "priorityClassName" "runtimeClassName" -}}
{{- $_ := set $out $key (index $pool $key) -}}
{{- end -}}
{{- $_ := set $out "volumes" true -}}
{{- $_ := set $out "groups" (ternary $pool.supplementalGroups $profile.supplementalGroups (hasKey $pool "supplementalGroups")) -}}
{{- $_ := set $out "capabilities" $profile.capabilities -}}
{{- $_ := set $out "sharedMemory" ($pool.sharedMemory | default ($profile.shared_memory_bytes | int64 | toString)) -}}
{{- $_ := set $out "weights" ($pool.weights | default (dict "pod" dict)) -}}
{{- $_ := set $out "weightsFolder" (include "serving.placeFolder" ($pool.weights | default dict)) -}}
{{- $_ := set $out "compiled" ($pool.compiled | default (dict "pod" dict)) -}}
{{- $_ := set $out "compiledFolder" (printf "compiled/%s-%s" $profile.target ($out.image | sha256sum | trunc 16)) -}}
{{- if $fetches -}}
{{- $revision := $pool.revision | default $profile.fetch.revision -}}
{{- $folder := printf "%s-%s" $profile.weights_folder (trunc 12 $revision) -}}
{{- $_ := set $out "weightsFolder" $folder -}}
{{- $files := ternary list $profile.fetch.files (and (hasKey $pool "revision") (ne $revision $profile.fetch.revision)) -}}
{{- $words := concat $profile.fetch.program (list $profile.fetch.repository $revision (printf "%s/%s" $profile.fetch.volume $folder)) $files -}}
{{- $_ := set $out "fetch" (dict "argv" $words "environment" $profile.fetch.environment) -}}
{{- $_ := set $out "weightsBytes" $profile.weights_bytes -}}
{{- end -}}
{{- $_ := set $out "wait" $profile.wait -}}
{{- $_ := set $out "device" $profile.device -}}
{{- end -}}
{{- $out | toJson -}}
{{- end -}}

{{/* The weights by name, for the digest of a configuration: which commit of which repository, or where they lie. */}}
{{- define "serving.checkpoint" -}}
{{- $place := .pool.weights | default dict -}}
{{- $fetch := .profile.fetch | default dict -}}
{{- $revision := .pool.revision | default (ternary $fetch.revision "" .fetches) -}}
{{- if $revision -}}
{{ $fetch.repository | default .profile.model }}@{{ $revision }}
{{- else if $place.claim -}}
claim {{ $place.claim.name }}/{{ $place.claim.folder | default "" }}
{{- else if $place.node -}}
node {{ $place.node.path }}/{{ $place.node.folder | default "" }}
{{- else -}}
{{ .profile.profile }}
{{- end -}}
{{- end -}}

{{- define "serving.placeFolder" -}}
{{- (.node | default .claim | default dict).folder | default "" -}}
{{- end -}}

{{/* The source of a volume at a place. */}}
{{- define "serving.placeVolume" -}}
{{- if .node -}}
hostPath: {path: {{ .node.path | quote }}, type: Directory}
{{- else if .claim -}}
persistentVolumeClaim: {claimName: {{ .claim.name | quote }}{{ if eq .claim.accessMode "ReadOnlyMany" }}, readOnly: true{{ end }}}
{{- else -}}
emptyDir: {}
{{- end -}}
{{- end -}}

{{- define "serving.poolLabels" -}}
{{ include "serving.selector" .root }}
app.kubernetes.io/component: engine
serving/pool: {{ .pool.name | quote }}
{{- end -}}
