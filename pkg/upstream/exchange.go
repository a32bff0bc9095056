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
	targetSides = 2 // upstreams asked, of targets
	followSides = 3 // and of endpoints, which come and go more often
	maxSides    = max(targetSides, followSides)
	maxTries    = 6 // in all,
	sideTries   = 3 // and with one of them
	maxConns    = 3 // TCP connections opened
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
	list := p.current()
	if len(list.all) == 0 {
		return dst, p.nobody()
	}
	r := race{pool: p, q: q, list: list, sides: p.choose(list), results: make(chan result, maxTries)}
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

// nobody is the failure of an exchange when there is no upstream.
func (p *Pool) nobody() *Failure {
	if p.follow != nil {
		return &Failure{Reason: NoUpstream, Err: errNoEndpoint}
	}
	return &Failure{Reason: NoUpstream, Err: ErrNoUpstream}
}

// A race is one Exchange: tries that are started one after the other and then
// run side by side until one of them wins.
type race struct {
	pool    *Pool
	q       []byte
	plain   []byte  // q without its OPT record, made when first needed
	list    *roster // that sides were chosen from
	sides   []side  // the best first
	started int     // tries so far
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
	ep     *endpoint
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

// next starts a try on the side that had the fewest; when none may be asked
// again, the race is over but for the tries still running.
func (r *race) next(ctx context.Context) {
	if list := r.pool.current(); list != r.list {
		r.rechoose(list)
	}
	var turn *side
	for i := range r.sides {
		s := &r.sides[i]
		if !s.done && s.tries < min(sideTries, maxTries/len(r.sides)) && (turn == nil || s.tries < turn.tries) {
			turn = s
		}
	}
	r.over = turn == nil || r.started == maxTries
	if !r.over {
		r.start(ctx, turn)
	}
}

// rechoose takes the sides from a newer list. Tries that run on upstreams that
// have left go on.
func (r *race) rechoose(list *roster) {
	before := r.sides
	r.list, r.sides = list, r.pool.choose(list)
	for _, old := range before {
		if s := r.side(old.ep); s != nil {
			s.tries, s.plain, s.done = old.tries, old.plain, old.done
		}
	}
}

// side is the upstream's place in the race, nil when it has none any more.
func (r *race) side(ep *endpoint) *side {
	for i := range r.sides {
		if r.sides[i].ep == ep {
			return &r.sides[i]
		}
	}
	return nil
}

func (r *race) start(ctx context.Context, s *side) {
	s.tries++
	r.started++
	r.running++
	r.patient.Reset(s.patience)
	q, res := r.q, result{number: r.started, ep: s.ep, plain: s.plain}
	if s.plain {
		q = r.plain
	}
	ep, patience := s.ep, s.patience
	r.tries.Go(func() {
		defer r.pool.recovered(ctx, func() {
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
	side := r.side(res.ep)
	if reason != Rcode || side == nil {
		return
	}
	old := !res.edns && (res.cause == CauseFormErr || res.cause == CauseNotImp)
	switch {
	case !old || res.plain:
		side.done = true
	case !side.plain: // RFC 6891 section 7: it may only be too old for EDNS
		if r.plain == nil {
			r.plain = withoutOPT(r.q)
		}
		side.plain = r.plain != nil
		side.done = r.plain == nil
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
