#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lints the main module, the benchmarks' and the image's with the golangci-lint that tools/go.mod pins, and the words of
# comments with vale.
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

# The words of comments. The list is tools/vale/NodeCache/Terms.yml.
find cmd pkg -name '*.go' ! -name '*_test.go' -exec go run github.com/vale-cli/vale/v3/cmd/vale@v3.21.0 --output=line {} +
