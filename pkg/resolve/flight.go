// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// flightRoom is for the bytes of one flight: the key, the query and the first
// client's question, of names of some forty octets, and a cookie. Longer ones find
// room elsewhere. With it a flight has 512 octets: for more the allocator takes a
// fifth of a miss longer.
const flightRoom = 184

// A flight is one question on its way upstream, for all who asked it. It is one
// piece of memory: nothing of a common miss is anywhere else.
type flight struct {
	r        *Resolver
	plan     *Plan
	route    *Route // nil: there is none for the name
	key      []byte
	query    []byte // as sent upstream
	hash     uint64 // of key
	next     *flight
	client   *client       // whose place it takes; nil: it is a refresh
	began    time.Duration // since the resolver was made
	refresh  bool          // begun for no client
	seated   bool          // all of it is written, and may be read by others
	landed   bool          // nobody joins any more
	late     bool          // a late answer was held for somebody who waited
	overdue  bool          // and they have waited for long enough
	listed   bool          // in lates
	answered atomic.Bool   // what came of it is known

	ahead, behind *flight // in lates

	first waiter   // who began it, unless it is a refresh
	rest  []waiter // who joined it
	room  [flightRoom]byte
}

// errNoRoute is what comes of a question that no route takes.
var errNoRoute = errors.New("no route for the name")

// depart asks upstream, which has until a moment. The deadline is not the client's nor the server's: a
// flight serves whoever joins it, and what was accepted is answered even while the
// agent stops.
func (f *flight) depart(until time.Time, batch *wire.SendBatch) {
	f.r.flying.Add(1)
	defer func() {
		if defect := recover(); defect != nil {
			f.r.panicked("flight", defect)
			if !f.answered.Swap(true) {
				f.land(&outcome{ede: wire.EDEOther}, f.r.now(), batch)
			}
		}
	}()
	if f.route == nil {
		f.Answered(nil, errNoRoute, batch)
		return
	}
	f.route.Upstream.Ask(f.query, until, f, batch)
}

// Answered implements [wire.AnswerReceiver]: it keeps what may be kept, and answers
// everybody who waits. Only the first call counts.
func (f *flight) Answered(answer []byte, err error, batch *wire.SendBatch) {
	if f.answered.Swap(true) {
		return
	}
	d := desks.Get().(*desk)
	now := f.r.now()
	d.decide(f, answer, err, now)
	f.land(&d.result, now, batch)
	desks.Put(d)
}

// land ends the flight and replies to its waiters. By now the cache has what was to
// be kept, so that whoever asks from here on finds it there.
func (f *flight) land(result *outcome, now time.Time, batch *wire.SendBatch) {
	defer f.r.flying.Done()
	joined := f.r.flights.take(f)
	if result.msg == nil && f.late {
		d := desks.Get().(*desk)
		defer desks.Put(d)
		d.result = *result
		d.instead(f, now)
		result = &d.result
	}
	h := hand{r: f.r, plan: f.plan, result: result, now: now, batch: batch}
	h.giveAll(&f.first, joined)
}

// An outcome is what a flight came back with: msg, or a failure if it is nil.
type outcome struct {
	msg    []byte
	source Source
	ede    int
}

// A desk is where an answer is dealt with. It is reused.
type desk struct {
	judge

	q      wire.Query
	buf    []byte // of result.msg
	result outcome
}

var desks = sync.Pool{New: func() any { return new(desk) }} //nolint:gochecknoglobals // a pool is shared by design and holds no state

// decide makes d.result of what came for the flight.
func (d *desk) decide(f *flight, answer []byte, err error, now time.Time) {
	d.result = outcome{source: SourceUpstream, ede: wire.EDEOther}
	defer func() {
		if defect := recover(); defect != nil {
			f.r.panicked("flight", defect)
			d.result = outcome{ede: wire.EDEOther}
		}
	}()
	if err == nil {
		err = d.keep(f, answer, now)
	}
	if err != nil {
		d.fail(f, err, now)
	}
}

// keep judges the answer and stores it as long as it may be.
func (d *desk) keep(f *flight, answer []byte, now time.Time) error {
	d.buf = append(d.buf[:0], answer...) // the judge writes to it
	msg, life, err := d.judge.judge(f.route, d.buf)
	if err != nil {
		return err
	}
	d.result.msg = msg
	d.store(f, life, now)
	return nil
}

// fail remembers that there was no answer. The zone has the last word.
func (d *desk) fail(f *flight, err error, now time.Time) {
	d.result.ede = wire.EDENoReachableAuthority
	if f.route == nil {
		return // nobody was asked: there is nothing to remember
	}
	if coded, ok := errors.AsType[interface {
		error
		EDE() int
	}](err); ok {
		d.result.ede = coded.EDE()
	}
	f.r.counts.failures.Add(1)
	d.q.Parse(f.query)
	edns := d.q.EDNS
	d.q.EDNS = false // no client's flags, no OPT record
	d.buf = d.q.AppendEmpty(d.buf[:0], wire.RcodeServFail, &wire.ReplyOptions{EDE: wire.EDENone})
	f.plan.Cache.PutFailure(f.key, d.buf, time.Second, f.plan.FailureTTL, now)
	d.q.EDNS = edns
	d.lastWord(f.plan.Zone, &d.q, now)
}
