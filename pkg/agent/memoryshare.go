// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
)

// How the memory of a container is shared out. The figures are measured, see
// docs/reliability.md.
const (
	// A tenth of the limit, and never less than leastAside, is left to what neither
	// the cache nor the Go runtime knows of: the part of the program's text that is in
	// use, the kernel's structures, and what lies in sockets until it is read.
	asidePart  = 10
	leastAside = 10 << 20
	// fixedGo is what the Go runtime has without any query, and readerCost what each
	// reader of queries over UDP has beside it. All readers take a small part of the
	// limit at most: on a machine of many cores, there are more of them than it needs.
	fixedGo    = 8 << 20
	readerCost = 256 << 10
	readerPart = 32
	// What lies in the sockets that clients ask is a small part of the limit, too.
	bufferPart = 24
	// sessionCost is what a TCP session takes that does nothing, and all of them may take
	// one in sessionPart of the Go runtime's limit: at work they take two to three times as
	// much, which the collector must still have room beside. A client may have one in clientPart
	// of those that there is room for.
	sessionCost = 16 << 10
	sessionPart = 8
	clientPart  = 4
	// What clients leave unread, or do not finish, may take one in heldPart of it.
	heldPart = 8
	// The services and slices of one namespace may take one in namespacePart of it.
	namespacePart = 4
	// A list from the API server may have one byte in listPart of it.
	listPart = 2
	// leastGo is the least limit: below it the collector would do little else.
	leastGo = 12 << 20
	// flightCost and waiterCost are what a query upstream and a client that waits for
	// it take at the most common.
	flightCost = 2560
	waiterCost = 448
	// livePart of what the Go runtime has beside fixedGo, in thirds, may be taken by
	// them. The rest is the collector's, which runs the more often the less that is.
	livePart = 2
	// Room for less than one in leastBounds of limits.inflight and limits.waiting is too
	// little memory. The bounds are never lowered to less than leastPart of them.
	leastBounds = 4
	leastPart   = 0.1
)

// A share is how memory is shared out, in bytes.
type share struct {
	limit    int64 // the container's; 0: it has none, or none that is known
	cache    int64
	snapshot int64
	golang   int64  // the Go runtime's limit; 0: none of ours
	inflight int    // limits.inflight
	waiting  int    // limits.waiting
	unknown  string // why the container's limit is not known

	procs, addresses int // CPUs that Go uses, and what is listened on
	readers          int // of each address
	sockets          int // of all of them
}

// shareOut divides limit bytes among the parts of a process with configuration cfg,
// which Go runs on procs CPUs.
func shareOut(limit int64, procs int, cfg *config.Config) share {
	s := share{limit: limit, cache: cfg.Cache.Size, inflight: cfg.Limits.Inflight, waiting: cfg.Limits.Waiting}
	s.procs, s.addresses = procs, max(1, len(cfg.Listen.Addresses))
	if cfg.Snapshot.Folder != "" && inMemory(cfg.Snapshot.Folder) {
		s.snapshot = 2 * cfg.Snapshot.Size // the next one is written beside the last
	}
	s.divide()
	return s
}

// divide gives each part what the limit has for it.
func (s *share) divide() {
	s.readers = s.procs
	if s.limit > 0 {
		s.readers = max(1, min(s.procs, int(s.limit/readerPart/readerCost)/s.addresses))
		s.golang = max(leastGo, s.left())
	}
	s.sockets = s.readers * s.addresses
}

// left is what is left for the Go runtime, which may be less than nothing.
func (s *share) left() int64 {
	return s.limit - max(leastAside, s.limit/asidePart) - s.cache - s.snapshot
}

// fit is the number of queries upstream and of waiting clients that there is room for,
// at most the configured ones.
func (s *share) fit() (inflight, waiting int) {
	part := s.part()
	return max(1, int(part*float64(s.inflight))), max(1, int(part*float64(s.waiting)))
}

