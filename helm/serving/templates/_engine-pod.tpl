{{/* The template of an engine's pod. Takes the root, the resolved pool, and for another node of an engine than its first `worker`. */}}
{{- define "serving.enginePod" -}}
{{- $root := .root -}}
{{- $pool := .pool -}}
{{- $worker := .worker | default false -}}
metadata:
  # Without the chart's version: an engine is not restarted for a chart that renders it as before.
  labels:
    {{- include "serving.poolLabels" (dict "root" $root "pool" $pool) | nindent 4 }}
    serving/target: {{ $pool.target | quote }}
    serving/part: {{ ternary "worker" "leader" $worker }}
    {{- if and $pool.gate (not $worker) }}
    serving/gated: "true"
    {{- end }}
  annotations:
    checksum/files: {{ ($root.Files.Glob "files/pod/*.py").AsConfig | sha256sum | quote }}
    serving/model: {{ $pool.model | quote }}
    {{- if and $pool.gate (not $worker) }}
    serving/checkpoint: {{ $pool.checkpoint | quote }}
    {{- end }}
    {{- with include "serving.exceptions" $pool }}
    serving/security-exceptions: {{ . | quote }}
    {{- end }}
    {{- with $pool.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "serving.engineServiceAccountName" $root | quote }}
  automountServiceAccountToken: false
  # Variables such as VLLM_PORT, made from a Service called vllm, would be read as settings.
  enableServiceLinks: false
  {{- with include "serving.imagePullSecrets" $root }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $pool.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- with $pool.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  terminationGracePeriodSeconds: {{ $pool.terminationSeconds | int64 }}
  {{- if and $pool.gate (not $worker) }}
  # It gets no request before the gate's controller says that it answers right.
  readinessGates:
    - conditionType: serving/quality
  {{- end }}
  securityContext: {{- include "serving.podSecurity" (dict "root" $root "groups" $pool.groups) | nindent 4 }}
  {{- with $pool.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pool.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pool.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pool.topologySpreadConstraints }}
  topologySpreadConstraints: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "serving.engineInit" (dict "root" $root "pool" $pool) }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - name: engine
      image: {{ $pool.image | quote }}
      imagePullPolicy: {{ $pool.pullPolicy }}
      command: {{- toYaml (ternary $pool.workerCommand $pool.command $worker) | nindent 8 }}
      {{- if or $pool.environment $worker }}
      env:
        {{- if $worker }}
        - name: NODE_RANK
          valueFrom:
            fieldRef: {fieldPath: "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']"}
        {{- end }}
        {{- range $key, $value := $pool.environment }}
        - name: {{ $key | quote }}
          value: {{ $value | quote }}
        {{- end }}
      {{- end }}
      resources: {{- toYaml $pool.resources | nindent 8 }}
      {{- if not $worker }}
      ports:
        - name: http
          containerPort: {{ $pool.port | int64 }}
      # It has started when it has answered with a token; from then on it listens as long as it works.
      startupProbe:
        exec:
          command: [python3, /etc/serving/engine/first_token.py, {{ $pool.port | int64 | quote }}, {{ $pool.model | quote }}]
        periodSeconds: 10
        timeoutSeconds: 120
        failureThreshold: {{ divf $pool.startupSeconds 10 | ceil | int64 }}
      readinessProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 3
      livenessProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 6
      lifecycle:
        # Gateways hear meanwhile that it leaves; then it takes no more requests and finishes those it has.
        preStop:
          exec:
            command: [sleep, {{ $pool.preStopSeconds | int64 | quote }}]
      {{- else }}
      lifecycle:
        # It works on for as long as its leader has requests to finish.
        preStop:
          exec:
            command: [sleep, {{ $pool.workerStopSeconds | int64 | quote }}]
      {{- end }}
      securityContext: {{- include "serving.containerSecurity" $pool | nindent 8 }}
      volumeMounts:
        - {name: files, mountPath: /etc/serving/engine, readOnly: true}
        - {name: secret, mountPath: /etc/serving/secret, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- if $pool.volumes }}
        - {name: weights, mountPath: /model{{ with $pool.weightsFolder }}, subPath: {{ . | quote }}{{ end }}, readOnly: true}
        - {{ include "serving.homeMount" $pool }}
        - {name: shm, mountPath: /dev/shm}
        {{- end }}
  volumes:
    - name: files
      configMap: {name: {{ include "serving.fullname" $root }}-engine-files}
    - name: secret
      secret:
        secretName: {{ include "serving.engineSecretName" $root | quote }}
        defaultMode: 0440
        items:
          - {key: engine-secret, path: engine-secret}
    - name: tmp
      emptyDir: {}
    {{- if $pool.volumes }}
    - name: weights
      {{- include "serving.placeVolume" $pool.weights | nindent 6 }}
    - name: home
      {{- include "serving.placeVolume" $pool.compiled | nindent 6 }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $pool.sharedMemory | quote }}}
    {{- end }}
{{- end -}}

