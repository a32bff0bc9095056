// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/panics"
)

const (
	// MaxSubscriptions bounds those of one session.
	MaxSubscriptions = 16384
	// maxTypes bounds those of one session to one name, with another type or class each.
	maxTypes = 16

	// heartbeat is the interval between the heartbeats of a session; beats is the number of groups of sessions that take turns.
	heartbeat = 2 * time.Second
	beats     = 20

	// After a round the next one waits for rests times as long as that took, at most batch, and combines what changes meanwhile.
	rests = 4
	batch = 50 * time.Millisecond

	// slow is how long marked names may wait for a client that does not read.
	slow = 5 * time.Second

	// inactivity and interval are the timeouts of a session (RFC 8490 section 6.2). The heartbeats are traffic, so the client sends no
	// Keepalive of its own.
	inactivity = 15 * time.Second
	interval   = time.Minute
	// delinquent is the time without an operation after which the server ends the session (RFC 8490 section 6.4.1).
	delinquent = 2 * inactivity

	// Delays of refusals (RFC 8765 section 6.2.2). Sessions that end together come back within spread.
	badDelay     = 5 * time.Minute
	refusedDelay = 5 * time.Minute
	fullDelay    = time.Minute
	spread       = 5 * time.Second

	// maxChanged bounds the changed owners that wait for a round. Above it, all names count as changed.
	maxChanged = 1 << 16
)

// Config configures a Server.
type Config struct {
	// Permits reports whether an address may subscribe.
	Permits func(netip.Addr) bool
	// Owner returns the owner of a name, in canonical wire form, whose answers all come from the zones; nil for another name.
	Owner func(name []byte) []byte
	// Zones returns the zones whose changes are passed to OwnerChanged.
	Zones func() zone.Zones
	// View says what is known of the cluster's objects.
	View func(now time.Time) dso.View
	// Budget returns the bytes that the subscriptions may take.
	Budget func() int64
	Now    func() time.Time
	Log    *slog.Logger
}

// A Conn is the connection of a session. After the connection has ended, its methods do nothing.
type Conn interface {
	// SendMessage sends a message before later ones. It blocks while the client reads slowly. It returns false when the client
	// accepts no more.
	SendMessage(msg []byte) bool
	// Push is SendMessage, but returns false instead of blocking.
	Push(msg []byte) bool
	// HasRoom reports whether Push would take the largest message.
	HasRoom() bool
	// Last sends the last message. The connection ends 5 s later, if the client does not end it before.
	Last(msg []byte)
	// Abort ends the connection at once, with a reset.
	Abort()
}

// A Server has the sessions.
type Server struct {
	cfg   Config
	guard panics.Guard
	wake  chan struct{} // has an element when an owner has changed

	builders sync.Pool // unused builders

	changedMu sync.Mutex // guards the next two fields; OwnerChanged waits for no other lock
	changed   map[string]struct{}
	all       bool // more than maxChanged owners have changed

	mu       sync.Mutex // guards the fields below, and those of the sessions that say so
	index    index
	sessions [beats]map[*Session]struct{} // those that are open, by the turn of their heartbeats
	turn     int
	due      map[*Session]struct{} // those with marked names
	silent   map[*Session]struct{} // those whose turn it was, and whose heartbeat was not sent yet
	stats    Stats
	nextTurn time.Time // when turn advances; only Run uses it
	panics   atomic.Uint64
	open     atomic.Int64 // number of sessions
}

// New returns a Server.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, wake: make(chan struct{}, 1), changed: map[string]struct{}{}, due: map[*Session]struct{}{}, silent: map[*Session]struct{}{}}
	s.guard = panics.Guard{Where: "push", Log: cfg.Log, Count: &s.panics}
	s.index.init()
	for i := range s.sessions {
		s.sessions[i] = map[*Session]struct{}{}
	}
	return s
}

// OwnerChanged marks the subscribed names of an owner. It is quick, and does not keep owner.
func (s *Server) OwnerChanged(owner []byte) {
	if s.open.Load() == 0 {
		return
	}
	s.changedMu.Lock()
	if len(s.changed) < maxChanged {
		if _, ok := s.changed[string(owner)]; !ok {
			s.changed[string(owner)] = struct{}{}
		}
	} else {
		s.all = true
	}
	s.changedMu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run sends what has changed, and heartbeats, until ctx ends. Then it ends the sessions.
func (s *Server) Run(ctx context.Context) error {
	defer s.EndAll()
	s.nextTurn = s.cfg.Now().Add(heartbeat / beats)
	beat := time.NewTicker(heartbeat / beats)
	defer beat.Stop()
	pause := time.NewTimer(0)
	<-pause.C
	defer pause.Stop()
	wake := s.wake
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
			begin := s.cfg.Now()
			s.round(ctx)
			if rest := rests * s.cfg.Now().Sub(begin); rest > 0 {
				wake = nil
				pause.Reset(min(rest, batch))
			}
		case <-pause.C:
			wake = s.wake
		case <-beat.C:
			s.beat(ctx)
		}
	}
}

