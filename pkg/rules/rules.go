// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Mark is the bit of a packet's mark (SO_MARK, fwmark) that the agent's own packets
// carry. Rules look at this bit only. It is none of those that kube-proxy (0x4000,
// 0x8000), Cilium (0x0f00), Calico (0xffff0000) or the AWS CNI (0x80) use.
const Mark = 0x1000

// Zone is the conntrack zone of the connections that the iptables backend rewrites
// while the lease is held. When it lapses, packets of the same flow look for their
// connection in another zone, find none, and take the path of everybody.
const Zone = 0x4e43

// Mode says which address the pods ask.
type Mode uint8

// The modes.
const (
	LinkLocal   Mode = iota // the agent's own address
	Transparent             // the address of the DNS service
)

// String returns the spelling of m in a configuration.
func (m Mode) String() string { return [...]string{"link-local", "transparent"}[m] }

// Rules are the rules of one node.
type Rules struct {
	Owner     string           // names the agent that puts them there, 1..16 of a-z0-9
	Mode      Mode             //
	Addresses []netip.Addr     // that the agent listens on; unique, no zones, none unspecified
	Services  []netip.Addr     // Transparent: of the DNS service, at most one of a family, which become the family's first of Addresses
	Port      uint16           // of DNS, at Addresses and at Services
	Admin     uint16           // TCP port of the admin server at Addresses; 0: it is elsewhere
	Fallback  []netip.AddrPort // LinkLocal: where queries go while the lease is not held; unique; empty: nowhere
}

// Check says what is wrong with r, all of it.
func (r *Rules) Check() error {
	var errs []error
	if !owner(r.Owner) {
		errs = append(errs, fmt.Errorf("owner %q is not 1 to 16 letters and digits", r.Owner))
	}
	if len(r.Addresses) == 0 || r.Port == 0 {
		errs = append(errs, errors.New("rules need an address and a port"))
	}
	for i, a := range r.Addresses {
		if !a.IsValid() || a.IsUnspecified() || a.Zone() != "" || a.Is4In6() || slices.Contains(r.Addresses[:i], a) {
			errs = append(errs, fmt.Errorf("address %s cannot be held by the agent, or is there twice", a))
		}
	}
	for i, s := range r.Services {
		errs = append(errs, r.checkService(s, r.Services[:i]))
	}
	for i, f := range r.Fallback {
		errs = append(errs, r.checkFallback(f, r.Fallback[:i]))
	}
	return errors.Join(errs...)
}

func (r *Rules) checkService(s netip.Addr, before []netip.Addr) error {
	switch {
	case !r.Target(s).IsValid():
		return fmt.Errorf("service address %s has no address of the agent of its family", s)
	case slices.ContainsFunc(before, func(o netip.Addr) bool { return o.Is4() == s.Is4() }):
		return fmt.Errorf("service address %s is the second of its family", s)
	}
	return nil
}

func (r *Rules) checkFallback(f netip.AddrPort, before []netip.AddrPort) error {
	switch {
	case f.Port() == 0 || slices.Contains(before, f):
		return fmt.Errorf("fallback %s has no port, or is there twice", f)
	case slices.Contains(r.Addresses, f.Addr()):
		return fmt.Errorf("fallback %s is the agent itself", f)
	}
	return nil
}

func owner(s string) bool {
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 16
}

// A Lease is one address that the agent can hold.
type Lease struct {
	Key   netip.Addr // the address that clients ask: the element of the kernel's set
	Probe netip.Addr // the address at which the agent's own socket answers
}

// Leases are the leases of r, in the order of Addresses or Services.
func (r *Rules) Leases() []Lease {
	if r.Mode == LinkLocal {
		leases := make([]Lease, len(r.Addresses))
		for i, a := range r.Addresses {
			leases[i] = Lease{Key: a, Probe: a}
		}
		return leases
	}
	leases := make([]Lease, len(r.Services))
	for i, s := range r.Services {
		leases[i] = Lease{Key: s, Probe: r.Target(s)}
	}
	return leases
}

// Target is the agent's address that the service's address s becomes: the first of
// its family.
func (r *Rules) Target(s netip.Addr) netip.Addr {
	for _, a := range r.Addresses {
		if a.Is4() == s.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// Of returns the part of r of one family: IPv6 or IPv4. It has no Addresses when
// there is nothing of that family.
func (r *Rules) Of(v6 bool) Rules {
	part := *r
	other := func(a netip.Addr) bool { return a.Is6() != v6 }
	part.Addresses = slices.DeleteFunc(slices.Clone(r.Addresses), other)
	part.Services = slices.DeleteFunc(slices.Clone(r.Services), other)
	part.Fallback = slices.DeleteFunc(slices.Clone(r.Fallback), func(f netip.AddrPort) bool { return other(f.Addr()) })
	return part
}

// A State is what the kernel of a node holds.
type State struct {
	Present  bool                         // there is anything of an agent's
	Owner    string                       // who put the lasting rules there; empty: unknown, or there are none
	Leases   map[netip.Addr]time.Duration // what is left of each lease that is held
	Fallback []netip.AddrPort             // where queries go while it is not
	Count    int                          // rules, in all chains of ours and with the jumps to them
	Heeded   bool                         // there are rules that look at the leases which this backend renews
}

// ErrOwned says that what is in the kernel belongs to another agent, a newer one.
var ErrOwned = errors.New("the rules belong to another agent")
