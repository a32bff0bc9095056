// SPDX-License-Identifier: Apache-2.0

// Package upstream shows the built binary at work in front of upstreams that fail in every way.
//
// The upstreams are real servers (NSD, unbound, node-cache itself as the central resolver) and servers that do as a test
// says. What drops packets needs network namespaces, and so root; the rest is on loopback.
//
// The figures of docs/reliability.md are of
//
//	SOAK=1 go test -v ./test/upstream
//
// which takes minutes; without SOAK the same tests run for seconds each, at lower rates. The environment may set:
//
//	E2E_BINARY  a node-cache to test in place of one built from this tree
//	E2E_RACE    not empty: build node-cache with the race detector
package upstream
