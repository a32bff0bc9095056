#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target of the main module, one after the other. Each package is built once.
# usage: hack/fuzz.sh [TIME OR COUNT PER TARGET] [-json]
# With -json the output is that of go test -json, and each target starts from its seeds only, so that the time of a run does not
# depend on inputs that earlier runs found.
set -uo pipefail
cd "$(dirname "$0")/.."
time=${1:-60s}
json=${2:-}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
corpus=$(go env GOCACHE)/fuzz
[[ -z $json ]] || corpus=$work/corpus

# fuzz runs one target of a built package in the folder of the package, as the go command does.
fuzz() { # fuzz FOLDER TARGET
  local pkg
  pkg=$(go list "./$1")
  # Where coverage varies from run to run, minimising an input would take its whole minute. A few tries are enough.
  local run=("$work/fuzz.test" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "$time" -test.fuzzminimizetime 10x
    -test.fuzzcachedir "$corpus/$pkg" -test.timeout 0)
  if [[ -n $json ]]; then
    (cd "$1" && "${run[@]}" -test.v=test2json 2>&1) | go tool test2json -p "$pkg"
  else
    echo "$pkg $2" && (cd "$1" && "${run[@]}")
  fi
}

status=0
targets=$(grep -rE --include='*_test.go' --exclude-dir=bench '^func Fuzz[A-Z]' cmd internal pkg test hack 2>/dev/null |
  sed -E 's,/[^/]*\.go:func (Fuzz[A-Za-z0-9]*)\(.*, \1,' | sort)
last=
while read -r folder target; do
  if [[ $folder != "$last" ]]; then
    go test -c -fuzz . -o "$work/fuzz.test" "./$folder" || { status=1; continue; }
    last=$folder
  fi
  fuzz "$folder" "$target" || status=1
done <<<"$targets"
exit "$status"
