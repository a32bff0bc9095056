// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// A service is a packed Service object. It is immutable.
type service struct {
	typ      ServiceType
	publish  bool   // unready endpoints are published
	refused  bool   // the service exceeds the limit: only its name is stored
	n4, n6   uint16 // number of IPv4 and of IPv6 addresses
	ttl      int32  // seconds; negative: the zone's
	external uint32 // number of bytes that packExternal has appended to data; 0: none
	data     string // IPv4 addresses, IPv6 addresses, ports; or the alias's target in canonical wire form, if it is valid
}

// maxTTL is the longest TTL of a name.
const maxTTL = time.Hour

// maxAddrs bounds a service's addresses of one family. Kubernetes allows one cluster IP of a family, and any number of external addresses.
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

// inside returns data without what packExternal has appended.
func (s *service) inside() string { return s.data[:len(s.data)-int(s.external)] }

// An external is a service as clients outside of the cluster reach it. The zero value has no name.
type external struct {
	service        // has the external addresses in place of cluster IPs, and the service's ports
	alias   string // host name in canonical wire form; empty: there are addresses, or no name
}

// packExternal appends the external addresses, or else the host name, with the ports to the record. Without a usable
// address or name, it appends nothing. In order: the name with its length, both counts of addresses, addresses, ports.
func (s *service) packExternal(from *Service) {
	packed := packService(Service{Type: ClusterIP, Addrs: from.ExternalAddrs, Ports: from.Ports})
	alias := ""
	if packed.n4+packed.n6 == 0 {
		if alias = aliasTarget(from.ExternalHost); alias == "" {
			return
		}
	}
	data := append([]byte{byte(len(alias))}, alias...)
	data = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(data, packed.n4), packed.n6)
	s.data += string(data) + packed.data
	s.external = uint32(len(data) + len(packed.data))
}

// outside returns the service as it is seen from outside of the cluster.
func (s *service) outside() (e external) {
	if s == nil || s.external == 0 {
		return e
	}
	data := s.data[len(s.data)-int(s.external):]
	at := 1 + int(data[0])
	e.typ, e.alias = ClusterIP, data[1:at]
	e.n4, e.n6, e.data = u16(data, at), u16(data, at+2), data[at+4:]
	return e
}

// exists reports whether the service has a name outside of the cluster.
func (e *external) exists() bool { return e.alias != "" || e.n4+e.n6 > 0 }

// endpointsIn reports whether the external zone has the endpoints of the service.
func (s *service) endpointsIn(z *Zone) bool {
	e := s.outside()
	return z.cfg.Headless && (s.typ == Headless || s.typ == Unselected) && !e.exists()
}
