// SPDX-License-Identifier: Apache-2.0

// Package convert turns the configuration of other DNS servers into one of node-cache.
//
// [Corefile] reads that of CoreDNS and of NodeLocal DNSCache, [KubeDNS] the ConfigMap of kube-dns, and [Files] either of
// them as people have it: in a file, in a ConfigMap, in several at once. What has no counterpart is told in notes, each
// with its line and with what to do instead: nothing is left out in silence. What comes out always passes the checks of
// the configuration.
package convert
