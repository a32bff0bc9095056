// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"fmt"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/kernelhits"
)

// Shares of the container's memory. The numbers are measured, see docs/reliability.md.
const (
	// 1/reservePart of the limit, at least minReserve, is reserved for memory that neither the cache nor the Go runtime counts:
	// program text, kernel structures, and data in socket buffers. When memory gets scarce, Linux 6.18 drops pages of code and reads
	// at least 128 KiB to get one back, whatever the advice: with a reserve of 10 MiB, half of the test runs read gigabytes.
	reservePart = 10
	minReserve  = 13 << 20
	// fixedGo is the Go runtime's memory without any query. Each UDP reader adds readerCost. All readers together get 1/readerPart
	// of the limit: a host of many cores would otherwise have more of them than it needs.
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
	// With push.clients, subscriptions get 1/pushPart of the Go runtime's limit, and the sessions another 1/sessionPart.
	// Without a limit, subscriptions get pushDefault.
	pushPart    = 4
	pushDefault = 256 << 20
	// Unread responses and unfinished queries get 1/heldPart of the Go runtime's limit.
	heldPart = 8
	// A list from the API server gets 1/listPart of the Go runtime's limit.
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

// A Share is the division of the memory, in bytes.
type Share struct {
	limit      int64  // memory limit of the container; 0: none, or unknown
	cache      int64  // cache.size
	snapshot   int64  // the old and the new snapshot file, if they are in memory
	kernel     int64  // memory of the answers in the kernel
	goLimit    int64  // the Go runtime's limit; 0: not set by the agent
	Inflight   int    // queries to upstreams that fit, at most limits.inflight
	Waiting    int    // waiting clients that fit, at most limits.waiting
	push       bool   // push.clients is set
	limitError string // why the container's limit is unknown

	procs, addresses int   // CPUs of the Go runtime, and listen addresses
	Readers          int   // readers per listen address, each with a UDP socket of its own
	sockets          int   // UDP sockets of all listen addresses
	queryCost        int64 // memory that limits.inflight and limits.waiting may need
}

// shareOut divides limit bytes among the parts of a process with configuration cfg and procs CPUs.
func shareOut(limit int64, procs int, cfg *config.Config) Share {
	s := Share{limit: limit, cache: cfg.Cache.Size, procs: procs, addresses: max(1, len(cfg.Listen.Addresses))}
	s.push = len(cfg.Push.Clients) > 0
	s.queryCost = inFlightCost*int64(cfg.Limits.Inflight) + waiterCost*int64(cfg.Limits.Waiting)
	if cfg.Snapshot.Folder != "" && inMemory(cfg.Snapshot.Folder) {
		s.snapshot = 2 * cfg.Snapshot.Size // the new file is written beside the old one
	}
	if cfg.Kernel.Hits != config.KernelOff {
		s.kernel = kernelhits.Memory(cfg.Kernel.Size)
	}
	s.divide()
	part := s.queryPart()
	s.Inflight, s.Waiting = max(1, int(part*float64(cfg.Limits.Inflight))), max(1, int(part*float64(cfg.Limits.Waiting)))
	return s
}

// divide computes the shares from the limit.
func (s *Share) divide() {
	s.Readers = s.procs
	if s.limit > 0 {
		s.Readers = max(1, min(s.procs, int(s.limit/readerPart/readerCost)/s.addresses))
		s.goLimit = max(minGo, s.goRoom())
	}
	s.sockets = s.Readers * s.addresses
}

// goRoom returns what is left for the Go runtime. It may be negative.
func (s *Share) goRoom() int64 {
	return s.limit - max(minReserve, s.limit/reservePart) - s.cache - s.snapshot - s.kernel
}

// queryPart returns the part of limits.inflight and limits.waiting that is allowed, leastPart to 1.
func (s *Share) queryPart() float64 {
	if s.limit == 0 {
		return 1
	}
	return min(1, max(leastPart, float64(s.goLimit-s.fixed())*livePart/3/float64(s.queryCost)))
}

// fixed returns the Go runtime's memory without any query.
func (s *Share) fixed() int64 { return fixedGo + readerCost*int64(s.sockets) }

// Buffer returns the receive buffer of each socket in bytes, 0 for the kernel's default. The kernel uses
// twice as much.
func (s *Share) Buffer() int { return int(s.limit / bufferPart / 2 / int64(s.sockets)) }

// Sessions returns the TCP sessions that fit, and those of one client, at most the configured ones.
func (s *Share) Sessions(cfg *config.Limits) (all, perClient int) {
	if s.limit == 0 {
		return cfg.TCPSessions, cfg.TCPPerClient
	}
	room := int(s.goLimit / sessionPart / sessionCost)
	if s.push {
		room *= 2
	}
	return min(cfg.TCPSessions, room), min(cfg.TCPPerClient, room/clientPart)
}

// Push returns the bytes that the subscriptions of push may take.
func (s *Share) Push() int64 {
	if s.limit == 0 {
		return pushDefault
	}
	return s.goLimit / pushPart
}

// Held returns the bytes that the TCP sessions of one listen address may hold for slow clients, 0 for no limit.
func (s *Share) Held() int64 { return s.goLimit / heldPart / int64(s.addresses) }

// Namespace returns the bytes that the services and slices of one namespace may use, 0 for no limit.
func (s *Share) Namespace() int64 { return s.goLimit / status.NamespacePart }

// List returns the bytes that a list from the API server may have, 0 for the default.
func (s *Share) List() int64 { return s.goLimit / listPart }

// heapProblem reports a live heap that is too large for the Go limit, as in a large cluster: its size is not known at the start.
func (s *Share) heapProblem(live int64) *status.Problem {
	if s.limit == 0 || live+s.fixed() <= s.goLimit {
		return nil
	}
	return &status.Problem{
		Reason: status.MemoryLow, Where: "memory",
		What: fmt.Sprintf("the live heap is %s of the %s left beside cache.size %s%s: the garbage collector runs all the time",
			inMiB(live), inMiB(max(0, s.goLimit-s.fixed())), inMiB(s.cache), s.snapshotNote()),
		Hint: "raise the container's memory limit, or lower cache.size",
	}
}

// requiredGo returns the memory that the Go runtime needs to serve well.
func (s *Share) requiredGo() int64 {
	return max(minGo, s.fixed()+s.queryCost*3/livePart/leastBounds)
}

// problem reports a limit that is too low.
func (s *Share) problem() *status.Problem {
	if !s.tooSmall() {
		return nil
	}
	p := &status.Problem{Reason: status.MemoryLow, Where: "memory", What: fmt.Sprintf("the container's limit of %s leaves %s beside cache.size %s%s, but %s are needed: the kernel may kill the process",
		inMiB(s.limit), inMiB(max(0, s.goRoom())), inMiB(s.cache), s.snapshotNote(), inMiB(s.requiredGo()))}
	p.Hint = "raise the limit to " + inMiB(s.minLimit())
	if fits := s.cache - (s.requiredGo() - s.goRoom()); fits >= cache.MinSize {
		p.Hint += fmt.Sprintf(", or set cache.size to %dMi", fits>>20)
	}
	return p
}

// tooSmall reports whether less memory is left than required.
func (s *Share) tooSmall() bool { return s.limit > 0 && s.goRoom() < s.requiredGo() }

// minLimit returns the lowest sufficient limit, in whole MiB.
func (s *Share) minLimit() int64 {
	const step = 1 << 20
	other := *s
	for other.limit = (s.cache + s.snapshot) / step * step; other.tooSmall(); other.divide() {
		other.limit += step
	}
	return other.limit
}

func (s *Share) snapshotNote() string {
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
