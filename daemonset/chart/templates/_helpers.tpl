{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* What Helm adds to each object, beside its name. Selectors have the name alone. Takes (list NAME ROOT). */}}
{{- define "node-cache.labels" -}}
{{- $root := index . 1 -}}
app.kubernetes.io/name: {{ index . 0 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end }}

{{/* The image, by digest or tag. Takes (list VARIANT ROOT): only agents need a variant. */}}
{{- define "node-cache.image" -}}
{{- $root := index . 1 -}}
{{- $i := $root.Values.image -}}
{{- if $i.digest -}}
{{ $i.repository }}@{{ $i.digest }}
{{- else -}}
{{ $i.repository }}:{{ $i.tag | default $root.Chart.AppVersion }}{{ with index . 0 }}-{{ . }}{{ end }}
{{- end -}}
{{- end }}

{{/* The bytes of a size as the configuration writes it. Takes (list KEY VALUE). */}}
{{- define "node-cache.bytes" -}}
{{- $key := index . 0 -}}
{{- $size := index . 1 | toString -}}
{{- if not (regexMatch "^[0-9]+(Ki|Mi|Gi|Ti|k|M|G|T)?$" $size) -}}
{{- fail (printf "%s: %q: not a size: write a whole number with Ki, Mi, Gi, Ti, k, M, G, T or no unit" $key $size) -}}
{{- end -}}
{{- $number := regexFind "^[0-9]+" $size | int64 -}}
{{- $unit := regexFind "[A-Za-z]+$" $size -}}
{{- $units := dict "" 1 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- mul $number (get $units $unit) -}}
{{- end }}

{{/* What a pod's memory limit must hold in any case: cache.size, 32Mi, and twice snapshot.size. Takes (list KEY CONFIG). */}}
{{- define "node-cache.leastMemory" -}}
{{- $key := index . 0 -}}
{{- $config := index . 1 -}}
{{- $least := add (include "node-cache.bytes" (list (printf "%s.cache.size" $key) (dig "cache" "size" "64Mi" $config)) | int64) 33554432 -}}
{{- if dig "snapshot" "folder" "" $config -}}
{{- $least = add $least (mul 2 (include "node-cache.bytes" (list (printf "%s.snapshot.size" $key) (dig "snapshot" "size" "16Mi" $config)) | int64)) -}}
{{- end -}}
{{- $least -}}
{{- end }}

{{/* Resources with the memory limit worked out or checked. Takes (dict resources, key, config, configKey, spare in Mi). */}}
{{- define "node-cache.resources" -}}
{{- $least := include "node-cache.leastMemory" (list .configKey .config) | int64 -}}
{{- $mi := div (add $least 1048575) 1048576 -}}
{{- $limits := deepCopy (.resources.limits | default dict) -}}
{{- if not $limits.memory -}}
{{- $_ := set $limits "memory" (printf "%dMi" (add $mi .spare)) -}}
{{- else if lt (include "node-cache.bytes" (list (printf "%s.limits.memory" .key) $limits.memory) | int64) $least -}}
{{- fail (printf "%s.limits.memory: %s is too little for %s: cache.size, 32Mi and twice snapshot.size are %dMi. Leave it empty to have it worked out." .key (toString $limits.memory) .configKey $mi) -}}
{{- end -}}
{{- toYaml (dict "requests" .resources.requests "limits" $limits) -}}
{{- end }}

{{/* The agents' configuration as it is given to them. */}}
{{- define "node-cache.config" -}}
{{- $config := deepCopy .Values.config.agent -}}
{{- if .Values.monitoring.enabled -}}
{{- $_ := set $config "admin" (merge (dict "address" .Values.monitoring.address) ($config.admin | default dict)) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{/*
Refuses paths that the agents cannot write to, as all but the mounted folders is read-only, and those in the wrong folder:
the admin socket is the pod's own, the others are for the next pod.
*/}}
{{- define "node-cache.places" -}}
{{- $agent := .Values.config.agent -}}
{{- $socket := dig "admin" "socket" "" $agent -}}
{{- if not $socket -}}
{{- fail "config.agent.admin.socket: empty: the startup probe asks it: leave it at /run/pod/admin.sock" -}}
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

{{/* Host and port of the agents' probes: the admin server's port at the first listen address, where there is one. */}}
{{- define "node-cache.probe" -}}
{{- $config := include "node-cache.config" . | fromYaml -}}
{{- $address := dig "admin" "address" "127.0.0.1:9253" $config -}}
{{- if not $address -}}
{{- fail "config.agent.admin.address: empty: the kubelet's probes ask it" -}}
{{- end -}}
{{- if not (regexMatch "^(\\[[0-9a-fA-F:]+\\]|[0-9.]+):[0-9]+$" $address) -}}
{{- fail (printf "config.agent.admin.address: %q: not an IP address and a port, like 169.254.20.10:9253" $address) -}}
{{- end -}}
{{- $host := regexReplaceAll ":[0-9]+$" $address "" | trimPrefix "[" | trimSuffix "]" -}}
{{- if has $host (list "0.0.0.0" "::") -}}
{{- $host = dig "listen" "addresses" (list "127.0.0.1") $config | first -}}
{{- end -}}
host: {{ $host | quote }}
port: {{ regexFind "[0-9]+$" $address }}
{{- end }}

{{/* What the agents' cluster settings need of the API server: YAML of lists cluster, namespaced and central, and a namespace. */}}
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
{{- if eq ($cluster.pods | default "") "verified" }}
- {apiGroups: [""], resources: [pods], verbs: [list, watch]}
{{- end }}
{{- else if $cluster.invalidate }}
- {apiGroups: [""], resources: [services], verbs: [list, watch]}
{{- end }}
{{- if eq (hasKey $cluster "nodeZone" | ternary $cluster.nodeZone "auto") "auto" }}
- {apiGroups: [""], resources: [nodes], verbs: [get]}
{{- end }}
{{- end }}
central:
{{- if and $service (not $own) (ne $mode "local") }}
- {apiGroups: [""], resources: [services], resourceNames: [{{ splitList "/" $service | last }}], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
{{- end }}
namespace: {{ splitList "/" $service | first | quote }}
namespaced:
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
{{- if eq .Values.config.watch "api" }}
- {apiGroups: [""], resources: [configmaps], resourceNames: [node-cache], verbs: [list, watch]}
{{- end }}
{{- end }}
