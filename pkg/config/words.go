// SPDX-License-Identifier: Apache-2.0

package config

import "fmt"

// Role says which program a configuration is for. It decides what an absent key means, and which values contradict the program.
type Role string

// The roles. The zero value is the agent's as well.
const (
	Agent    Role = "agent"    // node-cache agent: one on every node
	Resolver Role = "resolver" // node-cache resolver: the central resolver of a cluster
)

// The policies of a route. With each, others are asked when one is late or fails.
const (
	PolicyFastest    = "fastest"    // the quickest first
	PolicySequential = "sequential" // in the order of the list: the first that does not fail
	PolicyRandom     = "random"     // any, each as often as the others
)

// How a query travels over HTTPS (RFC 8484 section 4.1).
const (
	MethodPost = "post" // in the body
	MethodGet  = "get"  // in the URL
)

// The resolvers of the cluster domain.
const (
	ResolverNone    = "none"    // none: names of the cluster are forwarded like others
	ResolverLocal   = "local"   // this process, from its own watch of the API
	ResolverCentral = "central" // Central
)

// Which endpoints are known.
const (
	EndpointsHeadless = "headless" // those of headless services
	EndpointsAll      = "all"      // those of every service
	EndpointsNone     = "none"     // none
)

// Which names of pods by their address exist, such as 10-0-0-1.shop.pod.cluster.local.
const (
	PodsDisabled = "disabled" // none
	PodsInsecure = "insecure" // each that spells an address
	PodsVerified = "verified" // those of pods that are there
)

// Where the pods of the node come from.
const (
	IdentityOff     = "off"     // nowhere
	IdentityAPI     = "api"     // the API server
	IdentityKubelet = "kubelet" // the kubelet
	IdentityAuto    = "auto"    // the kubelet, else the API server
)

// The clients of DNS64.
const (
	DNS64IPv6 = "ipv6" // those that ask over IPv6
	DNS64All  = "all"  // all
)

// The kinds of links.
const (
	LinkAuto     = "auto"   // the first of the following that the kernel has
	LinkDummy    = "dummy"  // a dummy link
	LinkBridge   = "bridge" // a bridge without ports
	LinkLoopback = "lo"     // the machine's loopback link, which has a name of its own
)

// The modes of interception: which address is asked by those whose queries the agent takes.
const (
	ModeLinkLocal   = "link-local"  // a listen address
	ModeTransparent = "transparent" // the address of the DNS service
)

// Through what the rules reach the kernel.
const (
	BackendAuto     = "auto"     // what kube-proxy uses on this machine
	BackendNftables = "nftables" // nftables
	BackendIptables = "iptables" // the iptables programs
)

// What the agent does with link and rules when it ends.
const (
	ExitAuto     = "auto"     // ExitFallback with ModeLinkLocal, ExitRemove with ModeTransparent
	ExitFallback = "fallback" // link and rules stay, and queries go to the fallback
	ExitRemove   = "remove"   // link and rules go
)

// Which part of a name a rule of rewrite replaces.
const (
	RewriteExact  = "exact"  // all of it
	RewritePrefix = "prefix" // its beginning, whether or not a label ends there
	RewriteSuffix = "suffix" // its end, whether or not a label begins there
)

// Whether hits are answered in the kernel.
const (
	KernelOff  = "off"
	KernelAuto = "auto" // if this node supports it
	KernelOn   = "on"   // always
)

// The modes of the query log.
const (
	QueriesOff    = "off"    // none
	QueriesErrors = "errors" // those that failed
	QueriesSlow   = "slow"   // those that took long
	QueriesSample = "sample" // one in QueryLog.Sample
	QueriesAll    = "all"    // every one
)

// QueryLog says which queries are logged.
type QueryLog struct {
	Mode   string
	Sample int // in mode QueriesSample one query in so many is logged, 1..1000000000; else 0
}

// String returns the spelling of q in a configuration.
func (q QueryLog) String() string {
	if q.Mode == QueriesSample {
		return fmt.Sprintf("sample=%d", q.Sample)
	}
	return q.Mode
}
