{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* The labels of an object. Selectors use only the name. Takes (list NAME ROOT). */}}
{{- define "node-cache.labels" -}}
{{- $root := index . 1 -}}
app.kubernetes.io/name: {{ index . 0 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- with $root.Values.commonLabels }}
{{- include "node-cache.foreign" (list "commonLabels" .) }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Fails for a label that the chart sets itself: selectors, alerts and `kubectl node-cache` find objects by it. Takes (list KEY LABELS). */}}
{{- define "node-cache.foreign" -}}
{{- $key := index . 0 -}}
{{- range $name, $_ := index . 1 -}}
{{- if or (eq $name "helm.sh/chart") (has $name (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/version" "app.kubernetes.io/managed-by")) -}}
{{- fail (printf "%s: %s: the chart sets this label, by which objects are found: leave it out" $key $name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The labels of pods: that of the selector, and those of the user. Takes (list NAME KEY LABELS ROOT). */}}
{{- define "node-cache.podLabels" -}}
{{- include "node-cache.foreign" (list (index . 1) (index . 2)) -}}
{{- toYaml (merge (dict "app.kubernetes.io/name" (index . 0)) (index . 2 | default dict) ((index . 3).Values.commonLabels | default dict)) -}}
{{- end }}

{{/* The annotations of an object, which win over commonAnnotations. Takes (list ROOT [ANNOTATIONS]). */}}
{{- define "node-cache.annotations" -}}
{{- $own := dict -}}
{{- if gt (len .) 1 -}}
{{- $own = index . 1 | default dict -}}
{{- end -}}
{{- with merge (deepCopy $own) ((index . 0).Values.commonAnnotations | default dict) }}
  annotations: {{- toYaml . | nindent 4 }}
{{- end -}}
{{- end }}

{{/* The names of the accounts of agents and resolvers. */}}
{{- define "node-cache.account" -}}
{{- .Values.serviceAccount.name | default "node-cache" -}}
{{- end }}
{{- define "node-cache.resolverAccount" -}}
{{- .Values.resolver.serviceAccount.name | default "node-cache-resolver" -}}
{{- end }}

{{/* Variables of the user. One that the chart sets would be replaced. Takes (list KEY VARIABLES). */}}
{{- define "node-cache.env" -}}
{{- range index . 1 -}}
{{- if has .name (list "NODE_NAME" "POD_NAME" "POD_NAMESPACE" "POD_UID" "NODE_CACHE_ADMIN") -}}
{{- fail (printf "%s: %s: the chart sets this variable: leave it out" (index $ 0) .name) -}}
{{- end -}}
{{- end -}}
{{- with index . 1 -}}
{{- toYaml . -}}
{{- end -}}
{{- end }}

{{/*
What confines a container, beside what the chart sets. User, capabilities and file system are not for a value: less would stop the
program, and it never needs more. Takes (list KEY CONTEXT).
*/}}
{{- define "node-cache.confinement" -}}
{{- $known := list "appArmorProfile" "seLinuxOptions" "seccompProfile" -}}
{{- range $name, $_ := index . 1 -}}
{{- if not (has $name $known) -}}
{{- fail (printf "%s.%s: the chart sets all but %s, to what the program needs and no more: leave it out" (index $ 0) $name (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- with index . 1 -}}
{{- toYaml . -}}
{{- end -}}
{{- end }}

{{/* The annotations by which a Prometheus without operator finds a pod, if they are asked for. Takes (list ROOT PORT). */}}
{{- define "node-cache.scrape" -}}
{{- $monitoring := (index . 0).Values.monitoring -}}
{{- if and $monitoring.enabled $monitoring.scrapeAnnotations -}}
prometheus.io/scrape: "true"
prometheus.io/scheme: http
prometheus.io/port: {{ index . 1 | quote }}
prometheus.io/path: /metrics
{{- end -}}
{{- end }}

{{/* The image, by digest or tag. Takes (list VARIANT ROOT): only agents need a variant. */}}
{{- define "node-cache.image" -}}
{{- $root := index . 1 -}}
{{- $i := $root.Values.image -}}
{{- if not (regexMatch "^((\\[[0-9a-fA-F:]+\\]|[A-Za-z0-9.-]+)(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*$" ($i.repository | default "")) -}}
{{- fail (printf "image.repository: %q: not the name of an image alone, like ghcr.io/nodecache/node-cache: image.tag and image.digest have the rest" $i.repository) -}}
{{- end -}}
{{- if not (regexMatch "^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$" ($i.tag | default "")) -}}
{{- fail (printf "image.tag: %q: not a tag, like v0.7.0" $i.tag) -}}
{{- end -}}
{{- if hasSuffix "-iptables" ($i.tag | default "") -}}
{{- fail (printf "image.tag: %s: image.variant: iptables adds -iptables to the tag, and gives the agents what it needs: leave it out here" $i.tag) -}}
{{- end -}}
{{- if $i.digest -}}
{{ $i.repository }}@{{ $i.digest }}
{{- else -}}
{{ $i.repository }}:{{ $i.tag | default $root.Chart.AppVersion }}{{ with index . 0 }}-{{ . }}{{ end }}
{{- end -}}
{{- end }}

{{/* A size as it was written. Helm reads whole numbers as floats, and Go prints large floats with an exponent. */}}
{{- define "node-cache.size" -}}
{{- if kindIs "float64" . }}{{ printf "%.0f" . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{/* The bytes of a size as the configuration writes it. Takes (list KEY VALUE). */}}
{{- define "node-cache.bytes" -}}
{{- $key := index . 0 -}}
{{- $size := include "node-cache.size" (index . 1) -}}
{{- if not (regexMatch "^[0-9]+(Ki|Mi|Gi|Ti|k|M|G|T)?$" $size) -}}
{{- fail (printf "%s: %q: not a size: write a whole number with Ki, Mi, Gi, Ti, k, M, G, T or no unit" $key $size) -}}
{{- end -}}
{{- $number := regexFind "^[0-9]+" $size | int64 -}}
{{- $unit := regexFind "[A-Za-z]+$" $size -}}
{{- $units := dict "" 1 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- mul $number (get $units $unit) -}}
{{- end }}

{{/* The bytes of a memory request, which may have a fraction, rounded up: 0 without. Takes (list KEY VALUE). */}}
{{- define "node-cache.requested" -}}
{{- $size := include "node-cache.size" (index . 1 | default "0") -}}
{{- $unit := regexFind "[A-Za-z]+$" $size -}}
{{- $bytes := 0.001 -}}
{{- if ne $unit "m" -}}
{{- $bytes = include "node-cache.bytes" (list (index . 0) (printf "1%s" $unit)) | float64 -}}
{{- end -}}
{{- mulf (regexFind "^[0-9.]+" $size | float64) $bytes | ceil | int64 -}}
{{- end }}

{{/* The least memory limit of a pod: cache.size, 32Mi, and twice snapshot.size. Takes (list KEY CONFIG). */}}
{{- define "node-cache.leastMemory" -}}
{{- $key := index . 0 -}}
{{- $config := index . 1 -}}
{{- $least := add (include "node-cache.bytes" (list (printf "%s.cache.size" $key) (dig "cache" "size" "64Mi" $config)) | int64) 33554432 -}}
{{- if dig "snapshot" "folder" "" $config -}}
{{- $least = add $least (mul 2 (include "node-cache.bytes" (list (printf "%s.snapshot.size" $key) (dig "snapshot" "size" "16Mi" $config)) | int64)) -}}
{{- end -}}
{{- $least -}}
{{- end }}

{{/* The resources, with a memory limit that is computed or checked. Takes (dict resources, key, config, configKey, spare in Mi). */}}
{{- define "node-cache.resources" -}}
{{- $least := include "node-cache.leastMemory" (list .configKey .config) | int64 -}}
{{- $mi := div (add $least 1048575) 1048576 -}}
{{- $limits := deepCopy (.resources.limits | default dict) -}}
{{- $cpu := $limits.cpu | default "" | toString -}}
{{- $cores := regexFind "^[0-9.]+" $cpu | default "1" | float64 -}}
{{- if hasSuffix "m" $cpu -}}
{{- $cores = divf $cores 1000.0 -}}
{{- end -}}
{{- if lt $cores 0.2 -}}
{{- fail (printf "%s.limits.cpu: %s: with so little it would keep every pod waiting: none, or as much as a LimitRange or a quota allows, 200m at least" .key $cpu) -}}
{{- end -}}
{{- if not $cpu -}}
{{- $limits = omit $limits "cpu" -}}
{{- end -}}
{{- $requested := dig "requests" "memory" "" .resources -}}
{{- $request := include "node-cache.requested" (list (printf "%s.requests.memory" .key) $requested) | int64 -}}
{{- if not $limits.memory -}}
{{- $_ := set $limits "memory" (printf "%dMi" (max (add $mi .spare) (div (add $request 1048575) 1048576))) -}}
{{- else if lt (include "node-cache.bytes" (list (printf "%s.limits.memory" .key) $limits.memory) | int64) $least -}}
{{- fail (printf "%s.limits.memory: %s is too little for %s: cache.size, 32Mi and twice snapshot.size are %dMi. Leave it empty to have it worked out." .key (include "node-cache.size" $limits.memory) .configKey $mi) -}}
{{- else if gt $request (include "node-cache.bytes" (list (printf "%s.limits.memory" .key) $limits.memory) | int64) -}}
{{- fail (printf "%s.requests.memory: %s is more than %s.limits.memory, %s, and no pod may request more than it may have" .key (include "node-cache.size" $requested) .key (include "node-cache.size" $limits.memory)) -}}
{{- end -}}
{{- toYaml (dict "requests" .resources.requests "limits" $limits) -}}
{{- end }}

{{/* true if the agents may load programs into the kernel, else empty. YAML reads a bare off as false. */}}
{{- define "node-cache.kernel" -}}
{{- if not (has (dig "kernel" "hits" "off" .Values.config.agent | toString) (list "off" "false")) -}}true{{- end -}}
{{- end }}

{{/* true if every host may read the metrics, else empty. */}}
{{- define "node-cache.openMetrics" -}}
{{- if and .Values.monitoring.enabled .Values.monitoring.address -}}true{{- end -}}
{{- end }}

{{/* The agents' configuration, as the ConfigMap has it. */}}
{{- define "node-cache.config" -}}
{{- $config := deepCopy .Values.config.agent -}}
{{- $admin := $config.admin | default dict -}}
{{- if include "node-cache.openMetrics" . -}}
{{- $_ := set $config "admin" (merge (dict "address" .Values.monitoring.address) $admin) -}}
{{- else if .Values.monitoring.enabled -}}
{{- $_ := set $config "admin" (merge $admin (dict "tls" (dict "address" "[::]:9254"))) -}}
{{- end -}}
{{- if .Values.resolver.tls.ca -}}
{{- $tls := dict "serverName" (printf "node-cache-resolver.%s.svc" .Release.Namespace) "ca" "/etc/node-cache-tls/ca.crt" -}}
{{- $_ := set $config "cluster" (merge ($config.cluster | default dict) (dict "central" (dict "tls" $tls))) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{/* The resolver's configuration, as it is given to it. */}}
{{- define "node-cache.resolverConfig" -}}
{{- $config := deepCopy .Values.config.resolver -}}
{{- if .Values.resolver.tls.secret -}}
{{- $tls := dict "cert" "/etc/node-cache-tls/tls.crt" "key" "/etc/node-cache-tls/tls.key" -}}
{{- $_ := set $config "listen" (merge ($config.listen | default dict) (dict "tls" $tls)) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{/* An annotation that changes with the keys that need a restart, so that their change replaces the pods. Takes a configuration. */}}
{{- define "node-cache.restartKeys" -}}
{{- $listen := pick (.listen | default dict) "addresses" "port" -}}
{{- $intercept := omit (.intercept | default dict) "fallback" -}}
{{- $keys := merge (dict "listen" $listen "intercept" $intercept) (pick . "interface" "handover" "admin") -}}
node-cache.io/restart-keys: {{ toJson $keys | sha256sum }}
{{- end }}

{{/* Changes alerts in place as monitoring.alerts asks for. Takes (list GROUPS ALERTS). */}}
{{- define "node-cache.alerts" -}}
{{- $changes := index . 1 | default dict -}}
{{- $known := list -}}
{{- range $group := index . 0 -}}
{{- $rules := list -}}
{{- range $rule := $group.rules -}}
{{- $name := $rule.alert | default "" -}}
{{- $known = append $known $name -}}
{{- $change := get $changes $name | default dict -}}
{{- if hasKey $change "threshold" -}}
{{- if not (contains " # threshold" $rule.expr) -}}
{{- fail (printf "monitoring.alerts.%s.threshold: this alert has no threshold: leave it out" $name) -}}
{{- end -}}
{{- $_ := set $rule "expr" (regexReplaceAll "[0-9.]+ # threshold" $rule.expr (printf "%v # threshold" $change.threshold)) -}}
{{- end -}}
{{- with $change.for -}}
{{- $_ := set $rule "for" . -}}
{{- end -}}
{{- with $change.severity -}}
{{- $_ := set $rule.labels "severity" . -}}
{{- end -}}
{{- if dig "enabled" true $change -}}
{{- $rules = append $rules $rule -}}
{{- end -}}
{{- end -}}
{{- $_ := set $group "rules" $rules -}}
{{- end -}}
{{- range $name, $_ := $changes -}}
{{- if not (has $name $known) -}}
{{- fail (printf "monitoring.alerts.%s: no alert has this name: docs/runbooks has a page for each" $name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
The text of rules or a dashboard with another label in place of "cluster": in groupings, selectors, templates and Grafana's variable.
*/}}
{{- define "node-cache.clusterLabel" -}}
{{- $label := index . 1 | default "cluster" -}}
{{- $text := regexReplaceAll "([({])cluster([,)=!}])" (index . 0) (printf "${1}%s${2}" $label) -}}
{{- regexReplaceAll "([lL]abels\\.|build_info, )cluster\\b" $text (printf "${1}%s" $label) -}}
{{- end }}

{{/*
Refuses paths that the agents cannot write to, as all but the mounted folders is read-only, and those in the wrong folder:
the admin socket is the pod's own, the others are for the next pod.
*/}}
{{- define "node-cache.places" -}}
{{- $agent := .Values.config.agent -}}
{{- $socket := dig "admin" "socket" "" $agent -}}
{{- if not $socket -}}
{{- fail "config.agent.admin.socket: empty: the startup and readiness probes ask it: leave it at /run/pod/admin.sock" -}}
{{- end -}}
{{- $more := list -}}
{{- range .Values.extraVolumeMounts -}}
{{- $more = append $more (clean (.mountPath | default ".")) -}}
{{- end -}}
{{- range list (list "admin.socket" $socket "/run/pod") (list "handover.socket" (dig "handover" "socket" "" $agent) "/run/node-cache") (list "snapshot.folder" (dig "snapshot" "folder" "" $agent) "/run/node-cache") -}}
{{- $path := index . 1 | default (index . 2) -}}
{{- $folders := prepend $more (index . 2) -}}
{{- $mounted := false -}}
{{- range $folders -}}
{{- $mounted = or $mounted (hasPrefix (printf "%s/" .) (printf "%s/" (clean $path))) -}}
{{- end -}}
{{- if not $mounted -}}
{{- fail (printf "config.agent.%s: %s is not in %s, and the pod can write to no other folder for it" (index . 0) $path (join " or " $folders)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Not empty if the agents need the kubelet's socket. */}}
{{- define "node-cache.kubeletPods" -}}
{{- if has (dig "pods" "identity" "off" .Values.config.agent) (list "kubelet" "auto") }}true{{ end -}}
{{- end }}

{{/* Fails for extra volumes and mounts that the agents' pods already have: Kubernetes does not take duplicates. */}}
{{- define "node-cache.extras" -}}
{{- $names := list "config" "run" "last-good" "pod" -}}
{{- $places := list "/etc/node-cache" "/run/node-cache" "/var/lib/node-cache" "/run/pod" -}}
{{- if .Values.config.kubeDNS -}}
{{- $names = append $names "kube-dns" -}}
{{- $places = append $places "/etc/kube-dns" -}}
{{- end -}}
{{- if eq .Values.image.variant "iptables" -}}
{{- $names = append $names "xtables-lock" -}}
{{- $places = append $places "/run/xtables.lock" -}}
{{- end -}}
{{- if include "node-cache.kubeletPods" . -}}
{{- $names = append $names "pods-api" -}}
{{- $places = append $places "/var/lib/kubelet/pods-api" -}}
{{- end -}}
{{- if .Values.resolver.tls.ca -}}
{{- $names = append $names "tls" -}}
{{- $places = append $places "/etc/node-cache-tls" -}}
{{- end -}}
{{- range .Values.extraVolumes -}}
{{- if has .name $names -}}
{{- fail (printf "extraVolumes: %s: the chart has a volume of this name: choose another" .name) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraVolumeMounts -}}
{{- if has (clean (.mountPath | default ".")) $places -}}
{{- fail (printf "extraVolumeMounts: %s: the chart mounts something there: choose another folder" .mountPath) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Host and port of an admin server's address, which must have both. Takes (list KEY ADDRESS). */}}
{{- define "node-cache.endpoint" -}}
{{- $key := index . 0 -}}
{{- $address := index . 1 -}}
{{- if not $address -}}
{{- fail (printf "%s: empty: the kubelet's probes ask it" $key) -}}
{{- end -}}
{{- if not (regexMatch "^(\\[[0-9a-fA-F:]+\\]|([0-9]{1,3}[.]){3}[0-9]{1,3}):[0-9]+$" $address) -}}
{{- fail (printf "%s: %q: not an IP address and a port, like 169.254.20.10:9253" $key $address) -}}
{{- end -}}
{{- $port := regexFind "[0-9]+$" $address -}}
{{- if or (gt (len $port) 5) (not (regexMatch "^[1-9]" $port)) (gt (atoi $port) 65535) -}}
{{- fail (printf "%s: %q: no port has the number %s: they go from 1 to 65535" $key $address $port) -}}
{{- end -}}
host: {{ regexReplaceAll ":[0-9]+$" $address "" | trimPrefix "[" | trimSuffix "]" | quote }}
port: {{ $port }}
{{- end }}

{{/* Host and port for the agents' liveness probe: the admin server's port, at a listen address if the admin server has one. */}}
{{- define "node-cache.probe" -}}
{{- $config := include "node-cache.config" . | fromYaml -}}
{{- $key := eq "true" (include "node-cache.openMetrics" .) | ternary "monitoring.address" "config.agent.admin.address" -}}
{{- $at := include "node-cache.endpoint" (list $key (dig "admin" "address" "127.0.0.1:9253" $config)) | fromYaml -}}
{{- $listen := dig "listen" "addresses" (list "127.0.0.1") $config | compact -}}
{{- if not $listen -}}
{{- fail "config.agent.listen.addresses: empty: nobody could ask the agents" -}}
{{- end -}}
{{- $v4 := list -}}
{{- $same := list -}}
{{- range $listen -}}
{{- $same = append $same (lower .) -}}
{{- if not (regexMatch "^([0-9a-fA-F:]*:[0-9a-fA-F:.]*|([0-9]{1,3}[.]){3}[0-9]{1,3})$" .) -}}
{{- fail (printf "config.agent.listen.addresses: %q: not an IP address" .) -}}
{{- end -}}
{{- if not (contains ":" .) -}}
{{- $v4 = append $v4 . -}}
{{- end -}}
{{- end -}}
{{- $host := lower $at.host -}}
{{- $everywhere := has $host (list "0.0.0.0" "::") -}}
{{- if eq $host "::" -}}
{{- $host = first $listen -}}
{{- else if and $everywhere $v4 -}}
{{- $host = first $v4 -}}
{{- else if $everywhere -}}
{{- fail (printf "%s: 0.0.0.0 is for IPv4, and config.agent.listen.addresses has %s only, at which the kubelet's probes would find nobody: write \"[::]:%v\"" $key (join ", " $listen) $at.port) -}}
{{- else if not (or (has $host $same) (hasPrefix "127." $host) (eq $host "::1")) -}}
{{- fail (printf "%s: %s is not an address of every node: take one of config.agent.listen.addresses (%s), written as it is there, or 0.0.0.0 or [::]" $key $host (join ", " $listen)) -}}
{{- end -}}
{{- if and (eq (int $at.port) (dig "listen" "port" 1053 $config | int)) (or $everywhere (has $host $same)) -}}
{{- fail (printf "%s: port %v is config.agent.listen.port, at the same address: choose another" $key $at.port) -}}
{{- end -}}
host: {{ $host | quote }}
port: {{ $at.port }}
{{- end }}

{{/* A duration in Go's format as whole seconds, rounded up. Takes (list KEY VALUE). */}}
{{- define "node-cache.seconds" -}}
{{- $text := index . 1 | toString -}}
{{- if not (regexMatch "^[+]?(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+$" $text) -}}
{{- fail (printf "%s: %q: not a duration: write it like 500ms, 4s or 1m30s" (index . 0) $text) -}}
{{- end -}}
{{- $sum := 0.0 -}}
{{- $units := dict "ns" 0.000000001 "us" 0.000001 "µs" 0.000001 "μs" 0.000001 "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- range regexFindAll "[0-9.]+[^0-9.]+" $text -1 -}}
{{- $sum = addf $sum (mulf (regexFind "^[0-9.]+" . | float64) (get $units (regexFind "[^0-9.]+$" .))) -}}
{{- end -}}
{{- ceil $sum | int -}}
{{- end }}

{{/* Fails for a terminationGracePeriodSeconds that is too short for an orderly stop. */}}
{{- define "node-cache.grace" -}}
{{- $deadline := dig "limits" "deadline" "4s" .Values.config.agent -}}
{{- $need := add 14 (include "node-cache.seconds" (list "config.agent.limits.deadline" $deadline) | int) -}}
{{- if lt (int (.Values.terminationGracePeriodSeconds | default 30)) (int $need) -}}
{{- fail (printf "terminationGracePeriodSeconds: %v is too little: an agent that ends, or has handed over, needs 5 s for the lease, %v (config.agent.limits.deadline) and 1 s for queries under way, 5 s for what is removed and 3 s for the snapshot: %d at least" (.Values.terminationGracePeriodSeconds | default 30) $deadline $need) -}}
{{- end -}}
{{- end }}

{{/* Fails if cluster.central.service names a Service that the chart should create but does not, or not in that namespace. */}}
{{- define "node-cache.central" -}}
{{- $service := dig "cluster" "central" "service" "" .Values.config.agent | default "" -}}
{{- $ours := printf "%s/node-cache-resolver" .Release.Namespace -}}
{{- if and (eq $service $ours) (not .Values.resolver.enabled) -}}
{{- fail (printf "config.agent.cluster.central.service: %s is made with resolver.enabled only, and nobody would answer: set that to true" $service) -}}
{{- end -}}
{{- $headless := dig "cluster" "central" "headless" "" .Values.config.agent | default "" -}}
{{- if and .Values.resolver.enabled (hasSuffix "/node-cache-resolvers" $headless) (ne $headless (printf "%ss" $ours)) -}}
{{- fail (printf "config.agent.cluster.central.headless: %s: this release makes %ss, in its own namespace: write that" $headless $ours) -}}
{{- end -}}
{{- if and .Values.resolver.enabled (hasSuffix "/node-cache-resolver" $service) (ne $service $ours) -}}
{{- fail (printf "config.agent.cluster.central.service: %s: this release makes %s, in its own namespace: write that" $service $ours) -}}
{{- end -}}
{{- if and .Values.resolver.tls.ca (not (and .Values.resolver.enabled .Values.resolver.tls.secret)) -}}
{{- fail "resolver.tls.ca: no resolver answers over TLS: set resolver.enabled and resolver.tls.secret too" -}}
{{- end -}}
{{- end }}

{{/* Fails for settings that do not work in the resolver's pod: clients use the pod's address, and only one folder is writable. */}}
{{- define "node-cache.resolverPlaces" -}}
{{- $config := .Values.config.resolver -}}
{{- $at := include "node-cache.endpoint" (list "config.resolver.admin.address" (dig "admin" "address" "[::]:9253" $config)) | fromYaml -}}
{{- $hosts := dict "config.resolver.admin.address" (list $at.host) "config.resolver.listen.addresses" (dig "listen" "addresses" (list "::") $config) -}}
{{- range $key, $list := $hosts -}}
{{- range $list -}}
{{- if not (has . (list "::" "0.0.0.0")) -}}
{{- fail (printf "%s: %s is not the pod's address, which nobody knows before, and at which it is asked: take \"::\" or 0.0.0.0, or leave it out" $key .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (int $at.port) (dig "listen" "port" 1053 $config | int) -}}
{{- fail (printf "config.resolver.admin.address: port %v is config.resolver.listen.port, at the same address: choose another" $at.port) -}}
{{- end -}}
{{- range list (list "interface.manage" (dig "interface" "manage" false $config)) (list "intercept.manage" (dig "intercept" "manage" false $config)) (list "handover.socket" (dig "handover" "socket" "" $config)) -}}
{{- if index . 1 -}}
{{- fail (printf "config.resolver.%s: a resolver has neither link nor rules nor a successor on its node: it belongs into config.agent" (index . 0)) -}}
{{- end -}}
{{- end -}}
{{- range list (list "admin.socket" (dig "admin" "socket" "" $config)) (list "snapshot.folder" (dig "snapshot" "folder" "" $config)) -}}
{{- if and (index . 1) (not (hasPrefix "/var/lib/node-cache/" (printf "%s/" (clean (index . 1))))) -}}
{{- fail (printf "config.resolver.%s: %s is not in /var/lib/node-cache, and the resolver's pod can write to no other folder" (index . 0) (index . 1)) -}}
{{- end -}}
{{- end -}}
port: {{ $at.port }}
{{- end }}

{{/* The permissions that admin.tls needs. Takes a configuration. */}}
{{- define "node-cache.reviews" -}}
{{- if dig "admin" "tls" "address" "" . }}
- {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}
- {apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}
{{- end }}
{{- end }}

{{/* The permissions that the agents' cluster settings need, as YAML: lists cluster, namespaced and central, and a namespace. */}}
{{- define "node-cache.rules" -}}
{{- $cluster := .Values.config.agent.cluster | default dict -}}
{{- $mode := $cluster.resolver | default "none" -}}
{{- $service := dig "central" "service" "" $cluster | default "" -}}
{{- $own := or $cluster.kubeconfig $cluster.manifests -}}
cluster:
{{- if not $own }}
{{- if eq $mode "local" }}
- {apiGroups: [""], resources: [services, namespaces], verbs: [list, watch]}
{{- if ne ($cluster.endpoints | default "headless") "none" }}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
{{- end }}
{{- if $cluster.clusterSet }}
- {apiGroups: [multicluster.x-k8s.io], resources: [serviceimports], verbs: [list, watch]}
{{- end }}
{{- if eq ($cluster.pods | default "") "verified" }}
- {apiGroups: [""], resources: [pods], verbs: [list, watch]}
{{- end }}
{{- else if $cluster.invalidate }}
- {apiGroups: [""], resources: [services], verbs: [list, watch]}
{{- end }}
{{- if and (has (dig "pods" "identity" "off" .Values.config.agent) (list "api" "auto")) (ne ($cluster.pods | default "") "verified") }}
- {apiGroups: [""], resources: [pods], verbs: [list, watch]}
{{- end }}
{{- if or $cluster.federations (eq (hasKey $cluster "nodeZone" | ternary $cluster.nodeZone "auto") "auto") }}
- {apiGroups: [""], resources: [nodes], verbs: [get]}
{{- end }}
{{- if not .Values.monitoring.enabled }}{{/* else monitoring/secure.yaml has them */}}
{{- include "node-cache.reviews" .Values.config.agent }}
{{- end }}
{{- end }}
central:
{{- if and $service (not $own) (ne $mode "local") (not (dig "central" "headless" "" $cluster)) }}
- {apiGroups: [""], resources: [services], resourceNames: [{{ splitList "/" $service | last }}], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
{{- end }}
namespace: {{ splitList "/" $service | first | quote }}
namespaced:
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
{{- if not $own }}
- {apiGroups: [apps], resources: [daemonsets], resourceNames: [cilium], verbs: [get]}
- {apiGroups: [""], resources: [configmaps], resourceNames: [cilium-config], verbs: [get]}
{{- end }}
{{- if eq .Values.config.watch "api" }}
- {apiGroups: [""], resources: [configmaps], resourceNames: [node-cache], verbs: [list, watch]}
{{- end }}
{{- end }}
