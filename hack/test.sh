#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every test suite of the project, after installing what the suites need.
# As root on Debian it installs missing packages. Elsewhere the summary names what could not run.
# usage: hack/test.sh [SUITE]...       without a name: all suites but fuzz, which searches: what it finds differs from run to run,
#                                      and cilium and engines, which take long to build
# SOAK=1: the long forms of the suites, before a release. They take hours, on a machine that does nothing else.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PATH=$PATH:/usr/sbin:/sbin:/usr/local/go/bin # Debian keeps servers out of an ordinary user's path
export LC_ALL=C
# The go command refuses to read the version control state of a repository of another owner.
# -trimpath: every clone shares what the go command has cached, and tests share it with the binaries.
export GOFLAGS="${GOFLAGS:-} -buildvcs=false -trimpath -vet=off -ldflags=-w" # suite lint vets; a third of a test's link are tables for debuggers
# As the released binary and the programs of the tests, so that all share what the go command has cached.
export CGO_ENABLED=0

# A program and its Debian package. stdio.h stands for the C library's development files.
needs="gcc:gcc /usr/include/stdio.h:libc6-dev musl-gcc:musl-tools git:git ip:iproute2 unshare:util-linux
nsd:nsd named:bind9 unbound:unbound dnsperf:dnsperf dig:bind9-dnsutils nft:nftables iptables:iptables ipset:ipset
conntrack:conntrack qemu-system-x86_64:qemu-system-x86 qemu-aarch64:qemu-user busybox:busybox-static cpio:cpio
runc:runc /usr/lib/cni/bridge:containernetworking-plugins prometheus:prometheus promtool:prometheus
docker-registry:docker-registry chromium:chromium fstrm_capture:fstrm-bin node:nodejs
tshark:tshark clang:clang llvm-strip:llvm /usr/include/bpf/bpf_helpers.h:libbpf-dev"
[[ " $* " != *" cilium "* ]] || needs+=" /usr/lib/llvm-19/bin/clang:clang-19 bpftool:bpftool"
# Four lanes run at the same time. Each lane runs one suite after the other, with one nice value.
timed="rules upstream pressure e2e node" # they judge times: nice -10
after=install # after those: nice -5, as the control groups of its pods
nice="scenarios unit cluster manifests" # they wait for events, and lose queries where they wait too long: nice 0
idle="lint image-module fuzz" # they compile and compute: nice 10
other="kernel race" # kernel beside idle, on one processor: nice 5. It takes longest, and race follows: beside install, pods lose queries
race=${race--race} # empty where there is no C compiler, which the race detector needs
concurrent='admin|admin/relay|agent|configsource|filewatch|handover|names/etcd|names/localdata|names/push|resolve|server|snapshot|upstream|watch' # most tests start goroutines
racing='Parallel|While|TestNoOlderStateAfterNewer' # the tests of cache and zone that start goroutines
bulky='TestFastest|TestSpread.*|TestExploration|TestEndpointsLastResort|TestCaseChecksAreBounded|TestSocketPoolBounds|TestTCPOutboxIsBounded' # upstream
bulky+='|TestWorst|TestTransferBigZone|TestSearchWorlds|TestPlacesAreReleased|TestForgedAddress' # resolve
bulky+='|TestEndless.*|TestUnchangedStaysConfirmed|TestManifestsUnreadable|TestLongTexts' # watch
soak=${SOAK:-}
[[ -z $soak ]] || { timed="$nice $idle $other $timed"; nice=; idle=; other=; } # a soak runs one suite at a time
[[ -z $soak ]] || needs+=" qemu-system-aarch64:qemu-system-arm"
limit=${soak:+6h}
limit=${limit:-45m} # of one package's tests: it ends a hang, and judges no speed beside other suites

# ---- set-up --------------------------------------------------------------------------------------------------

