// SPDX-License-Identifier: Apache-2.0

// Package wire reads, patches, truncates and builds DNS messages as bytes.
//
// Nothing here unpacks a message into objects. [Query.Parse] reads a query once, front to back,
// into a [Query] that the caller reuses. [Message.Parse] walks an upstream's answer once. A reply
// is a stored answer whose ID, flags, question, TTLs and OPT record are patched in place. Names are
// compared in canonical form (RFC 4343): ASCII letters in lower case, all other bytes unchanged.
package wire
