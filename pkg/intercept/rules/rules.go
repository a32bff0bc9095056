// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Mark is the bit of the packet mark (SO_MARK, fwmark) that the agent's own packets
// carry. Rules match this bit only. Other programs use other bits: kube-proxy 0x4000 and
// 0x8000, Cilium 0x0f00, Calico 0xffff0000, the AWS CNI 0x80.
const Mark = 0x1000

// HostMark is the mark that Cilium gives to the node's own packets, in the bits of
// HostMask. Its programs take packets with this mark for packets of the node.
const (
	HostMark = 0x0c00
	HostMask = 0x0f00
)

// ProxyMark is the mark, in the bits of HostMask, that Cilium gives to packets that it hands to its proxy on the node. Where a policy
// allows names, these are the pods' queries. They must stay untracked, or DNAT takes them before the proxy does; it then queries as the pod.
const ProxyMark = 0x0200

// TestMark is the bit of the packet mark of a test of the fallback. A packet of this node with it passes the lease: it goes where
// all packets would go without one. It has no meaning in packets that arrive, from pods or elsewhere. The next bit after Mark,
// 0x2000, is no choice: CNI's portmap and netavark masquerade packets with it, which would hide that the agent's rules do not.
// Hybridnet uses 0x20, and kube-vip 0x40.
const TestMark = 0x10

// Zone is the conntrack zone of the connections that the iptables backend rewrites
// while the lease is held. Once the lease ends, packets of the same flow are looked up
// in another zone, match no connection, and take the path of all other traffic.
const Zone = 0x4e43

// Mode says which address the pods query.
type Mode uint8

// The modes.
const (
	LinkLocal   Mode = iota // the agent's own address
	Transparent             // the address of the DNS Service
)

// String returns the configuration value of m.
func (m Mode) String() string { return [...]string{"link-local", "transparent"}[m] }

// A Redirect rewrites the address of queries and of their replies, without state: so each address of the agent replaces one address only.
type Redirect struct {
	From netip.Addr // the address that clients query
	To   netip.Addr // one of the agent's
}

// Rules are the rules of one node.
type Rules struct {
	Owner     string           // the agent that writes the rules, 1 to 16 of a-z0-9
	Mode      Mode             //
	Addresses []netip.Addr     // the agent listens here; unique, no zones, none unspecified
	Services  []netip.Addr     // Transparent: the DNS Service, at most one per family; rewritten to the family's first of Addresses
	Servers   []Redirect       // other servers; without a lease their queries are left alone
	Excluded  bool             // Transparent: the data plane leaves packets to Services as they are, so that no proxy answers them
	Port      uint16           // DNS port, at Addresses and at Services
	Admin     uint16           // TCP port of the admin server at Addresses; 0: it listens elsewhere
	Fallback  []netip.AddrPort // LinkLocal or Excluded: queries go here while the lease is not held; unique; empty: no rule redirects them

	// What the data plane of the node needs, with a Fallback. Neither changes who answers.
	Track    bool // conntrack tracks packets to and from the fallback, also where rules of priority raw exempt the pods' packets
	MarkHost bool // packets to the fallback leave with HostMark
}

// Check returns all that is wrong with r.
func (r *Rules) Check() error {
	var errs []error
	if !isOwner(r.Owner) {
		errs = append(errs, fmt.Errorf("owner %q is not 1 to 16 letters and digits", r.Owner))
	}
	if len(r.Addresses) == 0 || r.Port == 0 {
		errs = append(errs, errors.New("rules need an address and a port"))
	}
	for i, a := range r.Addresses {
		if !a.IsValid() || a.IsUnspecified() || a.Zone() != "" || a.Is4In6() || slices.Contains(r.Addresses[:i], a) {
			errs = append(errs, fmt.Errorf("address %s is a duplicate or not a unicast address without a zone", a))
		}
	}
	for i, s := range r.Services {
		errs = append(errs, r.checkService(s, r.Services[:i]))
	}
	for i := range r.Servers {
		errs = append(errs, r.checkServer(i))
	}
	for i, f := range r.Fallback {
		errs = append(errs, r.checkFallback(f, r.Fallback[:i]))
	}
	return errors.Join(errs...)
}

func (r *Rules) checkServer(i int) error {
	s, others := r.Servers[i], slices.Delete(r.Redirects(), len(r.Redirects())-len(r.Servers)+i, len(r.Redirects())-len(r.Servers)+i+1)
	switch {
	case s.From.Is4() != s.To.Is4() || !slices.Contains(r.Addresses, s.To):
		return fmt.Errorf("server %s: %s is no agent address of this family", s.From, s.To)
	case slices.Contains(r.Addresses, s.From):
		return fmt.Errorf("server %s is the agent itself", s.From)
	case slices.ContainsFunc(others, func(o Redirect) bool { return o.From == s.From || o.To == s.To }):
		return fmt.Errorf("server %s and its agent address %s: one of the two is used twice", s.From, s.To)
	}
	return nil
}

