// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"cmp"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	// RecentMinutes is how many minutes of queries are kept, the current one included.
	RecentMinutes = 10

	recentWays = 8 // slots of a set
	addrBytes  = 16

	// The sets need 1 MiB together. A node has up to some hundred clients.
	clientSets, nameSets, pairSets = 64, 64, 128

	slowMinutes = 60 // the slowest reply of each is kept
)

// RecentCounts are counts of the queries of some minutes.
type RecentCounts struct {
	Queries  uint32
	Upstream uint32 // answered by an upstream
	Search   uint32 // NXDOMAIN for names in the cluster domain
	Failed   uint32 // SERVFAIL, shed queries included
	Slowest  uint32 // the longest time until a reply that was not from memory, in microseconds
}

func (c *RecentCounts) add(o *RecentCounts) {
	c.Queries += o.Queries
	c.Upstream += o.Upstream
	c.Search += o.Search
	c.Failed += o.Failed
	c.Slowest = max(c.Slowest, o.Slowest)
}

// A RecentRow has the counts of a client, of a name, or of a client's queries for a name.
type RecentRow struct {
	Client netip.Addr // invalid: all clients
	Name   []byte     // canonical wire form; nil: all names
	RecentCounts
}

// recent counts the queries of the last minutes by client, by name, and by both, in constant memory. Hits are sampled: see
// Worker.sampleReply.
type recent struct {
	mu                    sync.Mutex // guards the tables
	seed                  maphash.Seed
	clients, names, pairs []recentSet
	slow                  [slowMinutes]slowReply // by minute modulo their number

	misses, badMisses missGate
}

// A SlowReply is the slowest reply of a minute.
type SlowReply struct {
	At     time.Time
	Took   time.Duration
	Client netip.Addr
	Name   []byte // canonical wire form
	Rcode  int
}

// A slowReply is a SlowReply that needs no allocation.
type slowReply struct {
	at, took time.Duration // at since the resolver was made
	client   netip.Addr
	rcode    int
	length   uint8
	name     [wire.MaxName]byte
}

func (r *recent) init() {
	r.misses.last.Store(-int64(missPause))
	r.badMisses.last.Store(-int64(missPause))
	r.seed = maphash.MakeSeed() // so that clients cannot choose a set
	r.clients, r.names, r.pairs = make([]recentSet, clientSets), make([]recentSet, nameSets), make([]recentSet, pairSets)
}

// A recentSet has the counts of some keys. It is a Space-Saving summary, as in pkg/pods: a new key replaces the one with the lowest
// rank and takes over its rank, so that a flood of keys cannot remove a frequent one.
type recentSet struct {
	hashes [recentWays]uint64 // 0: the slot is free
	ranks  [recentWays]uint64 // upper bound of the key's queries, times 1024; it halves each minute
	latest [recentWays]int64  // minute of the latest query
	slots  [recentWays]recentSlot
}

type recentSlot struct {
	minutes [RecentMinutes]RecentCounts // by minute modulo their number
	length  uint16                      // bytes of key in use
	key     [addrBytes + wire.MaxName]byte
}

