{{/* What the schema cannot say, each with its path and what would be right. */}}
{{- define "serving.checkValues" -}}
{{- $values := .Values -}}
{{- include "serving.checkSettings" . -}}
{{- include "serving.checkReach" . -}}
{{- include "serving.checkSharedClaims" . -}}
{{- $seen := dict -}}
{{- range $values.pools -}}
{{- if hasKey $seen .name -}}
{{- fail (printf "pools: the name %q is given twice" .name) -}}
{{- end -}}
{{- if has .name (list "gateway" "gate" "peers" "test") -}}
{{- fail (printf "pools: the name %q is the chart's own, as that of gateways, of the gate and of helm's test are; give another one" .name) -}}
{{- end -}}
{{- $_ := set $seen .name true -}}
{{- if and .autoscaling (not $values.autoscaling.prometheus.address) -}}
{{- fail (printf "pools: %s: autoscaling: needs autoscaling.prometheus.address, where KEDA reads the demand" .name) -}}
{{- end -}}
{{- end -}}
{{- if and (include "serving.hasGate" .) (eq $values.gateway.discovery "dns") -}}
{{- fail "gateway.discovery: must be kubernetes where a pool has a gate: a name without addresses may be a name server that fails, so an engine that the gate took out would serve on" -}}
{{- end -}}
{{- $keys := $values.gateway.keys -}}
{{- if and (or $values.gateway.database.existingSecret $keys.fileKey) (not $keys.existingSecret) -}}
{{- fail "gateway.keys.existingSecret: is empty, and the keys of gateway.database and gateway.keys.fileKey are hashed with what is in it" -}}
{{- end -}}
{{- $scaling := $values.gateway.autoscaling -}}
{{- if and (ne $scaling.by "none") (gt ($scaling.minReplicas | int) ($scaling.maxReplicas | int)) -}}
{{- fail "gateway.autoscaling: minReplicas is more than maxReplicas" -}}
{{- end -}}
{{- if and (eq $scaling.by "keda") (not $values.autoscaling.prometheus.address) -}}
{{- fail "gateway.autoscaling.by: keda needs autoscaling.prometheus.address; or scale by hpa" -}}
{{- end -}}
{{- if and $values.gateway.ingress.enabled (not $values.gateway.ingress.host) -}}
{{- fail "gateway.ingress.host: is missing; name the host that the Ingress answers for" -}}
{{- end -}}
{{- if and $values.gateway.httpRoute.enabled (not $values.gateway.httpRoute.parentRefs) -}}
{{- fail "gateway.httpRoute.parentRefs: is missing; name the Gateways that the route joins" -}}
{{- end -}}
{{- end -}}

