#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lints the main module and those of the image and of the browser's tests with golangci-lint, and the terms of comments and pages with
# vale. tools/go.mod pins both.
set -euo pipefail
cd "$(dirname "$0")/.."

# The go command refuses to read the version control state of a repository of another owner.
export GOFLAGS="${GOFLAGS:-} -buildvcs=false -trimpath"
tools=$PWD/tools/go.mod

go tool -modfile="$tools" golangci-lint config verify
go tool -modfile="$tools" golangci-lint run ./...
for module in hack/image test/browser; do (cd $module && go tool -modfile="$tools" golangci-lint run ./...); done

# Words: the list is tools/vale/NodeCache/Terms.yml. Of Go files it reads the comments.
CGO_ENABLED=1 find cmd pkg README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md docs examples daemonset \
  \( -name '*.go' ! -name '*_test.go' -o -name '*.md' -o -name '*.yaml' \) ! -path '*/testdata/*' \
  -exec go run github.com/vale-cli/vale/v3/cmd/vale@v3.21.0 --output=line {} +