// add counts queries of a client for a name in canonical wire form, minute minutes after the start. It allocates nothing.
func (r *recent) add(client netip.Addr, name []byte, minute int64, c *RecentCounts) {
	var room [addrBytes + wire.MaxName]byte
	addr := client.As16()
	key := append(append(room[:0], addr[:]...), name...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count(r.clients, key[:addrBytes], minute, c)
	r.count(r.names, key[addrBytes:], minute, c)
	r.count(r.pairs, key, minute, c)
}

func (r *recent) count(sets []recentSet, key []byte, minute int64, c *RecentCounts) {
	hash := maphash.Bytes(r.seed, key) | 1
	set, at := &sets[hash>>1%uint64(len(sets))], 0
	for i, h := range set.hashes {
		if h == hash {
			at = i
			break
		}
		if set.rank(i, minute) < set.rank(at, minute) {
			at = i
		}
	}
	s := &set.slots[at]
	minute = max(minute, set.latest[at])
	rank := set.rank(at, minute)
	if set.hashes[at] != hash {
		s.minutes = [RecentMinutes]RecentCounts{}
		set.hashes[at], s.length = hash, uint16(copy(s.key[:], key)) //nolint:gosec // below 300
	}
	for m := max(set.latest[at]+1, minute-RecentMinutes+1); m <= minute; m++ {
		s.minutes[m%RecentMinutes] = RecentCounts{}
	}
	set.latest[at], set.ranks[at] = minute, rank+1024*uint64(c.Queries)
	s.minutes[minute%RecentMinutes].add(c)
}

// rank returns the rank of a slot at a minute. A free slot has the lowest.
func (s *recentSet) rank(slot int, minute int64) uint64 {
	if s.hashes[slot] == 0 {
		return 0
	}
	return 1 + s.ranks[slot]>>min(max(minute-s.latest[slot], 0), 63)
}

// sum returns the counts of a slot in the minutes up to a minute.
func (s *recentSet) sum(slot int, minute int64) (c RecentCounts) {
	for m := max(0, minute-RecentMinutes+1); m <= s.latest[slot]; m++ {
		c.add(&s.slots[slot].minutes[m%RecentMinutes])
	}
	return c
}

// Recent returns the counts of the last minutes by client, by name, and by client and name, each with the most queries first. Rows
// with few queries may be left out, or lack some: see recentSet.
func (r *Resolver) Recent() (clients, names, pairs []RecentRow) {
	minute := r.minute(r.now())
	list := func(sets []recentSet, addr, name bool) (rows []RecentRow) {
		for i := range sets {
			r.recent.mu.Lock() // for one set only: queries are not to wait for all
			for j := range sets[i].slots {
				row := RecentRow{RecentCounts: sets[i].sum(j, minute)}
				if row.Queries == 0 {
					continue
				}
				key := sets[i].slots[j].key[:sets[i].slots[j].length]
				if addr {
					row.Client = netip.AddrFrom16([addrBytes]byte(key)).Unmap()
					key = key[addrBytes:]
				}
				if name {
					row.Name = slices.Clone(key)
				}
				rows = append(rows, row)
			}
			r.recent.mu.Unlock()
		}
		slices.SortStableFunc(rows, func(a, b RecentRow) int { return cmp.Compare(b.Queries, a.Queries) })
		return rows
	}
	return list(r.recent.clients, true, false), list(r.recent.names, false, true), list(r.recent.pairs, true, true)
}

// CountRecent counts queries that the kernel answered: of a client, if it is valid, or for a name in canonical wire form, if it is not
// nil. The kernel does not count both together.
func (r *Resolver) CountRecent(client netip.Addr, name []byte, c RecentCounts) {
	minute := r.minute(r.now())
	r.recent.mu.Lock()
	defer r.recent.mu.Unlock()
	if client.IsValid() {
		addr := client.As16()
		r.recent.count(r.recent.clients, addr[:], minute, &c)
	}
	if name != nil {
		r.recent.count(r.recent.names, name, minute, &c)
	}
}

// addSlow keeps a reply if it is the slowest of its minute. It allocates nothing.
func (r *recent) addSlow(at, took time.Duration, client netip.Addr, name []byte, rcode int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.slow[int64(at/time.Minute)%slowMinutes]
	if s.took >= took && at-s.at < time.Minute {
		return
	}
	s.at, s.took, s.client, s.rcode = at, took, client, rcode
	s.length = uint8(copy(s.name[:], name)) //nolint:gosec // at most 255
}

// SlowReplies returns the slowest reply of each minute of the last hour, the slowest first.
func (r *Resolver) SlowReplies() (list []SlowReply) {
	since := r.now().Sub(r.epoch)
	r.recent.mu.Lock()
	defer r.recent.mu.Unlock()
	for i := range r.recent.slow {
		if s := &r.recent.slow[i]; s.took > 0 && since-s.at < slowMinutes*time.Minute {
			list = append(list, SlowReply{r.epoch.Add(s.at), s.took, s.client, slices.Clone(s.name[:s.length]), s.rcode})
		}
	}
	slices.SortStableFunc(list, func(a, b SlowReply) int { return cmp.Compare(b.Took, a.Took) })
	return list
}

// minute returns the minutes since the resolver was made.
func (r *Resolver) minute(now time.Time) int64 { return int64(now.Sub(r.epoch) / time.Minute) }

const (
	missPause = 100 * time.Microsecond // between two misses of a kind that are counted
	slowFrom  = 100 * time.Millisecond
)

// A missGate admits a miss at most once in missPause, for all since the one before. So a flood costs little.
type missGate struct {
	last    atomic.Int64 // when one was admitted, in nanoseconds since the resolver was made
	skipped atomic.Uint32
}

// admit returns for how many misses the one at that time is counted; 0: not at all.
func (g *missGate) admit(since int64) uint32 {
	if last := g.last.Load(); since-last < int64(missPause) || !g.last.CompareAndSwap(last, since) {
		g.skipped.Add(1)
		return 0
	}
	return 1 + g.skipped.Swap(0)
}

// addMiss counts a reply that was not from memory. Few failed or slow ones are not hidden by many others: they have a gate of their own.
func (r *Resolver) addMiss(plan *Plan, ask *wire.Question, client netip.Addr, source Source, rcode int, took time.Duration, now time.Time) {
	gate := &r.recent.misses
	if rcode == wire.RcodeServFail && source != SourceShed || took >= slowFrom {
		gate = &r.recent.badMisses
	}
	if replies := gate.admit(int64(now.Sub(r.epoch))); replies > 0 {
		r.addRecent(plan, ask, client, source, rcode, replies, took, now)
	}
}

// addRecent counts replies to a question.
func (r *Resolver) addRecent(plan *Plan, ask *wire.Question, client netip.Addr, source Source, rcode int, replies uint32, took time.Duration, now time.Time) {
	var room [wire.MaxName]byte
	name, c := canonical(&room, ask), RecentCounts{Queries: replies, Slowest: uint32(min(took.Microseconds(), math.MaxUint32))} //nolint:gosec // not negative
	switch {
	case rcode == wire.RcodeServFail:
		c.Failed = replies
	case source == SourceUpstream:
		c.Upstream = replies
	}
	if rcode == wire.RcodeNXDomain && isIn(name, plan.Cluster) {
		c.Search = replies
	}
	r.recent.add(client, name, r.minute(now), &c)
	if took > 0 {
		r.recent.addSlow(now.Sub(r.epoch), took, client, name, rcode)
	}
}

// A sampler chooses the replies from memory that are counted by client and name. Counting one takes as long as a hit, so it counts
// one for each batch, on average, for all since the one before. With little load, when a batch is one query, it counts all.
type sampler struct {
	stride, left uint32 // replies from one that is counted to the next, and how many of these are left
	mean         uint32 // replies of the latest batch
}

// next returns for how many replies the next reply is counted; 0: not at all.
func (s *sampler) next() (replies uint32) {
	if s.left > 1 {
		s.left--
		return 0
	}
	replies = max(s.stride, 1)
	s.stride = 1
	if s.mean > 1 { // a random stride, so that no client can avoid it
		s.stride = 1 + rand.Uint32N(2*s.mean-1) //nolint:gosec // not a secret
	}
	s.left = s.stride
	return replies
}
