// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/rules"
)

// The names of tables. An agent's leases are in one of its own, with its name behind
// the prefix. A name of an agent has no dot.
const (
	fallbackTable = "node-cache"
	leasePrefix   = "node-cache-"
	traceTable    = "node-cache.doctor"
)

// The names of what is in them.
const (
	leaseSet    = "lease"  // and the family
	drainSet    = "drain"  // and the family
	movedSet    = "moved"  // and the family: sessions that began during a drain
	targetMap   = "__map"  // and a number
	ownerPrefix = "owner-" // of an empty chain of the fallback table: who put it there
)

// The places at which base chains look at packets. DNAT and masquerading come just
// before those of kube-proxy.
const (
	priorityRaw         = -300
	priorityDivert      = -101
	priorityFilter      = 0
	priorityPostrouting = 99
)

// Sessions that begin during a drain are remembered for longer than any drain lasts,
// and as many as a node can begin in that time.
const (
	movedTime = 10 * time.Minute
	movedSize = 1 << 16
)

// A table is one of ours, as data.
type table struct {
	name   string
	chains []chain // a chain comes before those that jump to it
	sets   []set
	rules  []rule
}

// A chain is called by packets if it has a kind, or by rules.
type chain struct {
	name     string
	kind     string // "filter", "nat", "route"
	hook     uint32
	priority int32
}

// A set holds addresses, or, as a map, the targets of a fallback by their numbers.
type set struct {
	name                       string
	flags                      uint32
	key, keyLen, data, dataLen uint32
	elements                   []element
	size                       uint32        // at most; 0: any
	timeout                    time.Duration // of elements that bring none; 0: none
}

// A rule does something with the packets that it matches.
type rule struct {
	chain  string
	why    string // kept with the rule, for people
	exprs  []expr.Any
	choice *set // a map of the rule's own, or nil
}

func newRule(chain, why string, parts ...match) rule {
	return rule{chain: chain, why: why, exprs: slices.Concat(parts...)}
}

// render returns the tables of r: that of the leases, and the one that outlives the
// agent, or nil.
func render(r *rules.Rules) (leases, fallback *table) {
	return renderLeases(r), renderFallback(r)
}

// families are those that r has an address of.
func families(r *rules.Rules) []family {
	var all []family
	for _, f := range []family{{v6: false}, {v6: true}} {
		if len(r.Family(f.v6).Addresses) > 0 {
			all = append(all, f)
		}
	}
	return all
}

// addresses returns a set of addresses of the family whose elements have time-outs.
func (f family) addresses(name string) set {
	kind := uint32(typeIPv4)
	if f.v6 {
		kind = typeIPv6
	}
	return set{name: name + f.suffix(), flags: unix.NFT_SET_TIMEOUT, key: kind, keyLen: f.size()}
}

// sessions returns a set of TCP sessions of the family that packets fill.
func (f family) sessions(name string) set {
	kind := uint32(typeIPv4)
	if f.v6 {
		kind = typeIPv6
	}
	return set{
		name: name + f.suffix(), flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL,
		key: kind<<typeShift | typeService, keyLen: f.size() + 4,
		size: movedSize, timeout: movedTime,
	}
}

// targets returns the map of a fallback. It is the rule's own, without a name, for the
// listing of the rules to be something that the program nft can read back.
func (f family) targets(list []netip.AddrPort) *set {
	kind := uint32(typeIPv4)
	if f.v6 {
		kind = typeIPv6
	}
	s := &set{
		name: targetMap + "%d", flags: unix.NFT_SET_MAP | unix.NFT_SET_ANONYMOUS | unix.NFT_SET_CONSTANT,
		key: typeInteger, keyLen: 4, data: kind<<typeShift | typeService, dataLen: f.size() + 4,
	}
	for i, t := range list {
		data := binary.BigEndian.AppendUint16(t.Addr().AsSlice(), t.Port())
		s.elements = append(s.elements, element{
			key:  binary.NativeEndian.AppendUint32(nil, uint32(i)),
			data: append(data, 0, 0), // to the size of a register
		})
	}
	return s
}

// target is what targets made an element's data from.
func target(data []byte) (netip.AddrPort, bool) {
	if len(data) != 8 && len(data) != 20 {
		return netip.AddrPort{}, false
	}
	addr, port := data[:len(data)-4], data[len(data)-4:]
	a, ok := netip.AddrFromSlice(addr)
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port)), ok
}

// leaseTable is the name of an agent's own table.
func leaseTable(owner string) string { return leasePrefix + owner }

// ours reports whether a table of that name is an agent's.
func ours(name string) bool { return name == fallbackTable || strings.HasPrefix(name, leasePrefix) }
