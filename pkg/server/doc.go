// SPDX-License-Identifier: Apache-2.0

// Package server reads queries from UDP sockets and TCP sessions and sends the replies of a
// [Handler].
//
// It does not parse DNS; it only knows where a message begins and ends. Every reader, of a UDP
// socket or a TCP session, has a [Worker] of the handler. The worker answers a query from memory on
// the reader's goroutine. Only a miss moves to another goroutine.
package server
