#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests node-cache on the cluster of the current context: installs it, looks names up on two nodes, runs doctor, kills an agent under load,
# upgrades, uninstalls, and prints a result to paste. No kubelet is changed.
#
#   hack/platform-test.sh [KUSTOMIZATION]    default: daemonset/base; names the image, if it is not to be the default one
#
# OUTSIDE is a name of the Internet, default example.com; BUSYBOX the image of the pods that ask, default docker.io/library/busybox:1.37.
#
# Exit code 0: every step passed; 1: one failed; 2: nothing was begun.
set -euo pipefail
cd "$(dirname "$0")/.."

variant=${1:-daemonset/base}
outside=${OUTSIDE:-example.com}
busybox=${BUSYBOX:-docker.io/library/busybox:1.37}
space=node-cache-test
system=(kubectl -n kube-system)

refuse() {
  printf 'platform-test: %s\nhint: %s\n' "$1" "$2" >&2
  exit 2
}

# found reports whether there is a DaemonSet of that name.
found() { [[ -n $("${system[@]}" get daemonset "$1" --ignore-not-found -o name) ]]; }

rendered=$(kubectl kustomize "$variant") || refuse "$variant: not rendered, see above" "name a folder with a kustomization"
kubectl version >/dev/null || refuse "no cluster, see above" "set KUBECONFIG, and its context"
if found node-cache; then refuse "the cluster has agents already" "uninstall them: daemonset/README.md"; fi
if [[ $rendered == *169.254.20.10* ]] && found node-local-dns; then
  refuse "NodeLocal DNSCache has the address 169.254.20.10" "turn it off, or choose another address: docs/migrating.md"
fi

# Pods ask the agent by its address, or by that of the DNS Service, where the agent or Cilium redirects the queries.
dns='  dnsPolicy: ClusterFirst'
if ! grep -Eq 'mode: transparent|kind: CiliumLocalRedirectPolicy' <<<"$rendered"; then
  address=$(sed -En "s/^ +addresses: \[['\"]?([0-9a-f.:]+).*/\1/p" <<<"$rendered" | head -1)
  [[ -n $address ]] || refuse "$variant: no listen.addresses" "write them as a list in one line"
  dns="  dnsPolicy: None
  dnsConfig: {nameservers: ['$address'], searches: [$space.svc.cluster.local, svc.cluster.local, cluster.local], options: [{name: ndots, value: '5'}]}"
fi

results=() failed=0

# record adds a line to the result.
record() {
  results+=("$1")
  printf -- '%s\n' "$1" >&2
}

# step runs a function. Its last line that begins with "= " belongs to the result, and if it fails its last three.
step() {
  local name=$1 out began=$SECONDS
  shift
  if out=$("$@" 2>&1); then
    record "| $name | passed | $((SECONDS - began)) s | $(sed -n 's/^= //p' <<<"$out" | tail -n 1) |"
  else
    failed=1
    record "| $name | **failed** | $((SECONDS - began)) s | $(tail -n 3 <<<"$out" | tr '\n|' ' /') |"
    return 1
  fi
}

install() {
  kubectl apply -k "$variant" && "${system[@]}" rollout status daemonset/node-cache --timeout=5m
}

# Two nodes with a ready agent.
nodes() {
  "${system[@]}" get pods -l app.kubernetes.io/name=node-cache --field-selector status.phase=Running \
    -o jsonpath='{range .items[*]}{.spec.nodeName}{"\n"}{end}' | sort -u | head -2
}

# A pod looks names up without a pause, and keeps the number of lookups, of those that failed, and of those that took a second: a query was
# lost, and asked again.
start_load() {
  local node
  kubectl create namespace $space || return 1
  for node in $(nodes); do
    kubectl -n $space apply -f - <<POD
apiVersion: v1
kind: Pod
metadata: {name: "load-$node"}
spec:
  nodeName: $node
$dns
  terminationGracePeriodSeconds: 0
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  volumes: [{name: counts, emptyDir: {}}]
  containers:
  - name: load
    image: $busybox
    volumeMounts: [{name: counts, mountPath: /counts}]
    resources: {requests: {cpu: 20m}, limits: {cpu: 200m, memory: 32Mi}}
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
    command:
    - sh
    - -c
    - |
      all=0 failed=0 slow=0
      now() { read -r up _ </proc/uptime; echo "\${up%.*}\${up#*.}"; }
      while :; do
        for name in kubernetes.default.svc.cluster.local $outside; do
          began=\$(now)
          nslookup -type=a "\$name" >/counts/last 2>&1 || { failed=\$((failed + 1)); cp /counts/last /counts/failure; }
          [ \$((\$(now) - began)) -lt 100 ] || slow=\$((slow + 1))
          all=\$((all + 1))
          echo "\$all \$failed \$slow" >/counts/new && mv /counts/new /counts/counts
        done
      done
POD
  done
  kubectl -n $space wait --for=condition=Ready pod --all --timeout=2m
}

