// SPDX-License-Identifier: Apache-2.0

// Package push tells subscribers which names of the zones have changed: the server of DNS Push Notifications (RFC 8765), in sessions of
// DNS Stateful Operations (RFC 8490).
//
// A change of an owner ([zone.Owner]) marks its subscribed names in each session. A session has a set of marked names, not a queue of
// changes: a name that changes often while the client does not read costs one message. A PUSH removes all records of a name and adds
// those of now, so it does not matter which changes it stands for.
//
// A heartbeat, each 2 s, vouches for all that was sent before: it follows the marked names of the session, in the same stream.
package push
