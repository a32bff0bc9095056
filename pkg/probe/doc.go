// SPDX-License-Identifier: Apache-2.0

// Package probe asks DNS servers the same question again and again.
//
// A [Prober] is one such question. It tells how the latest one went, and counts
// answers, their times and what went wrong, as the sidecar of kube-dns did. Each
// question has a socket and an ID of its own, so that no late answer is taken for
// that to the next.
package probe
