// SPDX-License-Identifier: Apache-2.0

package config

import "fmt"

// spell returns the word of a value: the words of a type are those of its values, from 0 on.
func spell[T interface {
	~uint8
	words() []string
}](v T) string {
	if words := v.words(); int(v) < len(words) {
		return words[v]
	}
	return fmt.Sprintf("value %d", v)
}

// Role says which program a configuration is for. It decides what an absent key means, and which values contradict the program.
type Role uint8

// The roles.
const (
	Agent    Role = iota // node-cache agent: one on every node
	Resolver             // node-cache resolver: the central resolver of a cluster
)

func (Role) words() []string { return []string{"agent", "resolver"} }

// String returns the command that the role is named after.
func (r Role) String() string { return spell(r) }

// Policy says in which order the upstreams of a route are asked.
type Policy uint8

// The policies. With each, others are asked when one is late or fails.
const (
	PolicyFastest    Policy = iota // the quickest first
	PolicySequential               // in the order of the list: the first that does not fail
	PolicyRandom                   // any, each as often as the others
)

func (Policy) words() []string { return []string{"fastest", "sequential", "random"} }

// String returns the spelling of p in a configuration.
func (p Policy) String() string { return spell(p) }

// HTTPMethod says how a query travels over HTTPS (RFC 8484 section 4.1).
type HTTPMethod uint8

// The methods.
const (
	MethodPost HTTPMethod = iota // in the body
	MethodGet                    // in the URL
)

func (HTTPMethod) words() []string { return []string{"post", "get"} }

// String returns the spelling of m in a configuration.
func (m HTTPMethod) String() string { return spell(m) }

// ClusterResolver selects the resolver of the cluster domain.
type ClusterResolver uint8

// The resolvers of the cluster domain.
const (
	ResolverNone    ClusterResolver = iota // none: names of the cluster are forwarded like others
	ResolverLocal                          // this process, from its own watch of the API
	ResolverCentral                        // Central
)

func (ClusterResolver) words() []string { return []string{"none", "local", "central"} }

// String returns the spelling of r in a configuration.
func (r ClusterResolver) String() string { return spell(r) }

// EndpointSet says which endpoints are known.
type EndpointSet uint8

// The sets of endpoints.
const (
	EndpointsHeadless EndpointSet = iota // those of headless services
	EndpointsAll                         // those of every service
	EndpointsNone                        // none
)

func (EndpointSet) words() []string { return []string{"headless", "all", "none"} }

// String returns the spelling of e in a configuration.
func (e EndpointSet) String() string { return spell(e) }

// PodMode says which names of pods by their address exist, such as 10-0-0-1.shop.pod.cluster.local.
type PodMode uint8

// The modes of pod names.
const (
	PodsDisabled PodMode = iota // none
	PodsInsecure                // each that spells an address
	PodsVerified                // those of pods that are there
)

func (PodMode) words() []string { return []string{"disabled", "insecure", "verified"} }

// String returns the spelling of m in a configuration.
func (m PodMode) String() string { return spell(m) }

// DNS64Clients says who gets these addresses.
type DNS64Clients uint8

// The clients.
const (
	DNS64IPv6 DNS64Clients = iota // those that ask over IPv6
	DNS64All                      // all
)

func (DNS64Clients) words() []string { return []string{"ipv6", "all"} }

// String returns the spelling of c in a configuration.
func (c DNS64Clients) String() string { return spell(c) }

// LinkKind says what kind of link holds the addresses.
type LinkKind uint8

// The kinds of links.
const (
	LinkAuto     LinkKind = iota // the first of the following that the kernel has
	LinkDummy                    // a dummy link
	LinkBridge                   // a bridge without ports
	LinkLoopback                 // the machine's loopback link, which has a name of its own
)

func (LinkKind) words() []string { return []string{"auto", "dummy", "bridge", "lo"} }

// String returns the spelling of k in a configuration.
func (k LinkKind) String() string { return spell(k) }

// InterceptMode says which address is asked by those whose queries the agent takes.
type InterceptMode uint8

// The modes.
const (
	ModeLinkLocal   InterceptMode = iota // a listen address
	ModeTransparent                      // the address of the DNS service
)

func (InterceptMode) words() []string { return []string{"link-local", "transparent"} }

// String returns the spelling of m in a configuration.
func (m InterceptMode) String() string { return spell(m) }

// InterceptBackend says through what the rules reach the kernel.
type InterceptBackend uint8

// The backends.
const (
	BackendAuto     InterceptBackend = iota // what kube-proxy uses on this machine
	BackendNftables                         // nftables
	BackendIptables                         // the iptables programs
)

func (InterceptBackend) words() []string { return []string{"auto", "nftables", "iptables"} }

// String returns the spelling of b in a configuration.
func (b InterceptBackend) String() string { return spell(b) }

// OnExit says what the agent does with link and rules when it ends.
type OnExit uint8

// What the agent does when it ends.
const (
	ExitAuto     OnExit = iota // ExitFallback with ModeLinkLocal, ExitRemove with ModeTransparent
	ExitFallback               // link and rules stay, and queries go to the fallback
	ExitRemove                 // link and rules go
)

func (OnExit) words() []string { return []string{"auto", "fallback", "remove"} }

// String returns the spelling of o in a configuration.
func (o OnExit) String() string { return spell(o) }

// RewriteKind says which part of a name is replaced.
type RewriteKind uint8

// The kinds.
const (
	RewriteExact  RewriteKind = iota // all of it
	RewritePrefix                    // its beginning, whether or not a label ends there
	RewriteSuffix                    // its end, whether or not a label begins there
)

func (RewriteKind) words() []string { return []string{"exact", "prefix", "suffix"} }

// String returns the spelling of k in a configuration.
func (k RewriteKind) String() string { return spell(k) }

// QueryLogMode says which queries are logged.
type QueryLogMode uint8

// The modes of the query log.
const (
	QueriesOff    QueryLogMode = iota // none
	QueriesErrors                     // those that failed
	QueriesSlow                       // those that took long
	QueriesSample                     // one in QueryLog.Sample
	QueriesAll                        // every one
)

// maxSample bounds the sample: beyond it a busy node logs less than a line an hour.
const maxSample = 1_000_000_000

// QueryLog says which queries are logged. The zero value: none.
type QueryLog struct {
	Mode   QueryLogMode
	Sample int // in mode QueriesSample one query in so many is logged, 1..1000000000; else 0
}

// String returns the spelling of q in a configuration.
func (q QueryLog) String() string {
	switch q.Mode {
	case QueriesOff:
		return "off"
	case QueriesErrors:
		return "errors"
	case QueriesSlow:
		return "slow"
	case QueriesSample:
		return fmt.Sprintf("sample=%d", q.Sample)
	case QueriesAll:
		return "all"
	}
	return fmt.Sprintf("mode %d", q.Mode)
}