func (r *Rules) checkService(s netip.Addr, before []netip.Addr) error {
	switch {
	case !r.Target(s).IsValid():
		return fmt.Errorf("service address %s: no agent address of this family", s)
	case slices.ContainsFunc(before, func(o netip.Addr) bool { return o.Is4() == s.Is4() }):
		return fmt.Errorf("service address %s is the second of its family", s)
	}
	return nil
}

func (r *Rules) checkFallback(f netip.AddrPort, before []netip.AddrPort) error {
	switch {
	case f.Port() == 0 || slices.Contains(before, f):
		return fmt.Errorf("fallback %s is a duplicate or has no port", f)
	case slices.Contains(r.Addresses, f.Addr()):
		return fmt.Errorf("fallback %s is the agent itself", f)
	case slices.Contains(r.Services, f.Addr()):
		return fmt.Errorf("fallback %s is the Service itself", f)
	}
	return nil
}

// FallsBack reports whether queries go to Fallback while the lease is not held, but for those to Servers. Otherwise the data plane
// serves them.
func (r *Rules) FallsBack() bool { return r.Mode == LinkLocal || r.Excluded }

// FallbackKeys returns the addresses whose queries go to Fallback while the lease is not held.
func (r *Rules) FallbackKeys() []netip.Addr {
	if !r.FallsBack() {
		return nil
	}
	return r.own()
}

// Keys returns the addresses that clients query.
func (r *Rules) Keys() []netip.Addr {
	keys := r.own()
	for _, s := range r.Servers {
		keys = append(keys, s.From)
	}
	return keys
}

// own returns the addresses that clients query for DNS of the cluster, as a new list.
func (r *Rules) own() []netip.Addr {
	if r.Mode == Transparent {
		return slices.Clone(r.Services)
	}
	return slices.DeleteFunc(slices.Clone(r.Addresses), func(a netip.Addr) bool {
		return slices.ContainsFunc(r.Servers, func(s Redirect) bool { return s.To == a })
	})
}

// Redirects returns the addresses that are rewritten to the agent's: Services, then Servers.
func (r *Rules) Redirects() []Redirect {
	list := make([]Redirect, 0, len(r.Services)+len(r.Servers))
	if r.Mode == Transparent {
		for _, s := range r.Services {
			list = append(list, Redirect{From: s, To: r.Target(s)})
		}
	}
	return append(list, r.Servers...)
}

func isOwner(s string) bool {
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 16
}

// A Lease names one address on which the agent can hold a lease.
type Lease struct {
	Key   netip.Addr // the address that clients query: the element of the kernel set
	Probe netip.Addr // the address of the agent's own socket
}

// Leases returns the leases of r, in the order of Keys.
func (r *Rules) Leases() []Lease {
	leases := make([]Lease, len(r.Keys()))
	for i, key := range r.Keys() {
		leases[i] = Lease{Key: key, Probe: r.Listener(key)}
	}
	return leases
}

// IsServer reports whether key is the address of one of Servers.
func (r *Rules) IsServer(key netip.Addr) bool {
	return slices.ContainsFunc(r.Servers, func(s Redirect) bool { return s.From == key })
}

// Listener returns the agent's address that receives the queries to key, one of Keys: another one if it is rewritten.
func (r *Rules) Listener(key netip.Addr) netip.Addr {
	for _, d := range r.Redirects() {
		if d.From == key {
			return d.To
		}
	}
	return key
}

// Target returns the agent's address that replaces the Service's address s: the first
// of its family.
func (r *Rules) Target(s netip.Addr) netip.Addr {
	for _, a := range r.Addresses {
		if a.Is4() == s.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// Family returns r with the addresses of one IP family only, IPv6 if v6 is set. It has no
// Addresses if r has none of that family.
func (r *Rules) Family(v6 bool) Rules {
	part := *r
	other := func(a netip.Addr) bool { return a.Is6() != v6 }
	part.Addresses = slices.DeleteFunc(slices.Clone(r.Addresses), other)
	part.Services = slices.DeleteFunc(slices.Clone(r.Services), other)
	part.Servers = slices.DeleteFunc(slices.Clone(r.Servers), func(s Redirect) bool { return other(s.From) })
	part.Fallback = slices.DeleteFunc(slices.Clone(r.Fallback), func(f netip.AddrPort) bool { return other(f.Addr()) })
	return part
}

// FallbackPorts returns the ports of the fallback, sorted.
func (r *Rules) FallbackPorts() []uint16 {
	ports := make([]uint16, len(r.Fallback))
	for i, f := range r.Fallback {
		ports[i] = f.Port()
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// A State is what the kernel of a node holds.
type State struct {
	Backend     string                       // name of the backend; set only by a caller that reads several backends
	Present     bool                         // the kernel holds anything of an agent
	Owner       string                       // the agent that wrote the rules that outlive it; empty: unknown, or no such rules
	Leases      map[netip.Addr]time.Duration // the remaining time of each held lease
	Fallback    []netip.AddrPort             // queries go here while the lease is not held
	Count       int                          // rules in the agent's chains, and jumps to them
	LeasesInUse bool                         // rules match the leases that this backend renews
}

// ErrOwned means that the rules in the kernel belong to another, newer agent.
var ErrOwned = errors.New("the rules belong to another agent")
