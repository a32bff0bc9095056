// SPDX-License-Identifier: Apache-2.0

// Command bench measures node-cache beside other DNS caches on one machine.
//
// One server at a time runs on the first CPU; the load generator (dnsperf) and the upstream (NSD) share the second.
// What a server costs is read from the kernel's own account of its processes, so the load generator's speed does not
// enter it. Loopback only: no name leaves the machine.
//
// Parts of a run are chosen on the command line, as in
//
//	make bench ARGS="--loads miss,misstcp --only node-cache,dnsdist --out="
//
// which measures misses of two servers and writes no file. bench --help has the rest.
//
// A query's way through the program: main → bench (the run) → trial (one server, one round) → dnsperf → report.
package main
