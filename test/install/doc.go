// SPDX-License-Identifier: Apache-2.0

// Package install installs node-cache on a real cluster of two nodes as a user would, and looks at what its pods see:
// the kubectl plugin's preflight before it, the README's five minutes word for word, names and their changes, tuning, probes
// under load, rolling updates, the fallback, monitoring, and what is left when it is gone. Then other ways of it: the
// transparent and central overlays, the components, and the chart with helm from its installation to its end, with kube-proxy
// in both modes. Of the central overlay, resolvers are silent, killed and, in a soak or with
// CENTRAL=1, all away. The kernel answers hits of pods with a route each and of pods at a bridge. A soak also has a cluster of two
// families, where the dual-stack overlay answers over both, with the rules of nftables and with those of iptables, one
// without IPv4, and the specs of Kubernetes' own end-to-end suite about DNS.
//
// The image of component iptables is made of packages of Debian's, which needs apt and the network: IMAGE_IPTABLES says
// that they may be fetched.
//
// What was seen is in the test's attributes: go test -v, lines with "seen".
package install
