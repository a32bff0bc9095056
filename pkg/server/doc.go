// SPDX-License-Identifier: Apache-2.0

// Package server reads queries from UDP sockets and TCP sessions and sends the
// replies a [Handler] gives.
//
// It knows nothing of DNS but where a message begins and ends. Every reader, a
// UDP socket's or a TCP session's, takes its queries through a [Worker] into the
// handler: a query is tried from memory on the reader itself, and only what is
// not held there leaves for another goroutine.
package server
