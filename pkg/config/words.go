// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"time"
)

// Role says which program a configuration is for. It decides what an absent key means, and which values contradict the program.
type Role string

// The roles. The zero value is the agent's as well.
const (
	Agent    Role = "agent"    // node-cache agent: one on every node
	Resolver Role = "resolver" // node-cache resolver: the central resolver of a cluster
)

// The policies of a route: the upstream that is asked first. If it is late or fails, another is asked.
const (
	PolicyFastest    = "fastest"    // the one with the shortest response time
	PolicySequential = "sequential" // the first of the list that is healthy
	PolicyRandom     = "random"     // any, all with the same probability
)

// How a query travels over HTTPS (RFC 8484 section 4.1).
const (
	MethodPost = "post" // in the body of a POST request
	MethodGet  = "get"  // in the URL of a GET request
)

// The resolvers of the cluster domain.
const (
	ResolverNone    = "none"    // no resolver: names of the cluster are forwarded like others
	ResolverLocal   = "local"   // this process, from its own watch of the API
	ResolverCentral = "central" // the servers in section cluster.central
)

// The endpoints in the cluster zone.
const (
	EndpointsHeadless = "headless" // endpoints of headless Services
	EndpointsAll      = "all"      // endpoints of all Services
	EndpointsNone     = "none"     // no endpoints
)

// Which names of pods exist. They spell the address, such as 10-0-0-1.shop.pod.cluster.local.
const (
	PodsDisabled = "disabled" // no names
	PodsInsecure = "insecure" // every name that spells an address
	PodsVerified = "verified" // names with the address of an existing pod
)

// The source of the list of pods on the node.
const (
	IdentityOff     = "off"     // no source: pods are not known
	IdentityAPI     = "api"     // the API server
	IdentityKubelet = "kubelet" // the kubelet
	IdentityAuto    = "auto"    // the kubelet, else the API server
)

// The clients of DNS64.
const (
	DNS64IPv6 = "ipv6" // clients that query over IPv6
	DNS64All  = "all"  // all clients
)

// The kinds of links.
const (
	LinkAuto     = "auto"   // the first of the following that the kernel supports
	LinkDummy    = "dummy"  // a dummy link
	LinkBridge   = "bridge" // a bridge without ports
	LinkLoopback = "lo"     // the loopback link of the node; interface.name is not used
)

// The modes of interception: the address that pods query.
const (
	ModeLinkLocal   = "link-local"  // a listen address
	ModeTransparent = "transparent" // the address of the DNS Service
)

// The kernel interfaces for the rules.
const (
	BackendAuto     = "auto"     // what kube-proxy uses on this machine
	BackendNftables = "nftables" // nftables
	BackendIptables = "iptables" // the iptables programs
)

// What the agent does with link and rules when it ends.
const (
	ExitAuto     = "auto"     // ExitFallback if [Intercept.FallsBack], else ExitRemove
	ExitFallback = "fallback" // link and rules stay, and the fallback gets the queries
	ExitRemove   = "remove"   // link and rules are removed
)

// Which part of a name a rule of rewrite replaces.
const (
	RewriteExact  = "exact"  // the whole name
	RewritePrefix = "prefix" // the beginning of the name, whether or not a label ends there
	RewriteSuffix = "suffix" // the end of the name, whether or not a label begins there
)

// Whether hits are answered in the kernel.
const (
	KernelOff  = "off"
	KernelAuto = "auto" // if this node supports it
	KernelOn   = "on"   // always: the agent does not start without support
)

// The modes of the query log.
const (
	QueriesOff    = "off"    // no queries
	QueriesErrors = "errors" // queries that failed
	QueriesSlow   = "slow"   // queries that took QueryLog.Slow or longer
	QueriesSample = "sample" // one in QueryLog.Sample queries
	QueriesAll    = "all"    // all queries
)

// QueryLog says which queries are logged.
type QueryLog struct {
	Mode   string
	Sample int           // in mode QueriesSample: one query in this many is logged, 1..1000000000; else 0
	Slow   time.Duration // in mode QueriesSlow: queries that took this time or longer are logged, 1ms..1m; else 0
}

// DefaultSlow is the threshold of `slow` alone: a delay that people notice, before stub resolvers give up.
const DefaultSlow = time.Second

// String returns the spelling of q in a configuration.
func (q QueryLog) String() string {
	switch {
	case q.Mode == QueriesSample:
		return fmt.Sprintf("sample=%d", q.Sample)
	case q.Mode == QueriesSlow && q.Slow != DefaultSlow:
		return "slow=" + formatDuration(q.Slow)
	}
	return q.Mode
}
