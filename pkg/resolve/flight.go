// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// maxRefreshes bounds the flights that nobody waits for. Refreshes give way to
// clients: a popular answer that is not refreshed is merely asked for once more.
const maxRefreshes = 256

// A flight is one question on its way upstream, for all who asked it.
type flight struct {
	key     string
	plan    *Plan
	route   *Route
	query   []byte // as sent upstream
	refresh bool   // begun for no client
	waiters []waiter
}

// A waiter is a client that waits for a flight.
type waiter struct {
	ask   wire.Ask
	alias alias // that led to the flight's question; empty if it is the client's own
	seal  wire.Seal
	from  wire.Peer
	since time.Time
	to    wire.Replier
	done  bool // to was called
}

// flights are the questions under way.
type flights struct {
	mu        sync.Mutex // guards all below
	byKey     map[string]*flight
	waiting   int
	refreshes int
}

// join adds w to the flight for q's key, beginning one if there is none. When a
// bound is reached the client is told so at once.
func (r *Resolver) join(plan *Plan, q *wire.Query, w waiter) {
	fs := &r.flights
	fs.mu.Lock()
	if fs.waiting >= plan.Waiting {
		fs.mu.Unlock()
		r.shed(ShedWaiting, &w, plan)
		return
	}
	if f := fs.byKey[string(q.Key())]; f != nil {
		f.waiters = append(f.waiters, w)
		fs.waiting++
		fs.mu.Unlock()
		r.counts.joined.Add(1)
		return
	}
	if len(fs.byKey)-fs.refreshes >= plan.Inflight {
		fs.mu.Unlock()
		r.shed(ShedInflight, &w, plan)
		return
	}
	f := newFlight(plan, q)
	f.waiters = append(f.waiters, w)
	fs.byKey[f.key] = f
	fs.waiting++
	r.launch(f, w.since)
	fs.mu.Unlock()
}

// refresh begins a flight for an answer that is due, unless one is under way.
func (r *Resolver) refresh(plan *Plan, q *wire.Query, now time.Time) {
	fs := &r.flights
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.byKey[string(q.Key())] != nil {
		return
	}
	if fs.refreshes >= maxRefreshes {
		r.counts.shed[ShedRefresh].Add(1)
		return
	}
	f := newFlight(plan, q)
	f.refresh = true
	fs.byKey[f.key] = f
	fs.refreshes++
	r.counts.prefetches.Add(1)
	r.launch(f, now)
}

// launch gives the flight its goroutine and its deadline. It is not the
// client's context nor the server's: a flight serves whoever joins it, and what
// was accepted is answered even while the agent stops.
func (r *Resolver) launch(f *flight, now time.Time) {
	left := f.plan.Deadline - r.now().Sub(now)
	r.flying.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), left)
		defer cancel()
		r.fly(ctx, f)
	})
}

func newFlight(plan *Plan, q *wire.Query) *flight {
	f := &flight{key: string(q.Key()), plan: plan, route: plan.route(q.Name())}
	f.query = q.AppendUpstream(make([]byte, 0, 128), f.route != nil && f.route.Subnet)
	return f
}

// failure is the plainest SERVFAIL to the flight's question: no client's flags,
// no OPT record.
func (f *flight) failure() []byte {
	var q wire.Query
	q.Parse(f.query)
	q.EDNS = false
	return q.AppendEmpty(nil, wire.RcodeServFail, &wire.Seal{EDE: wire.EDENone})
}

