// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"net/netip"
	"time"
)

// A Kind is a kind of API object in the store.
type Kind uint8

// The kinds of objects.
const (
	Services Kind = iota
	Slices
	Namespaces
	Pods

	kindCount = 4
)

// Kinds returns the names of the kinds in their order, as metric labels.
func Kinds() []string { return []string{"service", "endpointslice", "namespace", "pod"} }

// A ServiceType determines how a service's name is answered.
type ServiceType uint8

// The service types. A NodePort or LoadBalancer service counts as a ClusterIP service.
const (
	ClusterIP    ServiceType = iota // by the service's own addresses
	Headless                        // by the addresses of its endpoints
	ExternalName                    // by an alias for another name
)

// A Service holds the relevant fields of a Service object.
type Service struct {
	Namespace, Name string
	Type            ServiceType
	Addrs           []netip.Addr // cluster IPs of both families; of a ClusterIP service only
	Ports           []Port
	ExternalName    string // with or without the trailing dot
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

// String returns the protocol's name as in DNS names, in lower case.
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

// A Slice holds the relevant fields of an EndpointSlice object.
type Slice struct {
	Namespace, Name string
	Service         string // name of the service it belongs to; empty: of none, which is as if there were no slice
	Ports           []Port
	Endpoints       []Endpoint
}

// An Endpoint is one endpoint of a slice.
type Endpoint struct {
	Addrs    []netip.Addr
	Hostname string
	Pod      string // name of the pod; may be left empty where no zone has PodNames, which saves its bytes
	Zone     string // topology zone
	Ready    bool   // the ready condition is true or unset
}

// A Pod holds the relevant fields of a running Pod object.
type Pod struct {
	Namespace, Name string
	Addrs           []netip.Addr
}
