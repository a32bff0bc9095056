// SPDX-License-Identifier: Apache-2.0

// Package upstreamtest provides a scripted DNS server for tests.
//
// A [Server] speaks UDP, TCP, TLS and HTTPS, and answers each query by a [Script]:
//
//	s := upstreamtest.New(upstreamtest.Zone("www.example. 60 IN A 192.0.2.1"))
//	addr := s.Listen(t)                       // real sockets on loopback, or
//	net := upstreamtest.Network{addr: s}      // sockets in memory, for testing/synctest:
//	cfg.Dial = net.Dial                       // nothing but memory and timers
//
// It may delay, drop, truncate, refuse or forge answers or close connections, query by query. The script may be
// replaced while the server runs:
//
//	s.SetScript(upstreamtest.Sequence(
//		upstreamtest.Action{Drop: true},
//		upstreamtest.Action{Rcode: dns.RcodeServerFailure},
//		upstreamtest.Action{Delay: time.Second, Records: []string{"www.example. 60 IN A 192.0.2.1"}},
//	))
//
// With [Server.Secure] it speaks DNS over TLS or HTTPS, with a certificate of an [Authority] that the test makes.
//
// [Server.Queries] and [Server.Connections] return what it received.
package upstreamtest
