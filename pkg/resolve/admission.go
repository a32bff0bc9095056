// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Admission control, so that a client with many cache misses does not use the capacity of others. A
// client is a source address, see clientKey. The first row that applies decides:
//
//	client has PerClient waiting queries          shed: client
//	waiting queries at their limit                shed: waiting
//	in-flight queries at their limit              shed: inflight
//	client above its threshold, see fairShare     shed: client
//	otherwise                                     admitted
//
// The fourth row covers waiting queries, and in-flight queries if the query starts one. An in-flight
// query counts for its client until it completes, even without waiters, because its memory and socket
// stay in use. So the limits keep a reserve free, and released places go to clients with fewer.

// reservePart of the places is reserved for clients that have few or none.
const reservePart = 8

// provenPart of the places is reserved for clients with a verified address, so that forged addresses
// cannot take them. The threshold of other clients is lower by as much.
const provenPart = 64

// spareWeight is the number of places a client may have for each free place beyond the reserve.
const spareWeight = 16

const (
	// floodSheds bounds the SERVFAIL replies to shed queries of one UDP client within a second.
	// Further queries are dropped, because a reply costs more than a drop.
	floodSheds = 1000
	// floodSlots bounds the flooding clients that are tracked. A client whose slot is taken
	// gets replies for longer.
	floodSlots = 256
	// floodPause is the minimum time between two flood log lines, in seconds.
	floodPause = 60
)

// A clientKey identifies a client. Queries from a verified source address, by TCP or by a valid
// cookie, are accounted separately from others of that address, which may be forged.
type clientKey struct {
	addr   netip.Addr
	proven bool
}

// A client has waiting or in-flight queries.
type client struct {
	key     clientKey
	waiting int
	queries int     // in-flight queries it started
	next    *client // in the free list
}

// clients are accounted under the lock of the query table.
type clients struct {
	byKey      map[clientKey]*client
	free       *client // records for reuse
	floods     [floodSlots]flood
	lastLogged int64 // Unix time of the last flood log line
}

// A flood counts the shed queries of one client within one second.
type flood struct {
	client clientKey
	second int64 // Unix time
	sheds  int
}

// client returns the key of the current query's client.
func (l *Worker) client(from *wire.Peer) clientKey { return clientKey{from.Addr.Addr(), l.addrProven} }

// admitLocked accounts a waiting query to its client, and an in-flight query if begins is set.
// removeWaiterLocked and removeQueryLocked undo this. It returns nil and the limit if there is no
// room.
func (fs *queryTable) admitLocked(key clientKey, begins bool, plan *Plan) (c *client, why Shed) {
	c = fs.clients.byKey[key]
	waiting, queries := 0, 0
	if c != nil {
		waiting, queries = c.waiting, c.queries
	}
	freeWaiting, freeQueries := plan.Waiting-fs.waiting, plan.Inflight-(fs.count-fs.refreshes)
	spareWaiting, spareQueries := 0, 0
	if !key.proven {
		spareWaiting, spareQueries = plan.Waiting/provenPart, plan.Inflight/provenPart
	}
	switch {
	case plan.PerClient > 0 && waiting >= plan.PerClient:
		return nil, ShedClient
	case freeWaiting <= spareWaiting:
		return nil, ShedWaiting
	case begins && freeQueries <= spareQueries:
		return nil, ShedInflight
	case waiting >= fairShare(plan.Waiting, freeWaiting)-spareWaiting, begins && queries >= fairShare(plan.Inflight, freeQueries)-spareQueries:
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

// fairShare returns the number of places a client may have while free of all places are free, at least
// one: the free places, and many more while those exceed the reserve. It is a dynamic threshold
// (Choudhury and Hahne, 1998), the same for each client:
//
//	greedy clients   1     2      3      7      k > 7
//	each ends with   5/6   3/7    2/7    1/8    1/(k+1) of the places
//
// A client that had more places before others came gets no new place until it is below the threshold.
func fairShare(places, free int) int {
	reserve := (places + reservePart - 1) / reservePart
	return free + spareWeight*max(0, free-reserve)
}

// removeWaiterLocked removes a waiter from its client's account: it got its reply, or is about to. The
// caller holds fs.mu and removes each waiter once.
func (fs *queryTable) removeWaiterLocked(c *client) {
	c.waiting--
	fs.waiting--
	fs.clients.releaseLocked(c)
}

// removeQueryLocked removes an in-flight query from its client's account.
func (fs *queryTable) removeQueryLocked(c *client) {
	c.queries--
	fs.clients.releaseLocked(c)
}

// addLocked adds a record for a client without one.
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

// releaseLocked frees the record of a client without queries.
func (cs *clients) releaseLocked(c *client) {
	if c.waiting > 0 || c.queries > 0 {
		return
	}
	delete(cs.byKey, c.key)
	c.next, cs.free = cs.free, c
}

// floodLocked counts the current query as shed. It reports whether to send no reply, and whether to
// log that. TCP clients are excluded, because the server stops reading from them; so are clients that
// get a stale answer, which costs no more than a hit.
func (l *Worker) floodLocked(from *wire.Peer, now time.Time) (silent, logIt bool) {
	if from.Stream || l.staleHeld {
		return false, false
	}
	return l.r.queries.floodLocked(l.client(from), now)
}

// floodLocked counts a shed UDP query. It reports whether its client exceeded floodSheds within this
// second, and whether to log that.
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
