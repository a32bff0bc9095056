// SPDX-License-Identifier: Apache-2.0

// Package upstreamtest is a DNS server that behaves as a test tells it to.
//
// A [Server] is asked over UDP, TCP, TLS and HTTPS and answers each query by a [Script]:
//
//	s := upstreamtest.New(upstreamtest.Zone("www.example. 60 IN A 192.0.2.1"))
//	addr := s.Listen(t)                       // real sockets on loopback, or
//	net := upstreamtest.Network{addr: s}      // sockets in memory, for testing/synctest:
//	cfg.Dial = net.Dial                       // nothing but memory and timers
//
// It may be slow, silent, truncating, refusing, lying or hanging up, one query
// after the other, and its script may be replaced while it runs:
//
//	s.SetScript(upstreamtest.Sequence(
//		upstreamtest.Action{Drop: true},
//		upstreamtest.Action{Rcode: dns.RcodeServerFailure},
//		upstreamtest.Action{Delay: time.Second, Records: []string{"www.example. 60 IN A 192.0.2.1"}},
//	))
//
// With [Server.Secure] it speaks TLS, which carries DNS or HTTPS as the client
// wishes, by a certificate of an [Authority] that the test makes.
//
// Afterwards it says what it was asked: [Server.Queries], [Server.Connections].
package upstreamtest
