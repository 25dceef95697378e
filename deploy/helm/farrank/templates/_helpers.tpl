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

{{/* What a Deployment selects never changes, so that it holds no version. */}}
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

{{/* The name by which gRPC's health service knows ours. */}}
{{- define "farrank.service" -}}
farrank.v1.RerankService
{{- end -}}

{{/* Where callers reach all replicas: their addresses, one name. */}}
{{- define "farrank.replicasName" -}}
{{ include "farrank.fullname" . }}-replicas
{{- end -}}

{{- define "farrank.replicasHost" -}}
{{ include "farrank.replicasName" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* The server's own default where the value was taken out. */}}
{{- define "farrank.drainSeconds" -}}
{{- $drain := dig "listen" "drain_timeout_s" nil .Values.config -}}
{{- ternary 30.0 $drain (kindIs "invalid" $drain) | float64 | ceil | int64 -}}
{{- end -}}

{{/* preStop counts, too. The server takes a second more for its last refusals, and what it loaded has to be let go. */}}
{{- define "farrank.graceSeconds" -}}
{{- add .Values.preStopSeconds (include "farrank.drainSeconds" .) 15 -}}
{{- end -}}

{{/* How long a pod of Envoy goes on: preStopSeconds, the age of a connection, Envoy's drain_timeout, and the last calls. */}}
{{- define "farrank.envoyPreStopSeconds" -}}
{{- add .Values.preStopSeconds .Values.envoy.connectionSeconds 5 .Values.envoy.drainSeconds -}}
{{- end -}}

{{/* What would be overridden, or would not fit the rest, is refused. */}}
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
{{- fail "config.rankers: set rankers, a list whose first is the default one; Helm would sort a mapping" -}}
{{- end -}}
{{- $names := list -}}
{{- range .Values.rankers -}}
{{- if has .name $names -}}
{{- fail (printf "rankers: %q stands twice; each has a name of its own" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range .Values.modelNames -}}
{{- if eq .name "*" -}}
{{- fail "modelNames: * would set every name in the server's configuration; ** fits any name, too" -}}
{{- end -}}
{{- end -}}
{{- range .Values.env -}}
{{- if hasPrefix "FARRANK_" .name -}}
{{- fail (printf "env: %s is not taken; set the configuration in config, so that grace, probes and ports follow it" .name) -}}
{{- end -}}
{{- end -}}
{{- $ports := without (list .Values.ports.grpc .Values.ports.http .Values.ports.metrics) nil -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
{{- fail "ports: grpc, http and metrics must differ; each door has a port of its own" -}}
{{- end -}}
{{- $surge := .Values.rollingUpdate.maxSurge | toString | trimSuffix "%" -}}
{{- $missing := .Values.rollingUpdate.maxUnavailable | toString | trimSuffix "%" -}}
{{- if and (eq $surge "0") (eq $missing "0") -}}
{{- fail "rollingUpdate: maxSurge and maxUnavailable are both 0; no pod could ever be replaced" -}}
{{- end -}}
{{- range $name, $folder := merge (dict "cache" .Values.cache) .Values.data -}}
{{- if and $folder.volume $folder.claim -}}
{{- fail (printf "%s: it has a volume and a claim; give one of them" (ternary $name (printf "data.%s" $name) (eq $name "cache"))) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ports.http) -}}
{{- fail "ingress: it is for HTTP, which ports.http: null switches off" -}}
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

{{/* farrank.yaml. JSON is YAML; rankers and names of models stand in their own order. */}}
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
What a probe asks: gRPC's health service. Kubernetes' own probe of it speaks no TLS: then the same health beside the metrics,
in plain HTTP.
*/}}
{{- define "farrank.healthProbe" -}}
{{- if not .Values.tls.secretName -}}
grpc: {port: {{ .Values.ports.grpc }}, service: {{ include "farrank.service" . }}}
{{- else -}}
httpGet: {path: /readyz, port: metrics}
{{- end -}}
{{- end -}}

{{/*
The volume of the folder `name` with the values `of`: a claim of the chart's, another volume, or one that is empty at first.
*/}}
{{- define "farrank.volume" -}}
{{- if .of.claim -}}
persistentVolumeClaim: {claimName: {{ printf "%s-%s" (include "farrank.fullname" .root) .name }}}
{{- else -}}
{{- .of.volume | default (dict "emptyDir" dict) | toYaml -}}
{{- end -}}
{{- end -}}

{{/*
Where the pods that `selector` selects go: the values `of` have nodeSelector, tolerations, affinity, priorityClassName and
topologySpreadConstraints.
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

{{/* The CPUs that a container asks for, in whole ones; 2 where it asks for none. */}}
{{- define "farrank.wholeCpus" -}}
{{- max 1 (include "farrank.cpus" (dig "requests" "cpu" (dig "limits" "cpu" 2 .) .) | float64 | ceil | int) -}}
{{- end -}}

{{/*
The threads that the server computes with: those of the configuration, as many as its CPU limit allows, or as many as it
requests. Without any of them the server chooses: it sees every core of the node. A limit is rounded down, because threads
beyond it would wait for each other, and a request up.
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

{{/* The tag of an image of Farrank that has none: version and target. */}}
{{- define "farrank.defaultTag" -}}
{{- printf "%s-%s" .Chart.AppVersion .Values.image.target -}}
{{- end -}}

{{/* The fields of a container for `image`, whose tag is `default` where it has none. */}}
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
The replicas that the Deployment names. An autoscaler's number stays as it is: were the field left out, the upgrade that
switches autoscaling on would set it to Kubernetes' default, 1. Empty where the release does not run, or Helm asks no cluster.
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
