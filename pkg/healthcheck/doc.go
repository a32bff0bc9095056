// SPDX-License-Identifier: Apache-2.0

// Package healthcheck sends the same question to a DNS server at an interval.
//
// A [Prober] reports the latest result, and counts answers, latencies and failures, as the kube-dns
// sidecar did. Each query has its own socket and ID, so that a late answer cannot match the next
// query.
package healthcheck
