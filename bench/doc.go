// SPDX-License-Identifier: Apache-2.0

// Command bench measures node-cache on one machine.
//
// It has three sections, each of which writes its part of docs/performance.md:
//
//   - servers: node-cache beside other DNS caches, with one upstream (NSD)
//   - cluster: node-cache and CoreDNS as servers of the zone of one large cluster, which a real API server holds
//   - kernel: hits that the kernel answers, between network namespaces
//
// In the first two, one server at a time runs on the first CPU. The load generator (dnsperf) and everything else share the second. What a
// server costs is what the kernel counts for its processes, so the load generator's speed has no part in it. Loopback
// only: no name leaves the machine.
//
// Flags choose parts of a run, as in
//
//	make bench ARGS="--loads miss,misstcp --only node-cache,dnsdist --out="
//
// which measures misses of two servers and writes no file. bench SECTION --help lists them.
//
// A query's way through the program: main → servers, cluster, kernel (the runs) → trials (one server, one start) → harness
// (start, load) → dnsperf → report.
package main
