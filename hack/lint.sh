#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lints the main module, the benchmarks' and the image's with the golangci-lint that tools/go.mod pins.
set -euo pipefail
cd "$(dirname "$0")/.."

# The go command refuses to read the version control state of a repository of another owner.
export GOFLAGS="${GOFLAGS:-} -buildvcs=false"
tools=$PWD/tools/go.mod

go tool -modfile="$tools" golangci-lint config verify
go tool -modfile="$tools" golangci-lint run ./...
for module in bench hack/image; do
  (cd "$module" && go tool -modfile="$tools" golangci-lint run ./...)
done
