#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target of the main module, one after the other.
# usage: hack/fuzz.sh [TIME PER TARGET] [FLAG OF go test]...
set -uo pipefail
cd "$(dirname "$0")/.."
time=${1:-60s}
shift || true

status=0
while IFS=: read -r file line; do
  name=${line#func }
  # -fuzz takes one package and one target at a time; -run '^$' leaves the other tests out.
  # Coverage that varies from run to run makes minimising an input take up its whole minute: a few tries do.
  go test -run '^$' -fuzz "^${name%%(*}\$" -fuzztime "$time" -fuzzminimizetime 10x "$@" "./$(dirname "$file")" || status=1
done < <(grep -rE --include='*_test.go' --exclude-dir=bench '^func Fuzz[A-Z]' cmd internal pkg test hack 2>/dev/null | sort)
exit "$status"
