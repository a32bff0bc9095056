// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/dnstap"
	"github.com/nodecache/node-cache/pkg/names/blocklist"
	"github.com/nodecache/node-cache/pkg/names/localdata"
	"github.com/nodecache/node-cache/pkg/names/skydns"
	"github.com/nodecache/node-cache/pkg/names/tsig"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/wire"
)

// An Asker queries an upstream. Its type is comparable.
type Asker interface {
	// Ask sends q, a whole query whose ID is arbitrary, and passes the answer or error to the
	// receiver, at the time until at the latest. It may keep q, which does not change any more. An
	// answer has q's question and ID, and rcode NOERROR or NXDOMAIN. An error may have a method EDE()
	// int that returns its Extended DNS Error (RFC 8914). The query leaves with the next flush of
	// batch at the latest.
	Ask(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch)
}

// A Route sends the names at and below one name to one set of upstreams.
type Route struct {
	Suffix   []byte // canonical wire form; a single zero byte is the root
	Upstream Asker  // nil: queries for these names fail
	TTL      TTLs
	Exact    bool // for cluster names: TTL.Min does not apply; NXDOMAIN covers all types of its name, and no names below
	Subnet   bool // forwards the client subnet option, and caches answers per subnet
	NoStore  bool // caches no answers, only failures (RFC 9520)
}

// ttls returns the bounds of the route's answers.
func (r *Route) ttls() TTLs {
	bounds := r.TTL
	if r.Exact {
		bounds.Min = 0
	}
	return bounds
}

// A Plan is everything a configuration says about answers. It is immutable; each query uses one plan.
type Plan struct {
	Zones     zone.Zones // zones of the cluster; empty: none
	Cache     *cache.Cache
	Routes    []Route
	Outside   []Route       // those of the outside view, see compileOutside; empty: its queries fail
	UDPSize   int           // maximum bytes of a UDP reply, 512 to 4096
	Deadline  time.Duration // maximum time for one query of a client, from its arrival
	Inflight  int           // maximum in-flight queries
	Waiting   int           // maximum waiting clients, over all queries
	PerClient int           // maximum waiting queries of one source address; 0: no limit

	FailureTTL time.Duration // maximum lifetime of a cached failure; the first of a series lasts one second
	StaleAfter time.Duration // time for upstreams until clients get a stale answer, if there is one
	Cut        bool          // a denial covers all names below it (RFC 8020), except for Exact and Subnet routes

	// Owner returns the suffix of a name that identifies the cluster object its answer depends on, nil for none.
	// Changes of owners are passed to cache.Cache.OwnerChanged. A nil Owner: no name has one.
	Owner func(name []byte) []byte

	Keepalive time.Duration // TCP idle timeout announced to clients (RFC 7828)
	Version   string        // CH TXT version.bind; empty: REFUSED
	Hostname  string        // CH TXT hostname.bind and id.server; empty: REFUSED
	Self      string        // CH TXT of SelfName for this host, truncated to 255 bytes; empty: REFUSED
	QueryLog  *QueryLog     // nil: none
	Watchers  *Watchers     // further query logs; nil: none
	Tap       *dnstap.Tap   // nil: none
	Pods      *pods.Index   // pods of this node; nil: pods are unknown, and SearchPath has no effect
	Cluster   []byte        // cluster domain, canonical wire form; per-pod statistics count NXDOMAINs at and below it as search-path misses

	// SearchPath enables walks of the pods' search paths, see walk. They need Pods.
	SearchPath bool

	TransferTo []netip.Prefix // clients that may transfer Zones
	Keys       *tsig.Keys     // a transfer query must be signed with one of these; nil: signatures are ignored

	// Unreachable reports whether the upstreams of the cluster domain are down. Zones then answer at once as a
	// fallback. Nil: never.
	Unreachable func() bool

	// Loop reports whether a query for a name of [wire.AppendLoopName] was sent by this process. Such a query is
	// answered REFUSED. Nil: never.
	Loop func(name []byte) bool

	// Local reports whether an address belongs to this host. Only such clients may ask for explanations and for
	// Self. Nil: none does.
	Local func(netip.Addr) bool

	// Copied reports whether the kernel has a copy of the answer to a question, for explanations. Nil: never.
	Copied func(name []byte, rrtype uint16) bool

	// Optional features, applied in this order before Zones.
	Rewrites  *Rewrites       // nil: none
	LocalData *localdata.Data // nil: none
	DNS64     *DNS64          // nil: off
	SkyDNS    *skydns.Source  // nil: none

	Block      *blocklist.Lists // names that are not looked up; nil: none
	NotBlocked [][]byte         // zones none of whose names Block blocks, in canonical wire form

	hasExtras bool              // one of the optional features is used
	self      []byte            // Self as RDATA of a TXT record; empty if Self is empty
	routes    map[string]*Route // the Routes by Suffix
	anySubnet bool              // a route has Subnet
	longest   int               // length of the longest Suffix, in bytes
	outside   *Plan             // of the outside view; the plan itself if it is that one
}

// route returns the route with the longest suffix of the canonical name, nil if no route matches or the one found has no upstream.
func (p *Plan) route(name []byte) *Route {
	for {
		if len(name) <= p.longest {
			if r := p.routes[string(name)]; r != nil {
				if r.Upstream == nil {
					return nil
				}
				return r
			}
		}
		if len(name) <= 1 {
			return nil
		}
		name = name[1+name[0]:]
	}
}

// latest returns the current plan of the view that p belongs to.
func (r *Resolver) latest(p *Plan) *Plan {
	now := r.plan.Load()
	if p.isOutside() {
		return now.outside
	}
	return now
}

// isOutside reports whether p is the plan of the outside view.
func (p *Plan) isOutside() bool { return p.outside == p }

// owner returns the suffix of name that identifies the cluster object of its answer, nil for none; see Plan.Owner.
func (p *Plan) owner(name []byte) []byte {
	if p.Owner == nil {
		return nil
	}
	return p.Owner(name)
}

// rule returns the configuration key of a route to special names, empty for other routes.
func (r *Route) rule() string {
	if r == nil {
		return ""
	}
	if _, ok := r.Upstream.(*localdata.Special); ok {
		return "specialNames"
	}
	return ""
}
