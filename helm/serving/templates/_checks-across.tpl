{{/* What fits only when several values are seen together. */}}

{{/* Names in the gateway's settings that lead nowhere: the gateway refuses them, too, but only when its pods start. */}}
{{- define "serving.checkSettings" -}}
{{- $root := . -}}
{{- $settings := .Values.gateway.settings -}}
{{- $pools := list -}}
{{- $models := keys ($settings.models | default dict) -}}
{{- range .Values.pools -}}
{{- $pools = append $pools .name -}}
{{- $models = append $models (include "serving.profile" (dict "root" $root "pool" .) | fromJson).model -}}
{{- end -}}
{{- $models = $models | uniq | sortAlpha -}}
{{- range $section := list "routing" "prices" -}}
{{- range $name := keys (dig $section "pools" dict $settings) | sortAlpha -}}
{{- include "serving.checkName" (dict "path" (printf "%s.pools.%s" $section $name) "kind" "pool" "name" $name "known" $pools) -}}
{{- end -}}
{{- end -}}
{{- range $name := keys (dig "prices" "models" dict $settings) | sortAlpha -}}
{{- include "serving.checkName" (dict "path" (printf "prices.models.%s" $name) "kind" "model" "name" $name "known" $models) -}}
{{- end -}}
{{- range $tenant, $terms := $settings.tenants -}}
{{- range $at, $name := $terms.models -}}
{{- include "serving.checkName" (dict "path" (printf "tenants.%s.models.%d" $tenant $at) "kind" "model" "name" $name "known" $models) -}}
{{- end -}}
{{- end -}}
{{- range $public, $model := $settings.models -}}
{{- range $field := list "alias_of" "adapter_of" -}}
{{- with index $model $field -}}
{{- include "serving.checkName" (dict "path" (printf "models.%s.%s" $public $field) "kind" "model" "name" . "known" $models) -}}
{{- end -}}
{{- end -}}
{{- range $at, $name := $model.fallbacks -}}
{{- include "serving.checkName" (dict "path" (printf "models.%s.fallbacks.%d" $public $at) "kind" "model" "name" $name "known" $models) -}}
{{- end -}}
{{- end -}}
{{- with $settings.tenants -}}
{{- $tenants := append (keys .) "default" | sortAlpha -}}
{{- range $at, $key := dig "auth" "keys" list $settings -}}
{{- include "serving.checkName" (dict "path" (printf "auth.keys.%d.tenant" $at) "kind" "tenant" "name" $key.tenant "known" $tenants) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "serving.checkName" -}}
{{- if not (has .name .known) -}}
{{- fail (printf "gateway.settings.%s: there is no %s %q; there are: %s" .path .kind .name (join ", " .known)) -}}
{{- end -}}
{{- end -}}

{{/* Addresses in values that the network policies would not let anybody reach. */}}
{{- define "serving.checkReach" -}}
{{- $policy := .Values.networkPolicy -}}
{{- if $policy.enabled -}}
{{- range $path, $found := dict "hub.endpoint" (list .Values.hub.endpoint "hub") "gateway.settings.tracing.endpoint" (list (dig "tracing" "endpoint" "" .Values.gateway.settings) "traces") -}}
{{- with first $found -}}
{{- $url := urlParse . -}}
{{- $port := regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) | default (ternary "80" "443" (eq $url.scheme "http")) -}}
{{- $open := list -}}
{{- range (index $policy (last $found)).ports -}}
{{- $open = append $open (. | int64 | toString) -}}
{{- end -}}
{{- if not (has $port $open) -}}
{{- fail (printf "networkPolicy.%s.ports: lacks %s, which %s needs; set it to [%s]" (last $found) $port $path $port) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A claim for one node cannot be mounted by the pods of two pools, wherever each of them finds its devices. */}}
{{- define "serving.checkSharedClaims" -}}
{{- $owners := dict -}}
{{- range $pool := .Values.pools -}}
{{- if ne ($pool.engine | default "vllm") "sim" -}}
{{- range $key := list "weights" "compiled" -}}
{{- with (index $pool $key | default dict).claim -}}
{{- $owner := get $owners .name -}}
{{- if and $owner (ne $owner $pool.name) (hasPrefix "ReadWriteOnce" .accessMode) -}}
{{- fail (printf "pools: %s: %s.claim: %s is %s, which one node can mount, and the pool %s has it, too; take a ReadWriteMany claim, or a claim for each pool" $pool.name $key .name .accessMode $owner) -}}
{{- end -}}
{{- $_ := set $owners .name $pool.name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
