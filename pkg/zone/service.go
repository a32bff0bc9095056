// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"net/netip"
	"time"
)

// A service is a packed Service object. It is immutable.
type service struct {
	typ     ServiceType
	publish bool   // unready endpoints are published
	refused bool   // it exceeds the limit: only its name is stored
	n4, n6  uint16 // addresses of each family
	ttl     int32  // seconds; negative: the zone's
	data    string // IPv4 addresses, IPv6 addresses, ports; or the alias's target in canonical wire form, if it is valid
}

// maxTTL is the longest TTL of a name.
const maxTTL = time.Hour

// maxAddrs bounds a service's addresses of one family; Kubernetes allows one.
const maxAddrs = 1 << 10

func packService(s Service) *service {
	packed := &service{typ: s.Type, ttl: -1}
	if s.TTL >= 0 {
		packed.ttl = int32(min(s.TTL, maxTTL) / time.Second)
	}
	switch s.Type {
	case ExternalName:
		packed.data = aliasTarget(s.ExternalName)
	case Headless:
		packed.publish = s.PublishNotReady
	case ClusterIP:
		packed.publish = s.PublishNotReady
		v4, v6 := packAddrs(s.Addrs)
		v4, v6 = v4[:min(len(v4), 4*maxAddrs)], v6[:min(len(v6), 16*maxAddrs)]
		packed.n4, packed.n6 = uint16(len(v4)/4), uint16(len(v6)/16)
		packed.data = string(packPorts(append(v4, v6...), s.Ports))
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

func (s *service) ports() portList { return portList(s.data[s.portsAt():]) }

// hasAddr reports whether addr is one of the service's.
func (s *service) hasAddr(addr []byte) bool {
	if s.typ != ClusterIP {
		return false
	}
	for list := s.addrs(len(addr)); list != ""; list = list[len(addr):] {
		if list[:len(addr)] == string(addr) {
			return true
		}
	}
	return false
}
