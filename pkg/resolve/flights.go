// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"hash/maphash"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// maxRefreshes bounds the flights that began for nobody. Refreshes give way to
// clients: a popular answer that is not refreshed is merely asked for once more. They
// begin only while less than half of what may be under way is, and take no client's
// place.
const maxRefreshes = 256

// flights are the questions under way.
type flights struct {
	seed maphash.Seed

	mu        sync.Mutex         // guards all below, and of each flight what others change
	byHash    map[uint64]*flight // of its key; those that share one are linked
	count     int                // flights, refreshes included
	waiting   int                // clients, over all flights
	refreshes int                // flights that began for no client
	clients   clients            // who waits
	lates     lates              // those whose clients wait for a late answer
}

func (fs *flights) init() {
	fs.seed = maphash.MakeSeed()
	fs.byHash = make(map[uint64]*flight)
	fs.clients.byKey = make(map[clientKey]*client)
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

// addLocked adds a flight. It is found before others with its key, see joinableLocked.
func (fs *flights) addLocked(f *flight) {
	f.next = fs.byHash[f.hash]
	fs.byHash[f.hash] = f
	fs.count++
	if f.refresh {
		fs.refreshes++
	}
}

// take takes a flight out and gives those who joined it. Nobody joins from then on.
func (fs *flights) take(f *flight) (joined []waiter) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.landed = true
	fs.lates.unlistLocked(f)
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
	if f.refresh {
		fs.refreshes--
	}
	if f.client != nil {
		fs.landLocked(f.client)
	}
	if f.first.client != nil {
		fs.leaveLocked(f.first.client)
	}
	joined, f.rest = f.rest, nil
	for i := range joined {
		fs.leaveLocked(joined[i].client)
	}
	return joined
}

// join makes the client of the query in l wait for the flight for its key,
// beginning one if there is none. When a bound is reached the client is told so at
// once.
func (l *Worker) join(from *wire.Peer, now time.Time, to wire.Replier) {
	fs := &l.r.flights
	f := l.nextFlight(l.q.Key(), now)
	f.began -= l.ago
	fs.mu.Lock()
	under := l.joinableLocked(f.hash, f.key)
	c, why := fs.admitLocked(l.client(from), under == nil, l.plan)
	switch {
	case c == nil:
		silent, news := l.floodsLocked(from, now)
		fs.mu.Unlock()
		if news {
			l.r.log.Warn("a client floods and gets no replies", "client", from.Addr.Addr())
		}
		l.turnAway(why, silent, from, now, to)
	case under != nil:
		l.boardLocked(under, c, from, now, to)
		overdue := under.overdue
		fs.mu.Unlock()
		l.r.counts.joined.Add(1)
		if overdue {
			l.r.relieve(under, now, &l.batch)
		}
	default:
		f.client = c
		fs.addLocked(f)
		fs.mu.Unlock()
		l.begin(f, from, now, to)
	}
}

// patience is how long upstream has for a flight that the query in hand begins: what is left of its client's time, or
// half of all if another question may be to follow. Some servers never answer for addresses of IPv6.
func (l *Worker) patience() time.Duration {
	if d := &l.detour; d.taken && d.six != nil && !d.second {
		return l.plan.Deadline / 2
	}
	return l.plan.Deadline - l.ago
}

// boardLocked has the client c of the query in hand wait for a flight under way.
func (l *Worker) boardLocked(under *flight, c *client, from *wire.Peer, now time.Time, to wire.Replier) {
	w := l.waiter(nil, from, now, to)
	w.client = c
	under.rest = append(under.rest, w)
	if l.late {
		l.r.watchLocked(under, now)
	}
}

// begin lets a flight that was added depart, for the client of the query in hand.
func (l *Worker) begin(f *flight, from *wire.Peer, now time.Time, to wire.Replier) {
	l.prepareFlight(f)
	f.first = l.waiter(f.query, from, now, to)
	f.first.client = f.client
	if l.late {
		l.r.seat(f, true, now)
	}
	f.depart(now.Add(l.patience()), &l.batch)
}

// turnAway answers a client for whom there is no room: with the late answer that AnswerFromMemory
// found, or the reason, or, if it was told often enough, not at all.
func (l *Worker) turnAway(why Shed, silent bool, from *wire.Peer, now time.Time, to wire.Replier) {
	switch {
	case l.late && l.makeDo(why, from, now, to):
		l.r.counts.shed[why].Add(1)
	case silent:
		l.ignore(to)
	default:
		l.shed(why, from, now, to)
	}
}

// refresh begins a flight for an answer that is due, unless one is under way.
func (l *Worker) refresh(now time.Time) {
	fs, key := &l.r.flights, l.q.Key()
	f := l.nextFlight(key, now)
	fs.mu.Lock()
	if l.joinableLocked(f.hash, key) != nil {
		fs.mu.Unlock()
		return
	}
	if fs.refreshes >= maxRefreshes || 2*fs.count >= l.plan.Inflight {
		fs.mu.Unlock()
		l.r.counts.shed[ShedRefresh].Add(1)
		return
	}
	f.refresh = true
	fs.addLocked(f)
	fs.mu.Unlock()
	l.r.counts.prefetches.Add(1)
	l.prepareFlight(f)
	l.r.seat(f, false, now)
	f.depart(now.Add(f.plan.Deadline), &l.batch)
}

// nextFlight is a flight that the worker may begin for key. It is made before the
// lock is taken, and left for the next time if it is not needed.
func (l *Worker) nextFlight(key []byte, now time.Time) *flight {
	if l.blank == nil {
		l.blank = &flight{r: l.r}
	}
	f := l.blank
	f.key = append(f.room[:0], key...)
	f.hash = l.r.flights.hash(key)
	f.plan, f.began = l.plan, l.r.age(now)
	return f
}

// prepareFlight completes a flight that was added. Others may find it and join it
// meanwhile; the rest of it is still this worker's own.
func (l *Worker) prepareFlight(f *flight) {
	l.blank = nil
	f.route = l.plan.route(l.q.Name())
	start := len(f.key)
	query := l.q.AppendUpstream(f.key, f.route != nil && f.route.Subnet)
	f.query = query[start:]
}

// ignore gives no reply to a client that was turned away too often.
func (l *Worker) ignore(to wire.Replier) {
	l.r.counts.shed[ShedFlood].Add(1)
	l.tally.dropped++
	to.Reply(nil, &l.batch)
}

// shed answers a client for whom there is no room.
func (l *Worker) shed(reason Shed, from *wire.Peer, now time.Time, to wire.Replier) {
	l.r.counts.shed[reason].Add(1)
	w := l.turned(from, now, to)
	l.r.shed(reason, &w, l.plan, &l.batch)
}

// turned is the client of the query in hand, who gets its reply before this returns.
func (l *Worker) turned(from *wire.Peer, now time.Time, to wire.Replier) waiter {
	w := waiter{ask: l.q.Question, opts: l.opts, from: from, since: now.Add(-l.ago), to: to}
	if l.detour.taken {
		w.detour = &l.detour
		w.ask.Type = w.ask.OriginalType()
	}
	return w
}
