// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A ServiceEndpoint is one of the servers of a Kubernetes service.
type ServiceEndpoint struct {
	Addr netip.AddrPort
	Zone string // topology zone; empty: unknown
}

// A Service is the servers of a Kubernetes service, marked by whether they are in this node's topology zone. Servers and
// zone are learned separately, and both may change. The zero value is empty. Its methods are safe for concurrent use.
type Service struct {
	servers Endpoints

	mu         sync.Mutex // guards the fields below, and orders the changes of servers
	known      bool       // the endpoints are known
	ready      []ServiceEndpoint
	own        []netip.AddrPort // the service's addresses
	restoredAt time.Time        // when a snapshot's endpoints were current; zero: the endpoints are not from a snapshot
	zone       string           // topology zone of this node; empty: none, or unknown
}

// Endpoints returns the list of servers for [Config].Endpoints. It follows later changes.
func (s *Service) Endpoints() *Endpoints { return &s.servers }

// Set replaces the endpoints by those that a watch or the DNS has reported, and reports whether something has changed. The addresses of
// the service itself, own, are the last resort.
func (s *Service) Set(ready []ServiceEndpoint, own []netip.AddrPort) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known && s.restoredAt.IsZero() && slices.Equal(s.ready, ready) && slices.Equal(s.own, own) {
		return false
	}
	s.known, s.ready, s.own, s.restoredAt = true, ready, own, time.Time{}
	s.setLocked()
	return true
}

// SetOwn sets the addresses of the service itself. They are the last resort, and the only one until endpoints are known.
func (s *Service) SetOwn(own []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = own
	s.setLocked()
}

// SetZone stores the zone of this node, and reports whether it has changed.
func (s *Service) SetZone(zone string) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.zone == zone {
		return false
	}
	s.zone = zone
	if s.known {
		s.setLocked()
	}
	return true
}

// Zone returns the zone of this node, empty if it is unknown.
func (s *Service) Zone() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.zone
}

// setLocked passes the endpoints and the service's addresses to servers. An endpoint known to be in another zone is far.
func (s *Service) setLocked() {
	ready := make([]Server, 0, len(s.ready))
	for _, e := range s.ready {
		ready = append(ready, Server{Addr: e.Addr, Far: s.zone != "" && e.Zone != "" && e.Zone != s.zone})
	}
	own := make([]Server, 0, len(s.own))
	for _, addr := range s.own {
		own = append(own, Server{Addr: addr})
	}
	s.servers.Set(ready, own)
}

// Confirmed returns the endpoints and the service's own addresses as the watch or the DNS reported them; none before that.
func (s *Service) Confirmed() (ready, own []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.restoredAt.IsZero() {
		return nil, nil
	}
	return addresses(s.ready), slices.Clone(s.own)
}

// addresses returns the addresses of endpoints, in their order.
func addresses(endpoints []ServiceEndpoint) []netip.AddrPort {
	list := make([]netip.AddrPort, 0, len(endpoints))
	for _, e := range endpoints {
		list = append(list, e.Addr)
	}
	return list
}

// DumpVersion is the version of the records of [Service.Dump]. The records are text: the scope, the age of the data
// in ns, and then addresses. An endpoint's address is followed by a space and its topology zone; a service
// address stands alone.
const DumpVersion = 1

var errRecord = errors.New("invalid record")

// Dump emits the latest endpoints, nothing if there are none. The scope names the service and its cluster.
// Endpoints that were confirmed have the age zero.
func (s *Service) Dump(scope string, now time.Time, emit func([]byte) error) error {
	s.mu.Lock()
	known, age := s.known, time.Duration(0)
	if !s.restoredAt.IsZero() {
		age = max(0, now.Sub(s.restoredAt))
	}
	records := append(make([]string, 0, 2+len(s.ready)+len(s.own)), scope, strconv.FormatInt(int64(age), 10))
	for _, e := range s.ready {
		records = append(records, e.Addr.String()+" "+e.Zone)
	}
	for _, addr := range s.own {
		records = append(records, addr.String())
	}
	s.mu.Unlock()
	if !known {
		return nil
	}
	for _, record := range records {
		if err := emit([]byte(record)); err != nil {
			return err
		}
	}
	return nil
}

// Restore reads the records of Dump, made the time passed ago. The returned function makes pools use them until
// [Service.Set]. It does nothing if the records are of another scope, or the data is older than most.
func (s *Service) Restore(scope string, records iter.Seq[[]byte], passed, most time.Duration, now time.Time) (use func(), err error) {
	use = func() {}
	lines := make([]string, 0, 8)
	for record := range records {
		lines = append(lines, string(record))
	}
	if len(lines) == 0 || lines[0] != scope {
		return use, nil
	}
	if len(lines) == 1 {
		return nil, errRecord
	}
	age, err := strconv.ParseUint(lines[1], 10, 62)
	if err != nil {
		return nil, errRecord
	}
	var ready []ServiceEndpoint
	var own []netip.AddrPort
	for _, line := range lines[2:] {
		text, zone, endpoint := strings.Cut(line, " ")
		addr, err := netip.ParseAddrPort(text)
		switch {
		case err != nil:
			return nil, errRecord
		case endpoint:
			ready = append(ready, ServiceEndpoint{Addr: addr, Zone: zone})
		default:
			own = append(own, addr)
		}
	}
	if time.Duration(age) > most-passed {
		return use, nil
	}
	return func() { s.restore(ready, own, now.Add(-time.Duration(age)-passed)) }, nil
}

// restore stores the endpoints of a snapshot, unless some were reported.
func (s *Service) restore(ready []ServiceEndpoint, own []netip.AddrPort, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known {
		return
	}
	s.known, s.ready, s.own, s.restoredAt = true, ready, own, since
	s.setLocked()
}
