// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	maxNames     = 8192    // subscribed to
	maxTypes     = 8       // questions of one name that differ in type and flags
	maxQuestions = 1024    // in flight on a session
	maxOut       = 1 << 18 // bytes waiting to be written

	greetTimeout  = 10 * time.Second // until the first View
	viewTimeout   = 5 * time.Second  // between two Views
	silentTimeout = 30 * time.Second // until the response to a SUBSCRIBE
	minKeepalive  = 10 * time.Second // between two messages to the server

	// forgetAfter is how long the servers may be behind the last one. Then the agent forgets what it has seen: an API server that
	// was restored from a backup counts on from an earlier version.
	forgetAfter = time.Minute
	// clockMargin allows for the way of a View to here, where the time matters up to which it is complete.
	clockMargin = time.Second

	sweepViews = 30 // Views in which all names are visited

	// Views are two seconds apart. One that comes later than viewInterval after the last was on its way for the rest.
	viewInterval = 2250 * time.Millisecond
)

var (
	// errUnsupported is the error of a server that does not push.
	errUnsupported = errors.New(NoPush)
	// errIdle is the error of a session without a name for as long as the server allows.
	errIdle = errors.New("no name is asked for")
	// errLeft is the error of a server that is no longer one of the central resolver.
	errLeft = errors.New("the server is no endpoint any more")
)

// A retryError is the error of a server that wants to be left alone for a time.
type retryError struct{ after time.Duration }

func (e *retryError) Error() string {
	return fmt.Sprintf("the server asked to come back after %s", e.after)
}

// A session is the state of one session. It does no I/O: receive gets each message of the server, and out has those for it. Its
// client's lock guards it.
type session struct {
	c        *Client
	addr     netip.AddrPort
	label    string // for people
	begun    time.Time
	greeted  bool          // the server accepts DSO
	viewed   time.Time     // arrival of the last View; zero: none yet
	vouched  time.Time     // latest time at which it may have been sent
	complete time.Time     // that view has all changes up to this time
	upTo     []uint64      // versions of the last View while the session was asked
	timeouts dso.Keepalive // what the server allows
	busyAt   time.Time     // when there was a subscription or a question
	sentAt   time.Time
	lastID   uint16
	slow     bool // the server has not answered in time, and not sent anything since

	names     map[string]*name
	byID      map[uint16]*name // by the ID of their SUBSCRIBE
	order     []*name          // in no order, for sweeps
	next      int              // index in order of the name to visit next
	full      bool             // a name had no room since the last round of sweeps began
	wasFull   bool             // the same, in the round before
	refuseEnd time.Time        // no name is subscribed to until then

	questions map[uint16]*question
	queue     []waiting            // all of them, and answered ones, in the order in which they were asked
	unseen    map[string]time.Time // owners that were reported since the last View, and when

	out     []byte        // frames to write
	wake    chan struct{} // gets an element when out is no longer empty; has room for one
	message wire.Message
}

// A waiting is a question that was asked under an ID.
type waiting struct {
	id       uint16
	question *question
	deadline time.Time
}

// A name is one that is subscribed to.
type name struct {
	wire    []byte
	id      uint16 // of its SUBSCRIBE
	acked   bool
	refused bool      // the server does not report its changes
	watched bool      // it is Config.Watched, which is not given up
	tails   [][3]byte // type and flags of the questions, which complete the cache keys
	used    time.Time
	hits    int // of its answers when they were last visited
}

// connected begins a session with the server at addr.
func (c *Client) connected(addr netip.AddrPort) *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &session{
		c: c, addr: addr, label: "push://" + addr.String(), begun: c.cfg.Now(), busyAt: c.cfg.Now(), wake: make(chan struct{}, 1),
		names: map[string]*name{}, byID: map[uint16]*name{}, questions: map[uint16]*question{}, unseen: map[string]time.Time{},
	}
	c.stats.Sessions++
	s.sendKeepaliveLocked()
	return s
}

