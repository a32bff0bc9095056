// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Limits of what [Notracks] reads: chains that packets pass before conntrack, those that they jump to, and the rules of all of them.
const (
	maxRawChains = 128
	maxRawRules  = 4096
)

var errTooMany = fmt.Errorf("more than %d chains or %d rules before conntrack", maxRawChains, maxRawRules)

// Flows are the packets that a fallback needs conntrack for: queries to the addresses, and the replies of the fallback.
type Flows struct {
	Addresses []netip.Addr
	Port      uint16
	Fallback  []netip.AddrPort
}

// A Notrack is a place where another program exempts packets of [Flows] that arrive from conntrack.
type Notrack struct {
	Where    string // such as "chain PREROUTING of table ip raw"
	Priority int    // of its hook
	Backend  string // [BackendIPTablesNFT] or [BackendIPTablesLegacy]; empty: a table of nftables
	Certain  bool   // all packets of some flow get there; else some may
	IPv4     bool   // it concerns flows of IPv4
	IPv6     bool   // the same of IPv6
}

// Notracks reads the rules for packets that arrive, in nftables and in iptables of both variants, and returns where programs other than
// an agent keep packets of flows out of conntrack. A rule that it does not understand may match. An error means that not all rules were
// read.
func Notracks(flows Flows) ([]Notrack, error) {
	packets := flows.packets()
	list, err := nftNotracks(packets)
	more, failed := legacyNotracks(packets)
	return append(list, more...), errors.Join(err, failed)
}

// A packet is one of a flow. What is not set may be anything.
type packet struct {
	proto            byte
	from, to         netip.Addr
	fromPort, toPort uint16
}

func (p *packet) v6() bool { return p.from.Is6() || p.to.Is6() }

func (f *Flows) packets() (list []packet) {
	for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		for _, a := range f.Addresses {
			list = append(list, packet{proto: proto, to: a, toPort: f.Port})
		}
		for _, t := range f.Fallback {
			list = append(list, packet{proto: proto, from: t.Addr(), fromPort: t.Port()})
		}
	}
	return list
}

// A verdict says whether something is true of a packet.
type verdict int

const (
	no verdict = iota
	maybe
	yes
)

func verdictOf(is bool) verdict {
	if is {
		return yes
	}
	return no
}

// not negates a verdict if is is set.
func (v verdict) not(is bool) verdict {
	if is {
		return yes - v
	}
	return v
}

// inPorts returns whether a port is within a range. One that is not set is ephemeral, so it is none that a rule names: a rule for a
// tunnel's port says nothing about replies.
func inPorts(port, first, last uint16) verdict {
	const ephemeral = 1024
	switch {
	case first == 0 && last == 0xffff, port == 0 && first <= ephemeral && last == 0xffff:
		return yes
	case port == 0:
		return min(maybe, verdictOf(first != last && last >= ephemeral))
	}
	return verdictOf(first <= port && port <= last)
}

// isAddr reports whether an address has these bytes, under a mask of the same length. Both may be shorter than the address.
func isAddr(a netip.Addr, want, mask []byte) verdict {
	switch {
	case isZero(mask):
		return yes
	case !a.IsValid():
		return maybe
	}
	have := a.AsSlice()
	if len(have) < len(mask) || len(want) != len(mask) {
		return no
	}
	for i, m := range mask {
		if have[i]&m != want[i]&m {
			return no
		}
	}
	return yes
}

// An action is what a rule does to a packet that it matches.
type action int

const (
	pass     action = iota // on to the next rule
	untrack                // out of conntrack, and on to the next rule
	jumpTo                 // to the chain target, and back
	goTo                   // to the chain target, and from there to where this chain was called from
	comeBack               // to where this chain was called from
	stop                   // to no other rule of this hook's chain
)

// A rawRule is a rule of a chain that packets pass before conntrack.
type rawRule struct {
	matches func(p *packet) verdict
	action  action
	target  string // the chain of jumpTo and goTo
}

// rawChains are chains by name.
type rawChains map[string][]rawRule

// A walk follows a packet through chains.
type walk struct {
	chains rawChains
	packet *packet
	where  string  // the chain that exempts it from conntrack
	found  verdict // whether one does
}

// through follows the packet through the chain called name, to which it comes for certain, or only maybe. It returns whether the packet
// comes back to the caller. Depth is bounded, as it is in the kernel.
func (w *walk) through(name string, comes verdict, depth int) (back verdict) {
	const maxDepth = 16
	if depth > maxDepth {
		return comes
	}
	for _, r := range w.chains[name] {
		match := r.matches(w.packet)
		is := min(match, comes)
		if is == no {
			continue
		}
		stays := no // whether a packet that the rule matches goes on to the next one
		switch r.action {
		case pass:
			stays = yes
		case untrack:
			stays = yes
			if is > w.found {
				w.where, w.found = name, is
			}
		case jumpTo:
			stays = w.through(r.target, is, depth+1)
			if stays == is {
				stays = yes // all that went there
			}
		case goTo:
			back = max(back, w.through(r.target, is, depth+1))
		case comeBack:
			back = max(back, is)
		case stop:
		}
		switch {
		case match == yes && stays == no:
			return back
		case stays != yes:
			comes = min(comes, maybe)
		}
	}
	return max(back, comes)
}

// A rawBase is a base chain that packets pass before conntrack.
type rawBase struct {
	chains   rawChains
	name     string
	priority int
	comes    verdict // whether all packets that arrive do pass it
	backend  string  // as in Notrack
	describe func(chain string) string
}

// notracks returns the places that exempt packets from conntrack.
func (b *rawBase) notracks(packets []packet) (list []Notrack) {
	for i := range packets {
		w := walk{chains: b.chains, packet: &packets[i]}
		w.through(b.name, b.comes, 0)
		if w.found == no {
			continue
		}
		n := Notrack{
			Where: b.describe(w.where), Priority: b.priority, Backend: b.backend, Certain: w.found == yes, IPv4: !packets[i].v6(), IPv6: packets[i].v6(),
		}
		at := slices.IndexFunc(list, func(o Notrack) bool { return o.Where == n.Where })
		if at < 0 {
			list = append(list, n)
			continue
		}
		o := &list[at]
		o.Certain, o.IPv4, o.IPv6 = o.Certain || n.Certain, o.IPv4 || n.IPv4, o.IPv6 || n.IPv6
	}
	return list
}
