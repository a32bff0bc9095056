// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// What one Exchange may cost, whatever the upstreams do.
const (
	maxSides = 2 // upstreams asked
	maxTries = 3 // of each
	maxConns = 3 // TCP connections opened
)

// Exchange asks q, a complete query message whose ID does not matter, and
// appends the whole answer to dst, with q's ID and without what may have trailed
// it. ctx must carry a deadline; it ends the exchange when upstreams are silent.
// The query's EDNS size must not be above 4096. The answer's response code is
// NOERROR or NXDOMAIN; any other outcome is a [*Failure], and dst as it was. q
// is not changed and, like dst, not kept.
func (p *Pool) Exchange(ctx context.Context, q, dst []byte) ([]byte, error) {
	if len(q) < wire.HeaderLen {
		return dst, &Failure{Reason: Malformed, Err: errShortQuery}
	}
	sides := p.choose()
	if len(sides) == 0 {
		return dst, &Failure{Reason: NoUpstream, Err: ErrNoUpstream}
	}
	r := race{common: p.common, q: q, sides: sides, results: make(chan result, maxSides*maxTries)}
	ctx, cancel := context.WithCancel(ctx)
	answer := r.run(ctx)
	cancel()
	r.tries.Wait()
	if answer == nil {
		answer = r.late() // the deadline and an answer may come together
	}
	if answer == nil {
		return dst, &r.failure
	}
	dst = append(dst, answer...)
	wire.SetID(dst[len(dst)-len(answer):], wire.ID(q))
	return dst, nil
}

// A race is one Exchange: tries that are started one after the other and then
// run side by side until one of them wins.
type race struct {
	*common
	q       []byte
	plain   []byte // q without its OPT record, made when first needed
	sides   []side // one or two
	turn    int    // whose turn it is, counted on
	started int    // tries so far
	running int
	over    bool // no try is left to start
	conns   atomic.Int32
	patient *time.Timer // the latest try's patience
	tries   sync.WaitGroup
	results chan result // has room for all
	failure Failure     // the gravest so far; Err is nil while there is none
}

// A side is one upstream in a race.
type side struct {
	ep       *endpoint
	patience time.Duration
	tries    int
	plain    bool // it does not know EDNS: ask without the OPT record
	done     bool // it said no: do not ask again
}

// A result is how one try ended.
type result struct {
	outcome
	number int // of the try, from 1
	side   *side
	plain  bool
}

// run starts tries until one has a good answer. The next one starts when the
// latest has failed or has been silent for its patience. It returns nil when no
// good answer can be expected any more: all tries failed, time is up, or all
// had their patience and at least one upstream gave a bad answer.
func (r *race) run(ctx context.Context) []byte {
	r.patient = time.NewTimer(time.Hour)
	defer r.patient.Stop()
	r.next(ctx)
	for r.running > 0 {
		select {
		case res := <-r.results:
			r.running--
			if res.err == nil {
				return res.answer
			}
			r.note(res)
			if res.number != r.started && !r.over {
				continue // an earlier one; the latest still has its patience
			}
		case <-r.patient.C:
		case <-ctx.Done():
			return nil
		}
		r.next(ctx)
		if r.over && r.failure.Reason == Rcode {
			return nil
		}
	}
	return nil
}

// next starts a try on the side whose turn it is, or else on the other; when
// neither may be asked again, the race is over but for the tries still running.
func (r *race) next(ctx context.Context) {
	for range r.sides {
		s := &r.sides[r.turn%len(r.sides)]
		r.turn++
		if !s.done && s.tries < maxTries {
			r.start(ctx, s)
			return
		}
	}
	r.over = true
}

func (r *race) start(ctx context.Context, s *side) {
	s.tries++
	r.started++
	r.running++
	r.patient.Reset(s.patience)
	q, res := r.q, result{number: r.started, side: s, plain: s.plain}
	if s.plain {
		q = r.plain
	}
	ep, patience := s.ep, s.patience
	r.tries.Go(func() {
		defer r.recovered(ctx, func() {
			res.outcome = outcome{cause: CauseNetwork, err: errPanic}
			r.results <- res
		})
		res.outcome = ep.try(ctx, q, patience, &r.conns)
		r.results <- res
	})
}

// note remembers a bad result and what follows from it for its side.
func (r *race) note(res result) {
	reason := res.reason()
	if r.failure.Err == nil || reason >= r.failure.Reason {
		r.failure = Failure{Reason: reason, Rcode: res.rcode, Err: res.err}
	}
	if reason != Rcode {
		return
	}
	old := !res.edns && (res.cause == CauseFormErr || res.cause == CauseNotImp)
	switch {
	case !old || res.plain:
		res.side.done = true
	case !res.side.plain: // RFC 6891 section 7: it may only be too old for EDNS
		if r.plain == nil {
			r.plain = withoutOPT(r.q)
		}
		res.side.plain = r.plain != nil
		res.side.done = r.plain == nil
	}
}

// late looks through the results that came after the race was over. It may only
// be called when all tries have ended.
func (r *race) late() []byte {
	for ; r.running > 0; r.running-- {
		res := <-r.results
		if res.err == nil {
			return res.answer
		}
		r.note(res)
	}
	return nil
}

// withoutOPT is a copy of the query without its OPT record, or nil when there
// is none.
func withoutOPT(q []byte) []byte {
	var m wire.Message
	if m.Parse(append([]byte(nil), q...)) != nil || !m.HasOPT() || m.StripOPT() != nil {
		return nil
	}
	return m.Raw
}
