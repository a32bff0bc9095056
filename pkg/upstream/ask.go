// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Ask asks q, a whole query whose ID does not matter and whose EDNS size is not above 4096. It calls to.Answered once,
// at the deadline until at the latest and maybe before it returns: with the whole answer, which has q's ID and the
// response code NOERROR or NXDOMAIN, and AD only where it is to be believed ([Config.TrustAD]), or with a [*Failure].
// The answer's question has the letters that it was asked with, which may be mixed: they tell what else the server has
// copied them to, see [wire.Message.CanonicalizeQuestion]. q is kept and must not change any more, not even then: a try that
// lost to another may still be on its way. Queries leave when later is flushed at the latest.
func (p *Pool) Ask(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	if _, failure := p.begin(q, until, to, batch); failure != nil {
		to.Answered(nil, failure, batch)
	}
}

// begin begins a race, unless it is lost from the start.
func (p *Pool) begin(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) (*race, *Failure) {
	if len(q) < wire.HeaderLen {
		return nil, &Failure{Reason: Malformed, Err: errShortQuery}
	}
	list := p.current()
	if len(list.all) == 0 {
		return nil, p.nobody()
	}
	now := p.now()
	r := &race{pool: p, query: q, until: until, to: to, list: list, sides: p.choose(list, q, now)}
	if r.sides.count == 0 {
		return nil, &Failure{Reason: list.why(), Err: errAllDown}
	}
	p.hedges.earn()
	if r.run(now, batch) {
		return nil, &r.failure
	}
	return r, nil
}

// nobody is the failure of a query when there is no upstream.
func (p *Pool) nobody() *Failure {
	if p.follow != nil {
		return &Failure{Reason: NoUpstream, Err: errNoEndpoint}
	}
	return &Failure{Reason: NoUpstream, Err: ErrNoUpstream}
}

// Exchange is Ask for those who wait. It appends the answer to dst, its question in the letters of q, and ends with ctx,
// which should carry a deadline. Its error is a [*Failure], and dst then as it was. q is not changed and, like dst, not kept.
func (p *Pool) Exchange(ctx context.Context, q, dst []byte) ([]byte, error) {
	until, limited := ctx.Deadline()
	if !limited {
		until = p.now().Add(time.Hour)
	}
	var batch wire.SendBatch
	e := exchange{answer: dst, done: make(chan struct{})}
	r, failure := p.begin(append([]byte(nil), q...), until, &e, &batch) //nolint:contextcheck // ctx is looked at below
	batch.Flush()
	if failure != nil {
		return dst, failure
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		if r.abandon(ctx.Err()) {
			return dst, &r.failure
		}
		<-e.done
	}
	if e.err == nil {
		wire.CopyQuestion(e.answer[len(dst):], q)
	}
	return e.answer, e.err
}

// An exchange waits for its answer.
type exchange struct {
	answer []byte // what it begins with is the caller's
	err    error
	done   chan struct{} // closed when the fields above are final
}

// Answered implements [wire.AnswerReceiver].
func (e *exchange) Answered(answer []byte, err error, _ *wire.SendBatch) {
	e.answer, e.err = append(e.answer, answer...), err
	close(e.done)
}
