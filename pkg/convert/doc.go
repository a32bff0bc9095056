// SPDX-License-Identifier: Apache-2.0

// Package convert turns the configuration of other DNS servers into one of node-cache.
//
// [Files] converts those of CoreDNS, NodeLocal DNSCache and kube-dns: in a file, in a ConfigMap, or in several. [KubeDNS]
// converts the keys of kube-dns alone. Notes report every part that could not be converted,
// with its line and what to do instead. The result is always a valid configuration.
//
// One table has what becomes of each plugin: see plugins.
package convert
