#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Boots Debian's kernel in an emulated machine, and runs the tests of the kernel interfaces and node-cache itself there. Other
# kernels may lack dummy links and the memory controller of cgroup version 2. Prints go test -json events, which hack/test.sh
# reports. It needs no privileges and installs nothing: it downloads and unpacks the kernel's package.
# Exit status: 0 passed, 1 failed, 77 cannot run here (a skip event says why).
# usage: [ARCH=arm64] hack/test-kernel.sh [PACKAGE]...       without one: those listed below
set -uo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin:/usr/local/go/bin LC_ALL=C
export GOFLAGS="${GOFLAGS:-} -buildvcs=false -trimpath"
{ : >&3; } 2>/dev/null || exec 3>&2 # lines that are printed at once

arch=${ARCH:-amd64}
image=linux-image-cloud-$arch # depends on the package of the newest kernel
limit=3600                    # seconds for the whole run; it and the limits below end a hang, and judge no speed
memory=1536                   # MiB; it includes the file system

# Package, time limit of its tests in seconds of the machine's clock, and flags. Tests that measure do not run in it. Suite rules has the
# same tests in the kernel of this machine: an ordinary run has those that load what another kernel may refuse, a soak more.
tests='
test/kernel  300
pkg/kernelhits   300 -test.run=^(TestProgram|TestNames)$
pkg/netif    300 -test.parallel=8
pkg/intercept/nftables 300 -test.run=^(TestGolden|TestWithoutOwnedTables)$
pkg/iptables 300 -test.run=^TestPlanIsWhatTheKernelPrints$
'
[[ -z ${SOAK:-} ]] || tests='
test/kernel  300
pkg/kernelhits   300 -test.run=^(TestPods|TestProgram|TestNames|TestBlocked|TestBridge|TestInterfaces|TestFiltersOfSeveralAgents)$
pkg/netif    300 -test.parallel=8
pkg/intercept/nftables 300 -test.run=^(TestGolden|TestDrain|TestOwnPackets|TestTwoAgents|TestWithoutOwnedTables|TestMissingCapability)$
pkg/iptables 300 -test.run=^(TestPlanIsWhatTheKernelPrints|TestSessionsEnd|TestForeignSet|TestMissingCapability)$
'
if (($# > 0)); then tests=$(printf '%s 300\n' "$@"); fi

# Modules that the kernel may load, each with its dependencies. A folder stands for all its modules.
modules='kernel/drivers/net/dummy kernel/drivers/net/veth kernel/net/'

# Programs that tests run, with their libraries. Programs that this machine lacks are left out. For another architecture, the packages
# that have them are unpacked.
programs='ip nsenter setpriv nft ipset conntrack xtables-nft-multi xtables-legacy-multi'
packages='busybox-static iproute2 util-linux nftables ipset conntrack iptables'

skip() { # skip REASON: the one event of a suite that cannot run here
  local test='"Package":"kernel","Test":"Boot"'
  printf '{"Action":"run",%s}\n{"Action":"output",%s,"Output":"%s\\n"}\n{"Action":"skip",%s}\n' "$test" "$test" "$1" "$test"
  exit 77
}

fail() { # fail TEXT
  printf '%s\n{"Action":"fail","Package":"kernel"}\n' "$1"
  exit 1
}

# foreign_apt gives apt folders of its own: those of this machine are of its architecture.
foreign_apt() { # foreign_apt FOLDER
  mkdir -p "$1/state/lists/partial" "$1/cache/archives/partial" && : >"$1/status" || return 1
  printf '%s "%s";\n' APT::Architecture "$arch" APT::Architectures:: "$arch" APT::Sandbox::User root \
    Dir::State "$1/state" Dir::State::status "$1/status" Dir::Cache "$1/cache" >"$1/apt.conf"
  export APT_CONFIG=$1/apt.conf
}

# fetch prints the path of the kernel's package, which it keeps in the user's cache folder.
fetch() {
  local folder=$cache name version file try
  mkdir -p "$folder" || return 1
  for try in lists update; do
    if [[ $try == update ]]; then # the package lists may be old or missing
      [[ $(id -u) == 0 ]] && apt-get -q update >"$work/apt.log" 2>&1 || continue
    fi
    name=$(apt-cache depends --important "$image" 2>/dev/null | awk '$1 == "Depends:" { print $2; exit }')
    version=$(apt-cache show --no-all-versions "${name:-none}" 2>/dev/null | awk '$1 == "Version:" { print $2; exit }')
    [[ -n $version ]] || continue
    file=$folder/${name}_${version//:/%3a}_$arch.deb
    [[ -e $file ]] && { echo "$file"; return; }
    (mkdir -p "$work/deb" && cd "$work/deb" && apt-get -q download "$name") >"$work/apt.log" 2>&1 || continue
    # Only complete files get the name, also when two runs download at the same time.
    mv "$work"/deb/*.deb "$file" && find "$folder" -name '*.deb' ! -path "$file" -delete && echo "$file" && return
  done
  file=$(find "$folder" -name '*.deb' | sort -V | tail -n 1) # use an earlier download
  [[ -n $file ]] && echo "$file"
}

# choose lists the modules of a folder that are wanted, with all they need, from its modules.dep.
choose() { # choose FOLDER
  awk -v wanted="$modules" '
    { path = $1; sub(/:$/, "", path); $1 = ""; needs[path] = $0 }
    function take(path,  list, n, i) {
      if (taken[path]++) return
      print path
      n = split(needs[path], list, " ")
      for (i = 1; i <= n; i++) take(list[i])
    }
    END {
      n = split(wanted, want, /[ \n]+/)
      for (path in needs) for (i = 1; i <= n; i++) {
        file = path; sub(/\.ko.*/, "", file)
        if (file == want[i] || want[i] ~ /\/$/ && index(path, want[i]) == 1) take(path)
      }
    }' "$1/modules.dep"
}

