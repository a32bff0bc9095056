// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// sessions are the connections to one upstream over HTTPS (RFC 8484), which is HTTP/2 and nothing older. Each query is a
// request with a goroutine of its own, as net/http will have it; there are at most maxInflight.
//
//	carry ─ queue ─ Flush ─ a goroutine: join a session, ask, read ─ try.carried
//
// The lock is held neither over I/O nor while anybody is told what came.
type sessions struct {
	*common
	target Target
	trust  *trust
	count  *counters

	mu      sync.Mutex // guards the fields below, and session's where it says so
	queue   []*request // to be started by the next flush
	flying  int        // requests, those in the queue included
	list    []*session // opening or open
	opened  uint64     // sessions ever, which numbers them
	turns   uint64     // requests ever, which says whose turn it is
	asked   time.Time  // when a query last came
	pace    pace
	ids     draws
	fault   error // of the latest session that ended before an answer came on it; nil once one has come
	retired bool
	left    bool
	alive   int // requests that run, and sessions that are not closed yet
	gone    sync.Cond
}

// A request is one query under way.
type request struct {
	ctx    context.Context //nolint:containedctx // it is the request's own, from carry to its goroutine
	cancel context.CancelFunc
	t      *try
	sent   []byte // with ID 0 (RFC 8484 section 4.1)
}

// newHTTPS makes the carrier for HTTPS. It opens nothing yet.
func newHTTPS(c *common, t Target, count *counters) *sessions {
	s := &sessions{common: c, target: t, count: count, trust: newTrust(c, t, count, "h2")}
	if s.target.Path == "" {
		s.target.Path = "/dns-query"
	}
	s.gone.L = &s.mu
	s.ids.from = c.rand
	return s
}

// carry takes the query for a request that the next flush starts.
func (s *sessions) carry(t *try, batch *wire.SendBatch) error {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.left:
		return errLeft
	case s.flying >= maxInflight:
		return fmt.Errorf("starting a request: %w", errLimit)
	}
	r := &request{t: t, sent: slices.Clone(t.query)}
	wire.SetID(r.sent, 0)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	t.ride.request = r
	s.asked = now
	s.flying++
	s.queue = append(s.queue, r)
	if len(s.queue) == 1 {
		batch.Add(s)
	}
	return nil
}

// Flush starts the requests of a batch.
func (s *sessions) Flush() {
	s.mu.Lock()
	queue := s.queue
	s.queue = nil
	s.alive += len(queue)
	s.mu.Unlock()
	for _, r := range queue {
		go s.run(r) // joined by wait
	}
}

// drop ends the query's request.
func (s *sessions) drop(t *try) error {
	s.mu.Lock()
	r := t.ride.request
	t.ride.request = nil
	s.mu.Unlock()
	if r != nil {
		r.cancel()
	}
	return nil
}

// run does one request and tells what came.
func (s *sessions) run(r *request) {
	var batch wire.SendBatch
	defer s.endOne()
	defer r.cancel()
	got := s.ask(r)
	s.mu.Lock()
	s.flying--
	wanted := r.t.ride.request == r
	if wanted {
		r.t.ride.request = nil
	}
	s.mu.Unlock()
	if wanted {
		r.t.carried(got, &batch)
		batch.Flush()
	}
}

// endOne counts a goroutine or a session that has ended.
func (s *sessions) endOne() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alive--; s.alive == 0 {
		s.gone.Broadcast()
	}
}

// leave is retire for an upstream that nobody may ask any more.
func (s *sessions) leave() {
	s.mu.Lock()
	s.left = true
	s.mu.Unlock()
	s.retire()
}

// retire closes idle sessions now, and the others after their last request.
func (s *sessions) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
	for _, x := range slices.Clone(s.list) {
		if x.users == 0 {
			x.endLocked(errRetired)
		}
	}
}

// wait returns when no request and no session is left.
func (s *sessions) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.alive > 0 {
		s.gone.Wait()
	}
}

// open counts the sessions.
func (s *sessions) open() (now int, ever uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list), s.opened
}

// lastError says why the latest session ended before an answer came on it. It is empty once an answer has come on any.
func (s *sessions) lastError() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault == nil {
		return ""
	}
	return s.fault.Error()
}
