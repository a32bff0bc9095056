// SPDX-License-Identifier: Apache-2.0

// Package convert turns the configuration of other DNS servers into one of node-cache.
//
// [Corefile] converts that of CoreDNS and of NodeLocal DNSCache, [KubeDNS] the ConfigMap of kube-dns, and [Files] converts
// both in their usual forms: in a file, in a ConfigMap, or in several. Notes report every part that could not be converted,
// with its line and what to do instead. The result is always a valid configuration.
//
// One table has what becomes of each plugin: see plugins.
package convert
