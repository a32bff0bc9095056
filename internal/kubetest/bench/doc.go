// SPDX-License-Identifier: Apache-2.0

// Command bench measures node-cache and CoreDNS as servers of the zone of one large cluster.
//
// A real API server holds the cluster. One server at a time runs on the first CPU, with its connection to the API
// server through a proxy that counts; the API server, the proxy and the load generator (dnsperf) share the second.
// What is measured: a start until everything is known, memory, CPU per query, the time from an event to the right
// answer, and what each costs the API server, for which kube-proxy runs as well. Loopback only.
//
// The result is the part of docs/performance.md between the marks cluster. A way through the program: main → bench
// (the run) → trial (one server, one start) → load, event; cost → report → section.
package main
