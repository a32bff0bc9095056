// SPDX-License-Identifier: Apache-2.0

// Package cli holds what the command lines of node-cache and of its kubectl plugin share.
//
// Errors are printed as `node-cache: what: why`, with `hint: …` on the next line. The package builds on every operating system.
package cli
