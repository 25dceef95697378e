{{- define "farrank.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "farrank.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "farrank.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "farrank.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* A Deployment's selector can never change, so it contains no version. */}}
{{- define "farrank.selector" -}}
app.kubernetes.io/name: {{ include "farrank.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "farrank.serverSelector" -}}
{{ include "farrank.selector" . }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "farrank.envoySelector" -}}
{{ include "farrank.selector" . }}
app.kubernetes.io/component: envoy
{{- end -}}

{{- define "farrank.labels" -}}
{{ include "farrank.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "farrank.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "farrank.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* The name of Farrank's service in gRPC's health service. */}}
{{- define "farrank.service" -}}
farrank.v1.RerankService
{{- end -}}

{{/* The service whose name resolves to the addresses of all replicas. */}}
{{- define "farrank.replicasName" -}}
{{ include "farrank.fullname" . }}-replicas
{{- end -}}

{{- define "farrank.replicasHost" -}}
{{ include "farrank.replicasName" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* 30 is the server's own default, for releases that set the value to null. */}}
{{- define "farrank.drainSeconds" -}}
{{- $drain := dig "listen" "drain_timeout_s" nil .Values.config -}}
{{- ternary 30.0 $drain (kindIs "invalid" $drain) | float64 | ceil | int64 -}}
{{- end -}}

{{/* The grace period includes preStop. The 15 s cover the last refusals, one second, and the release of models and indexes. */}}
{{- define "farrank.graceSeconds" -}}
{{- add .Values.preStopSeconds (include "farrank.drainSeconds" .) 15 -}}
{{- end -}}

{{/* Envoy runs on for preStopSeconds, a connection's greatest age, Envoy's drain_timeout (5 s), and the last calls. */}}
{{- define "farrank.envoyPreStopSeconds" -}}
{{- add .Values.preStopSeconds .Values.envoy.connectionSeconds 5 .Values.envoy.drainSeconds -}}
{{- end -}}

{{/* Refuses values that the chart would override, and values that contradict each other. */}}
{{- define "farrank.check" -}}
{{- $elsewhere := dict
  "host" "host" "port" "ports.grpc" "metrics_port" "ports.metrics" "metrics_token_file" "metrics.tokenSecretName"
  "tls" "tls.secretName" "keys" "apiKeys.secretName"
-}}
{{- range $key, $value := $elsewhere -}}
{{- if hasKey ($.Values.config.listen | default dict) $key -}}
{{- fail (printf "config.listen.%s: the chart sets it; set %s" $key $value) -}}
{{- end -}}
{{- end -}}
{{- range $key, $value := dict "port" "ports.http" "models" "modelNames, whose order is kept" -}}
{{- if hasKey (dig "listen" "http" (dict) $.Values.config | default dict) $key -}}
{{- fail (printf "config.listen.http.%s: the chart sets it; set %s" $key $value) -}}
{{- end -}}
{{- end -}}
{{- if hasKey .Values.config "rankers" -}}
{{- fail "config.rankers: set rankers, a list whose first entry is the default one; Helm would sort a mapping" -}}
{{- end -}}
{{- $names := list -}}
{{- range .Values.rankers -}}
{{- if has .name $names -}}
{{- fail (printf "rankers: %q is listed twice; each ranker needs its own name" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range .Values.modelNames -}}
{{- if eq .name "*" -}}
{{- fail "modelNames: * would set every name in the server's configuration; use **, which also matches any name" -}}
{{- end -}}
{{- end -}}
{{- range .Values.env -}}
{{- if hasPrefix "FARRANK_" .name -}}
{{- fail (printf "env: %s is refused; set the configuration in config, so that grace period, probes and ports follow it" .name) -}}
{{- end -}}
{{- end -}}
{{- $ports := without (list .Values.ports.grpc .Values.ports.http .Values.ports.metrics) nil -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
{{- fail "ports: grpc, http and metrics must differ; each endpoint needs its own port" -}}
{{- end -}}
{{- $surge := .Values.rollingUpdate.maxSurge | toString | trimSuffix "%" -}}
{{- $missing := .Values.rollingUpdate.maxUnavailable | toString | trimSuffix "%" -}}
{{- if and (eq $surge "0") (eq $missing "0") -}}
{{- fail "rollingUpdate: maxSurge and maxUnavailable are both 0; no pod could ever be replaced" -}}
{{- end -}}
{{- range $name, $folder := merge (dict "cache" .Values.cache) .Values.data -}}
{{- if and $folder.volume $folder.claim -}}
{{- fail (printf "%s: both a volume and a claim are set; set only one of them" (ternary $name (printf "data.%s" $name) (eq $name "cache"))) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ports.http) -}}
{{- fail "ingress: it needs HTTP, which ports.http: null switches off" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress: hosts is empty; name at least one" -}}
{{- end -}}
{{- if and .Values.grpcRoute.enabled (not .Values.grpcRoute.parentRefs) -}}
{{- fail "grpcRoute: parentRefs is empty; name a gateway" -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail (printf "autoscaling: minReplicas %v is above maxReplicas %v" .Values.autoscaling.minReplicas .Values.autoscaling.maxReplicas) -}}
{{- end -}}
{{- end -}}

{{/* Whether pods take changed rankers without a restart. They do not export, so with `export: auto` they restart. */}}
{{- define "farrank.watches" -}}
{{- if and .Values.watch (eq .Values.export "never") -}}true{{- end -}}
{{- end -}}

{{/* The part of farrank.yaml that needs new pods when it changes. The first ranker is the default one. */}}
{{- define "farrank.fixedConfig" -}}
{{- $config := include "farrank.config" . -}}
{{- if include "farrank.watches" . -}}
{{- $config = printf "%s %s" (first .Values.rankers).name (omit (fromYaml $config) "rankers" "objective" | toJson) -}}
{{- end -}}
{{- $config -}}
{{- end -}}

{{/* farrank.yaml. Rankers and model names keep their order. JSON is valid YAML. */}}
{{- define "farrank.config" -}}
{{- include "farrank.check" . -}}
{{- $config := deepCopy .Values.config -}}
{{- with include "farrank.threads" . -}}
{{- $_ := set $config "device" (merge (dict "threads" (int .)) ($config.device | default dict)) -}}
{{- end -}}
{{- $listen := $config.listen | default dict -}}
{{- if .Values.tls.secretName -}}
{{- $tls := dict "certificate" "/etc/farrank/tls/tls.crt" "private_key" "/etc/farrank/tls/tls.key" -}}
{{- $_ := set $listen "tls" $tls -}}
{{- end -}}
{{- if .Values.apiKeys.secretName -}}
{{- $_ := set $listen "keys" (printf "/etc/farrank/keys/%s" .Values.apiKeys.key) -}}
{{- end -}}
{{- if .Values.metrics.tokenSecretName -}}
{{- $_ := set $listen "metrics_token_file" (printf "/etc/farrank/metrics/%s" .Values.metrics.tokenKey) -}}
{{- end -}}
{{- $http := $listen.http | default dict -}}
{{- $listen = omit $listen "http" -}}
rankers:
{{- range .Values.rankers }}
  {{ .name | quote }}: {{ omit . "name" | toJson }}
{{- end }}
listen:
{{- with $listen }}
{{ toYaml . | indent 2 }}
{{- end }}
  http:
{{- with $http }}
{{ toYaml . | indent 4 }}
{{- end }}
{{- if .Values.modelNames }}
    models:
{{- range .Values.modelNames }}
      {{ .name | quote }}: {{ .ranker | quote }}
{{- end }}
{{- end }}
{{- if not (or $http .Values.modelNames) }} {}
{{- end }}
{{- with omit $config "listen" }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
The startup and readiness probes ask gRPC's health service. Kubernetes' gRPC probe supports no TLS: with TLS, the probes ask
/readyz on the metrics port, in plain HTTP.
*/}}
{{- define "farrank.healthProbe" -}}
{{- if not .Values.tls.secretName -}}
grpc: {port: {{ .Values.ports.grpc }}, service: {{ include "farrank.service" . }}}
{{- else -}}
httpGet: {path: /readyz, port: metrics}
{{- end -}}
{{- end -}}

{{/*
The volume of the folder `name` with the values `of`: the chart's own claim, another volume, or an emptyDir.
*/}}
{{- define "farrank.volume" -}}
{{- if .of.claim -}}
persistentVolumeClaim: {claimName: {{ printf "%s-%s" (include "farrank.fullname" .root) .name }}}
{{- else -}}
{{- .of.volume | default (dict "emptyDir" dict) | toYaml -}}
{{- end -}}
{{- end -}}

{{/*
The placement of the pods that `selector` selects. The values `of` have nodeSelector, tolerations, affinity,
priorityClassName and topologySpreadConstraints.
*/}}
{{- define "farrank.placement" -}}
{{- with .of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $counted := dict "labelSelector" (dict "matchLabels" (fromYaml .selector)) }}
{{- with .of.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{- toYaml (ternary . (merge (deepCopy .) $counted) (hasKey . "labelSelector")) | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* A quantity of CPUs as a number: "1500m" is 1.5. */}}
{{- define "farrank.cpus" -}}
{{- $cpu := toString . -}}
{{- ternary (divf (trimSuffix "m" $cpu | float64) 1000) ($cpu | float64) (hasSuffix "m" $cpu) -}}
{{- end -}}

{{/* The CPUs that a container requests, rounded up: its request, or its limit, or 2. */}}
{{- define "farrank.wholeCpus" -}}
{{- max 1 (include "farrank.cpus" (dig "requests" "cpu" (dig "limits" "cpu" 2 .) .) | float64 | ceil | int) -}}
{{- end -}}

{{/*
The number of threads that the server computes with: the configured number, or one per CPU of its limit, or of its request.
Without any of these the server chooses, and it sees every core of the node. A limit is rounded down, because threads beyond
it would wait for each other; a request is rounded up.
*/}}
{{- define "farrank.threads" -}}
{{- with dig "device" "threads" nil .Values.config -}}
{{- . | int -}}
{{- else -}}
{{- with dig "limits" "cpu" nil .Values.resources -}}
{{- max 1 (include "farrank.cpus" . | float64 | floor | int) -}}
{{- else -}}
{{- with dig "requests" "cpu" nil .Values.resources -}}
{{- max 1 (include "farrank.cpus" . | float64 | ceil | int) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The default tag of Farrank's image: version and target. */}}
{{- define "farrank.defaultTag" -}}
{{- printf "%s-%s" .Chart.AppVersion .Values.image.target -}}
{{- end -}}

{{/* A container's fields for `image`. Its tag is `default` if it has none. */}}
{{- define "farrank.image" -}}
{{- $name := .image.repository -}}
{{- with .image.registry -}}
{{- $name = printf "%s/%s" . $name -}}
{{- end -}}
image: {{ ternary (printf "%s@%s" $name .image.digest) (printf "%s:%s" $name (.image.tag | default .default)) (ne .image.digest "") | quote }}
{{- with .image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end -}}

{{/*
The Deployment's `replicas`. With autoscaling this is the current number: without the field, the upgrade that enables
autoscaling would set it to Kubernetes' default, 1. It is empty if the release does not run yet, or if Helm asks no cluster.
*/}}
{{- define "farrank.replicas" -}}
{{- if not .Values.autoscaling.enabled -}}
{{- .Values.replicas -}}
{{- else -}}
{{- $running := lookup "apps/v1" "Deployment" .Release.Namespace (include "farrank.fullname" .) -}}
{{- with dig "spec" "replicas" nil $running -}}
{{- . | int -}}
{{- end -}}
{{- end -}}
{{- end -}}
