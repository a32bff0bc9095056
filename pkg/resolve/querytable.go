// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"hash/maphash"
	"net/netip"
	"sync"
	"time"
)

// A queryTable holds all in-flight queries, the clients that wait for them, and the order in which these
// clients get stale answers.
type queryTable struct {
	seed maphash.Seed

	mu        sync.Mutex           // guards all below, and of each inFlight: next, joined, first once ready, ready, completed, and the fields for stale answers
	byHash    map[uint64]*inFlight // by hash of the key; queries of one hash are linked
	count     int                  // in-flight queries, refreshes included
	waiting   int                  // waiting clients, over all queries
	refreshes int                  // in-flight refreshes

	clients     map[clientKey]*client // clients with waiting or in-flight queries
	freeClients *client               // unused accounts, linked by next
	floods      [floodSlots]struct {  // each counts the shed queries of one client within one second
		client clientKey
		second int64 // Unix time
		sheds  int
	}
	lastFloodLog int64 // Unix time

	stale       inFlight      // head of the ring of queries whose waiters can get a stale answer, by staleAt
	staleTimer  *time.Timer   // one timer for the ring; nil until first needed. It is not stopped when its query completes earlier
	staleFireAt time.Duration // when staleTimer fires, since the resolver was made; 0: not set
}

func (t *queryTable) init() {
	t.seed = maphash.MakeSeed()
	t.byHash = make(map[uint64]*inFlight)
	t.clients = make(map[clientKey]*client)
	t.stale.prevStale, t.stale.nextStale = &t.stale, &t.stale
}

func (t *queryTable) hash(key []byte) uint64 { return maphash.Bytes(t.seed, key) }

// findLocked returns the newest in-flight query for key, nil if there is none.
func (t *queryTable) findLocked(hash uint64, key []byte) *inFlight {
	f := t.byHash[hash]
	for f != nil && !bytes.Equal(f.key, key) {
		f = f.next
	}
	return f
}

// addLocked adds a query. findLocked prefers it to older ones with the same key, see lookup.joinableLocked.
func (t *queryTable) addLocked(f *inFlight) {
	f.next = t.byHash[f.hash]
	t.byHash[f.hash] = f
	t.count++
	if f.refresh {
		t.refreshes++
	}
}

// remove removes a query and returns the waiters that joined it. No client can join any more.
func (t *queryTable) remove(f *inFlight) (joined []waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.completed = true
	t.removeStaleLocked(f)
	if at := t.byHash[f.hash]; at != f {
		for at.next != f {
			at = at.next
		}
		at.next = f.next
	} else if f.next != nil {
		t.byHash[f.hash] = f.next
	} else {
		delete(t.byHash, f.hash)
	}
	t.count--
	if f.refresh {
		t.refreshes--
	}
	if f.client != nil {
		f.client.queries--
		t.releaseLocked(f.client)
	}
	return t.detachLocked(f)
}

// detachLocked removes the waiters of f from their clients' accounts: they got their reply, or are about
// to. It returns those that joined.
func (t *queryTable) detachLocked(f *inFlight) (joined []waiter) {
	if f.first.client != nil {
		t.removeWaiterLocked(f.first.client)
	}
	joined, f.joined = f.joined, nil
	for i := range joined {
		t.removeWaiterLocked(joined[i].client)
	}
	return joined
}

// addStaleLocked records that a stale answer is held for a waiter of f. It reports whether f is now first
// in the ring, so that the timer may have to fire earlier.
func (t *queryTable) addStaleLocked(f *inFlight) (first bool) {
	if f.staleHeld {
		return false
	}
	f.staleHeld = true
	before := t.stale.prevStale
	for before != &t.stale && before.staleAt() > f.staleAt() { // f began before that query, or has a shorter StaleAfter
		before = before.prevStale
	}
	f.prevStale, f.nextStale = before, before.nextStale
	before.nextStale, f.nextStale.prevStale = f, f
	return before == &t.stale
}

// removeStaleLocked removes f from the ring of stale answers, if it is in there.
func (t *queryTable) removeStaleLocked(f *inFlight) {
	if f.nextStale != nil {
		f.prevStale.nextStale, f.nextStale.prevStale = f.nextStale, f.prevStale
		f.prevStale, f.nextStale = nil, nil
	}
}

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

// reservePart is the divisor that yields the places reserved for clients that have few or none.
const reservePart = 8

// provenPart is the divisor that yields the places reserved for clients with a verified address, so that
// forged addresses cannot take them. The threshold of other clients is lower by as much.
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

// A client is the account of a clientKey that has waiting or in-flight queries.
type client struct {
	key     clientKey
	waiting int
	queries int     // in-flight queries it started
	next    *client // in the free list
}

// admitLocked accounts a waiting query to its client, and an in-flight query if begins is set.
// detachLocked and remove undo this. It returns nil and the limit that is reached, if one is.
func (t *queryTable) admitLocked(key clientKey, begins bool, plan *Plan) (c *client, why Shed) {
	c = t.clients[key]
	waiting, queries := 0, 0
	if c != nil {
		waiting, queries = c.waiting, c.queries
	}
	freeWaiting, freeQueries := plan.Waiting-t.waiting, plan.Inflight-(t.count-t.refreshes)
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
		c = t.addClientLocked(key)
	}
	c.waiting++
	t.waiting++
	if begins {
		c.queries++
	}
	return c, 0
}

// fairShare returns the number of places that one client may have while free of them are unused: as many
// as are free, and many more while those exceed the reserve. It is a dynamic threshold (Choudhury and
// Hahne, 1998), the same for each client:
//
//	greedy clients   1     2      3      7      k > 7
//	each ends with   5/6   3/7    2/7    1/8    1/(k+1) of the places
//
// A client that had more places before others came gets no new place until it is below the threshold.
func fairShare(places, free int) int {
	reserve := (places + reservePart - 1) / reservePart
	return free + spareWeight*max(0, free-reserve)
}

// removeWaiterLocked removes one waiter from the account c. It is called once for each waiter.
func (t *queryTable) removeWaiterLocked(c *client) {
	c.waiting--
	t.waiting--
	t.releaseLocked(c)
}

// addClientLocked adds an account for a client without one.
func (t *queryTable) addClientLocked(key clientKey) *client {
	c := t.freeClients
	if c == nil {
		c = new(client)
	}
	t.freeClients, c.next = c.next, nil
	c.key = key
	t.clients[key] = c
	return c
}

// releaseLocked frees the account of a client that has neither waiting nor in-flight queries.
func (t *queryTable) releaseLocked(c *client) {
	if c.waiting > 0 || c.queries > 0 {
		return
	}
	delete(t.clients, c.key)
	c.next, t.freeClients = t.freeClients, c
}

// floodLocked counts a shed UDP query. It reports whether its client exceeded floodSheds within this
// second, and whether to log that.
func (t *queryTable) floodLocked(key clientKey, now time.Time) (silent, logIt bool) {
	f := &t.floods[maphash.Comparable(t.seed, key)%floodSlots]
	second := now.Unix()
	if f.second != second {
		f.client, f.second, f.sheds = key, second, 0
	}
	if f.client != key {
		return false, false
	}
	f.sheds++
	if f.sheds == floodSheds+1 && second-t.lastFloodLog >= floodPause {
		t.lastFloodLog, logIt = second, true
	}
	return f.sheds > floodSheds, logIt
}
