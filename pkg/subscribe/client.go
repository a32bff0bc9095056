// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	// patience is how long the session may take for an answer before the pool is asked too.
	patience = 200 * time.Millisecond
	// maxRepeats bounds how often a question is asked again because its object changed meanwhile. The answer after that is given.
	maxRepeats = 8
)

// An Asker queries the servers of a pool, see resolve.Asker.
type Asker interface {
	Ask(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch)
}

// Config configures a [Client]. All fields are required, but Serves and Watched.
type Config struct {
	Cache   func() *cache.Cache      // the cache in use
	Owner   func(name []byte) []byte // the end of name that names its object, see zone.Owner; nil: its changes are not reported
	Pool    Asker                    // asks any server
	Servers func() []upstream.Server // the servers that a session may be opened to
	Open    func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	MaxAge  time.Duration // denials live by their TTL if the server's view is older
	// Serves reports whether the address is still one of a server. A session with another one ends. Nil: none does.
	Serves func(addr netip.AddrPort) bool
	// Watched is a name, canonical and in wire form, that every session subscribes to; nil: none. Changed is called when it has changed, and
	// when a session begins or ends. It must not block or call the client.
	Watched []byte
	Changed func()
	Now     func() time.Time
	Log     *slog.Logger
}

// A Client asks the central resolver. It implements resolve.Asker. Its methods are safe for concurrent use.
type Client struct {
	cfg    Config
	limits limits
	arm    func(time.Duration) // has expire called after that time
	wanted chan struct{}       // gets an element when a session would be used; has room for one

	mu      sync.Mutex // guards the fields below, and those of sessions
	session *session   // asked for names; nil: there is none, or its server is behind
	seen    []uint64   // newest version of each kind in the views of sessions that were asked
	// doubts has when an object changed, if its session ended before the next View: seen does not count that change. At most
	// limits.names are known by name; doubtAll is the last of the others.
	doubts   map[string]time.Time
	doubtAll time.Time

	behindSince time.Time // since when each session's server is behind; zero: the last one was not
	stats       Stats
}

// NoServer is [Stats.Why] without a server to open a session to, and NoPush its end if the server refuses sessions.
const (
	NoServer = "no server is known, or all are down"
	NoPush   = "the server has no DNS push"
)

// Stats are the state and the counters of a Client.
type Stats struct {
	Server   string    `json:"server,omitempty"` // server of the session; empty: no name is subscribed to
	Since    time.Time `json:"since,omitzero"`   // when the session began
	Why      string    `json:"why,omitempty"`    // why there is none
	Idle     bool      `json:"idle,omitempty"`   // there is none because no name is asked for
	Names    int       `json:"names"`            // subscribed to
	Sessions uint64    `json:"sessions"`         // sessions that began
	Asked    uint64    `json:"asked"`            // questions on sessions
	Kept     uint64    `json:"kept"`             // their answers that may be kept
	Events   uint64    `json:"events"`           // changes of names that servers reported
	Repeated uint64    `json:"repeated"`         // answers asked for again, because their object changed meanwhile
	Late     uint64    `json:"late"`             // questions that went to the pool after patience
	Full     uint64    `json:"full"`             // questions that went to the pool because of a bound
	Refused  uint64    `json:"refused"`          // subscriptions that servers refused
}

// New returns a client. It asks the pool until Run has opened a session.
func New(cfg Config) *Client {
	c := &Client{cfg: cfg, wanted: make(chan struct{}, 1), limits: limits{maxNames, 10 * time.Minute, time.Minute}, doubts: map[string]time.Time{}, stats: Stats{Why: "not connected yet"}}
	timer := time.AfterFunc(time.Hour, c.expire)
	timer.Stop()
	c.arm = func(d time.Duration) { timer.Reset(d) }
	return c
}

// limits are the bounds of the names that are subscribed to.
type limits struct {
	names    int
	idle     time.Duration // a name that was not used for so long is given up
	idleFull time.Duration // the same after the table was full, or if no answer of the name is in the cache
}

// Stats returns the counters.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.stats
	if s := c.session; s != nil {
		st.Server, st.Since, st.Why, st.Idle, st.Names = s.label, s.begun, "", false, len(s.order)
	}
	return st
}

