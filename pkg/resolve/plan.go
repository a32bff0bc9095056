// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/static"
	"github.com/nodecache/node-cache/pkg/wire"
	"github.com/nodecache/node-cache/pkg/zone"
)

// An Asker asks upstream.
type Asker interface {
	// Ask sends q, a whole query whose ID is of no meaning, and tells to what came
	// of it, at the time until at the latest. It may keep q, which does not change any
	// more. An answer has q's question and ID, and rcode NOERROR or NXDOMAIN. An error
	// may have a method EDE() int that gives its Extended DNS Error (RFC 8914). What is
	// sent goes out when later is flushed at the latest.
	Ask(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch)
}

// A Route sends the names at and below one name to one set of upstreams.
type Route struct {
	Suffix   []byte // canonical wire form; a single zero octet is the root
	Upstream Asker
	TTL      TTLs
	Exact    bool // names of the cluster: TTLs below TTL.Min are meant, and a denial is of one name only
	Subnet   bool // pass the client's subnet option on, and keep answers apart by it
	NoStore  bool // keep no answers, only failures (RFC 9520)
}

// TTLs are the bounds of how long answers are kept, in whole seconds.
type TTLs struct {
	Min, Max time.Duration // of positive answers
	Negative time.Duration // longest of denials
}

// extras are the parts of a plan that few have. Most plans have none of them, so that
// their queries pay for one look at a pointer.
type extras struct {
	rewrites *Rewrites
	static   *static.Static
	dns64    *DNS64
}

// A Plan is everything a configuration says about answers. It is built whole and
// swapped whole; a query sees one plan from end to end.
type Plan struct {
	Zone      *zone.Zone // of the cluster; nil: none is held here
	Cache     *cache.Cache
	Routes    []Route
	UDPSize   int           // octets of the largest UDP reply, 512 to 4096
	Deadline  time.Duration // of one query, from its arrival
	Inflight  int           // flights at once
	Waiting   int           // clients waiting at once, over all flights
	PerClient int           // of these, for one source address; 0: no bound of its own

	FailureTTL time.Duration // longest of remembered failures; the first lasts one second
	StaleAfter time.Duration // what upstreams have until clients get an answer past its time, if one is held
	Cut        bool          // the denial of a name is one of all names below it (RFC 8020), but for Exact and Subnet routes

	// Owner gives the part of a name, a suffix of it or all, that the cluster's objects decide about: of events there
	// the cache is told (cache.Cache.Changed). Nil: none. A nil Owner: none for any name.
	Owner func(name []byte) []byte

	Keepalive time.Duration // TCP idle time-out that clients are told (RFC 7828)
	Version   string        // CH TXT version.bind; empty: REFUSED
	Hostname  string        // CH TXT hostname.bind and id.server; empty: REFUSED
	Self      string        // CH TXT of SelfName for this machine, up to 255 bytes, the rest is cut; empty: REFUSED
	QueryLog  *QueryLog     // nil: none

	TransferTo []netip.Prefix // clients that may have the zone as a whole

	// Unreachable tells whether those who know of the cluster what Zone does not would
	// hardly answer now: Zone has its last word at once then. Nil: they would.
	Unreachable func() bool

	// Loop tells whether a query of this process's own, for a name of [wire.AppendLoopName], has come back: such a
	// query is answered REFUSED. Nil: never.
	Loop func(name []byte) bool

	// Local reports whether an address is this machine's: such a client may ask how its reply came about, and for Self.
	// Nil: none is.
	Local func(netip.Addr) bool

	// Few configurations have any of these. They are asked in this order, before Zone.
	Rewrites *Rewrites      // nil: none
	Static   *static.Static // nil: none
	DNS64    *DNS64         // nil: off

	extras    *extras // nil if a query goes straight to Zone and Cache
	self      []byte  // Self as the data of a TXT record; empty if Self is
	routes    map[string]*Route
	anySubnet bool
	longest   int // octets of the longest suffix
}

// compile prepares the look-up of routes, and what is answered to the agent itself.
func (p *Plan) compile() {
	if p.self = nil; p.Self != "" {
		text := p.Self[:min(len(p.Self), 255)]
		p.self = append([]byte{byte(len(text))}, text...)
	}
	p.extras = nil
	if p.Rewrites != nil || p.Static != nil || p.DNS64 != nil {
		p.extras = &extras{rewrites: p.Rewrites, static: p.Static, dns64: p.DNS64}
	}
	p.routes = make(map[string]*Route, len(p.Routes))
	for i := range p.Routes {
		r := &p.Routes[i]
		p.routes[string(r.Suffix)] = r
		p.anySubnet = p.anySubnet || r.Subnet
		p.longest = max(p.longest, len(r.Suffix))
	}
}

// route is the route with the longest suffix of the canonical name, nil if there
// is none.
func (p *Plan) route(name []byte) *Route {
	for {
		if len(name) <= p.longest {
			if r := p.routes[string(name)]; r != nil {
				return r
			}
		}
		if len(name) <= 1 {
			return nil
		}
		name = name[1+name[0]:]
	}
}