# unpack prints the folder of a package's kernel and its chosen modules, which it keeps beside the package until this script changes.
unpack() { # unpack PACKAGE
  local to release folder path made=$work/unpacked
  to=${1%.deb}-$(cksum <hack/test-kernel.sh | cut -d ' ' -f 1)
  [[ -d $to ]] && { echo "$to"; return; }
  dpkg-deb -x "$1" "$work/package" || return 1
  release=$(basename "$work"/package/lib/modules/* "$work"/package/usr/lib/modules/* | grep '^[0-9]') || return 1
  folder=$(echo "$work"/package/{,usr/}lib/modules/"$release" | tr ' ' '\n' | while read -r path; do [[ -d $path ]] && echo "$path"; done)
  find "$folder" -name '*.ko.xz' -print0 | xargs -0 -r -n 50 -P "$(nproc)" xz -d || return 1
  find "$folder" -name '*.ko.zst' -print0 | xargs -0 -r -n 50 -P "$(nproc)" zstd -q -d --rm || return 1
  busybox depmod -b "${folder%/lib/modules/*}" "$release" || return 1
  while read -r path; do
    mkdir -p "$made/lib/modules/$release/$(dirname "$path")" && cp "$folder/$path" "$made/lib/modules/$release/$path" || return 1
  done < <(choose "$folder")
  cp "$folder"/modules.builtin* "$made/lib/modules/$release/"
  busybox depmod -b "$made" "$release" && cp "$work"/package/boot/vmlinuz-* "$made/vmlinuz" && rm -rf "$work/package" || return 1
  # Only a complete folder gets the name, also when two runs unpack at the same time.
  path=$(mktemp -d "$to.XXXXXX") && cp -r "$made/." "$path/" && mv -T "$path" "$to" || { rm -rf "$path"; [[ -d $to ]] || return 1; }
  find "$(dirname "$to")" -mindepth 1 -maxdepth 1 -type d ! -path "$to" -mmin +60 -exec rm -rf {} +
  echo "$to"
}

# install_libraries copies what programs and libraries load.
install_libraries() { # install_libraries FILE...
  local library
  while read -r library; do
    mkdir -p "$root$(dirname "$library")" && cp -L "$library" "$root$library"
  done < <(ldd "$@" 2>/dev/null | grep -o '/[^ ]*[^ :]' | sort -u)
}

install_program() { # install_program NAME FOLDER
  local path
  path=$(command -v "$1") || return
  cp "$path" "$root/$2/" && install_libraries "$path"
}

copy_programs() {
  local name path plugins=/usr/lib/x86_64-linux-gnu/xtables
  install_program busybox bin
  for name in $programs; do install_program "$name" usr/sbin; done
  [[ ! -d $plugins ]] || install_libraries "$plugins"/*.so
  for path in $plugins /etc/protocols /etc/services; do
    if [[ -e $path ]]; then mkdir -p "$root$(dirname "$path")" && cp -r "$path" "$root$path"; fi
  done
}

# unpack_programs unpacks the packages of the programs, and all that they depend on.
unpack_programs() {
  local file
  # shellcheck disable=SC2086 # a list of words
  apt-get -q -y --no-install-recommends --download-only install $packages >"$work/apt.log" 2>&1 || return 1
  for file in "$cache"/apt/cache/archives/*.deb; do dpkg-deb -x "$file" "$root" || return 1; done
}

# install_programs installs the programs, and gives those of iptables their names.
install_programs() {
  local name variant
  if [[ $arch == amd64 ]]; then copy_programs; else unpack_programs || return 1; fi
  for variant in nft legacy; do
    [[ -e $root/usr/sbin/xtables-$variant-multi ]] || continue
    for name in ip{,6}tables{,-save,-restore}; do
      ln -sf "xtables-$variant-multi" "$root/usr/sbin/${name/tables/tables-$variant}"
      ln -sf "xtables-$variant-multi" "$root/usr/sbin/$name" # legacy is the last
    done
  done
  if [[ -e $root/usr/sbin/xtables-nft-multi ]]; then # and nft the usual
    for name in ip{,6}tables{,-save,-restore}; do ln -sf xtables-nft-multi "$root/usr/sbin/$name"; done
  fi
}

# install_tests builds the test binaries, all linked statically, and their list.
install_tests() {
  local package seconds flags binary
  export GOARCH=$arch CGO_ENABLED=0
  go build -ldflags '-s -w -E main.entry' -o "$root/usr/sbin/node-cache" ./cmd/node-cache || return 1
  while read -r package seconds flags; do
    [[ -n $package ]] && compgen -G "$package/*_test.go" >/dev/null || continue
    binary=$(basename "$package").test # as go test names it: tests read the program's name from the kernel
    go test -c -ldflags '-s -w' -o "$root/tests/$package/$binary" "./$package" || return 1
    mkdir -p "$root/src/$package"
    if [[ -d $package/testdata ]]; then cp -r "$package/testdata" "$root/src/$package/"; fi
    echo "$package $binary $seconds $flags" >>"$root/tests/list"
  done <<<"$tests"
  unset GOARCH
  go tool test2json </dev/null >"$work/test2json.out" # build it now, not while the machine waits for its reader
}

# events turns the machine's output into events, and prints a line for each test binary.
events() {
  awk -v module="$(go list -m)" -v list="$root/tests/list" '
    function say(text) { print text | "cat >&3" }
    function give(action, package) { printf "{\"Action\":\"%s\",\"Package\":\"%s/%s\"}\n", action, module, package; fflush() }
    $1 == "@@kernel" { sub(/^@@/, ""); say(name = $0) }
    $1 == "@@begin" { fflush(); began[$2] = 1; command = "go tool test2json -t -p " module "/" $2; next }
    $1 == "@@end" {
      close(command); command = ""
      if ($3 != 0) give("fail", $2)
      say(sprintf("  %-20s %s, %d s", $2, $3 == 0 ? "ok" : "FAILED, exit status " $3, $4))
      next
    }
    command != "" { print | command }
    END {
      if (command != "") close(command) # the machine died: this ends the package as failed
      while ((getline line < list) > 0) { split(line, f, " "); if (!(f[1] in began)) give("fail", f[1]) }
      close("cat >&3")
    }'
}

[[ $(uname -sm) == "Linux x86_64" ]] || skip "the kernel of the package is for x86_64, this is $(uname -sm)"
# The machine's two serial ports are its console, and what the tests write. Kernels for arm64 have the first from the board and the second
# from a PCI device.
case $arch in
  amd64) machine=(qemu-system-x86_64 -cpu max) console=ttyS0 results=ttyS1 second=(-serial stdio) ;;
  arm64) machine=(qemu-system-aarch64 -machine virt -cpu cortex-a72) console=ttyAMA0 results=ttyS0 second=(-device pci-serial,chardev=results -chardev stdio,id=results) ;;
  *) fail "ARCH=$arch: not amd64 or arm64" ;;
esac
for need in "${machine[0]}" busybox cpio apt-get apt-cache dpkg-deb go; do
  command -v $need >/dev/null || skip "no $need"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{bin,sbin,usr/sbin,usr/bin,lib,proc,sys,dev,tmp,run,etc,root,tests,src}
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/node-cache/kernel
if [[ $arch != amd64 ]]; then cache+=-$arch && foreign_apt "$cache/apt" || fail "cannot write to $cache"; fi
package=$(fetch) || skip "apt cannot get $image$(grep -m 1 '^E:' "$work/apt.log" 2>/dev/null | tr -d '"\\' | sed 's/^E/: E/')"
kernel=$(unpack "$package") && cp -r "$kernel/lib" "$root/" || fail "cannot unpack $package, or choose its modules"
install_programs || fail "apt cannot get $packages$(tail -n 1 "$work/apt.log" 2>/dev/null | tr -d '"\\')"
cp hack/kernel-init.sh "$root/init" && chmod +x "$root/init"
install_tests || fail "building what runs in the machine"
(cd "$root" && find . | cpio --quiet -o -H newc -R 0:0) >"$work/initramfs" || fail "packing the machine's files"

# The machine's clock counts instructions (icount) and not the host's time, so that a busy host makes no time limit pass in it. This
# is only sound with one processor, and the clock of the suspend must be the host's, which is the default.
timeout --foreground --kill-after=5 "$limit" "${machine[@]}" -accel tcg -icount shift=1 -m "$memory" -nodefaults -no-user-config \
  -display none -no-reboot -kernel "$kernel/vmlinuz" -initrd "$work/initramfs" \
  -append "console=$console results=$results quiet panic=-1 random.trust_cpu=on" \
  -serial "file:$work/console" "${second[@]}" </dev/null | tee "$work/said" | events >"$work/events"
status=("${PIPESTATUS[@]}")
cat "$work/events"
if ! grep -q '^@@done' "$work/said"; then
  tail -n 40 "$work/console"
  fail "the machine did not come to its end: status ${status[0]} (124 is its limit of $limit s)"
fi
! grep -q '"Action":"fail"' "$work/events"
