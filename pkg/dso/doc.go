// SPDX-License-Identifier: Apache-2.0

// Package dso reads and writes the messages of DNS Stateful Operations (RFC 8490) and of DNS Push Notifications (RFC 8765), as bytes.
//
// It does no I/O and has no state: who may send what, and when, is for its callers. [Parse] accepts a message or says that the
// session must be aborted. A message is written front to back: [AppendHeader], then one TLV or more; a PUSH by a [Push].
//
// A heartbeat is a Keepalive of the server with an additional TLV, [TypeView], of the range for experimental use. Receivers
// ignore additional TLVs that they do not know (RFC 8490 section 5.4.5); they would abort the session for an unknown primary one.
package dso
