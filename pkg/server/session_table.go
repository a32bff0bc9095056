// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxEvictTries is how many sessions evict tries: one that gets a query meanwhile cannot be evicted.
const maxEvictTries = 3

// stalledFrame is the time after which an incomplete frame counts as idle. Clients send a query at
// once; a client that sends incomplete frames must not occupy all places.
const stalledFrame = time.Second

// A sessionTable holds the open sessions, within a total limit and a limit per client.
type sessionTable struct {
	mu        sync.Mutex // guards all below
	limit     int        // most sessions in all
	perClient int        // most sessions per client address
	open      int
	clients   map[netip.Addr][]*session
}

// SetLimits changes MaxSessions, MaxPerClient, MaxMemory and IdleTimeout while the server runs.
// Sessions above a new limit stay. A session uses the new idle timeout after its next query.
func (t *TCP) SetLimits(sessions, perClient int, held int64, idle time.Duration) {
	t.table.setLimits(sessions, perClient)
	t.memoryLimit.Store(held)
	t.idleTimeout.Store(int64(idle))
}

// setLimits changes the limits. Sessions above a new limit stay.
func (t *sessionTable) setLimits(limit, perClient int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit, t.perClient = limit, perClient
}

// add admits s if there is room. If not, full says whether the table is full; else the client has too many sessions. The
// client's limit is checked first: a client at its limit must not cost other clients their idle sessions.
func (t *sessionTable) add(s *session) (admitted, full bool) {
	client := s.peer.Addr.Addr()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.clients[client]) >= t.perClient {
		return false, false
	}
	if t.open >= t.limit {
		return false, true
	}
	t.clients[client] = append(t.clients[client], s)
	t.open++
	return true, false
}

// remove removes s. It does nothing if s is not in the table.
func (t *sessionTable) remove(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(s)
}

func (t *sessionTable) removeLocked(s *session) {
	client := s.peer.Addr.Addr()
	list := t.clients[client]
	i := slices.Index(list, s)
	if i < 0 {
		return
	}
	t.open--
	if len(list) == 1 {
		delete(t.clients, client)
		return
	}
	t.clients[client] = slices.Delete(list, i, i+1)
}

// evict removes one session from a full table to make room for client, and claims it so that it answers nothing more. It
// returns nil if there is none; the new session is then refused. own says that this process connects to itself. The choice:
//
//   - The client with most sessions loses its longest idle one. If none is idle it loses its oldest
//     one, provided that it keeps more sessions than client has, or that own is set. A session with
//     an incomplete frame is idle after stalledFrame.
//   - A client with as many sessions as client, or client itself, loses its longest idle one.
//
// Idle sessions of clients with fewer sessions stay: a client with many busy sessions must not cost
// them theirs. A client at its own limit loses one of its own.
func (t *sessionTable) evict(client netip.Addr, own bool, now int64) *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	for range maxEvictTries {
		v := t.victimLocked(client, own, now)
		if v.session == nil {
			return nil
		}
		if v.ticket == ticketBusy || v.session.idle.CompareAndSwap(v.ticket, ticketShed) {
			t.removeLocked(v.session)
			return v.session
		}
	}
	return nil
}

// A victim is a session that may be closed for a new one. The first one is that of the client with most sessions; of those
// an idle one before a busy one; then the one with the smallest since.
type victim struct {
	session        *session
	ticket         int64 // the ticket with which evict claims the session; ticketBusy: it is busy and needs no claim
	clientSessions int   // number of sessions of its client
	since          int64 // on the server's clock: idle since; if it is busy, open since
}

func (v *victim) before(w *victim) bool {
	switch {
	case v.clientSessions != w.clientSessions:
		return v.clientSessions > w.clientSessions
	case (v.ticket == ticketBusy) != (w.ticket == ticketBusy):
		return w.ticket == ticketBusy
	}
	return v.since < w.since
}

// choose replaces v by a session of list that goes before it: an idle one, with stalled also one
// with an incomplete frame, and with atWork also a busy one.
func (v *victim) choose(list []*session, atWork, stalled bool, now int64) {
	for _, s := range list {
		w := victim{session: s, ticket: s.idle.Load(), clientSessions: len(list)}
		since, idle := s.idleSince(w.ticket)
		framed := w.ticket < ticketShed
		switch {
		case idle && (!framed || stalled && now-since >= int64(stalledFrame)):
			w.since = since
		case atWork:
			w.ticket, w.since = ticketBusy, s.server.clock(s.opened)
		default:
			continue
		}
		if w.before(v) {
			*v = w
		}
	}
}