// deadline returns when the session ends without another View.
func (s *session) deadline() time.Time {
	if s.viewed.IsZero() {
		return s.begun.Add(greetTimeout)
	}
	return s.viewed.Add(viewTimeout)
}

// newIDLocked returns an ID that is not in use. A subscription uses that of its SUBSCRIBE until it ends.
func (s *session) newIDLocked() uint16 {
	for {
		s.lastID++
		if s.lastID != 0 && s.byID[s.lastID] == nil && s.questions[s.lastID] == nil {
			return s.lastID
		}
	}
}

// sendLocked queues the message that add appends.
func (s *session) sendLocked(add func(dst []byte) []byte) {
	at := len(s.out)
	s.out, _ = wire.SealFrame(add(wire.OpenFrame(s.out)), at) // no message is empty or too long
	s.sentAt = s.c.cfg.Now()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// takeOut returns what to write.
func (s *session) takeOut() []byte {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	out := s.out
	s.out = nil
	return out
}

func (s *session) sendKeepaliveLocked() {
	s.sendLocked(func(dst []byte) []byte {
		return dso.AppendKeepalive(dso.AppendHeader(dst, dso.Request, s.newIDLocked(), 0), dso.Keepalive{Inactivity: dso.Never, Interval: time.Minute})
	})
}

// askLocked sends a question, and the SUBSCRIBE of its name first. It returns false if the pool is to be asked.
func (s *session) askLocked(w *question) bool {
	if s.slow || len(s.questions) >= maxQuestions || len(s.out) >= maxOut {
		s.c.stats.Full++
		return false
	}
	n := s.subscribeLocked(w)
	if n == nil {
		return false
	}
	id := s.newIDLocked()
	w.subscribed, w.changed = n, false
	if len(s.queue) == 0 {
		s.c.arm(patience)
	}
	s.questions[id] = w
	s.queue = append(s.queue, waiting{id, w, w.asked.Add(patience)})
	s.sendLocked(func(dst []byte) []byte {
		at := len(dst)
		dst = append(dst, w.query...)
		wire.SetID(dst[at:], id)
		return dst
	})
	s.c.stats.Asked++
	return true
}

// subscribeLocked returns the name of a question, subscribed to. It returns nil if its answer cannot be kept.
func (s *session) subscribeLocked(w *question) *name {
	n := s.names[string(w.name)]
	if n == nil {
		switch {
		case w.asked.Before(s.refuseEnd):
			return nil
		case len(s.order) >= s.c.limits.names:
			s.full = true
			s.c.stats.Full++
			return nil
		}
		n = s.addLocked(w.name)
	}
	if !n.refused { // a name that is refused is given up in time, and subscribed to again: its source may be another one then
		n.used = w.asked
	}
	tail := [3]byte(w.key[len(w.name):])
	switch {
	case n.refused:
		return nil
	case slices.Contains(n.tails, tail):
	case len(n.tails) >= maxTypes:
		s.c.stats.Full++
		return nil
	default:
		n.tails = append(n.tails, tail)
	}
	return n
}

// addLocked subscribes to a name.
func (s *session) addLocked(owner []byte) *name {
	n := &name{wire: bytes.Clone(owner), id: s.newIDLocked()}
	s.names[string(n.wire)], s.byID[n.id], s.order = n, n, append(s.order, n)
	s.sendLocked(func(dst []byte) []byte {
		return dso.AppendSubscribe(dso.AppendHeader(dst, dso.Request, n.id, 0), dso.Subscription{Name: n.wire, Type: wire.TypeANY, Class: wire.ClassIN})
	})
	return n
}

// expireLocked removes and returns the questions that were not answered within patience.
func (s *session) expireLocked(now time.Time) (late []*question) {
	for len(s.queue) > 0 {
		switch first := s.queue[0]; {
		case s.questions[first.id] != first.question: // it was answered
		case first.deadline.After(now):
			s.c.arm(first.deadline.Sub(now))
			return late
		default:
			delete(s.questions, first.id)
			late = append(late, first.question)
			s.slow = s.slow || first.question.subscribed.acked // answers to others may come from elsewhere
		}
		s.queue = s.queue[1:]
	}
	s.queue = nil
	return late
}

// receive processes a message of the server, without its length. An error ends the session. msg may be changed.
func (s *session) receive(msg []byte, batch *wire.SendBatch) error {
	if !dso.IsDSO(msg) {
		return s.receiveAnswer(msg, batch)
	}
	m, err := dso.Parse(msg)
	if err != nil && (m.Kind != dso.Response || m.Rcode != wire.RcodeNotImp) { // a server without DSO may repeat what it does not know
		return fmt.Errorf("message of %d bytes: %w", len(msg), err)
	}
	primary := m.Primary()
	switch {
	case m.Kind == dso.Response:
		return s.receiveResponse(&m)
	case m.Kind == dso.Request:
		return fmt.Errorf("a request of type %#x: %w", primary.Type, dso.ErrMalformed)
	case primary.Type == dso.TypeRetryDelay:
		after, err := primary.RetryDelay()
		if err != nil {
			return fmt.Errorf("retry delay: %w", err)
		}
		return &retryError{after}
	case primary.Type == dso.TypePush:
		return s.receivePush(&m)
	case primary.Type == dso.TypeKeepalive:
		if view, ok := m.Find(dso.TypeView); ok {
			return s.receiveView(view)
		}
	}
	return nil
}

// receiveResponse processes the response to a Keepalive or a SUBSCRIBE.
func (s *session) receiveResponse(m *dso.Message) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	n := s.byID[m.ID]
	switch {
	case n == nil && m.Rcode != wire.RcodeSuccess:
		return errUnsupported
	case n == nil:
		k, err := m.Primary().Keepalive()
		if err != nil {
			return fmt.Errorf("response: %w", err)
		}
		s.greeted, s.timeouts = true, dso.Keepalive{Inactivity: k.Inactivity, Interval: max(k.Interval, minKeepalive)}
	case m.Rcode == wire.RcodeSuccess:
		n.acked = true
	default:
		n.refused = true
		s.c.stats.Refused++
		if delay, ok := m.Find(dso.TypeRetryDelay); ok && m.Rcode != wire.RcodeNotAuth {
			after, err := delay.RetryDelay()
			if err != nil {
				return fmt.Errorf("retry delay: %w", err)
			}
			s.refuseEnd = s.c.cfg.Now().Add(after)
		}
	}
	return nil
}

