// SPDX-License-Identifier: Apache-2.0

// Package dnstap sends the agent's DNS messages to a collector, as dnstap (https://dnstap.info) over Frame Streams.
//
// A [Tap] copies each message into a bounded buffer, from which one goroutine writes. A reply never waits for the
// collector: what finds no room is counted as dropped.
package dnstap