# counts prints the sums of all pods.
counts() {
  local node sums=(0 0 0) one
  for node in $(kubectl -n $space get pods -o name); do
    read -ra one < <(kubectl -n $space exec "${node#pod/}" -- cat /counts/counts)
    for i in 0 1 2; do sums[i]=$((sums[i] + one[i])); done
  done
  echo "${sums[@]}"
}

# under_load runs a function and then waits, and fails if a lookup did meanwhile.
under_load() {
  local before after
  read -ra before < <(counts)
  "$@" || return 1
  sleep 5
  read -ra after < <(counts)
  for i in 0 1 2; do after[i]=$((after[i] - before[i])); done
  echo "= ${after[0]} lookups, ${after[1]} failed, ${after[2]} took a second"
  ((after[0] > 0 && after[1] == 0))
}

agent_of() {
  "${system[@]}" get pods -l app.kubernetes.io/name=node-cache --field-selector "spec.nodeName=$1,status.phase=Running" \
    --sort-by=.metadata.creationTimestamp -o name | tail -1
}

doctor() {
  local node
  for node in $(nodes); do
    "${system[@]}" exec "$(agent_of "$node")" -- /node-cache doctor --config /etc/node-cache/node-cache.yaml --no-pod
  done
}

# Queries of several types, of the agent itself. A denial is an answer.
queries() {
  local agent query asked=0
  agent=$(agent_of "$(nodes | head -1)")
  for query in 'kubernetes.default.svc.cluster.local A' 'kubernetes.default.svc.cluster.local AAAA' \
    '_https._tcp.kubernetes.default.svc.cluster.local SRV' 'no-such-service.default.svc.cluster.local A' "$outside A" "$outside AAAA" "$outside TXT"; do
    # shellcheck disable=SC2086 # two words
    "${system[@]}" exec "$agent" -- /node-cache query $query >/dev/null || [[ $? == 3 ]] || { echo "no answer to $query"; return 1; }
    asked=$((asked + 1))
  done
  echo "= $asked queries answered"
}

# A process of the node kills the agent: no process in its own pod can.
kill_agent() {
  local node
  node=$(nodes | head -1)
  "${system[@]}" apply -f - <<POD
apiVersion: v1
kind: Pod
metadata: {name: node-cache-test-kill}
spec:
  nodeName: $node
  hostPID: true
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers: [{name: kill, image: "$busybox", command: [sh, -c, 'kill -KILL \$(pidof node-cache)']}]
POD
  "${system[@]}" wait --for=jsonpath='{.status.phase}'=Succeeded pod/node-cache-test-kill --timeout=1m &&
    "${system[@]}" delete pod node-cache-test-kill
}

upgrade() {
  "${system[@]}" rollout restart daemonset/node-cache && "${system[@]}" rollout status daemonset/node-cache --timeout=5m
}

# The image of the variant cleans the nodes too.
uninstall() {
  local clean=daemonset/uninstall image
  image=$(sed -En 's/^ +image: (.*node-cache.*)$/\1/p' <<<"$rendered" | head -1)
  [[ $image != *-iptables ]] || clean=daemonset/uninstall-iptables
  kubectl delete namespace $space --ignore-not-found &&
    "${system[@]}" delete pod node-cache-test-kill --ignore-not-found &&
    kubectl delete -k "$variant" --ignore-not-found &&
    kubectl kustomize $clean | sed -E "s#image: .*node-cache:.*#image: $image#" | kubectl apply -f - &&
    "${system[@]}" rollout status daemonset/node-cache-cleanup --timeout=5m &&
    kubectl delete -k $clean
}

versions() {
  kubectl version | sed -n 's/^Server Version: /- Kubernetes /p'
  kubectl get nodes -o jsonpath='{range .items[*]}- node: {.status.nodeInfo.osImage}, {.status.nodeInfo.architecture}, Linux {.status.nodeInfo.kernelVersion}, {.status.nodeInfo.containerRuntimeVersion}, kubelet {.status.nodeInfo.kubeletVersion}{"\n"}{end}' |
    sort | uniq -c | sed -E 's/^ *([0-9]+) - node:/- \1 ×/'
}

finish() {
  trap - EXIT
  step 'uninstall' uninstall || true
  printf '\n## %s on %s\n\n' "$variant" "$(date -u +%F)"
  versions
  printf '\n| step | result | took | |\n|---|---|---|---|\n'
  printf -- '%s\n' "${results[@]}"
  exit "$failed"
}
trap finish EXIT

step 'install' install || exit
step 'pods on two nodes' start_load || exit
step 'queries' queries || true
step 'doctor' doctor || true
step 'lookups' under_load true || true
step 'an agent is killed' under_load kill_agent || true
step 'upgrade' under_load upgrade || true
