# SPDX-License-Identifier: Apache-2.0
.DEFAULT_GOAL := help
.PHONY: help build kubectl-node_cache run play image release push check test soak e2e test-kernel test-cilium lint fuzz bench bench-cluster bench-kernel bench-rest bench-fleet clean

GO       ?= go
VERSION  ?= $(shell git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo dev)
REVISION ?= $(shell git -c safe.directory='*' rev-parse HEAD 2>/dev/null)
CREATED  ?= $(shell git -c safe.directory='*' log -1 --format=%ct 2>/dev/null || echo 0)
FUZZTIME ?= 60s
# The go command records version and commit in the program. The variables have Git answer it in a repository of another owner.
BUILD     = GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' CGO_ENABLED=0 \
  $(GO) build -buildvcs=auto -trimpath -ldflags '-s -w -X main.version=$(VERSION) $(ENTRY)'

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z_-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ENTRY = -E main.entry # cmd/node-cache/entry_linux.go
build: ## build the static binary bin/node-cache
	$(BUILD) -o bin/node-cache ./cmd/node-cache

kubectl-node_cache: ## build the kubectl plugin bin/kubectl-node_cache
	$(BUILD) -o bin/$@ ./cmd/$@

run: build ## build, then answer the example cluster's names on 127.0.0.1:1053
	@echo 'node-cache $(VERSION) answers DNS on 127.0.0.1:1053, UDP and TCP. In another terminal:'
	@echo '  dig @127.0.0.1 -p 1053 web.shop.svc.cluster.local     a Service of examples/cluster; edit the files there'
	@echo '  dig @127.0.0.1 -p 1053 _pg._tcp.db.shop.svc.cluster.local SRV'
	@echo '  dig @127.0.0.1 -p 1053 example.com                    from the nameservers of /etc/resolv.conf'
	@echo '  bin/node-cache status                                 how it is doing'
	@echo 'Ctrl-C stops it. Its page for browsers:'
	@{ for try in 1 2 3 4 5 6 7 8 9; do sleep 0.5; bin/node-cache page --admin unix:/tmp/node-cache.sock 2>/dev/null && break; done; } & \
	exec bin/node-cache agent --config examples/node-cache.yaml

play: build ## root, no Kubernetes: a node with two pods, and a shell in one of them
	$(GO) build -buildvcs=false -o bin/play ./internal/play
	bin/play -node-cache bin/node-cache

image: ## build the image dist/node-cache-VERSION.oci.tar, without a container engine
	cd hack/image && $(GO) run -buildvcs=false . -root ../.. -out ../../dist -version '$(VERSION)' -revision '$(REVISION)' -created '$(CREATED)' $(ARGS)

release: ## VERSION=vX.Y.Z [KEY=cosign.key]: write everything that a release has into dist/
	@test -z "$$(git -c safe.directory='*' status --porcelain)" || { echo 'release: files differ from the commit, or are not in it: commit, revert or remove them'; exit 1; }
	@$(MAKE) --no-print-directory image ARGS="-release $(if $(KEY),-key '$(abspath $(KEY))') $(ARGS)"

push: ## VERSION=vX.Y.Z REGISTRY=host/path: push the image, and after make release the chart, without a container engine
	cd hack/image && $(GO) run -buildvcs=false . push '../../dist/node-cache-$(VERSION).oci.tar' '$(REGISTRY)/node-cache:$(VERSION)'
ifneq ($(wildcard dist/node-cache-chart-$(VERSION).oci.tar),)
	cd hack/image && $(GO) run -buildvcs=false . push '../../dist/node-cache-chart-$(VERSION).oci.tar' '$(REGISTRY)/charts/node-cache:$(VERSION:v%=%)'
endif

check: ## the inner loop: run the linters, the unit tests and the scenarios
	hack/test.sh lint unit scenarios

test: ## install what the tests need, then run every suite
	hack/test.sh

soak: ## before a release, for hours: the long forms of the suites that have one
	SOAK=1 hack/test.sh unit scenarios cluster race kernel fuzz image-module e2e upstream pressure node install cilium engines

e2e: ## root: install it on a real cluster of two nodes, as the README says
	hack/test.sh install

test-kernel: ## run the kernel's tests in Debian's kernel, which an emulated machine boots
	hack/test.sh kernel

test-cilium: ## root: run the agent beside real Cilium, in several of its settings
	hack/test.sh cilium

lint: ## run the linters of .golangci.yml
	hack/lint.sh

fuzz: ## run every fuzz target for FUZZTIME (60s)
	hack/fuzz.sh $(FUZZTIME)

bench: build ## measure against other servers and write docs/performance.md
	$(GO) build -buildvcs=false -o bin/bench ./bench
	bin/bench servers --out docs/performance.md $(ARGS)

bench-cluster: build ## measure a large cluster's zone and write its part of docs/performance.md
	$(GO) build -buildvcs=false -o bin/bench ./bench
	bin/bench cluster --out docs/performance.md $(ARGS)

bench-kernel: build ## root, 2 minutes: measure hits in the kernel and write their part of docs/performance.md
	$(GO) build -buildvcs=false -o bin/bench ./bench
	bin/bench kernel --out docs/performance.md $(ARGS)

bench-rest: build ## root, an hour: measure an idle node and write its part of docs/performance.md
	$(GO) build -buildvcs=false -o bin/bench ./bench
	bin/bench rest --secs 600 --out docs/performance.md $(ARGS)

bench-fleet: build ## an hour: measure agents in each mode and thousands of simulated ones, and write their part of docs/performance.md
	$(GO) build -buildvcs=false -o bin/bench ./bench
	bin/bench fleet --secs 600 --out docs/performance.md $(ARGS)

clean: ## remove what the other targets built
	rm -rf bin dist
