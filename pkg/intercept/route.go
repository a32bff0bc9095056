// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"net/netip"
	"slices"

	"github.com/nodecache/node-cache/pkg/rules"
)

// A Packet is a client's, to somewhere.
type Packet struct {
	Network string // "udp" or "tcp"
	To      netip.AddrPort
	Marked  bool // with [rules.Mark]: the agent's own
	Session bool // not the first of its TCP session
	Known   bool // by conntrack, which has seen the first packet of its session
}

// A Way is what the rules do with a packet.
type Way uint8

// The ways.
const (
	Direct     Way = iota // no rule sends it elsewhere than it is addressed to
	ToAgent               // to the agent's address
	ToFallback            // to one of the fallbacks
	Kept                  // where the first packet of its session went
	Rejected              // its sender is told to give up the session
)

// A Route is where a packet goes.
type Route struct {
	Way     Way
	To      netip.AddrPort // not of Kept and Rejected
	Tracked bool           // by conntrack
}

// Route says where the node's rules send a packet now. Pods' packets and those of the
// node's own processes take the same decisions.
func (f *Fake) Route(p Packet) Route {
	f.mu.Lock()
	defer f.mu.Unlock()
	direct := Route{Way: Direct, To: p.To, Tracked: true}
	r := f.rules
	if r == nil {
		return direct
	}
	own := slices.Contains(r.Addresses, p.To.Addr())
	service := r.Mode == rules.Transparent && slices.Contains(r.Services, p.To.Addr())
	switch {
	case own && r.Admin != 0 && p.To.Port() == r.Admin && p.Network == "tcp":
		return Route{Way: Direct, To: p.To}
	case p.To.Port() != r.Port || !own && !service:
		return direct
	case p.Marked:
		return Route{Way: Direct, To: p.To, Tracked: !own}
	}
	key := p.To.Addr()
	draining := p.Network == "tcp" && p.Session && !p.Known && f.liveLocked(f.drains, key)
	if held := f.liveLocked(f.leases, key); held || draining {
		to := p.To
		if service {
			to = netip.AddrPortFrom(r.Target(key), r.Port)
		}
		return Route{Way: ToAgent, To: to}
	}
	if p.Session && p.Known {
		return Route{Way: Kept, Tracked: true}
	}
	if !own || r.Mode == rules.Transparent {
		return direct
	}
	return f.fallBackLocked(p, direct)
}

func (f *Fake) fallBackLocked(p Packet, direct Route) Route {
	of := f.rules.Family(p.To.Addr().Is6())
	switch {
	case len(of.Fallback) == 0:
		return direct
	case p.Network == "tcp" && p.Session:
		return Route{Way: Rejected, Tracked: true}
	}
	f.dealt++
	return Route{Way: ToFallback, To: of.Fallback[f.dealt%len(of.Fallback)], Tracked: true}
}