// part is how much of the configured bounds there is room for, 0 to 1.
func (s *share) part() float64 {
	if s.limit == 0 {
		return 1
	}
	return min(1, max(leastPart, float64(s.golang-s.fixed())*livePart/3/s.wants()))
}

// fixed is what the Go runtime has without any query.
func (s *share) fixed() int64 { return fixedGo + readerCost*int64(s.sockets) }

// buffer is how many bytes of queries each socket may hold before they are read, 0 for
// as many as it likes. The kernel takes twice that.
func (s *share) buffer() int { return int(s.limit / bufferPart / 2 / int64(s.sockets)) }

// sessions is the number of TCP sessions that there is room for, and of those of one
// client, at most the configured ones.
func (s *share) sessions(cfg *config.Limits) (all, perClient int) {
	if s.limit == 0 {
		return cfg.TCPSessions, cfg.TCPPerClient
	}
	room := int(s.golang / sessionPart / sessionCost)
	return min(cfg.TCPSessions, room), min(cfg.TCPPerClient, room/clientPart)
}

// held is the bytes that the TCP sessions of one address may hold for slow clients, 0 for any.
func (s *share) held() int64 { return s.golang / heldPart / int64(s.addresses) }

// namespace is the bytes that the services and slices of one namespace may take, 0 for any.
func (s *share) namespace() int64 { return s.golang / namespacePart }

// list is the bytes that a list from the API server may have, 0 for the usual.
func (s *share) list() int64 { return s.golang / listPart }

// wants is what the configured bounds take.
func (s *share) wants() float64 {
	return flightCost*float64(s.inflight) + waiterCost*float64(s.waiting)
}

// crowded says what is wrong when live bytes of the heap are in use, as of a large
// cluster, which nobody can know in advance.
func (s *share) crowded(live int64) (Problem, bool) {
	if s.limit == 0 || live+s.fixed() <= s.golang {
		return Problem{}, false
	}
	return Problem{
		Where: "memory",
		What: fmt.Sprintf("%s of the heap are in use, and %s are left for it beside cache.size %s%s: the collector is at work all the time",
			inMiB(live), inMiB(max(0, s.golang-s.fixed())), inMiB(s.cache), s.beside()),
		Hint: "raise the container's memory limit, or lower cache.size",
	}, true
}

// needs is what the Go runtime needs at the least to serve well.
func (s *share) needs() int64 {
	return max(leastGo, s.fixed()+int64(s.wants()*3/livePart/leastBounds))
}

// problem says what is wrong with the share, if something is.
func (s *share) problem() (Problem, bool) {
	if !s.short() {
		return Problem{}, false
	}
	p := Problem{Where: "memory", What: fmt.Sprintf("the container's limit of %s leaves %s beside cache.size %s%s, and %s are needed: the kernel may end the process",
		inMiB(s.limit), inMiB(max(0, s.left())), inMiB(s.cache), s.beside(), inMiB(s.needs()))}
	p.Hint = "raise the limit to " + inMiB(s.enough())
	if fits := s.cache - (s.needs() - s.left()); fits >= cache.MinSize {
		p.Hint += fmt.Sprintf(", or set cache.size to %dMi", fits>>20)
	}
	return p, true
}

// short tells whether there is less than what is needed.
func (s *share) short() bool { return s.limit > 0 && s.left() < s.needs() }

// enough is the least limit that is not too little, in whole MiB.
func (s *share) enough() int64 {
	const step = 1 << 20
	other := *s
	for other.limit = (s.cache + s.snapshot) / step * step; other.short(); other.divide() {
		other.limit += step
	}
	return other.limit
}

func (s *share) beside() string {
	if s.snapshot == 0 {
		return ""
	}
	return " and snapshots of " + inMiB(s.snapshot)
}

// inMiB is a number of bytes for people.
func inMiB(n int64) string {
	if n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
