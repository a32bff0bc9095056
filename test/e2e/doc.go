// SPDX-License-Identifier: Apache-2.0

// Package e2e shows the built binary at work between real clients and real servers.
//
// The tests start NSD and unbound as upstreams, node-cache in between, and ask with dig, dnsperf, Go's resolver
// and the resolvers of glibc and musl. Everything listens on loopback, on ports chosen by the kernel; what needs
// port 53 or a resolv.conf of its own runs in private network and mount namespaces. A test whose program is not
// installed is skipped and names the Debian package.
//
// The environment may set:
//
//	E2E_BINARY        a node-cache to test in place of one built from this tree
//	E2E_RACE          not empty: build node-cache with the race detector
//	SOAK              not empty: loads as long as those of docs/reliability.md
package e2e
