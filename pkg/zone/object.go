// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"net/netip"
	"time"
)

// A Kind is a kind of API object that the zone is made from.
type Kind uint8

// The kinds.
const (
	Services Kind = iota
	Slices
	Namespaces
	Pods

	kindCount = 4
)

// Kinds gives the names of the kinds in their order, as metrics label them.
func Kinds() []string { return []string{"service", "endpointslice", "namespace", "pod"} }

// A ServiceType says how a service's name is answered.
type ServiceType uint8

// The types. A NodePort or LoadBalancer service is a ClusterIP service here.
const (
	ClusterIP    ServiceType = iota // by the service's own addresses
	Headless                        // by the addresses of its endpoints
	ExternalName                    // by an alias for another name
)

// A Service is what the zone needs of a Service object.
type Service struct {
	Namespace, Name string
	Type            ServiceType
	Addrs           []netip.Addr // cluster IPs of both families; of a ClusterIP service only
	Ports           []Port
	ExternalName    string // presentation form, with or without the last dot
	PublishNotReady bool   // endpoints are published whether ready or not
	TTL             time.Duration
	// TTL is of the service's names: 0 to 1 h in whole seconds; negative: the zone's.
}

// A Protocol is a transport protocol.
type Protocol uint8

// The protocols that Kubernetes knows.
const (
	TCP Protocol = iota
	UDP
	SCTP
)

// String is the protocol's name as it stands in DNS names, in lower case.
func (p Protocol) String() string {
	switch p {
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	case TCP:
	}
	return "tcp"
}

// A Port is a port of a service or of the endpoints of a slice.
type Port struct {
	Name     string // empty: it has no SRV record of its own
	Protocol Protocol
	Number   uint16 // 0: unknown, which gives no SRV record
}

// A Slice is what the zone needs of an EndpointSlice object.
type Slice struct {
	Namespace, Name string
	Service         string // name of the service it belongs to; empty: of none, which is as if there were no slice
	Ports           []Port
	Endpoints       []Endpoint
}

// An Endpoint is one of a slice's endpoints.
type Endpoint struct {
	Addrs    []netip.Addr
	Hostname string
	Pod      string // name of the pod; may be left empty where no zone has PodNames, which saves its bytes
	Zone     string // topology zone
	Ready    bool   // the ready condition is true or not given
}

// A Pod is what the zone needs of a Pod object that runs.
type Pod struct {
	Namespace, Name string
	Addrs           []netip.Addr
}
