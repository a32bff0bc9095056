// SPDX-License-Identifier: Apache-2.0

// Package convert turns the configuration of other DNS servers into one of node-cache.
//
// [Files] converts those of CoreDNS, NodeLocal DNSCache and kube-dns, in the forms in which people keep them. [KubeDNS]
// converts the keys of kube-dns alone. What is converted has the same answers, from the same servers. What cannot have
// them is left to the old server: the zones of a plugin, or all names of a server block. Where the old server does not
// stay, it is lost. Notes have every part that is left, lost or different, with its line and what to do instead. The
// result is always a valid configuration.
//
// Two tables have what becomes of each plugin: see settings and answers.
package convert
