// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Kind is a kind of API object in the store.
type Kind uint8

// The kinds of objects.
const (
	Services Kind = iota
	Slices
	Namespaces
	Pods

	// Imports and ImportSlices stand for the Services and Slices of a cluster set where [Stats] count them beside the cluster's.
	// The set's store has them as Services and Slices.
	Imports
	ImportSlices

	kindCount  = 4 // kinds that a store has
	countCount = 6 // kinds that [Stats] count
)

// Kinds returns the names of the kinds in their order, as metric labels.
func Kinds() []string {
	return []string{"service", "endpointslice", "namespace", "pod", "serviceimport", "imported-endpointslice"}
}

// A ServiceType determines how a service's name is answered.
type ServiceType uint8

// The service types. A NodePort or LoadBalancer service counts as a ClusterIP service.
const (
	ClusterIP    ServiceType = iota // the name has the service's own addresses
	Headless                        // the name has the addresses of the endpoints
	ExternalName                    // the name has a CNAME record
	Unselected                      // as Headless; the service has no selector, so its slices may lack the label of headless services
)

// A Service holds the relevant fields of a Service object.
type Service struct {
	Namespace, Name string
	Type            ServiceType
	Addrs           []netip.Addr // cluster IPs of both families; used only with the type ClusterIP
	Ports           []Port
	ExternalName    string        // target of the type ExternalName, with or without the trailing dot
	PublishNotReady bool          // endpoints are published whether ready or not
	ExternalAddrs   []netip.Addr  // addresses in external zones
	ExternalHost    string        // target of a CNAME record in external zones; used if there is no address
	TTL             time.Duration // TTL of the service's names, 0 to 1 h in whole seconds; negative: the zone's TTL
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
	Name     string // empty: there is no _<port>._<proto> name for it
	Protocol Protocol
	Number   uint16 // 0: unknown, so there is no SRV record
}

// A Slice holds the relevant fields of an EndpointSlice object.
type Slice struct {
	Namespace, Name string
	Service         string // name of its service; empty or no label: the store removes the slice
	Cluster         string // id of the cluster that its endpoints run in; empty: this cluster, or the id is no label
	Ports           []Port
	Endpoints       []Endpoint
}

// An Endpoint is one endpoint of a slice.
type Endpoint struct {
	Addrs    []netip.Addr
	Hostname string
	Pod      string // name of the pod; may be empty, to save memory, where no zone has PodNames
	Zone     string // topology zone
	Ready    bool   // the ready condition is true or unset
}

// A Pod holds the relevant fields of a running Pod object.
type Pod struct {
	Namespace, Name string
	Addrs           []netip.Addr
}

// A portList holds packed ports, sorted by number. Each port has two bytes of number, one of protocol, and the name as a
// label in wire form, whose length is 0 for a port without a name.
type portList string

// portFixed is the size of a packed port before its name, in bytes.
const portFixed = 3

// maxPorts bounds the ports of a service or slice; those with the highest numbers are left out.
const maxPorts = 1 << 12

// packPorts appends the ports to dst. An invalid label counts as no name.
func packPorts(dst []byte, ports []Port) []byte {
	sorted := slices.Clone(ports)
	for i := range sorted {
		sorted[i].Name = asLabel(sorted[i].Name)
	}
	slices.SortFunc(sorted, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range sorted[:min(len(sorted), maxPorts)] {
		dst = append(dst, byte(p.Number>>8), byte(p.Number), byte(p.Protocol))
		dst = appendLabel(dst, p.Name)
	}
	return dst
}

// number returns the first port's number.
func (l portList) number() uint16 { return uint16(l[0])<<8 | uint16(l[1]) }

func (l portList) protocol() Protocol { return Protocol(l[2]) }

func (l portList) name() string { return string(l[portFixed+1 : portFixed+1+int(l[portFixed])]) }

// rest returns the list without its first port.
func (l portList) rest() portList { return l[portFixed+1+int(l[portFixed]):] }

// A portFilter selects ports. The zero value selects all.
type portFilter struct {
	byName   bool // only ports with this name and protocol
	name     []byte
	protocol Protocol
}

// match reports whether the list's first port matches.
func (f *portFilter) match(l portList) bool {
	return !f.byName || l.protocol() == f.protocol && l.name() != "" && l.name() == string(f.name)
}

// count returns the number of matching ports. An empty list counts as one port without name and number, as in CoreDNS.
func (f *portFilter) count(l portList) int {
	if l == "" && !f.byName {
		return 1
	}
	n := 0
	for ; l != ""; l = l.rest() {
		if f.match(l) {
			n++
		}
	}
	return n
}

// selectFrom returns the list from its first matching port on, and the number of matching ports.
func (f *portFilter) selectFrom(l portList) (first portList, n int) {
	if !f.byName {
		return l, f.count(l)
	}
	for ; l != ""; l = l.rest() {
		if f.match(l) {
			if n == 0 {
				first = l
			}
			n++
		}
	}
	return first, n
}

// protocols returns the protocols of the named ports, one bit each.
func (l portList) protocols() (set uint8) {
	for ; l != ""; l = l.rest() {
		if l.name() != "" {
			set |= 1 << l.protocol()
		}
	}
	return set
}

// portName returns a port or protocol label without its underscore, which is optional. A bare underscore is invalid.
func portName(label []byte) []byte {
	if len(label) > 1 && label[0] == '_' {
		return label[1:]
	}
	return label
}

// protocolOf parses the label of a protocol.
func protocolOf(label []byte) (Protocol, bool) {
	switch string(portName(label)) {
	case "tcp":
		return TCP, true
	case "udp":
		return UDP, true
	case "sctp":
		return SCTP, true
	}
	return 0, false
}

// CheckExternal returns why some external addresses, or the external host name, are not served; nil: all are.
func (s *Service) CheckExternal() error {
	v4, v6 := packAddrs(s.ExternalAddrs)
	n4, n6 := len(v4)/4, len(v6)/16
	switch {
	case max(n4, n6) > maxAddrs:
		return fmt.Errorf("external addresses: %d of a family, at most %d are served", max(n4, n6), maxAddrs)
	case n4+n6 == 0 && s.ExternalHost != "" && aliasTarget(s.ExternalHost) == "":
		return fmt.Errorf("external host name: %.80q: %w", s.ExternalHost, wire.ErrName)
	}
	return nil
}
