// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"time"
)

// Cluster sets which resolver answers the cluster domain, and from which source.
type Cluster struct {
	Resolver ClusterResolver // default ResolverNone; for a resolver ResolverLocal, which nothing else may replace

	// Kubeconfig is the file that leads to the API server; default empty: the service
	// account of the pod. Manifests is a folder of YAML objects in place of an API
	// server; default empty: there is none. At most one of them is set. Both paths are
	// clean, and absolute unless Parse read a relative one.
	Kubeconfig string
	Manifests  string

	Central Central

	// Invalidate: the Services of the API are watched, and what is held of one that changes is
	// dropped; only with ResolverCentral, from the source above; default false.
	Invalidate bool

	Endpoints EndpointSet // default EndpointsHeadless; for a resolver EndpointsAll
	PodNames  bool        // an endpoint without a hostname is named by its pod; default false: by its address
	Pods      PodMode     // default PodsInsecure

	// Namespaces are the names of those whose objects are served, unique; empty, the
	// default: all. Not set together with NamespaceSelector.
	Namespaces        []string
	ServiceSelector   string // a label selector that services must match, as it was written; default empty: all do
	NamespaceSelector string // a label selector that namespaces must match, as it was written; default empty: all do

	IgnoreEmptyService bool          // a service without a ready endpoint does not exist; only with EndpointsAll; default false
	TTL                time.Duration // of the answers, whole seconds, 0..1h; default 5s
	StaleAfter         time.Duration // objects not confirmed fresh for longer deny no name, 5s..1h; default 90s

	// Ranges are the addresses of services and pods, whose reverse names are the
	// cluster's: masked and unique, one may hold another. Default empty: a resolver in
	// this process knows its objects' addresses only; a central one is asked for every
	// reverse name without a route of its own.
	Ranges []netip.Prefix

	// NodeZone is the topology zone whose endpoints come first in headless answers and
	// among those of Central; empty: none do. The default "auto": environment NODE_ZONE,
	// else the zone of the Node object that environment NODE_NAME names.
	NodeZone string

	// TransferTo are the clients that may transfer the zone (RFC 5936), unique; one
	// address is a prefix of all its bits. Default empty: no client.
	TransferTo []netip.Prefix
}

// Central is a resolver that has the API. It is asked over TCP.
type Central struct {
	Service     ServiceName      // its ready endpoints are asked; the zero value: none. Not set together with Addresses
	Addresses   []netip.AddrPort // unique, the port is never 0; default empty
	Connections int              // to each endpoint or address, 1..16; default 2
}

// IsSet reports whether there is a central resolver at all.
func (c Central) IsSet() bool { return c.Service != ServiceName{} || len(c.Addresses) > 0 }

// ServiceName names a Service. Both parts are DNS labels in lower case (RFC 1123), or both are empty.
type ServiceName struct{ Namespace, Name string }

// String returns "namespace/name", the empty string for the zero value.
func (s ServiceName) String() string {
	if s == (ServiceName{}) {
		return ""
	}
	return s.Namespace + "/" + s.Name
}

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