// Reports reports whether a session reports the changes of Watched.
func (c *Client) Reports() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.session
	if s == nil {
		return false
	}
	n := s.names[string(c.cfg.Watched)]
	return n != nil && n.watched && n.acked
}

// A question is one query. It is in flight on a session or with the pool.
type question struct {
	client  *Client
	query   []byte
	until   time.Time
	to      wire.AnswerReceiver
	key     []byte // cache key
	name    []byte // part of key
	owner   []byte // part of name
	asked   time.Time
	repeats int // times that it was asked again

	// On a session:
	subscribed *name
	changed    bool // the object has changed since it was asked
}

// Ask implements resolve.Asker.
func (c *Client) Ask(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	var parsed wire.Query
	if parsed.Parse(q) != wire.RcodeSuccess || parsed.Class != wire.ClassIN {
		c.cfg.Pool.Ask(q, until, to, batch)
		return
	}
	w := &question{client: c, query: q, until: until, to: to, key: bytes.Clone(parsed.Key())}
	w.name = w.key[:len(parsed.Name())]
	if w.owner = c.cfg.Owner(w.name); w.owner == nil {
		c.cfg.Pool.Ask(q, until, to, batch)
		return
	}
	w.ask(batch)
}

// ask asks the session, and the pool if there is none.
func (w *question) ask(batch *wire.SendBatch) {
	c := w.client
	w.asked = c.cfg.Now()
	c.mu.Lock()
	asked := c.session != nil && c.session.askLocked(w)
	if c.session == nil {
		select {
		case c.wanted <- struct{}{}:
		default:
		}
	}
	c.mu.Unlock()
	if !asked {
		c.cfg.Pool.Ask(w.query, w.until, w, batch)
	}
}

// askPool asks the pool for what a session did not answer.
func (w *question) askPool(batch *wire.SendBatch) {
	w.asked = w.client.cfg.Now()
	w.client.cfg.Pool.Ask(w.query, w.until, w, batch)
}

// Answered implements [wire.AnswerReceiver] for the pool. An answer from before the last change of its object is asked for again.
func (w *question) Answered(answer *wire.Message, err error, batch *wire.SendBatch) {
	c := w.client
	if err == nil && w.repeats < maxRepeats && c.cfg.Cache().ChangedSince(w.owner, w.asked) && c.cfg.Now().Before(w.until) {
		w.repeats++
		c.mu.Lock()
		c.stats.Repeated++
		c.mu.Unlock()
		w.ask(batch)
		return
	}
	w.to.Answered(answer, err, batch)
}

// expire asks the pool for what the session has not answered within patience. Until its next message the session is asked for
// nothing more.
func (c *Client) expire() {
	now := c.cfg.Now()
	c.mu.Lock()
	var late []*question
	if s := c.session; s != nil {
		late = s.expireLocked(now)
		c.stats.Late += uint64(len(late))
	}
	c.mu.Unlock()
	var batch wire.SendBatch
	for _, w := range late {
		w.askPool(&batch)
	}
	batch.Flush()
}

// changed calls Changed, if a name is watched.
func (c *Client) changed() {
	if c.cfg.Watched != nil {
		c.cfg.Changed()
	}
}

// lost ends a session. Its answers go back to their TTL before another session vouches for any. Its questions go to the pool.
func (c *Client) lost(s *session, why string) {
	c.mu.Lock()
	if c.session == s {
		c.session = nil
		c.changed()
	}
	c.stats.Why = why
	for owner, at := range s.unseen {
		if len(c.doubts) < c.limits.names {
			c.doubts[owner] = at
		} else {
			c.doubtAll = c.cfg.Now()
		}
	}
	waiting := slices.DeleteFunc(s.queue, func(w waiting) bool { return s.questions[w.id] != w.question })
	s.questions, s.queue = nil, nil
	c.mu.Unlock()
	c.cfg.Cache().UnkeepAll()
	var batch wire.SendBatch
	for _, w := range waiting {
		w.question.askPool(&batch)
	}
	batch.Flush()
}