// fly asks upstream, keeps what may be kept, and answers everybody who waits.
func (r *Resolver) fly(ctx context.Context, f *flight) {
	result := outcome{source: SourceUpstream, ede: wire.EDEOther}
	defer func() {
		if defect := recover(); defect != nil {
			r.panicked(ctx, "flight", defect)
			result = outcome{source: SourceFailure, ede: wire.EDEOther}
		}
		r.land(ctx, f, &result)
	}()
	if f.route == nil {
		result.ede = wire.EDENoReachableAuthority
		return
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	answer, err := f.route.Upstream.Exchange(ctx, f.query, (*buf)[:0])
	if err == nil {
		*buf = answer
		err = r.keep(f, answer, &result)
	}
	if err != nil {
		r.fail(f, err, &result)
	}
}

// An outcome is what a flight came back with: msg, or a failure if it is nil.
type outcome struct {
	msg    []byte
	source Source
	ede    int
}

// buffers hold answers while their flights land.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 1232); return &b }} //nolint:gochecknoglobals // a pool is shared by design and holds no state

// keep judges the answer and stores it as long as it may be.
func (r *Resolver) keep(f *flight, answer []byte, result *outcome) error {
	j := judges.Get().(*judge)
	defer judges.Put(j)
	msg, life, err := j.judge(f.plan, f.route.Exact, answer)
	if err != nil {
		return err
	}
	// The waiters' replies are patched copies; this one is theirs to copy from.
	result.msg = append([]byte(nil), msg...)
	if life > 0 {
		j.answer.Msg = msg
		j.answer.Life = life
		f.plan.Cache.Put([]byte(f.key), &j.answer, r.now())
	}
	return nil
}

// fail remembers that there was no answer. The zone has the last word.
func (r *Resolver) fail(f *flight, err error, result *outcome) {
	result.source = SourceFailure
	result.ede = wire.EDENoReachableAuthority
	var coded interface{ EDE() int }
	if errors.As(err, &coded) {
		result.ede = coded.EDE()
	}
	r.counts.failures.Add(1)
	now := r.now()
	f.plan.Cache.PutFailure([]byte(f.key), f.failure(), time.Second, f.plan.FailureTTL, now)
	f.lastWord(now, result)
}

// land ends the flight and replies to its waiters.
func (r *Resolver) land(ctx context.Context, f *flight, result *outcome) {
	fs := &r.flights
	fs.mu.Lock()
	delete(fs.byKey, f.key)
	waiters := f.waiters
	f.waiters = nil
	fs.waiting -= len(waiters)
	if f.refresh {
		fs.refreshes--
	}
	fs.mu.Unlock()
	var buf []byte
	now := r.now()
	for i := range waiters {
		buf = r.answer(ctx, f.plan, &waiters[i], result, buf, now)
	}
}

// answer replies to one waiter, from room in buf, which it returns for the next.
// What goes wrong with one reply, that one client's bytes may have caused, costs
// the others nothing.
func (r *Resolver) answer(ctx context.Context, plan *Plan, w *waiter, result *outcome, buf []byte, now time.Time) []byte {
	defer func() {
		if defect := recover(); defect != nil {
			r.panicked(ctx, "reply", defect)
			if !w.done {
				w.to.Reply(nil)
			}
		}
	}()
	source, whole := result.source, false
	if result.msg != nil {
		buf, whole = w.alias.appendWhole(buf[:0], result.msg)
	}
	if whole {
		if source == SourceZone {
			w.seal.EDE = result.ede
		}
		buf = w.ask.Reply(buf, 0, &w.seal)
	} else {
		source = SourceFailure
		w.seal.EDE = result.ede
		buf = w.ask.AppendEmpty(buf[:0], wire.RcodeServFail, &w.seal)
	}
	r.reply(ctx, plan, w, source, buf, now)
	return buf
}

// panicked counts and logs a recovered panic.
func (r *Resolver) panicked(ctx context.Context, where string, defect any) {
	r.counts.panics.Add(1)
	r.log.ErrorContext(ctx, "recovered from a panic", "where", where, "panic", fmt.Sprint(defect), "stack", string(debug.Stack()))
}

// shed answers a client for whom there is no room.
func (r *Resolver) shed(reason Shed, w *waiter, plan *Plan) {
	r.counts.shed[reason].Add(1)
	w.seal.EDE = wire.EDEOther
	r.reply(context.Background(), plan, w, SourceShed, w.ask.AppendEmpty(nil, wire.RcodeServFail, &w.seal), w.since)
}

// reply sends, counts and logs a reply of the slow path.
func (r *Resolver) reply(ctx context.Context, plan *Plan, w *waiter, source Source, msg []byte, now time.Time) {
	rcode := int(msg[3] & 0x0f)
	took := now.Sub(w.since)
	r.counts.response(source, rcode, took)
	if plan.QueryLog != nil {
		plan.QueryLog.record(ctx, &w.ask, &w.from, source, rcode, took)
	}
	w.done = true
	w.to.Reply(msg)
}
