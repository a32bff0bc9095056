// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"hash/maphash"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// maxRefreshes bounds the flights that nobody waits for. Refreshes give way to
// clients: a popular answer that is not refreshed is merely asked for once more.
const maxRefreshes = 256

// flights are the questions under way.
type flights struct {
	seed maphash.Seed

	mu        sync.Mutex         // guards all below, and each flight's rest
	byHash    map[uint64]*flight // of its key; those that share one are linked
	count     int                // flights, refreshes included
	waiting   int                // clients, over all flights
	refreshes int                // flights that began for no client
}

func (fs *flights) init() {
	fs.seed = maphash.MakeSeed()
	fs.byHash = make(map[uint64]*flight)
}

func (fs *flights) hash(key []byte) uint64 { return maphash.Bytes(fs.seed, key) }

// findLocked is the flight for key, nil if none is under way.
func (fs *flights) findLocked(hash uint64, key []byte) *flight {
	f := fs.byHash[hash]
	for f != nil && !bytes.Equal(f.key, key) {
		f = f.next
	}
	return f
}

// addLocked adds a flight whose key none has.
func (fs *flights) addLocked(f *flight) {
	f.next = fs.byHash[f.hash]
	fs.byHash[f.hash] = f
	fs.count++
	if f.refresh {
		fs.refreshes++
	} else {
		fs.waiting++
	}
}

// take takes a flight out and gives those who joined it. Nobody joins from then on.
func (fs *flights) take(f *flight) (joined []waiter) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if at := fs.byHash[f.hash]; at != f {
		for at.next != f {
			at = at.next
		}
		at.next = f.next
	} else if f.next != nil {
		fs.byHash[f.hash] = f.next
	} else {
		delete(fs.byHash, f.hash)
	}
	fs.count--
	fs.waiting -= len(f.rest)
	if f.refresh {
		fs.refreshes--
	} else {
		fs.waiting--
	}
	joined, f.rest = f.rest, nil
	return joined
}

// join makes the client of the query in l wait for the flight for its key,
// beginning one if there is none. When a bound is reached the client is told so at
// once.
func (l *Lane) join(from *wire.Peer, now time.Time, to wire.Replier) {
	fs, key := &l.r.flights, l.q.Key()
	f := l.nextFlight(key)
	fs.mu.Lock()
	if fs.waiting >= l.plan.Waiting {
		fs.mu.Unlock()
		l.shed(ShedWaiting, from, now, to)
		return
	}
	if under := fs.findLocked(f.hash, key); under != nil {
		under.rest = append(under.rest, l.waiter(nil, from, now, to))
		fs.waiting++
		fs.mu.Unlock()
		l.r.counts.joined.Add(1)
		return
	}
	if fs.count-fs.refreshes >= l.plan.Inflight {
		fs.mu.Unlock()
		l.shed(ShedInflight, from, now, to)
		return
	}
	fs.addLocked(f)
	fs.mu.Unlock()
	l.prepareFlight(f)
	f.first = l.waiter(f.query, from, now, to)
	f.depart(now, &l.later)
}

// refresh begins a flight for an answer that is due, unless one is under way.
func (l *Lane) refresh(now time.Time) {
	fs, key := &l.r.flights, l.q.Key()
	f := l.nextFlight(key)
	fs.mu.Lock()
	if fs.findLocked(f.hash, key) != nil {
		fs.mu.Unlock()
		return
	}
	if fs.refreshes >= maxRefreshes {
		fs.mu.Unlock()
		l.r.counts.shed[ShedRefresh].Add(1)
		return
	}
	f.refresh = true
	fs.addLocked(f)
	fs.mu.Unlock()
	l.r.counts.prefetches.Add(1)
	l.prepareFlight(f)
	f.depart(now, &l.later)
}

// nextFlight is a flight that the lane may begin for key. It is made before the
// lock is taken, and left for the next time if it is not needed.
func (l *Lane) nextFlight(key []byte) *flight {
	if l.blank == nil {
		l.blank = &flight{r: l.r}
	}
	f := l.blank
	f.key = append(f.room[:0], key...)
	f.hash = l.r.flights.hash(key)
	return f
}

// prepareFlight completes a flight that was added. Others may find it and join it
// meanwhile; the rest of it is still this lane's own.
func (l *Lane) prepareFlight(f *flight) {
	l.blank = nil
	f.plan = l.plan
	f.route = l.plan.route(l.q.Name())
	start := len(f.key)
	query := l.q.AppendUpstream(f.key, f.route != nil && f.route.Subnet)
	f.query = query[start:]
}

// shed answers a client for whom there is no room.
func (l *Lane) shed(reason Shed, from *wire.Peer, now time.Time, to wire.Replier) {
	l.r.counts.shed[reason].Add(1)
	w := waiter{ask: l.q.Ask, seal: l.seal, from: from, since: now, to: to}
	l.r.shed(&w, l.plan, &l.later)
}
