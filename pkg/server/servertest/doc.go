// SPDX-License-Identifier: Apache-2.0

// Package servertest gives tests of package server a handler with a memory.
//
// A test sets by name how a query is handled: it is answered at once, later, when
// the test releases it, or never. Afterwards the test asks what the handler saw and
// whether the server kept to the contract of a worker.
package servertest
