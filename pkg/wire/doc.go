// SPDX-License-Identifier: Apache-2.0

// Package wire reads, patches, truncates and builds DNS messages as bytes.
//
// Nothing here unpacks a message into objects. A query is read once, front to
// back, into a [Query] that the caller reuses; an upstream's answer is walked
// once into a [Message]; a reply is a stored answer whose ID, flags, question
// spelling, TTLs and OPT record are patched in place. Names are compared in
// canonical form (RFC 4343): ASCII letters in lower case, every other octet as
// it is.
package wire
