// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"cmp"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// A node holds the data of one service name: the service and its slices. Either may be missing. It is immutable, so an
// answer uses one consistent state.
type node struct {
	key    string // the name's two labels in wire form
	svc    *service
	slices []*slice // by number

	total, ready     uint32 // entries of the slices; those that are ready
	named, namedSome uint8  // protocols of named ports: in slices with a ready entry; with any entry
	partial          bool   // the service or a slice was refused
}

func compareID(s *slice, id uint32) int { return cmp.Compare(s.id, id) }

// withSlice returns the node with the slice of that number replaced, or removed if now is nil.
func (n *node) withSlice(id uint32, now *slice) *node {
	list := make([]*slice, 0, len(n.slices)+1)
	at, held := slices.BinarySearchFunc(n.slices, id, compareID)
	list = append(list, n.slices[:at]...)
	if now != nil {
		list = append(list, now)
	}
	if held {
		at++
	}
	return n.withSlices(slices.Clip(append(list, n.slices[at:]...)))
}

// withSlices returns the node with other slices, ordered by number.
func (n *node) withSlices(list []*slice) *node {
	changed := &node{key: n.key, svc: n.svc, slices: list}
	for _, s := range list {
		changed.total += uint32(s.count())
		changed.ready += s.ready
		if s.count() > 0 {
			changed.namedSome |= s.protocols
		}
		if s.ready > 0 {
			changed.named |= s.protocols
		}
	}
	changed.updatePartial()
	return changed
}

// withService returns the node with another service, or nil for none.
func (n *node) withService(svc *service) *node {
	changed := *n
	changed.svc = svc
	changed.updatePartial()
	return &changed
}

// updatePartial sets partial.
func (n *node) updatePartial() {
	n.partial = n.svc != nil && n.svc.refused || slices.ContainsFunc(n.slices, (*slice).refused)
}

// slice returns the slice with the number, or nil.
func (n *node) slice(id uint32) *slice {
	if at, ok := slices.BinarySearchFunc(n.slices, id, compareID); ok {
		return n.slices[at]
	}
	return nil
}

// mayHaveDuplicates reports whether an address or a name may occur more than once.
func (n *node) mayHaveDuplicates() bool {
	return len(n.slices) > 1 || len(n.slices) == 1 && n.slices[0].hasDuplicates
}

// empty reports whether the node has neither a service nor slices.
func (n *node) empty() bool { return n.svc == nil && len(n.slices) == 0 }

// hasPublished reports whether an endpoint of the service is published.
func (n *node) hasPublished() bool { return n.ready > 0 || n.svc.publish && n.total > 0 }

// hasProtocol reports whether a published endpoint has a named port of the protocol.
func (n *node) hasProtocol(p Protocol) bool {
	set := n.named
	if n.svc.publish {
		set = n.namedSome
	}
	return set>>p&1 != 0
}

// A namespace is a name that a Namespace object or a service proves to exist.
type namespace struct {
	label    string // in wire form
	declared atomic.Bool
	services atomic.Int32
}

// exists reports whether the namespace exists. A service in it proves that, even before the Namespace object arrives.
func (n *namespace) exists() bool {
	return n != nil && (n.declared.Load() || n.services.Load() > 0)
}

// A service is a packed Service object. It is immutable.
type service struct {
	typ      ServiceType
	publish  bool   // unready endpoints are published
	refused  bool   // it exceeds the limit: only its name is stored
	n4, n6   uint16 // addresses of each family
	ttl      int32  // seconds; negative: the zone's
	external uint32 // bytes at the end of data that packExternal has appended
	data     string // IPv4 addresses, IPv6 addresses, ports; or the alias's target in canonical wire form, if it is valid
}

// maxTTL is the longest TTL of a name.
const maxTTL = time.Hour

// maxAddrs bounds a service's addresses of one family; Kubernetes allows one, and any number of external ones.
const maxAddrs = 1 << 10

func packService(s Service) *service {
	packed := &service{typ: s.Type, ttl: -1}
	if s.TTL >= 0 {
		packed.ttl = int32(min(s.TTL, maxTTL) / time.Second)
	}
	switch s.Type {
	case ExternalName:
		packed.data = aliasTarget(s.ExternalName)
	case Headless, Unselected:
		packed.publish = s.PublishNotReady
	case ClusterIP:
		packed.publish = s.PublishNotReady
		v4, v6 := packAddrs(s.Addrs)
		v4, v6 = v4[:min(len(v4), 4*maxAddrs)], v6[:min(len(v6), 16*maxAddrs)]
		packed.n4, packed.n6 = uint16(len(v4)/4), uint16(len(v6)/16)
		packed.data = string(packPorts(append(v4, v6...), s.Ports))
	}
	if len(s.ExternalAddrs) > 0 || s.ExternalHost != "" {
		packed.packExternal(&s)
	}
	return packed
}

// aliasTarget returns the target in canonical wire form, or "" for an invalid one: a malformed name, or an IP address,
// which Kubernetes accepts as a name.
func aliasTarget(s string) string {
	if _, err := netip.ParseAddr(s); err == nil {
		return ""
	}
	name, err := wireName(s)
	if err != nil {
		return ""
	}
	return name
}

// addrs returns the packed addresses of addrLen bytes each.
func (s *service) addrs(addrLen int) string {
	if addrLen == 4 {
		return s.data[:4*int(s.n4)]
	}
	return s.data[4*int(s.n4) : s.portsAt()]
}

func (s *service) portsAt() int { return 4*int(s.n4) + 16*int(s.n6) }

func (s *service) ports() portList { return portList(s.inside()[s.portsAt():]) }

// inside returns the data that packExternal has not appended.
func (s *service) inside() string { return s.data[:len(s.data)-int(s.external)] }
