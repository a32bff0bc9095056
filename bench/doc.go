// SPDX-License-Identifier: Apache-2.0

// Command bench measures node-cache on one machine.
//
// Each of its four sections writes its part of docs/performance.md:
//
//   - servers: node-cache beside other DNS caches, with one upstream (NSD)
//   - cluster: node-cache and CoreDNS with the zone of one large cluster, from a real API server
//   - kernel: hits that the kernel answers, between network namespaces
//   - rest: node-cache beside NodeLocal DNSCache's configuration of CoreDNS, on a node whose pods ask little, and what a probe costs
//   - fleet: agents beside a large cluster's API server in each mode, and a resolver that pushes to thousands of simulated ones
//
// In the first two, one server at a time runs on the first CPU; the load generator (dnsperf) and everything else share the second. The cost of
// a server is the CPU time of its processes, so it does not depend on the load generator. All traffic is loopback.
//
// Flags choose parts of a run, as in
//
//	make bench ARGS="--loads miss,misstcp --only node-cache,dnsdist --out="
//
// which measures misses of two servers and writes no file. bench SECTION --help lists them.
//
// The order of the files: main → servers, cluster, kernel, rest, fleet (the runs) → trials (one server, one start) → harness (start, load) → dnsperf →
// report.
package main