{{/* What happens before the engine starts: its cache has a folder, its weights are there, its devices are free. */}}
{{- define "serving.engineInit" -}}
{{- $root := .root -}}
{{- $pool := .pool -}}
{{- if and $pool.volumes (not (hasKey $pool.compiled "pod")) }}
- name: make-cache
  image: {{ $pool.image | quote }}
  imagePullPolicy: {{ $pool.pullPolicy }}
  command: [mkdir, -p, /cache/{{ $pool.compiledFolder }}]
  resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}
  securityContext: {{- include "serving.containerSecurity" dict | nindent 4 }}
  volumeMounts:
    - {name: home, mountPath: /cache}
{{- end }}
{{- with $pool.fetch }}
- name: fetch-model
  image: {{ $pool.image | quote }}
  imagePullPolicy: {{ $pool.pullPolicy }}
  command: {{- toYaml .argv | nindent 4 }}
  env:
    {{- range $key, $value := .environment }}
    - name: {{ $key | quote }}
      value: {{ $value | quote }}
    {{- end }}
    {{- with $root.Values.hub.endpoint }}
    - name: HF_ENDPOINT
      value: {{ . | quote }}
    {{- end }}
    {{- with $root.Values.hub.existingSecret }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef: {name: {{ . | quote }}, key: {{ $root.Values.hub.key | quote }}}
    {{- end }}
  resources:
    requests: {cpu: 100m, memory: 512Mi}
    limits: {memory: 2Gi}
  securityContext: {{- include "serving.containerSecurity" dict | nindent 4 }}
  volumeMounts:
    - {name: weights, mountPath: /weights}
    - {name: files, mountPath: /etc/serving/engine, readOnly: true}
    - {{ include "serving.homeMount" $pool }}
    - {name: tmp, mountPath: /tmp}
{{- end }}
{{- with $pool.wait }}
# It gets the same devices as the engine; Kubernetes counts them once.
- name: wait-for-memory
  image: {{ $pool.image | quote }}
  imagePullPolicy: {{ $pool.pullPolicy }}
  command: {{- toYaml .argv | nindent 4 }}
  resources:
    requests: {cpu: 10m, memory: 64Mi}
    limits: {memory: 128Mi, {{ $pool.device.resource }}: {{ $pool.device.count | int64 }}}
  securityContext: {{- include "serving.containerSecurity" dict | nindent 4 }}
  volumeMounts:
    - {name: files, mountPath: /etc/serving/engine, readOnly: true}
    - {name: tmp, mountPath: /tmp}
{{- end }}
{{- end -}}

{{/* Everything that an engine compiles and keeps is below its home: one folder for each image, so that a new one starts afresh. */}}
{{- define "serving.homeMount" -}}
{name: home, mountPath: /home/engine{{ if not (hasKey .compiled "pod") }}, subPath: {{ .compiledFolder | quote }}{{ end }}}
{{- end -}}

{{/* What the restricted Pod Security profile does not admit of a pool, as a sentence, or nothing. */}}
{{- define "serving.exceptions" -}}
{{- $found := list -}}
{{- range .capabilities -}}
{{- $found = append $found (printf "capability %s, which the target %s needs" . $.target) -}}
{{- end -}}
{{- if dig "weights" "node" "" . -}}
{{- $found = append $found "hostPath, since weights are on the node" -}}
{{- end -}}
{{- if dig "compiled" "node" "" . -}}
{{- $found = append $found "hostPath, since compiled is on the node" -}}
{{- end -}}
{{- join "; " $found -}}
{{- end -}}