// victimLocked examines clients with at least as many sessions as client, and only client if that is
// at its limit. It skips clients with fewer sessions than the client of the victim found so far.
func (t *sessionTable) victimLocked(client netip.Addr, own bool, now int64) (first victim) {
	mine := len(t.clients[client])
	for peer, list := range t.clients {
		n := len(list)
		if n < max(mine, first.clientSessions) || mine >= t.perClient && peer != client {
			continue
		}
		more := n > mine+1 || own
		first.choose(list, more, more || peer == client || n > mine, now)
	}
	return first
}

// largest returns the sessions to close so that the others hold at most target bytes, or nil if all
// hold at most limit. It repeatedly takes the largest session of the client that holds most. A large
// answer to a client that reads must not be dropped for a client that holds many smaller ones.
func (t *sessionTable) largest(limit, target int64) (list []*session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	type holder struct {
		session *session
		bytes   int64
	}
	holders := make([]holder, 0, t.open)
	clients := make(map[netip.Addr]int64, len(t.clients))
	sum := int64(0)
	for client, sessions := range t.clients {
		for _, s := range sessions {
			if h := (holder{s, s.out.heldBytes()}); h.bytes > 0 {
				holders = append(holders, h)
				clients[client] += h.bytes
				sum += h.bytes
			}
		}
	}
	if sum <= limit {
		return nil // the kernel holds fewer bytes of answers than memoryUse estimated
	}
	ofClient := func(h holder) int64 { return clients[h.session.peer.Addr.Addr()] }
	slices.SortFunc(holders, func(a, b holder) int { return cmp.Compare(b.bytes, a.bytes) })
	for sum > target {
		at := 0
		for i := range holders {
			if ofClient(holders[i]) > ofClient(holders[at]) {
				at = i
			}
		}
		h := holders[at]
		list = append(list, h.session)
		sum -= h.bytes
		clients[h.session.peer.Addr.Addr()] -= h.bytes
		holders = slices.Delete(holders, at, at+1)
	}
	return list
}

// each calls do for every session, without the lock.
func (t *sessionTable) each(do func(*session)) {
	t.mu.Lock()
	all := make([]*session, 0, t.open)
	for _, list := range t.clients {
		all = append(all, list...)
	}
	t.mu.Unlock()
	for _, s := range all {
		do(s)
	}
}

func (t *sessionTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open
}

const (
	// kernelSend is the most bytes of unread answers that the kernel keeps. It starts one more
	// packet when its buffer is almost full.
	kernelSend = 2*sessionBuffer + 32<<10
	// kernelReceive is the most bytes of unread queries that the kernel keeps.
	kernelReceive = 2 * sessionBuffer
)

// A memoryUse is the memory of one session beyond that of an idle one: answers that the client does
// not read, incomplete frames, and kernel buffers. An answer that the kernel accepts at once does not
// count. All methods are safe for concurrent use.
type memoryUse struct {
	total  *atomic.Int64 // bytes of all sessions
	own    atomic.Int64  // bytes of the session's buffers
	kernel atomic.Int64  // estimated bytes of answers in the kernel
}

// add adds n bytes of buffers; n may be negative. The caller calls shedMemory afterwards, with no
// lock held.
func (m *memoryUse) add(n int) {
	if n != 0 {
		m.own.Add(int64(n))
		m.total.Add(int64(n))
	}
}

// addSent adds n bytes that the kernel accepted. Whether the client has read them is checked only
// at the limit.
func (m *memoryUse) addSent(n int) {
	if more := min(int64(n), kernelSend-m.kernel.Load()); more > 0 {
		m.kernel.Add(more)
		m.total.Add(more)
	}
}

// setKernel replaces the estimate of addSent by the kernel's own count.
func (m *memoryUse) setKernel(kernel int64) {
	m.total.Add(kernel - m.kernel.Swap(kernel))
}

func (m *memoryUse) bytes() int64 { return m.own.Load() + m.kernel.Load() }

// reset removes the session from the total.
func (m *memoryUse) reset() {
	m.total.Add(-m.own.Swap(0) - m.kernel.Swap(0))
}

// shedMemory closes sessions if all together hold too much: the largest session of the client that
// holds most, until a quarter of the limit is free. The caller holds no lock.
func (t *TCP) shedMemory() {
	limit := t.memoryLimit.Load()
	if limit == 0 || t.memory.Load() <= limit || !t.shedding.TryLock() {
		return
	}
	defer t.shedding.Unlock()
	for _, s := range t.table.largest(limit, limit-limit/4) {
		if s.out.abort() {
			t.count(&t.stats.ShedMemory, 1)
		}
		s.out.usage.reset() // at once, so that no other session is closed for this memory
	}
}
