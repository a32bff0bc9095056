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
type httpsPool struct {
	*common
	target    Target
	tlsClient *tlsClient
	count     *counters

	mu          sync.Mutex    // guards the fields below, and session's where it says so
	queue       []*dohRequest // to be started by the next flush
	inFlight    int           // requests, those in the queue included
	conns       []*httpsConn  // opening or open
	opened      uint64        // sessions ever, which numbers them
	uses        uint64        // requests ever, which says whose turn it is
	lastQuery   time.Time     // when a query last came
	openLimiter openLimiter
	ids         idSource
	lastErr     error // of the latest session that ended before an answer came on it; nil once one has come
	noIdle      bool
	closed      bool
	running     int // requests that run, and sessions that are not closed yet
	cond        sync.Cond
}

// A request is one query under way.
type dohRequest struct {
	ctx     context.Context //nolint:containedctx // it is the request's own, from carry to its goroutine
	cancel  context.CancelFunc
	attempt *attempt
	msg     []byte // with ID 0 (RFC 8484 section 4.1)
}

// newHTTPS makes the carrier for HTTPS. It opens nothing yet.
func newHTTPSPool(c *common, t Target, count *counters) *httpsPool {
	p := &httpsPool{common: c, target: t, count: count, tlsClient: newTLSClient(c, t, count, "h2")}
	if p.target.Path == "" {
		p.target.Path = "/dns-query"
	}
	p.cond.L = &p.mu
	p.ids.random = c.rand
	return p
}

// carry takes the query for a request that the next flush starts.
func (p *httpsPool) send(a *attempt, batch *wire.SendBatch) error {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return errRemoved
	case p.inFlight >= maxInflight:
		return fmt.Errorf("starting a request: %w", errLimit)
	}
	r := &dohRequest{attempt: a, msg: slices.Clone(a.query)}
	wire.SetID(r.msg, 0)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	a.pending.request = r
	p.lastQuery = now
	p.inFlight++
	p.queue = append(p.queue, r)
	if len(p.queue) == 1 {
		batch.Add(p)
	}
	return nil
}

// Flush starts the requests of a batch.
func (p *httpsPool) Flush() {
	p.mu.Lock()
	queue := p.queue
	p.queue = nil
	p.running += len(queue)
	p.mu.Unlock()
	for _, r := range queue {
		go p.run(r) // joined by wait
	}
}

// drop ends the query's request.
func (p *httpsPool) cancel(a *attempt) error {
	p.mu.Lock()
	r := a.pending.request
	a.pending.request = nil
	p.mu.Unlock()
	if r != nil {
		r.cancel()
	}
	return nil
}

// run does one request and tells what came.
func (p *httpsPool) run(r *dohRequest) {
	var batch wire.SendBatch
	defer p.finishOne()
	defer r.cancel()
	got := p.do(r)
	p.mu.Lock()
	p.inFlight--
	wanted := r.attempt.pending.request == r
	if wanted {
		r.attempt.pending.request = nil
	}
	p.mu.Unlock()
	if wanted {
		r.attempt.deliver(got, &batch)
		batch.Flush()
	}
}

// endOne counts a goroutine or a session that has ended.
func (p *httpsPool) finishOne() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running--; p.running == 0 {
		p.cond.Broadcast()
	}
}

// leave is retire for an upstream that nobody may ask any more.
func (p *httpsPool) shutdown() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.closeIdle()
}

// retire closes idle sessions now, and the others after their last request.
func (p *httpsPool) closeIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noIdle = true
	for _, c := range slices.Clone(p.conns) {
		if c.inFlight == 0 {
			c.endLocked(errShutdown)
		}
	}
}

// wait returns when no request and no session is left.
func (p *httpsPool) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.running > 0 {
		p.cond.Wait()
	}
}

// open counts the sessions.
func (p *httpsPool) openCount() (now int, ever uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns), p.opened
}

// lastError says why the latest session ended before an answer came on it. It is empty once an answer has come on any.
func (p *httpsPool) lastError() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lastErr == nil {
		return ""
	}
	return p.lastErr.Error()
}
