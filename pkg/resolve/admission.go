// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Which query may wait, so that a client that asks for cold names without end does not
// take what the others need. A client is a source address, with all that is behind it, see
// clientKey.
//
//	waits for PerClient answers already      client
//	no more queries may wait                 waiting
//	no more flights may begin                inflight
//	has more than its threshold, see most    client
//	else                                     admitted
//
// The fourth row is about flights for a query that begins one, and about waiting queries
// for each. A flight counts as its client's until it lands, even if no query waits for it:
// what it takes of memory and sockets cannot be handed to another client before. So places
// are kept free instead, and those that become free go to the clients that have fewer.

// reservePart of the places is kept free for clients that have few or none.
const reservePart = 8

// provenPart of the places is for clients whose address is proven: they find one however many
// addresses a sender forges. The threshold of the others is lower by as much.
const provenPart = 64

// spareWeight is how many places a client may have for each that is free beyond the reserve.
const spareWeight = 16

const (
	// floodSheds is how many queries of one UDP client are turned away within a
	// second before it is no longer told. Telling costs more than turning away, and
	// one who was told a thousand times does not listen.
	floodSheds = 1000
	// floodSlots is for how many flooding clients at once that is noticed. Who finds
	// its slot taken is merely told for longer.
	floodSlots = 256
	// floodPause is at least how many seconds lie between two log lines that name a
	// client that floods.
	floodPause = 60
)

// A clientKey tells clients apart. Queries whose source address is proven, by TCP or by a
// valid cookie, are accounted apart from the others of the address: those may be forged.
type clientKey struct {
	addr   netip.Addr
	proven bool
}

// A client is one whose queries wait, or whose flights are under way.
type client struct {
	key     clientKey
	waiting int     // its queries that wait
	queries int     // that it began and that have not landed
	next    *client // in the free list
}

// clients are those who wait. They are guarded by the lock of the flights.
type clients struct {
	byKey      map[clientKey]*client
	free       *client // records for reuse: as many as ever were of use at once
	floods     [floodSlots]flood
	lastLogged int64 // Unix time of the last log line about one
}

// A flood counts what one client was denied within one second.
type flood struct {
	client clientKey
	second int64 // Unix time
	sheds  int
}

// client is that of the query in hand.
func (l *Worker) client(from *wire.Peer) clientKey { return clientKey{from.Addr.Addr(), l.addrProven} }

// admitLocked counts a query that comes to wait as its client's, and its flight too
// if it begins one. Whoever leaves has to be taken out by leaveLocked, and the flight
// by landLocked. It returns nil, and why, if there is no room.
func (fs *queryTable) admitLocked(key clientKey, begins bool, plan *Plan) (c *client, why Shed) {
	c = fs.clients.byKey[key]
	waiting, flights := 0, 0
	if c != nil {
		waiting, flights = c.waiting, c.queries
	}
	freeWaiting, freeFlights := plan.Waiting-fs.waiting, plan.Inflight-(fs.count-fs.refreshes)
	spareWaiting, spareFlights := 0, 0
	if !key.proven {
		spareWaiting, spareFlights = plan.Waiting/provenPart, plan.Inflight/provenPart
	}
	switch {
	case plan.PerClient > 0 && waiting >= plan.PerClient:
		return nil, ShedClient
	case freeWaiting <= spareWaiting:
		return nil, ShedWaiting
	case begins && freeFlights <= spareFlights:
		return nil, ShedInflight
	case waiting >= fairShare(plan.Waiting, freeWaiting)-spareWaiting, begins && flights >= fairShare(plan.Inflight, freeFlights)-spareFlights:
		return nil, ShedClient
	}
	if c == nil {
		c = fs.clients.addLocked(key)
	}
	c.waiting++
	fs.waiting++
	if begins {
		c.queries++
	}
	return c, 0
}

// most is how many places a client may have while so many of all are free, of which there
// must be one: as many as are free, and many more while that is more than the reserve. It is a
// dynamic threshold (Choudhury and Hahne, 1998), the same for each client:
//
//	greedy clients   1     2      3      7      k > 7
//	each ends with   5/6   3/7    2/7    1/8    1/(k+1) of the places
//
// A client that had more before the others came is above the threshold: it gets no place
// until it has less than that.
func fairShare(places, free int) int {
	reserve := (places + reservePart - 1) / reservePart
	return free + spareWeight*max(0, free-reserve)
}

// leaveLocked takes out a waiter of a client, of which there must be one: it got its
// reply, or is about to. The caller holds fs.mu and sees to it that nobody takes the
// same waiter out again, as take does with all whose client is not nil. A flight that
// goes on without its waiters stays the client's until it lands.
func (fs *queryTable) removeWaiterLocked(c *client) {
	c.waiting--
	fs.waiting--
	fs.clients.releaseLocked(c)
}

// landLocked takes out a flight that the client began.
func (fs *queryTable) removeQueryLocked(c *client) {
	c.queries--
	fs.clients.releaseLocked(c)
}

// addLocked makes a record for a client that has none.
func (cs *clients) addLocked(key clientKey) *client {
	c := cs.free
	if c == nil {
		c = new(client)
	}
	cs.free, c.next = c.next, nil
	c.key = key
	cs.byKey[key] = c
	return c
}

// releaseLocked gives up the record of a client that waits for nothing.
func (cs *clients) releaseLocked(c *client) {
	if c.waiting > 0 || c.queries > 0 {
		return
	}
	delete(cs.byKey, c.key)
	c.next, cs.free = cs.free, c
}

// floodsLocked counts the query in hand as one that is turned away, and tells whether
// its client was told often enough, and whether to log that. Over TCP nobody floods: who
// does not read is not read from. Who can get a late answer gets that, for no more than a
// hit costs.
func (l *Worker) floodLocked(from *wire.Peer, now time.Time) (silent, logIt bool) {
	if from.Stream || l.staleHeld {
		return false, false
	}
	return l.r.queries.floodLocked(l.client(from), now)
}

// floodsLocked counts a query over UDP that is turned away at now, and tells whether
// its client was told often enough within this second, and whether to log that.
func (fs *queryTable) floodLocked(key clientKey, now time.Time) (silent, logIt bool) {
	f := &fs.clients.floods[maphash.Comparable(fs.seed, key)%floodSlots]
	second := now.Unix()
	if f.second != second {
		*f = flood{client: key, second: second}
	}
	if f.client != key {
		return false, false
	}
	f.sheds++
	if f.sheds == floodSheds+1 && second-fs.clients.lastLogged >= floodPause {
		fs.clients.lastLogged, logIt = second, true
	}
	return f.sheds > floodSheds, logIt
}
