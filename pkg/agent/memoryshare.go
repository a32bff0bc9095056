// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
)

// Shares of the container's memory. The numbers are measured, see docs/reliability.md.
const (
	// A tenth of the limit, at least minReserve, is reserved for memory that neither the cache nor the Go
	// runtime counts: program text, kernel structures, and data in socket buffers.
	reservePart = 10
	minReserve  = 10 << 20
	// fixedGo is the Go runtime's memory without any query. Each UDP reader adds readerCost. All readers
	// together get 1/readerPart of the limit: a host of many cores has more of them than it needs.
	fixedGo    = 8 << 20
	readerCost = 256 << 10
	readerPart = 32
	// Socket receive buffers get 1/bufferPart of the limit.
	bufferPart = 24
	// sessionCost is the memory of an idle TCP session. All sessions get 1/sessionPart of the Go runtime's
	// limit: busy ones use two to three times as much, and the collector needs room beside them. One client
	// gets 1/clientPart of the sessions.
	sessionCost = 16 << 10
	sessionPart = 8
	clientPart  = 4
	// Unread responses and unfinished queries get 1/heldPart of the Go runtime's limit.
	heldPart = 8
	// The services and slices of one namespace get 1/namespacePart of it.
	namespacePart = 4
	// A list from the API server gets 1/listPart of it.
	listPart = 2
	// minGo is the lowest Go limit: below it the collector would run all the time.
	minGo = 12 << 20
	// inFlightCost and waiterCost are the typical memory of a query to an upstream and of a client that waits
	// for it.
	inFlightCost = 2560
	waiterCost   = 448
	// Queries get livePart thirds of the Go runtime's limit minus fixedGo. The rest is for the collector,
	// which runs more often the less there is.
	livePart = 2
	// If the memory allows less than 1/leastBounds of limits.inflight and limits.waiting, it is too little.
	// The bounds are never lowered below leastPart of the configured ones.
	leastBounds = 4
	leastPart   = 0.1
)

// A share is the division of the memory, in bytes.
type share struct {
	limit      int64 // the container's; 0: none, or unknown
	cache      int64
	snapshot   int64
	goLimit    int64  // the Go runtime's limit; 0: not set by the agent
	inflight   int    // limits.inflight
	waiting    int    // limits.waiting
	limitError string // why the container's limit is unknown

	procs, addresses int // CPUs of the Go runtime, and listen addresses
	readers          int // per address
	sockets          int // of all addresses
}

// shareOut divides limit bytes among the parts of a process with configuration cfg and procs CPUs.
func shareOut(limit int64, procs int, cfg *config.Config) share {
	s := share{limit: limit, cache: cfg.Cache.Size, inflight: cfg.Limits.Inflight, waiting: cfg.Limits.Waiting}
	s.procs, s.addresses = procs, max(1, len(cfg.Listen.Addresses))
	if cfg.Snapshot.Folder != "" && inMemory(cfg.Snapshot.Folder) {
		s.snapshot = 2 * cfg.Snapshot.Size // the new file is written beside the old one
	}
	s.divide()
	return s
}

// divide computes the shares from the limit.
func (s *share) divide() {
	s.readers = s.procs
	if s.limit > 0 {
		s.readers = max(1, min(s.procs, int(s.limit/readerPart/readerCost)/s.addresses))
		s.goLimit = max(minGo, s.goRoom())
	}
	s.sockets = s.readers * s.addresses
}

// goRoom returns what is left for the Go runtime. It may be negative.
func (s *share) goRoom() int64 {
	return s.limit - max(minReserve, s.limit/reservePart) - s.cache - s.snapshot
}

// queryBounds returns the queries to upstreams and the waiting clients that fit, at most the configured ones.
func (s *share) queryBounds() (inflight, waiting int) {
	part := s.queryPart()
	return max(1, int(part*float64(s.inflight))), max(1, int(part*float64(s.waiting)))
}