// round marks the names whose owners have changed, and sends them.
func (s *Server) round(ctx context.Context) {
	s.changedMu.Lock()
	changed, all := s.changed, s.all
	s.changed, s.all = make(map[string]struct{}), false
	s.changedMu.Unlock()

	s.mu.Lock()
	s.index.eachChanged(changed, all, s.markLocked)
	due := make([]*Session, 0, len(s.due))
	for session := range s.due {
		due = append(due, session)
	}
	s.mu.Unlock()
	for _, session := range due {
		s.flush(ctx, session)
	}
}

// flush sends the marked names of a session. It returns false if some are left, since the client does not read. A panic ends the session:
// what it missed is not known.
func (s *Server) flush(ctx context.Context, session *Session) (done bool) {
	err := s.guard.Do(ctx, func() error {
		done = session.flush()
		return nil
	})
	if err != nil {
		session.abort(nil)
	}
	return done || err != nil
}

// markLocked marks a name in the sessions that have subscribed to it.
func (s *Server) markLocked(n *name) {
	for _, sub := range n.subscribers {
		sub.session.markLocked(n)
	}
}

// beat sends the heartbeats of the sessions whose turn it is. Sessions with names or a heartbeat that did not fit before try again.
func (s *Server) beat(ctx context.Context) {
	now := s.cfg.Now()
	s.mu.Lock()
	for range beats { // ticks are lost while all processors are busy: the clock counts
		if s.nextTurn.After(now) {
			break
		}
		s.turn, s.nextTurn = (s.turn+1)%beats, s.nextTurn.Add(heartbeat/beats)
		for session := range s.sessions[s.turn] {
			if session.established {
				s.silent[session] = struct{}{}
			}
		}
	}
	if now.Sub(s.nextTurn) > heartbeat {
		s.nextTurn = now
	}
	all := maps.Clone(s.silent)
	maps.Copy(all, s.due)
	s.mu.Unlock()
	if len(all) == 0 {
		return
	}
	msg := s.appendHeartbeat(nil, now)
	for session := range all {
		if s.flush(ctx, session) {
			session.vouch(msg)
		} else {
			session.endIfSlow(now)
		}
	}
}

// appendHeartbeat appends a Keepalive with the view.
func (s *Server) appendHeartbeat(dst []byte, now time.Time) []byte {
	dst = dso.AppendKeepalive(dso.AppendHeader(dst, dso.Unidirectional, 0, 0), timeouts())
	return dso.AppendView(dst, s.cfg.View(now))
}

func timeouts() dso.Keepalive { return dso.Keepalive{Inactivity: inactivity, Interval: interval} }

// EndAll ends the sessions, because this server stops. The clients come back, to whom answers then, within 5 s.
func (s *Server) EndAll() {
	s.end(func(*Session) bool { return true })
}

// end ends the sessions that which chooses. It is called with s.mu locked.
func (s *Server) end(which func(*Session) bool) {
	s.mu.Lock()
	var list []*Session
	for _, sessions := range s.sessions {
		for session := range sessions {
			if which(session) {
				list = append(list, session)
			}
		}
	}
	for _, session := range list {
		s.dropLocked(session)
	}
	s.mu.Unlock()
	for _, session := range list {
		session.last(0, rand.N(spread))
	}
}

// dropLocked forgets a session and its subscriptions. It reports whether the session was open.
func (s *Server) dropLocked(session *Session) bool {
	if _, open := s.sessions[session.turn][session]; !open {
		return false
	}
	for id, sub := range session.subscriptions {
		s.index.remove(sub.name, subscriber{session, id})
	}
	session.ended, session.subscriptions, session.marked = true, nil, nil
	delete(s.sessions[session.turn], session)
	delete(s.due, session)
	delete(s.silent, session)
	s.open.Add(-1)
	return true
}

// Stats are the counters of a Server. Those down to Bytes are of now; the others only grow.
type Stats struct {
	Sessions      int    `json:"sessions"`
	Subscriptions int    `json:"subscriptions"` // of all sessions
	Names         int    `json:"names"`         // distinct subscribed names
	Bytes         int64  `json:"bytes"`         // estimated memory of the subscriptions
	Pushes        uint64 `json:"pushes"`        // PUSH messages
	Pushed        uint64 `json:"pushed"`        // names in them

	Refused Refused `json:"refused"`
	Ended   Ended   `json:"ended"`
	Panics  uint64  `json:"panics"` // recovered panics, each of which ended a session
}

// Refused counts SUBSCRIBE requests with an error.
type Refused struct {
	Name      uint64 `json:"name"`      // its answers do not all come from the zones, or depend on no single object
	Count     uint64 `json:"count"`     // the session has MaxSubscriptions, or maxTypes to one name
	Memory    uint64 `json:"memory"`    // the subscriptions take the budget, and no client has more than this one
	Malformed uint64 `json:"malformed"` // the request cannot be read
}

// Ended counts sessions that this server has ended.
type Ended struct {
	Protocol uint64 `json:"protocol"` // the client violated the protocol
	Slow     uint64 `json:"slow"`     // the client did not read for 5 s
	Memory   uint64 `json:"memory"`   // to make room for another client
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Sessions, st.Subscriptions, st.Names, st.Bytes = int(s.open.Load()), s.index.subscriptions, len(s.index.names), s.index.bytes
	st.Panics = s.panics.Load()
	return st
}

// count adds to a counter of s.stats.
func (s *Server) count(counter *uint64, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*counter += uint64(n)
}