// receivePush drops the answers of names that have changed, and marks the questions in flight for their objects.
func (s *session) receivePush(m *dso.Message) error {
	now := s.c.cfg.Now()
	var before []byte
	err := m.Changes(func(change dso.Change) bool {
		if change.TTL < dso.TTLRemoveCollective || bytes.Equal(change.Name, before) {
			return true
		}
		before = bytes.Clone(change.Name)
		wire.Canonical(before, change.Name)
		if owner := s.markChanged(before, now); owner != nil {
			s.c.cfg.Cache().OwnerChanged(owner, now)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("push: %w", err)
	}
	return nil
}

// markChanged marks the questions in flight for the object of a name that has changed. It returns that object, and nil for a name
// that is not subscribed to.
func (s *session) markChanged(name []byte, now time.Time) (owner []byte) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	n := s.names[string(name)]
	if n == nil {
		return nil
	}
	owner = s.c.cfg.Owner(n.wire)
	for _, w := range s.questions {
		w.changed = w.changed || bytes.Equal(w.owner, owner)
	}
	s.unseen[string(owner)] = now
	s.c.stats.Events++
	if n.watched {
		s.c.changed()
	}
	return owner
}

// receiveView vouches for the answers that are kept. The first View that is not behind makes the session the one that is asked.
func (s *session) receiveView(t dso.TLV) error {
	view, err := t.View()
	if err != nil {
		return fmt.Errorf("view: %w", err)
	}
	c, now := s.c, s.c.cfg.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if latest := s.vouched.Add(viewInterval); s.viewed.IsZero() || now.Before(latest) {
		s.vouched = now
	} else {
		s.vouched = latest
	}
	s.viewed, s.complete, s.slow = now, s.vouched.Add(-view.Age-clockMargin), false
	if !s.greeted {
		return fmt.Errorf("a view before the response to the first message: %w", dso.ErrMalformed)
	}
	if c.cfg.Serves != nil && !c.cfg.Serves(s.addr) {
		return errLeft
	}
	if len(s.order) > 0 || len(s.questions) > 0 {
		s.busyAt = now
	} else if now.Sub(s.busyAt) > s.timeouts.Inactivity {
		return errIdle
	}
	if c.session != s && !c.useLocked(s, view.Kinds) {
		return nil
	}
	if isBehind(view.Kinds, s.upTo) {
		// The API server was restored from a backup. A server that has not listed since seems to be ahead: only the time up to which it
		// is complete tells.
		c.seen, c.doubtAll = nil, now
	}
	s.upTo = s.upTo[:0]
	for i, k := range view.Kinds {
		s.upTo = append(s.upTo, k.UpTo)
		if i == len(c.seen) {
			c.seen = append(c.seen, 0)
		}
		c.seen[i] = max(c.seen[i], k.Newest)
	}
	clear(s.unseen)
	for owner, at := range c.doubts {
		if s.complete.After(at) {
			delete(c.doubts, owner)
		}
	}
	c.cfg.Cache().Vouch(s.vouched, view.Age <= c.cfg.MaxAge)
	if now.Sub(s.sentAt) > s.timeouts.Interval/2 {
		s.sendKeepaliveLocked()
	}
	return s.sweepLocked(now)
}

// useLocked makes the session the one that is asked, unless its server is behind.
func (c *Client) useLocked(s *session, kinds []dso.Versions) bool {
	switch behind := isBehind(kinds, c.seen); {
	case behind && c.behindSince.IsZero():
		c.behindSince = s.viewed
		fallthrough
	case behind && s.viewed.Sub(c.behindSince) < forgetAfter:
		c.stats.Why = s.label + " is behind the server before"
		return false
	case behind:
		c.seen, c.doubts, c.doubtAll = nil, map[string]time.Time{}, time.Time{}
	}
	c.session, c.behindSince = s, time.Time{}
	if c.cfg.Watched != nil {
		n := s.addLocked(c.cfg.Watched)
		n.watched, n.used = true, s.viewed
		c.changed() // what changed before is not reported
	}
	return true
}

// isBehind reports whether a server may lack changes that another one had.
func isBehind(kinds []dso.Versions, seen []uint64) bool {
	for i, newest := range seen {
		if i >= len(kinds) || kinds[i].UpTo < newest {
			return true
		}
	}
	return false
}

// receiveAnswer passes on the answer to a question, and asks again if its object has changed meanwhile.
func (s *session) receiveAnswer(msg []byte, batch *wire.SendBatch) error {
	if len(msg) < wire.HeaderLen {
		return fmt.Errorf("message of %d bytes: %w", len(msg), dso.ErrMalformed)
	}
	w, kept, err := s.answered(msg)
	if w == nil || err != nil {
		return err
	}
	m := &s.message
	if w.changed || !parseAnswer(m, msg) {
		w.askPool(batch) // it knows what to do with an odd answer
		return nil
	}
	m.Server, m.Kept = s.label, kept && w.isReported(m)
	if m.Kept {
		s.c.mu.Lock()
		s.c.stats.Kept++
		s.c.mu.Unlock()
	}
	w.to.Answered(m, nil, batch)
	return nil
}

// parseAnswer parses an answer and reports whether it is a usual one: complete, and conclusive.
func parseAnswer(m *wire.Message, msg []byte) bool {
	if m.Parse(msg) != nil || m.Truncated() || m.IsReferral() || m.IsInconclusive() {
		return false
	}
	m.ClearAuthentic()
	return m.Rcode() == wire.RcodeSuccess || m.Rcode() == wire.RcodeNXDomain
}

// answered returns the question that msg answers, and whether its answer may be kept. It returns nil if nothing waits for it, or if
// the question was asked again. If that was necessary and not possible, it is still marked as changed.
func (s *session) answered(msg []byte) (w *question, kept bool, err error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	id := wire.ID(msg)
	if w = s.questions[id]; w == nil {
		return nil, false, nil // the pool was asked
	}
	wire.SetID(msg, wire.ID(w.query))
	if !wire.Answers(w.query, msg) {
		return nil, false, fmt.Errorf("answer to another question: %w", dso.ErrMalformed)
	}
	s.slow = false
	delete(s.questions, id)
	if w.changed {
		s.c.stats.Repeated++
		w.repeats++
		w.asked = s.c.cfg.Now()
		if w.repeats < maxRepeats && s.askLocked(w) {
			return nil, false, nil
		}
		return w, false, nil
	}
	_, doubted := s.c.doubts[string(w.owner)]
	doubted = doubted || !s.complete.After(s.c.doubtAll)
	return w, w.subscribed.acked && !doubted, nil
}

// isReported reports whether the server reports each change of the answer: all its names have an object in the zone. The server
// follows the aliases of a name within the zone. An answer that ends in an alias may go on elsewhere.
func (w *question) isReported(m *wire.Message) bool {
	var room [wire.MaxName]byte
	last := m.QuestionType()
	for _, r := range m.Records {
		if r.Section == wire.Authority || m.SameName(int(r.Owner), wire.QuestionNameOffset) && r.Type == m.QuestionType() {
			continue
		}
		name := m.AppendName(room[:0], int(r.Owner))
		wire.Canonical(name, name)
		if w.client.cfg.Owner(name) == nil {
			return false
		}
		if r.Section == wire.Answer {
			last = r.Type
		}
	}
	return last == m.QuestionType()
}

// sweepLocked visits a part of the names, and ends the subscriptions to those that are no longer used.
func (s *session) sweepLocked(now time.Time) error {
	for range len(s.order)/sweepViews + 1 {
		if s.next >= len(s.order) {
			s.next, s.wasFull, s.full = 0, s.full, false
			if len(s.order) == 0 {
				return nil
			}
		}
		n := s.order[s.next]
		switch {
		case !n.acked && !n.refused:
			if now.Sub(n.used) > silentTimeout {
				return errors.New("the server does not respond to SUBSCRIBE")
			}
			s.next++
		case s.isUsed(n, now):
			s.next++
		default:
			s.unsubscribeLocked(n)
		}
	}
	return nil
}

// isUsed reports whether the answers of a name are in the cache and were used lately.
func (s *session) isUsed(n *name, now time.Time) bool {
	if n.watched {
		return true
	}
	hits, held := 0, false
	for _, key := range n.keys() {
		if e, ok := s.c.cfg.Cache().Peek(key, now); ok && e.State != cache.Outdated && e.State != cache.Expired {
			hits, held = hits+e.Hits, true
		}
	}
	if hits != n.hits && !n.refused {
		n.hits, n.used = hits, now
	}
	idle := s.c.limits.idle
	if s.wasFull || !held && !n.refused {
		idle = s.c.limits.idleFull
	}
	return now.Sub(n.used) < idle
}

// keys returns the cache keys of the answers of a name.
func (n *name) keys() [][]byte {
	keys := make([][]byte, 0, maxTypes)
	for _, tail := range n.tails {
		keys = append(keys, append(slices.Clip(n.wire), tail[:]...))
	}
	return keys
}

// unsubscribeLocked gives up the name that the sweep is at. Its answers go back to their TTL: no change of them is reported any more.
func (s *session) unsubscribeLocked(n *name) {
	for _, key := range n.keys() {
		s.c.cfg.Cache().Unkeep(key)
	}
	last := len(s.order) - 1
	s.order[s.next] = s.order[last]
	s.order[last] = nil
	s.order = s.order[:last]
	delete(s.names, string(n.wire))
	delete(s.byID, n.id)
	if n.acked {
		s.sendLocked(func(dst []byte) []byte {
			return dso.AppendUnsubscribe(dso.AppendHeader(dst, dso.Unidirectional, 0, 0), n.id)
		})
	}
}