// queryPart returns the part of the configured bounds that fits, 0 to 1.
func (s *share) queryPart() float64 {
	if s.limit == 0 {
		return 1
	}
	return min(1, max(leastPart, float64(s.goLimit-s.fixed())*livePart/3/s.queryCost()))
}

// fixed returns the Go runtime's memory without any query.
func (s *share) fixed() int64 { return fixedGo + readerCost*int64(s.sockets) }

// buffer returns the receive buffer of each socket in bytes, 0 for the kernel's default. The kernel uses
// twice as much.
func (s *share) buffer() int { return int(s.limit / bufferPart / 2 / int64(s.sockets)) }

// sessions returns the TCP sessions that fit, and those of one client, at most the configured ones.
func (s *share) sessions(cfg *config.Limits) (all, perClient int) {
	if s.limit == 0 {
		return cfg.TCPSessions, cfg.TCPPerClient
	}
	room := int(s.goLimit / sessionPart / sessionCost)
	return min(cfg.TCPSessions, room), min(cfg.TCPPerClient, room/clientPart)
}

// held returns the bytes that the TCP sessions of one address may hold for slow clients, 0 for no limit.
func (s *share) held() int64 { return s.goLimit / heldPart / int64(s.addresses) }

// namespace returns the bytes that the services and slices of one namespace may use, 0 for no limit.
func (s *share) namespace() int64 { return s.goLimit / namespacePart }

// list returns the bytes that a list from the API server may have, 0 for the default.
func (s *share) list() int64 { return s.goLimit / listPart }

// queryCost returns the memory of the configured query bounds.
func (s *share) queryCost() float64 {
	return inFlightCost*float64(s.inflight) + waiterCost*float64(s.waiting)
}

// heapProblem reports whether live bytes of heap are too many, as in a large cluster. That is unknown in
// advance.
func (s *share) heapProblem(live int64) (Problem, bool) {
	if s.limit == 0 || live+s.fixed() <= s.goLimit {
		return Problem{}, false
	}
	return Problem{
		Where: "memory",
		What: fmt.Sprintf("the live heap is %s of the %s left beside cache.size %s%s: the garbage collector runs all the time",
			inMiB(live), inMiB(max(0, s.goLimit-s.fixed())), inMiB(s.cache), s.snapshotNote()),
		Hint: "raise the container's memory limit, or lower cache.size",
	}, true
}

// requiredGo returns the memory that the Go runtime needs to serve well.
func (s *share) requiredGo() int64 {
	return max(minGo, s.fixed()+int64(s.queryCost()*3/livePart/leastBounds))
}

// problem reports whether the limit is too low.
func (s *share) problem() (Problem, bool) {
	if !s.tooSmall() {
		return Problem{}, false
	}
	p := Problem{Where: "memory", What: fmt.Sprintf("the container's limit of %s leaves %s beside cache.size %s%s, but %s are needed: the kernel may kill the process",
		inMiB(s.limit), inMiB(max(0, s.goRoom())), inMiB(s.cache), s.snapshotNote(), inMiB(s.requiredGo()))}
	p.Hint = "raise the limit to " + inMiB(s.minLimit())
	if fits := s.cache - (s.requiredGo() - s.goRoom()); fits >= cache.MinSize {
		p.Hint += fmt.Sprintf(", or set cache.size to %dMi", fits>>20)
	}
	return p, true
}

// tooSmall reports whether less memory is left than required.
func (s *share) tooSmall() bool { return s.limit > 0 && s.goRoom() < s.requiredGo() }

// minLimit returns the lowest sufficient limit, in whole MiB.
func (s *share) minLimit() int64 {
	const step = 1 << 20
	other := *s
	for other.limit = (s.cache + s.snapshot) / step * step; other.tooSmall(); other.divide() {
		other.limit += step
	}
	return other.limit
}

func (s *share) snapshotNote() string {
	if s.snapshot == 0 {
		return ""
	}
	return " and snapshots of " + inMiB(s.snapshot)
}

// inMiB formats bytes as MiB.
func inMiB(n int64) string {
	if n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