missing() { # the packages that are not installed
  local need what
  for need in $needs; do
    what=${need%%:*}
    [[ $what == /* && -e $what ]] || command -v "$what" >/dev/null || printf '%s ' "${need##*:}"
  done
}

# apt_get keeps the servers it installs from starting: the tests start their own, on their own ports.
apt_get() {
  local policy=/usr/sbin/policy-rc.d ours=
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && ours=yes
  fi
  DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends "$@" >"$work/apt.log" 2>&1
  local status=$?
  [[ -z $ours ]] || rm -f "$policy"
  return $status
}

set_up() {
  command -v go >/dev/null || { echo "no go command: install Go $(awk '$1 == "go" { print $2 }' go.mod) or newer"; exit 1; }
  local packages
  packages=$(missing)
  if [[ -n $packages ]]; then
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
      echo "not installed, and not root on Debian: $packages"
    else
      echo "installing through apt: $packages"
      # shellcheck disable=SC2086 # a list of words
      { apt_get install $packages || { apt_get update && apt_get install $packages; }; } || tail -n 5 "$work/apt.log"
    fi
  fi
  command -v gcc >/dev/null || race=
  echo "building the test tools with $(go env GOVERSION); modules come from $(go env GOPROXY)"
  go build -o "$work/suite" ./hack/suite || exit 1
}

# ---- suites: each prints go test -json events -----------------------------------------------------------------

packages() { # every package but the suites that run by themselves
  go list ./... | grep -vE "/(test/(e2e|scenario|cluster|node|upstream|pressure|kernel|manifests|install|dataplane)|bench|internal/(kubetest|kubenode|nodetest|play|promtest)|pkg/($rules))(/|\$)"
}
rules='intercept|iptables|kernelhits|netif' # packages whose tests write rules and links of the kernel

# check runs one command that is no Go test and reports it as one.
check() { # check NAME COMMAND...
  local name=$1 out action=pass
  shift
  out=$("$@" 2>&1) || action=fail
  printf '{"Action":"run","Package":"check","Test":"%s"}\n' "$name"
  [[ $action == pass ]] || printf '%s\n' "$out"
  printf '{"Action":"%s","Package":"check","Test":"%s"}\n' "$action" "$name"
}

# cannot says why a suite cannot run on this machine, and ends it without a verdict.
cannot() { # cannot SUITE REASON
  local test="\"Package\":\"suite\",\"Test\":\"$1\""
  printf '{"Action":"run",%s}\n{"Action":"output",%s,"Output":"%s\\n"}\n{"Action":"skip",%s}\n' "$test" "$test" "$2" "$test"
  return 77
}

suite_lint() {
  check golangci-lint hack/lint.sh # with govet's analyzers
  local module
  for module in . hack/image test/*/go.mod; do
    module=${module%/go.mod}
    [[ $module != test/cilium* && $module != test/kube-network-policies* ]] || continue # their suites, which have their modules
    check "tidy-$module" go -C "$module" mod tidy -diff
  done
  check actionlint go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 .github/workflows/*
  local script
  for script in .ci/run hack/*.sh; do check "bash-$(basename "$script")" bash -n "$script"; done
  check_vulnerabilities
}

# check_vulnerabilities fails for a module with a known vulnerability that is called. Those of the standard library
# depend on the Go that builds, so they are only printed.
check_vulnerabilities() {
  local out
  # The modules alone first: whether one is called takes forty times as long.
  out=$(go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 -scan module 2>&1)
  ! grep -q 'Vulnerability #' <<<"$out" || out=$(go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./... 2>&1)
  if grep -q 'fetching vulnerabilities' <<<"$out"; then
    cannot govulncheck "the database cannot be reached; docs/security.md has the list of its last run"
    return 0
  fi
  grep -A1 'Vulnerability #' <<<"$out" >&3
  check govulncheck bash -c "! grep 'Module: '" <<<"$out"
}

# Every benchmark runs once after its package's tests, so that a broken one is found. The flag goes past the go command: with its own -bench
# it tests one package at a time. The race detector changes allocations, so only this suite checks allocation budgets.
suite_unit() {
  # shellcheck disable=SC2046 # a list of words
  go test -json -count=1 -timeout=15m $(packages) -args -test.bench=. -test.benchtime=1x
}

# Packages that start goroutines, and the scenarios. It skips tests of large data: they take minutes with the race detector, and
# other tests run the same code. A soak skips none.
suite_race() {
  [[ -n $race ]] || { cannot race "no C compiler"; return; }
  local skip="^($bulky)\$|^TestFairness\$/,_" status
  [[ -z $soak ]] || { skip='^$'; racing=.; }
  export CGO_ENABLED=1
  # shellcheck disable=SC2046 # a list of words
  go test -json -count=1 -timeout="$limit" -race -skip "$skip" $(go list ./pkg/... | grep -E "/pkg/($concurrent)\$") ./test/scenario
  status=$?
  go test -json -count=1 -timeout="$limit" -race -run "$racing" ./pkg/cache ./pkg/names/zone && return $status
}

# Packages that write rules, links and leases of the kernel, in network namespaces. Traffic flows while these change, so tests run
# one at a time and without the race detector.
suite_rules() {
  # shellcheck disable=SC2046 # a list of words
  go test -json -count=1 -p=1 -timeout="$limit" $(go list ./pkg/... | grep -E "/pkg/($rules)(/|\$)")
}

# A count, not a time: at the end of a time the go command sometimes reports its own deadline as a failure.
suite_fuzz() { hack/fuzz.sh "${soak:+100}2000x" -json; }

suite_scenarios() { go test -json -count=1 -timeout=10m ./test/scenario/...; }

# The binary that the suites e2e, upstream, pressure, node and cluster start, built once for all of them.
binary() {
  [[ -n ${E2E_BINARY:-} || -n ${E2E_RACE:-} ]] && return
  chmod 755 "$work" # one test runs it as an ordinary user
  go build -ldflags '-w -E main.entry -X main.version=test' -o "$work/node-cache" ./cmd/node-cache >&2 && export E2E_BINARY=$work/node-cache
}

# The program as a process, with real servers and clients that wait for some seconds only, and its page in a browser.
suite_e2e() (
  go test -json -count=1 -timeout="$limit" ./test/e2e/...
  status=$?
  cd test/browser && go test -json -count=1 -timeout="$limit" ./... && exit $status
)

# Upstreams that fail, some in network namespaces. It judges times, so it runs alone in its lane.
suite_upstream() { go test -json -count=1 -timeout="$limit" ./test/upstream; }

# Floods and little memory, in memory cgroups. Other clients must lose nothing, so it runs alone in its lane.
suite_pressure() { go test -json -count=1 -timeout="$limit" ./test/pressure; }

# The node in network namespaces: pods, a real agent and its faults, make play.
suite_node() {
  local parallel=${soak:+1} # tests mostly wait
  [[ $(id -u) == 0 ]] || { cannot node "network namespaces need root"; return; }
  go test -json -count=1 -p=1 -parallel="${parallel:-4}" -timeout="$limit" ./test/node/... ./internal/nodetest/... ./internal/play/...
}

# The tests that use the kernel, in Debian's kernel in an emulated machine; in a soak, in one for arm64 too.
suite_kernel() {
  local status=0
  hack/test-kernel.sh || status=$?
  [[ -z $soak ]] || SOAK= ARCH=arm64 hack/test-kernel.sh || status=$?
  return $status
}

# Builds the programs of Kubernetes that several suites start. A cold build takes minutes, too long for a test.
programs() { go test -count=1 -timeout=60m -run '^$' ./internal/kubetest; }

suite_cluster() {
  programs >"$work/programs" 2>&1 || { cat "$work/programs"; return 1; }
  go test -json -count=1 -timeout="$limit" ./test/cluster/... ./internal/kubetest/... ./bench/...
}

# The manifests: every kustomization and the chart, rendered, compared, and applied to a real API server; alerts and dashboard on a
# real Prometheus.
suite_manifests() { go test -json -count=1 -timeout=15m ./test/manifests/... ./internal/promtest/...; }

# Real clusters of two nodes, and the README's installation in them. Two clusters at a time: one leaves half of two processors idle.
# The image with iptables as in suite image-module.
suite_install() {
  local iptables
  [[ $(id -u) == 0 ]] || { cannot install "network namespaces need root"; return; }
  iptables=$(command -v apt-get)
  programs >"$work/programs" 2>&1 || { cat "$work/programs"; return 1; }
  IMAGE_IPTABLES=$iptables go test -json -count=1 -p=1 -timeout="$limit" ./test/install/... ./internal/kubenode/...
}

# The agent beside real Cilium. It takes half an hour, and its programs a quarter to build the first time, so only a soak has it.
suite_cilium() {
  [[ $(id -u) == 0 ]] || { cannot cilium "network namespaces need root"; return; }
  programs >"$work/programs" 2>&1 || { cat "$work/programs"; return 1; }
  local module
  for module in test/cilium*; do check "tidy-$module" go -C "$module" mod tidy -diff; done
  go test -json -count=1 -timeout=2h -skip '^TestEngine' ./test/dataplane
}

# The agent beside real policy engines. It waits for minutes until an engine forgets, so only a soak has it.
suite_engines() {
  [[ $(id -u) == 0 ]] || { cannot engines "network namespaces need root"; return; }
  programs >"$work/programs" 2>&1 || { cat "$work/programs"; return 1; }
  local module
  for module in test/kube-network-policies*; do check "tidy-$module" go -C "$module" mod tidy -diff; done
  go test -json -count=1 -timeout="$limit" -run '^TestEngine' ./test/dataplane
}

# The image variant with iptables is built from Debian packages, which apt downloads.
suite_image-module() (
  [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null || export IMAGE_IPTABLES=1
  cd hack/image && go test -json -count=1 -timeout="$limit" ./...
)

# ---- running -------------------------------------------------------------------------------------------------

# run prints a suite's report, then its line, and leaves its tally in a file. In a shell of its own: it reads that shell's times.
run() ( # run SUITE
  local name=$1 start=$SECONDS passed=0 failed=0 skipped=0 verdict=ok status computed
  "suite_$name" 2>"$work/$name.err" | "$work/suite" "$work/$name.tally"
  status=("${PIPESTATUS[@]}")
  read -r passed failed skipped <"$work/$name.tally" || failed=1
  # A command may fail without a failed test. A suite that ran no test has failed, unless it exits with 77.
  if ((status[0] == 77 && passed + failed == 0)); then
    verdict='cannot run here'
  elif ((status[0] != 0 && failed == 0)) || ((passed + failed == 0)); then
    failed=1
  fi
  if ((failed > 0)); then
    verdict=FAILED
    cat "$work/$name.err"
  fi
  echo "$passed $failed $skipped" >"$work/$name.tally"
  times >"$work/$name.times"
  computed=$(awk -F'[ms ]' 'NR == 2 { print int(60 * ($1 + $4) + $2 + $5) }' "$work/$name.times")
  echo "suite $name: $((passed + failed)) tests, $((SECONDS - start)) s, $computed s of processor time, $verdict"
)

# lane runs those suites of a lane that the caller named, and prints each report as a whole.
lane() { # lane NICE "SUITE..." "ASKED FOR..."
  local name
  renice -n "$1" "$BASHPID" >/dev/null 2>&1 # below 0 for root only
  for name in $2; do
    [[ " $3 " != *" $name "* ]] || { run "$name" >"$work/$name.report" 2>&1; cat "$work/$name.report"; }
  done
}

summary() {
  if [[ -n $(missing) ]]; then echo "not installed, so tests that need them were skipped: $(missing)"; fi
  [[ -n $race ]] || echo "suite race did not run: no C compiler"
  cat "$work"/*.tally | awk '{ p += $1; f += $2; s += $3 }
    END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || p == 0 }'
}

exec 3>&1 # for lines that are printed at once, also by a suite whose output goes to a file
work=$(mktemp -d)
# While the suites run, processes compete by their own nice values. With autogroups (sched(7)) the kernel divides processors among
# sessions first: processes of a session with nice value -10 waited up to 0.6 s while others with 0 ran.
autogroup=/proc/sys/kernel/sched_autogroup_enabled
[[ -w $autogroup ]] && before=$(<"$autogroup") && echo 0 >"$autogroup"
trap 'kill -- $(jobs -p | sed s/^/-/) 2>/dev/null; wait; [[ -z ${before:-} ]] || echo "$before" >"$autogroup"; rm -rf "$work"' EXIT
set_up
names=${*:-$timed $after $nice ${idle/fuzz/} $other}
[[ ! " $names " =~ \ (e2e|upstream|pressure|node|cluster|cilium|engines)\  ]] || binary
set -m # each lane is a process group of its own, which the trap ends
{
  # Other suites wait for the programs.
  [[ ! " $names " =~ \ (e2e|node|cluster|manifests|install)\  ]] || (renice -n 5 "$BASHPID" && programs) >"$work/programs.ahead" 2>&1
  lane 5 "$other" "$names" &
  lane 10 "$idle" "$names"
  wait
} &
lane 0 "$nice" "$names" &
{ lane -10 "$timed" "$names"; lane -5 "$after cilium engines" "$names"; } &
set +m
wait # an interrupt ends it at once, and the trap all lanes
for name in $names; do
  [[ -e $work/$name.tally ]] || { echo "suite $name: no such suite, or it did not end"; echo '0 1 0' >"$work/$name.tally"; }
done
summary
status=$?
if (($# == 0)); then # a whole run
  last=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/node-cache/last-run
  mkdir -p "$(dirname "$last")"
  printf '%s %s %d s\n' "$(git describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)" "$([[ $status == 0 ]] && echo green || echo red)" "$SECONDS" >"$last"
fi
exit $status
