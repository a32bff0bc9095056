// SPDX-License-Identifier: Apache-2.0

// Package relay carries HTTP requests over one byte stream, such as standard input and output of a process.
//
// The stream has HTTP/2, which carries many requests at once, keeps a slow reader of one reply from delaying the others, and
// makes the sender wait for it. Both ends send pings, so each notices that the other is gone.
package relay