{{/* The same for one pool; takes the root, the pool and its profile. */}}
{{- define "serving.checkPool" -}}
{{- $pool := .pool -}}
{{- $profile := .profile -}}
{{- if eq ($pool.engine | default "vllm") "sim" -}}
{{- if not $profile.simulation -}}
{{- fail (printf "pools: %s: engine: nothing is known of the speed of the profile %s, so it cannot be simulated; take another profile" $pool.name $pool.profile) -}}
{{- end -}}
{{- else -}}
{{- include "serving.checkWeights" . -}}
{{- include "serving.checkShape" . -}}
{{- end -}}
{{- include "serving.checkGate" . -}}
{{- $budgets := $profile.budgets -}}
{{- $drain := ternary $pool.drainSeconds $budgets.drain_seconds (hasKey $pool "drainSeconds") | int -}}
{{- $needed := add $budgets.pre_stop_seconds $drain $budgets.stop_margin_seconds -}}
{{- with $pool.terminationGracePeriodSeconds -}}
{{- if lt (. | int64) $needed -}}
{{- fail (printf "pools: %s: terminationGracePeriodSeconds: %d cuts off requests, which may run for %d s after a stop; at least %d, or leave it out" $pool.name (. | int) $drain $needed) -}}
{{- end -}}
{{- end -}}
{{- with $pool.autoscaling -}}
{{- if gt (.minReplicas | int) (.maxReplicas | int) -}}
{{- fail (printf "pools: %s: autoscaling: minReplicas %d is more than maxReplicas %d" $pool.name (.minReplicas | int) (.maxReplicas | int)) -}}
{{- end -}}
{{- if hasKey $pool "replicas" -}}
{{- fail (printf "pools: %s: replicas: is for autoscaling to say; leave out one of the two" $pool.name) -}}
{{- end -}}
{{- if not (or .requestsPerReplica $profile.concurrency) -}}
{{- fail (printf "pools: %s: autoscaling.requestsPerReplica: is missing, and the profile %s sets no max-num-seqs that it could be taken from" $pool.name $pool.profile) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A gate that leaves no engine behind would be an outage at each upgrade. */}}
{{- define "serving.checkGate" -}}
{{- $pool := .pool -}}
{{- with $pool.gate -}}
{{- if eq ($pool.engine | default "vllm") "sim" -}}
{{- fail (printf "pools: %s: gate: a simulated engine answers with made-up words, which no gate passes; leave out gate while engine is sim" $pool.name) -}}
{{- end -}}
{{- $scaling := $pool.autoscaling | default dict -}}
{{- $least := ternary ($scaling.minReplicas | default 0) (ternary $pool.replicas 1 (hasKey $pool "replicas")) (hasKey $pool "autoscaling") | int -}}
{{- if and (lt $least 2) (not .spareNode) (not .allowOutage) -}}
{{- fail (printf "pools: %s: gate: the pool may have one engine only, and while the new one is judged none would serve; set gate.spareNode: true where a node is free for one more, gate.allowOutage: true, or two replicas" $pool.name) -}}
{{- end -}}
{{- if and .spareNode .allowOutage -}}
{{- fail (printf "pools: %s: gate: with spareNode there is no outage to allow; leave out one of the two" $pool.name) -}}
{{- end -}}
{{- if gt ($pool.maxUnavailable | default 1 | int) 1 -}}
{{- fail (printf "pools: %s: maxUnavailable: must be 1 with gate, so that a bad engine takes the place of one and no more" $pool.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "serving.checkWeights" -}}
{{- $pool := .pool -}}
{{- $profile := .profile -}}
{{- $fetch := ternary $pool.fetch true (hasKey $pool "fetch") -}}
{{- if and $fetch (not $profile.fetch) -}}
{{- fail (printf "pools: %s: fetch: the profile %s names no hub; set fetch: false and give weights that a node or a claim holds" $pool.name $pool.profile) -}}
{{- end -}}
{{- if and $fetch (not ($pool.revision | default $profile.fetch.revision)) -}}
{{- fail (printf "pools: %s: revision: is missing; the catalog pins no commit of %s: name one of its commits, or set fetch: false and give weights that hold the model" $pool.name $profile.fetch.repository) -}}
{{- end -}}
{{- $weights := $pool.weights | default dict -}}
{{- if and (not $fetch) (not (or $weights.node $weights.claim)) -}}
{{- fail (printf "pools: %s: weights: with fetch: false a node or a claim must hold the model; give weights.node or weights.claim" $pool.name) -}}
{{- end -}}
{{- $pods := mul (max (ternary $pool.replicas 1 (hasKey $pool "replicas") | int) (dig "maxReplicas" 0 ($pool.autoscaling | default dict) | int)) ($profile.nodes_per_engine | int) -}}
{{- if dig "spareNode" false ($pool.gate | default dict) -}}
{{- $pods = add $pods ($profile.nodes_per_engine | int) -}}
{{- end -}}
{{- $namespace := .root.Release.Namespace -}}
{{- range $key := list "weights" "compiled" -}}
{{- $place := index $pool $key | default dict -}}
{{- with $place.claim -}}
{{- $modes := list .accessMode -}}
{{- $there := lookup "v1" "PersistentVolumeClaim" $namespace .name -}}
{{- if $there -}}
{{- $modes = $there.spec.accessModes -}}
{{- if not (has .accessMode $modes) -}}
{{- fail (printf "pools: %s: %s.claim.accessMode: the claim %s has %s, not %s" $pool.name $key .name (join ", " $modes) .accessMode) -}}
{{- end -}}
{{- end -}}
{{- if and (gt $pods 1) (not (or (has "ReadWriteMany" $modes) (has "ReadOnlyMany" $modes))) -}}
{{- fail (printf "pools: %s: %s.claim: %s is %s, which one node can mount, and the pool has up to %d pods; take a ReadWriteMany claim, or %s.node" $pool.name $key .name .accessMode $pods $key) -}}
{{- end -}}
{{- if and (eq .accessMode "ReadOnlyMany") (or $fetch (eq $key "compiled")) -}}
{{- fail (printf "pools: %s: %s.claim: %s is ReadOnlyMany, and the pool writes to it; take a ReadWriteMany claim%s" $pool.name $key .name (ternary ", or fetch: false" "" (eq $key "weights"))) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $key "compiled") (dig "folder" "" ($place.node | default $place.claim | default dict)) -}}
{{- fail (printf "pools: %s: compiled: folder is the chart's to name; leave it out" $pool.name) -}}
{{- end -}}
{{- if and (eq $key "weights") $fetch (dig "folder" "" ($place.node | default $place.claim | default dict)) -}}
{{- fail (printf "pools: %s: weights: folder is for fetch: false; fetched models have folders of their own" $pool.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Parallelism and devices are the profile's, which was checked as a whole. */}}
{{- define "serving.checkShape" -}}
{{- $pool := .pool -}}
{{- $profile := .profile -}}
{{- range $word := $pool.extraArguments -}}
{{- $flag := regexFind "^--?[^=]+" $word -}}
{{- $owned := has ($flag | replace "_" "-") $profile.owned_flags -}}
{{- /* vLLM's parser takes the beginning of a flag for the flag. */ -}}
{{- range $profile.owned_flags -}}
{{- $owned = or $owned (and (gt (len $flag) 3) (hasPrefix "--" $flag) (hasPrefix ($flag | replace "_" "-") .)) -}}
{{- end -}}
{{- if $owned -}}
{{- fail (printf "pools: %s: extraArguments: %s is the profile's or the chart's; take a profile that sets it (drainSeconds for --shutdown-timeout)" $pool.name $flag) -}}
{{- end -}}
{{- end -}}
{{- with $pool.resources -}}
{{- $resources := . -}}
{{- with $profile.device -}}
{{- $device := . -}}
{{- range $key := list "requests" "limits" -}}
{{- $given := index (index $resources $key | default dict) $device.resource -}}
{{- if and (or (eq $key "limits") (not (kindIs "invalid" $given))) (ne (toString $given) (toString ($device.count | int))) -}}
{{- fail (printf "pools: %s: resources.%s: %s: must be %d, which is what the parallelism of the profile %s takes of each node" $pool.name $key $device.resource ($device.count | int) $pool.profile) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
