// SPDX-License-Identifier: Apache-2.0

// Package sockets lists which sockets of this network namespace are bound to a port, and
// which processes have them.
package sockets
